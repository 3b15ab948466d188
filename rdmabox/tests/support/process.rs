//! Runs a host or a client in a separate process that can be stopped and killed.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
};

use rdmabox::{Address, ProviderKind};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::Fixture;

const ROLE: &str = "RDMABOX_TEST_HOST";

/// Runs the role of this process. Each program that starts such processes calls it from an
/// ignored test named `host` at its root.
pub fn serve() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let f = Fixture::new(role.parse().unwrap());
    // The harness has printed to standard output without ending its line.
    println!("\nready {}", f.address);
    // Until the other process ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Returns the role of this process from [`ROLE`]: the name of an ignored test, and its
/// arguments.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A process, killed at the end if not before.
pub struct Other {
    child: Child,
    /// The line that the process printed when it was ready.
    pub said: String,
}

/// The process of a host.
pub struct HostProcess {
    process: Other,
    pub address: Address,
}

impl HostProcess {
    pub fn start(provider: ProviderKind) -> HostProcess {
        let process = Other::start("host", &provider.to_string());
        let address = process.said.parse().unwrap();
        HostProcess { process, address }
    }
}

impl std::ops::Deref for HostProcess {
    type Target = Other;

    fn deref(&self) -> &Other {
        &self.process
    }
}

impl Other {
    /// Starts one, and returns when it has said `ready`.
    pub fn start(test: &str, role: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", test])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("ready ").map(str::to_owned))
            .unwrap();
        Other { child, said }
    }

    /// Waits until it has ended, and says how.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Returns when none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitid(WaitId::Pid(self.pid()), WaitIdOptions::STOPPED).unwrap();
        assert!(stopped.is_some_and(|status| status.stopped()));
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL. Does not wait for the end.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
