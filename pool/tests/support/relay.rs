//! A relay over TCP that can hold back the bytes of some connections, in both directions.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use rdmabox::Address;

/// Time after which a test has failed.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct State {
    /// The accepted connections. They have their positions as numbers.
    connections: Vec<[TcpStream; 2]>,
    /// Tells by the number of a connection whether its bytes are held back.
    held: Option<Box<dyn Fn(usize) -> bool + Send>>,
    /// Bytes of clients that are held back.
    held_bytes: usize,
}

impl State {
    fn holds(&self, connection: usize) -> bool {
        self.held.as_ref().is_some_and(|held| held(connection))
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a lock")
    }

    /// Forwards bytes until a stream ends.
    fn forward(&self, connection: usize, mut from: TcpStream, mut to: TcpStream, of_client: bool) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let counted = if of_client { len } else { 0 };
            let mut state = self.state();
            state.held_bytes += if state.holds(connection) { counted } else { 0 };
            let was_held = state.holds(connection);
            self.changed.notify_all();
            while state.holds(connection) {
                state = self.changed.wait(state).expect("a lock");
            }
            state.held_bytes -= if was_held { counted } else { 0 };
            drop(state);
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        // A cut network does not tell of the end either.
        let state = self.state();
        let cut = self.changed.wait_while(state, |state| state.holds(connection));
        drop(cut.expect("a lock"));
        [from, to].iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Accepts a connection, and forwards its bytes.
    fn accept(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let mut state = self.state();
        let number = state.connections.len();
        let copy = |stream: &TcpStream| stream.try_clone().expect("a stream");
        state.connections.push([copy(&client), copy(&server)]);
        drop(state);
        for (from, to, of_client) in [(&client, &server, true), (&server, &client, false)] {
            let (from, to, shared) = (copy(from), copy(to), Arc::clone(self));
            from.set_nodelay(true).expect("an option");
            thread::spawn(move || shared.forward(number, from, to, of_client));
        }
    }
}

/// A relay, until the test ends.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    address: Address,
}

impl Relay {
    pub(crate) fn to(target: &Address) -> Relay {
        let target = target.to_string().trim_start_matches("tcp:").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string().parse().expect("an address");
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&target) else { return };
                accepting.accept(client, server);
            }
        });
        Relay { shared, address }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the number of connections so far, which is the number of the next one.
    pub(crate) fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Holds back all bytes of some connections from now on, and of no others. `held` tells by its
    /// number whether a connection is held.
    pub(crate) fn hold(&self, held: impl Fn(usize) -> bool + Send + 'static) {
        self.shared.state().held = Some(Box::new(held));
        self.shared.changed.notify_all();
    }

    /// Blocks until so many bytes of clients are held back.
    pub(crate) fn await_held(&self, bytes: usize) {
        let state = self.shared.state();
        let wait = self.shared.changed.wait_timeout_while(state, LIMIT, |state| state.held_bytes < bytes);
        assert!(!wait.expect("a lock").1.timed_out(), "no bytes of a client have come");
    }

    /// Forwards the bytes that were held back.
    pub(crate) fn release(&self) {
        self.hold(|_| false);
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        let ends = |stream: &TcpStream| drop(stream.shutdown(Shutdown::Both));
        self.shared.state().connections.iter().flatten().for_each(ends);
    }
}
