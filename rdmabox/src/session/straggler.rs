//! A client of this host that has memory mapped and does not let go of it when its session is over.
//!
//! Its requests are carried out by its own processor, so that no queue pair can be taken away from it: nothing but the end of
//! the process takes its mapping. Until then its memory must not be given to anybody else. What can be done is to wait,
//! and to see to it that the wait ends.

use std::os::fd::OwnedFd;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal},
};

use super::stream::Stream;

/// The process of a client, by a descriptor: its number could come to mean another one.
#[derive(Debug)]
pub(super) struct ClientProcess {
    pid: Pid,
    descriptor: OwnedFd,
}

impl ClientProcess {
    /// Who connected a Unix stream. `None` for other streams, for this process, and where it cannot be known: in another pid
    /// namespace, or ended already.
    pub(super) fn of(stream: &Stream) -> Option<ClientProcess> {
        let Stream::Unix(unix) = stream else { return None };
        let pid = socket_peercred(unix).ok()?.pid;
        // A process that the kernel cannot name here has number 0.
        if pid.as_raw_nonzero().get() <= 0 || pid == getpid() {
            return None;
        }
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // It was the right one if it has not ended in between.
        (!stream.is_over()).then_some(ClientProcess { pid, descriptor })
    }

    /// For people.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// True once it has ended, whether or not anybody has waited for it.
    pub(super) fn has_ended(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        // What cannot be looked at is taken for alive.
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Ends it, also if it is stopped.
    pub(super) fn kill(&self) -> std::io::Result<()> {
        Ok(pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn nobody_is_taken_for_a_client_but_another_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(ClientProcess::of(&Stream::Unix(a)).is_none(), "this process");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(ClientProcess::of(&Stream::Tcp(tcp)).is_none());
    }
}
