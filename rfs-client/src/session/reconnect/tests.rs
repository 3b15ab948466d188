//! Tests of a remote that reconnects: sessions end at any moment, and the server counts requests.

use std::collections::HashMap;

use proptest::prelude::*;
use rfs_proto::{RegionRef, Request, decode_request, encode_request};

use crate::{
    remote::{
        CallOptions, RemoteExt, ReplyWait, Status,
        address::{Place, Region},
        operation::{Access, Op, Transfer},
    },
    session::reconnect::{reconnect_thread::ConnectFailure, *},
};

const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);
const ARENA: RegionRef = RegionRef { addr: 0x1_0000, len: 0x1000, rkey: 5 };
const TABLE: RegionRef = RegionRef { addr: 0x8_0000, len: 0x1000, rkey: 6 };

const ANY: CallOptions<'static> = CallOptions { once: false, epoch: None, wait: ReplyWait::Bounded };
const ONCE: CallOptions<'static> = CallOptions { once: true, ..ANY };
const STARTED: CallOptions<'static> = CallOptions { wait: ReplyWait::None, ..ANY };

fn in_epoch(epoch: u32) -> CallOptions<'static> {
    CallOptions { epoch: Some(Epoch(epoch)), ..ANY }
}

fn waiting(epoch: Epoch, cancel: &Cancel) -> CallOptions<'_> {
    CallOptions { epoch: Some(epoch), wait: ReplyWait::Cancellable(cancel), ..ANY }
}

/// Fate of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// The session ends before the server sees the operation.
    Lost,
    /// The server carries the operation out, and the session ends before the reply.
    Unheard,
    /// The server never sees the operation, and the client detects the loss only after its timeout.
    Late,
}

/// A server in memory.
#[derive(Default)]
struct Server {
    /// Fates of the next operations, the next one last. Operations beyond them succeed.
    fates: Mutex<Vec<Fate>>,
    /// Last sequence number and request of each slot.
    slots: Mutex<HashMap<u32, (u64, Vec<u8>)>>,
    /// Requests that took effect, in order.
    effects: Mutex<Vec<Vec<u8>>>,
    places: Mutex<Vec<Place>>,
    sessions: AtomicU64,
    /// True if the server has dropped the mount.
    forgets: AtomicBool,
    /// True if the server has lost its memory.
    empty: AtomicBool,
    detached: AtomicBool,
    /// Runs before the server sees the next started call.
    before_started_call: Mutex<Option<Hook>>,
    /// Runs before the next session is made.
    before_session: Mutex<Option<Hook>>,
}

type Hook = Box<dyn FnOnce() + Send>;

/// Runs a hook without its lock.
fn run_hook(hook: &Mutex<Option<Hook>>) {
    let hook = hook.lock().take();
    hook.into_iter().for_each(|hook| hook());
}

impl Server {
    fn attached(&self, resumed: bool) -> Attached {
        let count = self.sessions.fetch_add(1, Ordering::SeqCst);
        // Each session names the memory differently.
        let region = |region: RegionRef| RegionRef {
            addr: region.addr + (count << 32),
            rkey: region.rkey + 100 * count as u32,
            ..region
        };
        let memory = Identity([if self.empty.load(Ordering::SeqCst) { 2 } else { 1 }; 16]);
        let (arena, table) = (region(ARENA), region(TABLE));
        Attached {
            arena,
            table,
            sums: None,
            now: 0,
            session: 1,
            read_only: false,
            memory,
            starts: 1,
            resumed,
            confined: false,
        }
    }

    fn carry_out(&self, request: &[u8]) {
        match decode_request(request) {
            Ok(Request::Once { slot, sequence, request }) => {
                let mut slots = self.slots.lock();
                if let Some((last, before)) = slots.get(&slot) {
                    assert!(*last <= sequence, "an old number");
                    if *last == sequence {
                        return assert_eq!(before, request, "another request under the same number");
                    }
                }
                slots.insert(slot, (sequence, request.to_vec()));
                self.effects.lock().push(request.to_vec());
            }
            Ok(Request::Detach) => self.detached.store(true, Ordering::SeqCst),
            _ => self.effects.lock().push(request.to_vec()),
        }
    }
}

