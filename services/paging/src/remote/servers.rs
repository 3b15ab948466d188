//! The servers that lend memory, and which of them are lost.
//!
//! Invariant: a lost server is never used again. Its copies are void from then on, because the
//! outcome of the request that failed is unknown.
//!
//! # Concurrency
//! The fault thread owns the values. Only callbacks of write-outs run elsewhere, and they own
//! their buffers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rdmabox::{Address, Buffer, RemoteAddr, RequestError, Session, SessionOptions, verbs::VerbsError};

use crate::{
    error::PagingError,
    lender::protocol::{self, LentChunk},
    logic::{
        PAGE,
        chunks::{CHUNK, Replica, Replicas},
    },
};

/// Attempts for one request, before its server is given up. The failure of a queue pair ends all
/// requests posted there, so one request may fail several times in a row.
pub(crate) const ATTEMPTS: u32 = 8;
/// How long a server that was full is not asked for a chunk again.
const FULL_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct Server {
    address: Address,
    session: Arc<Session>,
    is_lost: bool,
    full_until: Option<Instant>,
    chunks: usize,
    /// Registered buffers of a page each, not in use.
    buffers: Vec<Buffer>,
}

/// The servers of a pager, by index.
#[derive(Debug)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    copies: usize,
}

/// The outcome of [`Servers::place`].
#[derive(Debug)]
pub(crate) enum Placement {
    /// The chunk has a place at each of the servers.
    Placed(Replicas<LentChunk>),
    /// Too few servers have room.
    NoRoom,
    /// A server failed. Try again without it.
    Failed(usize, RequestError),
}

/// Connects to a server.
pub(super) fn connect(address: &Address, options: &SessionOptions) -> Result<Arc<Session>, PagingError> {
    Session::connect(address, options)
        .map_err(|source| PagingError::Connect { address: address.clone(), source })
}

impl Servers {
    /// Connects to all servers, and checks that they lend memory.
    pub(crate) fn connect(
        addresses: &[Address],
        options: &SessionOptions,
        copies: usize,
    ) -> Result<Servers, PagingError> {
        let server = |address: &Address| {
            let session = connect(address, options)?;
            protocol::status(&session)
                .map_err(|source| PagingError::NotALender { address: address.clone(), source })?;
            let (address, buffers) = (address.clone(), Vec::new());
            Ok(Server { address, session, is_lost: false, full_until: None, chunks: 0, buffers })
        };
        Ok(Servers { servers: addresses.iter().map(server).collect::<Result<_, _>>()?, copies })
    }

