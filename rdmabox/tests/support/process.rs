//! A host in a process of its own, so that it can be stopped and killed.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

use rdmabox::{Address, ProviderKind};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::Fixture;

const ROLE: &str = "RDMABOX_TEST_HOST";

/// What the process does: the body of an ignored test with the name `host`, which each program that starts such processes has.
pub fn serve() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let f = Fixture::new(role.parse().unwrap());
    // The harness has printed to standard output without ending its line.
    println!("\nready {}", f.address);
    // Until the other process ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// The process, killed at the end if not before.
pub struct HostProcess {
    child: Child,
    pub address: Address,
}

impl HostProcess {
    pub fn start(provider: ProviderKind) -> HostProcess {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "host"])
            .env(ROLE, provider.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let address = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("ready ").map(|address| address.parse().unwrap()))
            .unwrap();
        HostProcess { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns when none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stopped = waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).unwrap();
        assert!(stopped.is_some_and(|status| status.stopped()));
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGKILL. Does not wait for anything.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