/// A session.
#[derive(Clone)]
struct Connection {
    server: Arc<Server>,
    up: Arc<AtomicBool>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    fn apply_fate(&self, act: impl FnOnce()) -> Result<(), RequestError> {
        if !self.up.load(Ordering::SeqCst) {
            return Err(RequestError::Disconnected);
        }
        let fate = self.server.fates.lock().pop().unwrap_or(Fate::Done);
        match fate {
            Fate::Done | Fate::Unheard => act(),
            Fate::Lost => {}
            Fate::Late => thread::sleep(SHORT),
        }
        if fate != Fate::Done {
            self.up.store(false, Ordering::SeqCst);
            return Err(RequestError::Disconnected);
        }
        Ok(())
    }
}

impl Remote for Connection {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        self.apply_fate(|| match options.wait {
            ReplyWait::Cancellable(_) => {}
            ReplyWait::None => {
                run_hook(&self.server.before_started_call);
                self.server.carry_out(request)
            }
            ReplyWait::Bounded => {
                self.server.carry_out(request);
                *reply = request.to_vec();
            }
        })
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        self.apply_fate(|| {})
    }

    fn access(&self, access: &mut Access<'_, '_>) -> Result<(), RequestError> {
        self.apply_fate(|| {
            access.all(|place| {
                self.server.places.lock().push(place);
                true
            });
        })
    }

    fn status(&self) -> Status {
        Status { is_connected: self.up.load(Ordering::SeqCst), ..Status::default() }
    }

    fn close(&self) {
        self.up.store(false, Ordering::SeqCst);
    }
}

/// Makes sessions.
struct Connections(Arc<Server>);

impl Connections {
    fn connection(&self) -> Arc<dyn Remote> {
        Arc::new(Connection { server: Arc::clone(&self.0), up: Arc::new(AtomicBool::new(true)) })
    }
}

impl SessionFactory for Connections {
    fn connect(&self) -> Result<(Arc<dyn Remote>, Attached), ConnectFailure> {
        run_hook(&self.0.before_session);
        let resumed = !self.0.forgets.swap(false, Ordering::SeqCst);
        Ok((self.connection(), self.0.attached(resumed)))
    }
}

/// Records the newest epoch.
struct EpochRecorder(Arc<AtomicU32>);

impl Reclaimer for EpochRecorder {
    fn reclaim(&self, _: &dyn Remote, _: &Attached, epoch: Epoch) -> Result<(), RequestError> {
        self.0.store(epoch.0, Ordering::SeqCst);
        Ok(())
    }
}

fn reconnecting(server: &Arc<Server>) -> Arc<ReconnectingSession> {
    reconnecting_within(server, TIMEOUT)
}

fn reconnecting_within(server: &Arc<Server>, timeout: Duration) -> Arc<ReconnectingSession> {
    let connections = Connections(Arc::clone(server));
    let (connection, attached) = (connections.connection(), server.attached(false));
    ReconnectingSession::new(connection, &attached, timeout, Box::new(connections), None).unwrap()
}

fn bytes(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_request(request, &mut bytes);
    bytes
}

fn place(offset: u64, epoch: u32) -> Place {
    Place { epoch: Epoch(epoch), region: Region::Arena, offset }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Done), 1 => Just(Fate::Lost), 1 => Just(Fate::Unheard)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// With any losses, each request takes effect exactly once, started ones as well.
    #[test]
    fn each_request_takes_effect_exactly_once(
        fates in prop::collection::vec(fate(), 0..30), kinds in prop::collection::vec(any::<bool>(), 1..25),
    ) {
        let server = Arc::new(Server::default());
        *server.fates.lock() = fates;
        let remote = reconnecting(&server);
        let mut expected = Vec::new();
        for (ino, waits) in (1..).zip(kinds) {
            let request = bytes(&Request::Close { ino });
            let asked = match waits {
                true => remote.call(&request, &mut Vec::new(), ONCE),
                false => remote.call(&request, &mut Vec::new(), STARTED),
            };
            prop_assert_eq!(asked, Ok(()));
            expected.push(request);
        }
        prop_assert_eq!(remote.finish_calls(), Ok(()));
        prop_assert!(remote.started.lock().is_empty());
        let mut effects = server.effects.lock().clone();
        effects.sort();
        expected.sort();
        prop_assert_eq!(effects, expected);
        remote.close();
    }
}

/// A call that is started but not yet sent keeps its slot while another thread finishes calls.
#[test]
fn an_unsent_call_keeps_its_slot() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    let [first, second] = [7, 8].map(|ino| bytes(&Request::Close { ino }));
    let (other, request) = (Arc::clone(&remote), second.clone());
    *server.before_started_call.lock() = Some(Box::new(move || {
        assert_eq!(other.finish_calls(), Ok(()));
        assert_eq!(other.call(&request, &mut Vec::new(), STARTED), Ok(()));
    }));
    assert_eq!(remote.call(&first, &mut Vec::new(), STARTED), Ok(()));
    assert_eq!(remote.finish_calls(), Ok(()));
    assert!(remote.started.lock().is_empty());
    assert_eq!(*server.effects.lock(), [second, first]);
    remote.close();
}

