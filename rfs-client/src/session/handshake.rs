//! Attaching over a connected session.
//!
//! # Concurrency
//! The calling thread.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use rdmabox::RequestError;
use rfs_proto::{
    Attached, ClientDescription, Errno, Identity, Reply, Request, VERSION, refused_by_version, speaks,
};

use crate::{
    error::ClientError,
    remote::{
        address::Regions,
        clock::{ServerClock, local_now},
        messages::exchange,
    },
    session::options::AttachOptions,
};

/// Pause between two attempts to attach.
const PAUSE: Duration = Duration::from_millis(10);

/// Limit of the wait until the server has ended the mount's previous session. It is longer than
/// the server's wait for a client that has memory mapped.
pub(crate) const SESSION_END_TIMEOUT: Duration = Duration::from_secs(5);

/// The server's reply to an attach, its clock, and the version of the protocol.
pub(crate) struct AttachReply {
    pub(crate) attached: Attached,
    pub(crate) clock: ServerClock,
    pub(crate) version: u32,
}

/// Attaches over a connected session, on which `call` makes a call. The session has the newest
/// version of the protocol that both sides speak. Retries for up to `busy_timeout` while other
/// sessions keep it out, or the mount's previous session still ends. `transport` describes the
/// session.
pub(crate) fn attach_session(
    call: impl Fn(&[u8], &mut Vec<u8>) -> Result<(), RequestError>,
    transport: String,
    AttachOptions { export, caches, exclusive, mount_point, outlives_process, .. }: &AttachOptions,
    mount: Option<Identity>,
    busy_timeout: Duration,
) -> Result<AttachReply, ClientError> {
    let client = description(mount_point.clone(), transport, *outlives_process).to_text();
    let mut version = VERSION;
    let give_up = Instant::now() + busy_timeout;
    loop {
        let request =
            Request::Attach { version, client: &client, export, keeps: *caches, alone: *exclusive, mount };
        let sent = local_now();
        let refused_by = Cell::new(None);
        let reply = exchange(&request, |request, reply| {
            call(request, reply)?;
            refused_by.set(refused_by_version(reply));
            Ok(())
        });
        match refused_by.get() {
            // The server is older. Each attempt has a lower version, so the attempts end.
            Some(server) if server < version && speaks(server) => {
                version = server;
                continue;
            }
            Some(server) => return Err(ClientError::Version { server }),
            None => {}
        }
        match reply?.0 {
            Reply::InUse(_) | Reply::Ending if Instant::now() < give_up => thread::sleep(PAUSE),
            Reply::Attached(attached) if !Regions::of(&attached).are_addressable() => {
                return Err(ClientError::Protocol("a region past the end of the address space"));
            }
            Reply::Attached(attached) => {
                let clock = ServerClock::from_exchange(sent, attached.now, local_now());
                return Ok(AttachReply { attached, clock, version });
            }
            Reply::InUse(others) => return Err(ClientError::InUse(others)),
            Reply::Ending => return Err(ClientError::Errno(Errno::EAGAIN)),
            _ => return Err(ClientError::Protocol("the reply to Attach is of the wrong kind")),
        }
    }
}

/// Describes this process to the server.
fn description(mount_point: String, transport: String, outlives_process: bool) -> ClientDescription {
    ClientDescription {
        program: format!("rfs-fuse {}", env!("CARGO_PKG_VERSION")),
        pid: Some(std::process::id()),
        host: host_name(),
        user: Some(rustix::process::geteuid().as_raw()),
        mount_point,
        transport,
        outlives_process,
    }
}

/// Returns the name of this host; empty if the kernel does not tell it.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}
