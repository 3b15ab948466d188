//! A proxy to a server over TCP that can cut and delay connections.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

#[derive(Default)]
struct Shared {
    streams: Mutex<Vec<TcpStream>>,
    /// Held to stop all forwarding.
    held: Mutex<bool>,
    released: Condvar,
    /// True to close new connections immediately.
    closed: AtomicBool,
    /// Remaining bytes until all connections are cut. Negative: no limit.
    budget: AtomicI64,
    cuts: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
        for stream in self.streams.lock().expect("streams").drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    /// Forwards bytes until either stream ends.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            {
                let held = self.held.lock().expect("held");
                drop(self.released.wait_while(held, |held| *held).expect("held"));
            }
            let left = self.budget.load(Ordering::SeqCst);
            let passed = if left < 0 { len } else { len.min(left as usize) };
            if to.write_all(&buffer[..passed]).is_err() {
                break;
            }
            if left >= 0 && self.budget.fetch_sub(passed as i64, Ordering::SeqCst) <= passed as i64 {
                self.budget.store(-1, Ordering::SeqCst);
                self.cut();
                break;
            }
        }
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    }
}

/// A running proxy.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: String,
}

impl Proxy {
    /// Starts a proxy to a server at `tcp:host:port`.
    pub(crate) fn to(server: String) -> Proxy {
        let server = server.trim_start_matches("tcp:").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("listening");
        let address = listener.local_addr().expect("address").to_string();
        let shared = Arc::new(Shared { budget: AtomicI64::new(-1), ..Shared::default() });
        let accepts = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if accepts.stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = stream else { continue };
                if accepts.closed.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&server) else { continue };
                client.set_nodelay(true).expect("option");
                server.set_nodelay(true).expect("option");
                let copies = [&client, &server].map(|stream| stream.try_clone().expect("copy"));
                accepts.streams.lock().expect("streams").extend(copies);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().expect("copy"), to.try_clone().expect("copy"));
                    let shared = Arc::clone(&accepts);
                    thread::spawn(move || shared.pass(from, to));
                }
            }
        });
        Proxy { shared, address }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Cuts all connections immediately.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }

    /// Cuts all connections after `bytes` more bytes.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.shared.budget.store(bytes as i64, Ordering::SeqCst);
    }

    /// Returns true until that cut.
    pub(crate) fn will_cut(&self) -> bool {
        self.shared.budget.load(Ordering::SeqCst) >= 0
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Refuses or accepts new connections.
    pub(crate) fn close(&self, closed: bool) {
        self.shared.closed.store(closed, Ordering::SeqCst);
    }

    /// Stops all forwarding for some time.
    pub(crate) fn hold_for(&self, time: Duration) {
        *self.shared.held.lock().expect("held") = true;
        thread::sleep(time);
        *self.shared.held.lock().expect("held") = false;
        self.shared.released.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        *self.shared.held.lock().expect("held") = false;
        self.shared.released.notify_all();
        self.shared.cut();
        // Wakes the accepting thread.
        TcpStream::connect(&self.address).ok();
    }
}