/// A call that is started between two epochs is not sent: it concerns an open file of the old one.
#[test]
fn a_call_that_waits_for_a_session_ends_with_its_epoch() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    remote.set_reclaimer(Box::new(EpochRecorder(Arc::default())));
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    *server.before_session.lock() = Some(Box::new(move || wait.recv().unwrap()));
    server.forgets.store(true, Ordering::SeqCst);
    *server.fates.lock() = vec![Fate::Lost];
    let close = bytes(&Request::Close { ino: 7 });
    thread::scope(|scope| {
        scope.spawn(|| remote.write(&[(place(0, 0), b"x")]));
        while remote.status().lost_since.is_none() {
            thread::yield_now();
        }
        let starting = scope.spawn(|| remote.call(&close, &mut Vec::new(), STARTED));
        while remote.started.lock().is_empty() {
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        assert_eq!(starting.join().unwrap(), Ok(()));
    });
    assert_eq!(remote.epochs().newest, Epoch(1));
    let unlink = bytes(&Request::Unlink { parent: 1, name: b"a" });
    assert_eq!(remote.call(&unlink, &mut Vec::new(), ONCE), Ok(()));
    assert_eq!(*server.effects.lock(), [unlink]);
    remote.close();
}

#[test]
fn one_sided_operations_are_repeated_in_their_epoch() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    *server.fates.lock() = vec![Fate::Unheard];
    let mut old = 0;
    let mut ops = [Op::CompareSwap { place: place(8, 0), compare: 0, swap: 1, old: &mut old }];
    assert_eq!(remote.execute(&mut ops), Ok(()));
    assert_eq!(*server.places.lock(), [place(8, 0), place(8, 0)]);
    assert_eq!(remote.epochs().repeats, 1);
    assert_eq!(remote.write(&[(place(0, 1), b"x")]), Err(RequestError::Disconnected), "no such epoch");
    remote.close();
}

/// The time until the loss is detected counts for the timeout. The operation fails after one
/// timeout, not after two.
#[test]
fn an_operation_is_not_repeated_after_its_timeout() {
    let server = Arc::new(Server::default());
    let remote = reconnecting_within(&server, SHORT);
    let late = || *server.fates.lock() = vec![Fate::Late];
    late();
    assert_eq!(remote.write(&[(place(0, 0), b"x")]), Err(RequestError::Disconnected));
    // A later session carries operations out again.
    while remote.write(&[(place(0, 0), b"x")]).is_err() {}
    let done = server.places.lock().len();
    late();
    assert_eq!(remote.ready(), Ok(()));
    assert_eq!(remote.execute(&mut []), Err(RequestError::Disconnected));
    assert_eq!(server.places.lock().len(), done);
    while remote.call(&bytes(&Request::StatFs), &mut Vec::new(), ANY).is_err() {}
    server.effects.lock().clear();
    late();
    assert_eq!(remote.call(&bytes(&Request::StatFs), &mut Vec::new(), ANY), Err(RequestError::Disconnected));
    while remote.write(&[(place(0, 0), b"x")]).is_err() {}
    late();
    let unlink = bytes(&Request::Unlink { parent: 1, name: b"a" });
    assert_eq!(remote.call(&unlink, &mut Vec::new(), ONCE), Err(RequestError::Disconnected));
    assert!(server.effects.lock().is_empty());
    remote.close();
}

