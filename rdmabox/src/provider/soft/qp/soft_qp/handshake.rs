//! The handshake of two queue pairs: versions, and the table of memory that a side may map.
//!
//! # Concurrency
//! The thread that connects the queue pair.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use zerocopy::{FromZeros, IntoBytes};

use crate::{
    provider::soft::{
        memory::PeerMemory,
        qp::{SoftPd, link::Link},
        stream::Socket,
        wire::{Hello, MAGIC, MAPS_NOTHING, VERSION},
    },
    verbs::{Rendezvous, VerbsError},
};

/// Exchanges the first messages of queue pair `num`. `maps`: this side maps the peer's memory.
pub(super) fn handshake(
    num: u32,
    maps: bool,
    pd: &SoftPd,
    stream: Rendezvous,
    timeout: Duration,
) -> Result<Link, VerbsError> {
    // A deadline beyond the clock's range means no limit.
    let deadline = Instant::now().checked_add(timeout);
    // A side that maps nothing refuses descriptors.
    let socket = Socket::new(stream, timeout, maps)?;
    let table = pd.table_for_peer(socket.is_unix())?;
    let hello = Hello {
        magic: MAGIC,
        version: VERSION.into(),
        flags: (if maps { 0 } else { MAPS_NOTHING }).into(),
        qp_num: num.into(),
        table_len: table.as_ref().map_or(0, |(_, len)| *len as u64).into(),
    };
    socket.send_all(hello.as_bytes(), table.as_ref().map(|(fd, _)| fd.as_fd()))?;
    let mut theirs = Hello::new_zeroed();
    let mut fds = Vec::new();
    socket.receive_exact(theirs.as_mut_bytes(), &mut fds, deadline)?;
    if theirs.magic != MAGIC {
        return Err(VerbsError::Protocol("no rdmabox queue pair at the other end".into()));
    }
    if theirs.version.get() != VERSION {
        let theirs = theirs.version.get();
        return Err(VerbsError::Protocol(format!("it has version {theirs}, this side has {VERSION}")));
    }
    let table = fds.pop().filter(|_| theirs.table_len.get() > 0);
    let shares = match maps {
        true => table.is_some(),
        false => socket.is_unix() && theirs.table_len.get() > 0 && theirs.flags.get() & MAPS_NOTHING == 0,
    };
    let peer = match table.filter(|_| maps) {
        Some(fd) => {
            let len = usize::try_from(theirs.table_len.get())
                .map_err(|_| VerbsError::Protocol("table too long".into()))?;
            Some(
                PeerMemory::new(fd, len, pd.peer_mappings())
                    .map_err(|e| VerbsError::Protocol(e.to_string()))?,
            )
        }
        None => None,
    };
    Ok(Link { socket: socket.into_nonblocking()?, peer, shares })
}
