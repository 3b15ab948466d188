//! Accepts connections, and distributes them over the workers.
//!
//! # Concurrency
//! One thread. The end of the server shuts the socket down, which ends the wait.

use std::{net::TcpListener, os::fd::OwnedFd, sync::Arc, thread, time::Duration};

use rustix::{
    io::Errno,
    net::{SendFlags, SocketFlags},
};

use super::{mailbox::Mailbox, server_state::ServerState};

/// Pause after an error of accept, for example if there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// The answer to a connection above the limit.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

pub(super) struct Acceptor {
    pub(super) listener: Arc<TcpListener>,
    pub(super) shared: Arc<ServerState>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
}

impl Acceptor {
    /// Runs until the server ends.
    pub(super) fn run(self) {
        let mut turns = self.mailboxes.iter().cycle();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            let accepted = rustix::net::accept_with(&*self.listener, flags);
            if self.shared.stops() {
                return;
            }
            match accepted {
                Ok(socket) => self.admit(socket, turns.next()),
                // The client has gone already.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    log::warn!("cannot accept a connection of the text protocol: {error}");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    fn admit(&self, socket: OwnedFd, mailbox: Option<&Arc<Mailbox>>) {
        if !self.shared.admit() {
            log::debug!("a connection of the text protocol is refused: there are too many");
            // The client may have gone already.
            rustix::net::send(&socket, TOO_MANY, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok();
            return;
        }
        // Without it answers are slower, and right.
        if let Err(error) = rustix::net::sockopt::set_tcp_nodelay(&socket, true) {
            log::debug!("cannot set TCP_NODELAY: {error}");
        }
        if let Some(mailbox) = mailbox {
            mailbox.post(socket);
        }
    }
}
