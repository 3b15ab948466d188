//! Debian's etcd in a process of its own.
#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A running etcd with a folder of its own. Dropping it ends the process.
pub(crate) struct Etcd {
    dir: tempfile::TempDir,
    ports: [u16; 2],
    process: Option<Child>,
}

impl Etcd {
    /// Starts an etcd. Returns `None` and says so if this machine has none; `ci/setup` installs it.
    pub(crate) fn start() -> Option<Etcd> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("not run: this machine has no etcd (Debian's package etcd-server)");
            return None;
        }
        // Both are held at the same time, so they differ.
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let ports = free.map(|socket| socket.local_addr().expect("an address").port());
        let mut etcd = Etcd { dir: tempfile::tempdir().expect("a folder"), ports, process: None };
        etcd.restart();
        Some(etcd)
    }

    /// Returns the address for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Starts etcd with its old data, and blocks until it answers.
    pub(crate) fn restart(&mut self) {
        let (url, peer) = (self.url(), format!("http://127.0.0.1:{}", self.ports[1]));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.dir.path().join("data"));
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().expect("etcd"));
        let give_up = Instant::now() + Duration::from_secs(60);
        while !self.get("/health").is_some_and(|answer| answer.contains("\"health\":\"true\"")) {
            assert!(Instant::now() < give_up, "etcd does not answer");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills etcd with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("killed");
            process.wait().expect("its end");
        }
    }

    /// Returns how many requests of each kind etcd has received since its start.
    pub(crate) fn requests(&self) -> BTreeMap<String, u64> {
        let metrics = self.get("/metrics").expect("the metrics of etcd");
        let count = |line: &str| {
            let (labels, value) = line.strip_prefix("grpc_server_started_total{")?.split_once("} ")?;
            let method = labels.split("grpc_method=\"").nth(1)?.split('"').next()?;
            Some((method.to_owned(), value.parse::<f64>().ok()? as u64)).filter(|(_, count)| *count > 0)
        };
        metrics.lines().filter_map(count).collect()
    }

    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports[0])).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