#[test]
fn a_new_epoch_voids_addresses_and_repeats_no_changes() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    let epoch = Arc::new(AtomicU32::new(0));
    remote.set_reclaimer(Box::new(EpochRecorder(Arc::clone(&epoch))));
    // The outcome of the request is unknown.
    server.forgets.store(true, Ordering::SeqCst);
    *server.fates.lock() = vec![Fate::Lost];
    let request = bytes(&Request::Unlink { parent: 1, name: b"a" });
    assert_eq!(remote.call(&request, &mut Vec::new(), ONCE), Err(RequestError::Disconnected));
    assert!(remote.status().is_connected && server.effects.lock().is_empty());
    assert_eq!((remote.epochs().newest, epoch.load(Ordering::SeqCst)), (Epoch(1), 1));
    assert_eq!(remote.write(&[(place(0, 0), b"x")]), Err(RequestError::Disconnected));
    assert!(server.places.lock().is_empty());
    assert_eq!(remote.write(&[(place(0, 1), b"x")]), Ok(()));
    // A request without effects is repeated. A waiter of the old epoch fails.
    server.forgets.store(true, Ordering::SeqCst);
    *server.fates.lock() = vec![Fate::Lost];
    assert_eq!(remote.call(&bytes(&Request::StatFs), &mut Vec::new(), ANY), Ok(()));
    assert_eq!(remote.epochs().newest, Epoch(2));
    server.forgets.store(true, Ordering::SeqCst);
    *server.fates.lock() = vec![Fate::Lost];
    let news = remote.call(&[], &mut Vec::new(), waiting(remote.epochs().newest, &Cancel::new()));
    assert_eq!(news, Err(RequestError::Disconnected));
    assert_eq!(remote.call(&[], &mut Vec::new(), waiting(remote.epochs().newest, &Cancel::new())), Ok(()));
    remote.close();
    assert!(server.detached.load(Ordering::SeqCst));
}

#[test]
fn started_writes_of_another_epoch_fail_and_the_others_are_made() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    let (send, outcomes) = std::sync::mpsc::channel();
    let write = |offset, epoch| {
        let send = send.clone();
        let done = move |outcome, data: Vec<u8>| send.send((offset, outcome, data)).unwrap();
        Transfer::Write(place(offset, epoch), vec![7], Box::new(done))
    };
    remote.start(vec![write(0, 0), write(8, 1), write(16, 0)], None);
    let lost = Err(RequestError::Disconnected);
    let expected = [(8, lost, vec![7]), (0, Ok(()), vec![7]), (16, Ok(()), vec![7])];
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), expected);
    assert_eq!(*server.places.lock(), [place(0, 0), place(16, 0)]);
    remote.close();
}

#[test]
fn a_request_of_one_epoch_is_not_carried_out_in_another() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    remote.set_reclaimer(Box::new(EpochRecorder(Arc::default())));
    let (asks, changes) = (bytes(&Request::StatFs), bytes(&Request::Unlink { parent: 1, name: b"a" }));
    let all = |epoch| {
        let mut reply = Vec::new();
        [
            remote.call(&asks, &mut reply, in_epoch(epoch)),
            remote.call_all(Epoch(epoch), &[asks.clone(), asks.clone()], &mut Vec::new()),
            remote.call(&changes, &mut reply, CallOptions { once: true, ..in_epoch(epoch) }),
        ]
    };
    assert_eq!((remote.epochs().in_use, all(0)), (Epoch(0), [Ok(()), Ok(()), Ok(())]));
    assert_eq!(server.effects.lock().len(), 4);
    // The epoch ends before the request of that epoch is sent.
    server.forgets.store(true, Ordering::SeqCst);
    *server.fates.lock() = vec![Fate::Lost];
    assert_eq!(remote.call(&asks, &mut Vec::new(), in_epoch(0)), Err(RequestError::Disconnected));
    assert_eq!(remote.epochs().in_use, Epoch(1));
    let over = || Err(RequestError::Disconnected);
    assert_eq!((all(0), all(1)), ([over(), over(), over()], [Ok(()), Ok(()), Ok(())]));
    assert_eq!(server.effects.lock().len(), 8);
    remote.close();
}

#[test]
fn the_remote_ends_if_the_memory_is_another_one() {
    let server = Arc::new(Server::default());
    let remote = reconnecting(&server);
    let (send, heard) = std::sync::mpsc::channel();
    remote.final_loss().watch(Box::new(move |reason| send.send(reason.to_owned()).unwrap()));
    server.empty.store(true, Ordering::SeqCst);
    *server.fates.lock() = vec![Fate::Lost];
    assert_eq!(remote.call(&bytes(&Request::StatFs), &mut Vec::new(), ANY), Err(RequestError::Disconnected));
    let reason = "the server was restarted and has lost its memory";
    assert_eq!(heard.recv().as_deref(), Ok(reason));
    assert_eq!(remote.status().final_loss.as_deref(), Some(reason));
    assert!(!remote.status().is_connected);
    assert_eq!(remote.ready(), Err(RequestError::Disconnected));
    assert_eq!(
        remote.call(&bytes(&Request::Close { ino: 1 }), &mut Vec::new(), STARTED),
        Err(RequestError::Disconnected)
    );
    assert!(server.effects.lock().is_empty());
}
