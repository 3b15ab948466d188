//! Scrapes metrics with Debian's prometheus, as users do.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time for prometheus to start and to scrape.
const LIMIT: Duration = Duration::from_secs(60);

/// A running prometheus. Dropping it ends it.
pub struct Prometheus {
    child: Child,
    address: String,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Starts to scrape `target` five times a second. Returns `None` without prometheus.
    pub fn scrape(target: &str) -> Option<Prometheus> {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let config = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\n\
             scrape_configs:\n- {{job_name: rfs, static_configs: [{{targets: ['{target}']}}]}}\n"
        );
        fs::write(path("prometheus.yml"), config).unwrap();
        // A port that is free at this moment.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let log = path("log");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", path("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", path("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let child = command.spawn().ok()?;
        Some(Prometheus { child, address, log, _directory: directory })
    }

    /// Waits for an answer to a query that contains `expected`.
    pub fn wait_for(&self, query: &str, expected: &str) {
        let end = Instant::now() + LIMIT;
        let mut last = String::new();
        while Instant::now() < end {
            last = self.ask(query).unwrap_or_default();
            if last.contains(expected) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        panic!("{query}: {expected:?} is not in {last:?}; prometheus: {log}");
    }

    fn ask(&self, query: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        // Queries of the tests need no escapes.
        write!(stream, "GET /api/v1/query?query={query} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