    /// The sessions, of lost servers as well.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.servers.iter().map(|server| Arc::clone(&server.session)).collect()
    }

    pub(crate) fn address(&self, server: usize) -> &Address {
        &self.servers[server].address
    }

    pub(crate) fn session(&self, server: usize) -> &Arc<Session> {
        &self.servers[server].session
    }

    pub(crate) fn is_lost(&self, server: usize) -> bool {
        self.servers[server].is_lost
    }

    /// Number of servers.
    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// Number of servers that are not lost.
    pub(crate) fn live(&self) -> usize {
        self.servers.iter().filter(|server| !server.is_lost).count()
    }

    /// Number of chunks at all servers.
    pub(crate) fn chunks(&self) -> usize {
        self.servers.iter().map(|server| server.chunks).sum()
    }

    /// Marks a server lost. Returns false if it was before.
    pub(crate) fn lose(&mut self, server: usize) -> bool {
        let server = &mut self.servers[server];
        let first = !server.is_lost;
        server.is_lost = true;
        server.chunks = 0;
        server.buffers.clear();
        if first {
            server.session.close(Duration::ZERO);
        }
        first
    }

    /// Takes a buffer of one page, registered with the server's session.
    pub(crate) fn take_buffer(&mut self, server: usize) -> Result<Buffer, VerbsError> {
        let server = &mut self.servers[server];
        server.buffers.pop().map_or_else(|| server.session.allocate(PAGE), Ok)
    }

    /// Gives a buffer back.
    pub(crate) fn give_buffer(&mut self, server: usize, buffer: Buffer) {
        let server = &mut self.servers[server];
        if !server.is_lost {
            server.buffers.push(buffer);
        }
    }

    /// Number of copies that a page can have now: with fewer live servers than copies, one at each.
    pub(crate) fn wanted(&self) -> usize {
        self.copies.min(self.live())
    }

    /// Gets a chunk at each of `wanted` servers that are not among `holders`: those with the fewest
    /// chunks.
    pub(crate) fn place(&mut self, wanted: usize, holders: &[usize]) -> Placement {
        let now = Instant::now();
        let mut candidates: Vec<usize> = (0..self.servers.len())
            .filter(|index| !self.servers[*index].is_lost && !self.servers[*index].is_full(now))
            .filter(|index| !holders.contains(index))
            .collect();
        if wanted == 0 || candidates.len() < wanted {
            return Placement::NoRoom;
        }
        candidates.sort_by_key(|index| self.servers[*index].chunks);
        let mut placed = Replicas::new();
        for index in candidates {
            if placed.len() == wanted {
                break;
            }
            match protocol::allocate(&self.servers[index].session, CHUNK) {
                Ok(Some(memory)) => {
                    self.servers[index].chunks += 1;
                    placed.push(Replica { server: index, memory });
                }
                Ok(None) => self.servers[index].full_until = Some(now + FULL_PAUSE),
                Err(error) => {
                    self.free(placed.to_vec());
                    return Placement::Failed(index, error);
                }
            }
        }
        if placed.len() == wanted {
            Placement::Placed(placed)
        } else {
            self.free(placed.to_vec());
            Placement::NoRoom
        }
    }

    /// Gives chunks back to their servers. Does not wait.
    pub(crate) fn free(&mut self, replicas: Vec<Replica<LentChunk>>) {
        for (index, server) in self.servers.iter_mut().enumerate() {
            let of_server = replicas.iter().filter(|replica| replica.server == index);
            let numbers: Vec<u32> = of_server.map(|replica| replica.memory.number).collect();
            if numbers.is_empty() || server.is_lost {
                continue;
            }
            server.chunks = server.chunks.saturating_sub(numbers.len());
            for part in numbers.chunks(4096) {
                // A server that cannot be reached is found lost by the next request.
                let _ = protocol::start_free(&server.session, part.to_vec());
            }
        }
    }
}

impl Server {
    fn is_full(&self, now: Instant) -> bool {
        self.full_until.is_some_and(|until| now < until)
    }
}

/// Returns true if a request that failed may be repeated before its server is given up.
pub(crate) fn may_repeat(error: &RequestError) -> bool {
    // A server that does not answer in time would take as long again.
    error.is_retryable() && !matches!(error, RequestError::Timeout(_))
}

/// Returns the address of a page in a chunk.
pub(crate) fn page_address(chunk: &LentChunk, page_in_chunk: usize) -> RemoteAddr {
    chunk.memory.base().at((page_in_chunk * PAGE) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lender, LenderOptions};

    #[test]
    fn a_full_server_of_a_mirror_spares_the_other_one_calls() {
        let listen = |memory| {
            let address = "127.0.0.1:0".parse().expect("an address");
            let options = LenderOptions::new(memory).allow_without_keys(true);
            Lender::listen(&[address], &options).expect("a lender")
        };
        let lenders = [listen(8 << 20), listen(1 << 20)];
        let addresses: Vec<Address> = lenders.iter().map(|lender| lender.addresses()[0].clone()).collect();
        let mut options = SessionOptions::default();
        options.provider = Some(rdmabox::ProviderKind::Tcp);
        let mut servers = Servers::connect(&addresses, &options, 2).expect("servers");
        assert!(matches!(servers.place(2, &[]), Placement::Placed(_)));
        // The second server is found full.
        assert!(matches!(servers.place(2, &[]), Placement::NoRoom));
        servers.servers[1].full_until = Some(Instant::now() + Duration::from_secs(60));
        // From now on a call of the first server fails.
        let [first, _second] = lenders;
        drop(first);
        assert!(matches!(servers.place(2, &[]), Placement::NoRoom), "no call");
        assert!(matches!(servers.place(1, &[]), Placement::Failed(0, _)));
    }
}
