//! Serves metrics over HTTP, with bounds that no client can exceed.
//!
//! At most [`MAX_CONNECTIONS`] connections are open, each for [`LIMIT`] to ask and as long to read.
//! The metrics are collected four times a second at most: other requests get the last text.
//!
//! # Concurrency
//! One thread accepts, and each connection has a thread. One lock over the last text, which is held
//! while the metrics are collected.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::net::Shutdown;

use super::request::{MAX_HEAD, Verdict, head, judge};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 8;
/// Limit of the time to ask, and of the time to take the answer.
const LIMIT: Duration = Duration::from_secs(2);
/// Age up to which a text is given again.
const FRESH: Duration = Duration::from_millis(250);
/// Pause after a failed `accept`, when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(200);

/// The metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address cannot be used.
    #[error("--metrics {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// There is no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Parses the address of an endpoint: a network address and a port.
///
/// # Errors
/// The text is something else.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| {
        format!("invalid address {text:?}: expected a numeric address and a port, such as 127.0.0.1:9430 or [::]:9430")
    })
}

/// The metrics, and their last text.
struct Source {
    collect: Box<dyn Fn() -> String + Send + Sync>,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Source {
    fn text(&self) -> Arc<str> {
        let mut last = self.last.lock();
        if let Some((_, text)) = last.as_ref().filter(|(since, _)| since.elapsed() < FRESH) {
            return Arc::clone(text);
        }
        let text: Arc<str> = (self.collect)().into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

/// An address that serves metrics. Dropping it ends the service.
pub struct Endpoint {
    address: SocketAddr,
    listener: TcpListener,
    /// Connections refer to it only while they collect.
    _source: Arc<Source>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

/// An address that is taken and does not serve yet. A program takes it before it does work that is
/// hard to undo.
#[derive(Debug)]
pub struct BoundEndpoint {
    address: SocketAddr,
    listener: TcpListener,
}

impl BoundEndpoint {
    /// Takes an address.
    ///
    /// # Errors
    /// The address is in use or not of this machine.
    pub fn bind(address: SocketAddr) -> Result<BoundEndpoint, EndpointError> {
        let failed = |source| EndpointError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(BoundEndpoint { address, listener })
    }

    /// Returns the address, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the text that `collect` returns at `http://address/metrics`.
    ///
    /// # Errors
    /// There is no thread.
    pub fn serve(
        self,
        collect: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Endpoint, EndpointError> {
        let BoundEndpoint { address, listener } = self;
        let own = listener.try_clone().map_err(|source| EndpointError::Bind { address, source })?;
        let source = Arc::new(Source { collect: Box::new(collect), last: Mutex::default() });
        let weak = Arc::downgrade(&source);
        let serve = move || accept(&own, &weak);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(serve);
        let thread = Some(thread.map_err(EndpointError::Thread)?);
        Ok(Endpoint { address, listener, _source: source, thread })
    }
}

impl Endpoint {
    /// Returns the address, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Makes `accept` return.
        rustix::net::shutdown(&self.listener, Shutdown::Both).ok();
        if let Some(thread) = self.thread.take() {
            // The thread does nothing that panics.
            thread.join().ok();
        }
    }
}

/// One of the connections. Dropping it makes room for another one.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Option<Place> {
        let more = |count| (count < MAX_CONNECTIONS).then_some(count + 1);
        open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Place(Arc::clone(open)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn accept(listener: &TcpListener, source: &Weak<Source>) {
    let open = Arc::<AtomicUsize>::default();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // The owner has shut the socket down.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
            Err(e) => {
                log::debug!("the metrics address accepts no connection: {e}");
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        // A surplus connection is closed at once.
        let Some(place) = Place::take(&open) else { continue };
        let source = Weak::clone(source);
        let serve = move || {
            if let Err(e) = serve(stream, &source) {
                log::debug!("a request for metrics got no answer: {e}");
            }
            drop(place);
        };
        if let Err(e) = std::thread::Builder::new().name("metrics-http".into()).spawn(serve) {
            log::debug!("no thread for a request for metrics: {e}");
        }
    }
}

/// Answers one connection.
fn serve(mut stream: TcpStream, source: &Weak<Source>) -> io::Result<()> {
    let verdict = receive(&mut stream, Instant::now() + LIMIT)?;
    let (status, reason, body) = match verdict {
        Verdict::Metrics | Verdict::Head => match source.upgrade() {
            Some(source) => (200, "OK", source.text()),
            None => (503, "Service Unavailable", "the program ends\n".into()),
        },
        Verdict::Refused(status, reason) => (status, reason, format!("{reason}: GET /metrics\n").into()),
        Verdict::Incomplete => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let mut answer = head(status, reason, body.len());
    if verdict != Verdict::Head {
        answer.push_str(&body);
    }
    send(&mut stream, answer.as_bytes(), Instant::now() + LIMIT)
}

/// Receives the head of a request.
fn receive(stream: &mut TcpStream, deadline: Instant) -> io::Result<Verdict> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(Verdict::Incomplete),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        debug_assert!(bytes.len() <= MAX_HEAD + chunk.len());
        match judge(&bytes) {
            Verdict::Incomplete => {}
            verdict => return Ok(verdict),
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    stream.shutdown(std::net::Shutdown::Write)
}

/// Returns the time until a deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).ok();
        let mut answer = String::new();
        // A surplus connection may be reset.
        stream.read_to_string(&mut answer).ok();
        answer
    }

    const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";

    fn start() -> (Endpoint, Arc<AtomicUsize>) {
        let collected = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&collected);
        let collect = move || {
            count.fetch_add(1, Ordering::Relaxed);
            "a 1\n".into()
        };
        let bound = BoundEndpoint::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        (bound.serve(collect).unwrap(), collected)
    }

    #[test]
    fn metrics_are_served_and_collected_rarely() {
        let (endpoint, collected) = start();
        for _ in 0..5 {
            let answer = get(endpoint.address(), METRICS);
            assert!(
                answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\na 1\n"),
                "{answer}"
            );
        }
        assert!(collected.load(Ordering::Relaxed) < 5);
        let head = get(endpoint.address(), "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(get(endpoint.address(), "GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        let address = endpoint.address();
        drop(endpoint);
        assert!(TcpStream::connect(address).is_err(), "it still listens");
    }

    /// Catches connections without a bound, and silent ones that stay for ever.
    #[test]
    fn silent_connections_have_a_bound_and_an_end() {
        let (endpoint, _) = start();
        let silent: Vec<_> =
            (0..MAX_CONNECTIONS + 4).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
        let begin = Instant::now();
        for mut stream in silent {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // A surplus connection may be reset.
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        }
        assert!(begin.elapsed() < 3 * LIMIT, "{:?}", begin.elapsed());
        // The place of a connection is free shortly after its end.
        while !get(endpoint.address(), METRICS).starts_with("HTTP/1.1 200 OK\r\n") {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn addresses_are_numeric_and_used_once() {
        assert_eq!(parse_address("localhost:1"), Ok("127.0.0.1:1".parse().unwrap()));
        assert_eq!(parse_address("[::1]:1"), Ok("[::1]:1".parse().unwrap()));
        for wrong in ["", "9430", ":9430", "h:1", "127.0.0.1", "127.0.0.1:65536"] {
            assert!(parse_address(wrong).unwrap_err().contains("127.0.0.1:9430"), "{wrong}");
        }
        let (endpoint, _) = start();
        let error = BoundEndpoint::bind(endpoint.address()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--metrics {}: ", endpoint.address())), "{error}");
    }
}
