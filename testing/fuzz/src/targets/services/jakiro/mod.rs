//! Fuzzes the requests to a key-value store, and the replies to its clients.

pub(in crate::targets) mod memcached;

use std::sync::Arc;

use jakiro::{
    Delta, Store, StoreMode, StoreOptions,
    protocol::{Entries, Entry, Hello, Request, Status, StoreRequest, ValueReply},
    server::Executor,
};

/// Longest value of the store, in bytes.
const MAX_VALUE: usize = 100_000;
/// Number of times that a part of an upload is repeated, so that short inputs make long values.
const REPEATS: usize = 32;
/// Most bytes of a reply: those of a call.
const MAX_REPLY: usize = rdmabox::MAX_CALL;

/// Runs an input: requests of several sessions. Each has two bytes of length and one of its
/// session in front.
pub(in crate::targets) fn requests(bytes: &[u8]) {
    let mut options = StoreOptions::new(1 << 20).max_value(MAX_VALUE);
    options.seed = Some(0);
    let store = Arc::new(Store::new(&options).expect("sizes that fit"));
    let executor = Executor::new(Arc::clone(&store), 0);
    let (mut rest, mut reply) = (bytes, Vec::new());
    while let Some(([low, high, session], later)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(later.len());
        let (request, later) = later.split_at(len);
        rest = later;
        let Ok(request) = Request::decode(request) else { continue };
        let repeated;
        let request = match request {
            Request::ContinueUpload { transfer, part } => {
                repeated = part.repeat(REPEATS);
                Request::ContinueUpload { transfer, part: &repeated }
            }
            other => other,
        };
        reply.clear();
        if executor.execute(u64::from(session % 4), &request, &mut reply).is_ok() {
            assert!(reply.len() <= MAX_REPLY, "a reply of {} bytes", reply.len());
            check(&request, &mut reply);
        }
        if *session >= 0xf0 {
            executor.end_session(u64::from(session % 4));
        }
        let counters = store.counters();
        assert!(counters.used_bytes <= counters.total_bytes, "{counters:?}");
    }
    (0..4).for_each(|session| executor.end_session(session));
}

/// Checks that a client understands each reply.
fn check(request: &Request<'_>, reply: &mut Vec<u8>) {
    match request {
        Request::GetMany { .. } => match Entries::decode(reply) {
            Ok(mut entries) => assert!(entries.all(|entry| entry.is_ok())),
            Err(_) => assert_ne!(reply.last(), Some(&Status::Done.code())),
        },
        Request::Counters => assert_eq!(reply.len() % 8, 1),
        _ => assert!(ValueReply::take(reply).is_ok()),
    }
}

/// Returns conversations with all requests.
pub(in crate::targets) fn requests_seeds() -> Vec<Vec<u8>> {
    let change = |mode| StoreRequest { mode, flags: 7, time_to_live: Some(1000) };
    let key = b"key";
    let store = |mode, value| Request::Store { change: change(mode), key, value };
    let part = vec![7; 32_000 / REPEATS];
    let set = change(StoreMode::Set);
    let conversations = [
        vec![
            store(StoreMode::Set, b"12"),
            store(StoreMode::Append, b"3"),
            store(StoreMode::CompareVersion(2), b"9"),
            Request::Get { with_version: true, key },
            Request::GetMany { keys: b"\x03key\x04none" },
            Request::ChangeNumber { delta: Delta::Up(5), key },
            Request::ChangeNumber { delta: Delta::Down(5), key },
            Request::GetAndTouch { time_to_live: None, key },
            Request::Touch { time_to_live: Some(0), key },
            Request::Delete { key },
            Request::Flush { delay: 0 },
            Request::Counters,
            Request::Hello,
        ],
        vec![
            // Longer than a reply, with repeated parts.
            Request::BeginUpload { change: set, value_len: 64_000, key },
            Request::ContinueUpload { transfer: 1, part: &part },
            Request::ContinueUpload { transfer: 1, part: &part },
            Request::FinishUpload { transfer: 1 },
            Request::Get { with_version: false, key },
            Request::GetMany { keys: b"\x03key" },
            Request::ContinueDownload { transfer: 2 },
        ],
    ];
    conversations.iter().map(|requests| requests.iter().flat_map(frame).collect()).collect()
}

fn frame(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1];
    request.encode(&mut bytes);
    let len = (bytes.len() - 3) as u16;
    bytes[..2].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Runs an input: a reply of a server.
pub(in crate::targets) fn replies(bytes: &[u8]) {
    let mut value = bytes.to_vec();
    if ValueReply::take(&mut value).is_ok() {
        assert!(value.len() < bytes.len());
    }
    if let Ok(entries) = Entries::decode(bytes) {
        assert!(entries.count() <= bytes.len());
    }
    if let Ok(hello) = Hello::decode(bytes) {
        let mut again = Vec::new();
        hello.encode(&mut again);
        assert_eq!(again, bytes);
    }
}

/// Returns a reply of each kind.
pub(in crate::targets) fn replies_seeds() -> Vec<Vec<u8>> {
    let mut value = b"value".to_vec();
    ValueReply { status: Status::Done, flags: 1, version: Some(2), transfer: Some((3, 4)) }
        .encode(&mut value);
    let mut entries = Vec::new();
    [Entry::Found(b"value"), Entry::Missing, Entry::Long].iter().for_each(|entry| entry.encode(&mut entries));
    entries.push(Status::Done.code());
    let addresses = vec![vec!["tcp:10.0.0.1:7460".to_owned()], vec!["tcp:10.0.0.1:7461".to_owned()]];
    let mut hello = Vec::new();
    Hello { seed: 1, max_value: 1 << 20, partition: 1, addresses }.encode(&mut hello);
    vec![value, entries, hello]
}
