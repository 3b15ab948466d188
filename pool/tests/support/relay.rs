//! A relay to a store over TCP that can hold back bytes of its clients.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use rdmabox::Address;

/// Time after which a test has failed.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct State {
    is_held: bool,
    /// Bytes that are held back.
    held: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    /// Forwards bytes until a stream ends.
    fn forward(&self, mut from: TcpStream, mut to: TcpStream, may_hold: bool) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if may_hold {
                let mut state = self.state.lock().expect("a lock");
                state.held += len;
                self.changed.notify_all();
                while state.is_held {
                    state = self.changed.wait(state).expect("a lock");
                }
                state.held -= len;
            }
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        [from, to].iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// A relay, until the test ends.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    address: Address,
}

impl Relay {
    pub(crate) fn to(store: &Address) -> Relay {
        let store = store.to_string().trim_start_matches("tcp:").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string().parse().expect("an address");
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(store) = TcpStream::connect(&store) else { return };
                for (from, to, may_hold) in [(&client, &store, true), (&store, &client, false)] {
                    let (from, to) = (from.try_clone().expect("a stream"), to.try_clone().expect("a stream"));
                    from.set_nodelay(true).expect("an option");
                    let shared = Arc::clone(&accepting);
                    thread::spawn(move || shared.forward(from, to, may_hold));
                }
            }
        });
        Relay { shared, address }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Holds back all bytes that clients send from now on.
    pub(crate) fn hold(&self) {
        self.shared.state.lock().expect("a lock").is_held = true;
    }

    /// Blocks until bytes are held back.
    pub(crate) fn await_held(&self) {
        let state = self.shared.state.lock().expect("a lock");
        let wait = self.shared.changed.wait_timeout_while(state, LIMIT, |state| state.held == 0);
        assert!(!wait.expect("a lock").1.timed_out(), "no bytes of a client have come");
    }

    /// Forwards the bytes that were held back.
    pub(crate) fn release(&self) {
        self.shared.state.lock().expect("a lock").is_held = false;
        self.shared.changed.notify_all();
    }
}
