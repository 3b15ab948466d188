//! Each operation of a client, over shared memory and TCP, with fetched and with sent replies.

use std::{thread::sleep, time::Duration};

use crate::support::{Local, WAYS};
use jakiro::{
    Client, ClientError, Delta, MAX_VALUE, Put, Server, ServerError, ServerOptions, StoreError, StoreMode,
    StoreOptions, StoreOutcome,
};
use rdmabox::{Address, CallError, Host, Key, Peer, Reply, Secret, Service, Session, SessionOptions};

fn value(client: &Client, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = b"of before".to_vec();
    client.get(key, &mut value).expect("a reply").then_some(value)
}

fn store() -> StoreOptions {
    StoreOptions::new(24 << 20).partitions(3)
}

#[test]
fn values_of_all_lengths_come_back() {
    for way in WAYS {
        let local = Local::start(way, store());
        let client = local.client();
        for len in [0, 1, 32, 1000, 1024, 61_440, 61_441, 200_000, MAX_VALUE] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 253) as u8).collect();
            let key = format!("key of {len}");
            client.put(key.as_bytes(), &bytes).unwrap();
            assert!(value(&client, key.as_bytes()) == Some(bytes), "{way:?}, {len} bytes");
        }
        assert_eq!(value(&client, b"none"), None);
        let refused = client.put(b"long", &vec![0; MAX_VALUE + 1]).unwrap_err();
        assert!(matches!(refused, ClientError::Store(StoreError::ValueTooLong)), "{refused}");
        for len in [0, 251] {
            let refused = client.put(&vec![b'k'; len], b"value").unwrap_err();
            assert_eq!(refused.to_string(), format!("a key of {len} bytes: choose 1 to 250 bytes"));
        }
    }
}

#[test]
fn conditions_flags_and_versions_hold() {
    for way in WAYS {
        let local = Local::start(way, store());
        let client = local.client();
        let put = |mode, bytes: &[u8]| client.store(b"key", bytes, &Put::new(mode).flags(7)).unwrap();
        assert_eq!(put(StoreMode::Replace, b"a"), StoreOutcome::NotStored);
        assert_eq!(put(StoreMode::CompareVersion(1), b"a"), StoreOutcome::NotFound);
        assert_eq!(put(StoreMode::Append, b"a"), StoreOutcome::NotStored);
        assert!(matches!(put(StoreMode::Add, b"b"), StoreOutcome::Stored(_)));
        assert_eq!(put(StoreMode::Add, b"c"), StoreOutcome::NotStored);
        put(StoreMode::Append, b"c");
        let StoreOutcome::Stored(version) = put(StoreMode::Prepend, b"a") else { panic!("{way:?}") };
        let mut bytes = Vec::new();
        let info = client.get_item(b"key", &mut bytes).unwrap().unwrap();
        assert_eq!((&bytes[..], info.flags, info.version), (&b"abc"[..], 7, version));
        assert_eq!(put(StoreMode::CompareVersion(version + 1), b"x"), StoreOutcome::OtherVersion);
        // The last change is a long one, in parts.
        let long = vec![1; 100_000];
        assert!(matches!(put(StoreMode::CompareVersion(version), &long), StoreOutcome::Stored(_)));
        assert_eq!(put(StoreMode::Add, &long), StoreOutcome::NotStored);
        assert!(value(&client, b"key") == Some(long));
        assert!(client.delete(b"key").unwrap());
        assert!(!client.delete(b"key").unwrap());
        assert_eq!(value(&client, b"key"), None);
    }
}

#[test]
fn counters_times_to_live_and_flushes_work() {
    for way in WAYS {
        let local = Local::start(way, store());
        let client = local.client();
        assert_eq!(client.change_number(b"n", Delta::Up(1)).unwrap(), None);
        client.put(b"n", b"40").unwrap();
        assert_eq!(client.change_number(b"n", Delta::Up(2)).unwrap(), Some(42));
        assert_eq!(client.change_number(b"n", Delta::Down(50)).unwrap(), Some(0));
        client.put(b"text", b"text").unwrap();
        let refused = client.change_number(b"text", Delta::Up(1)).unwrap_err();
        assert!(matches!(refused, ClientError::Store(StoreError::NotANumber)), "{refused}");

        let soon = Duration::from_millis(50);
        let put = Put::new(StoreMode::Set).time_to_live(soon);
        client.store(b"short", b"life", &put).unwrap();
        // On a slow machine the item may be gone before it is saved.
        let save = || {
            client.store(b"saved", b"life", &put).unwrap();
            client.touch(b"saved", None).unwrap()
        };
        assert!((0..1000).any(|_| save()));
        assert!(!client.touch(b"none", None).unwrap());
        sleep(Duration::from_millis(80));
        assert_eq!(value(&client, b"short"), None);
        let mut bytes = Vec::new();
        assert!(client.get_and_touch(b"saved", Some(soon), &mut bytes).unwrap().is_some());
        client.put(b"over", b"last").unwrap();
        assert!(client.get_and_touch(b"over", Some(Duration::ZERO), &mut bytes).unwrap().is_some());
        assert_eq!(bytes, b"last", "also if the new time is over");
        assert!(!client.get(b"over", &mut bytes).unwrap());
        sleep(Duration::from_millis(80));
        assert_eq!(value(&client, b"saved"), None);

        client.flush(Duration::ZERO).unwrap();
        assert_eq!(value(&client, b"n"), None);
        let counters = client.counters().unwrap();
        assert_eq!((counters.flushes, counters.incr_hits, counters.get_flushed), (3, 1, 1), "{counters:?}");
        assert_eq!(counters, local.server.store().counters());
    }
}

#[test]
fn many_values_come_with_few_calls() {
    for way in WAYS {
        let local = Local::start(way, store());
        let client = local.client();
        let names: Vec<String> = (0..200).map(|i| format!("key {i}")).collect();
        for (i, name) in names.iter().enumerate().filter(|(i, _)| i % 3 > 0) {
            // Some are long, and some do not fit a reply with others.
            let len = if i % 50 == 1 { 150_000 } else { i * i };
            client.put(name.as_bytes(), &vec![i as u8; len]).unwrap();
        }
        let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let calls = || client.sessions().iter().map(|session| session.stats().calls).sum::<u64>();
        let (before, mut found) = (calls(), vec![None; keys.len()]);
        client.get_many(&keys, |place, value| found[place] = Some(value.map(<[u8]>::to_vec))).unwrap();
        for (i, value) in found.iter().enumerate() {
            let wanted = (i % 3 > 0).then(|| vec![i as u8; if i % 50 == 1 { 150_000 } else { i * i }]);
            assert!(*value == Some(wanted), "{way:?}, key {i}");
        }
        let before_short = calls();
        assert!(before_short - before < 150, "{} calls", before_short - before);
        let short: Vec<&[u8]> = keys[2..20].iter().copied().filter(|key| *key != b"key 1").collect();
        client.get_many(&short, |_, _| ()).unwrap();
        assert!(calls() - before_short <= 3);
        assert!(client.get_many(&[b"", b"a"], |_, _| ()).is_err());
    }
}

#[test]
fn a_value_that_is_replaced_while_it_is_read_comes_as_one_version() {
    for way in WAYS {
        let local = Local::start(way, StoreOptions::new(16 << 20));
        let (writer, reader) = (local.client(), local.client());
        writer.put(b"key", &vec![0; 300_000]).unwrap();
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| {
                (1..60_u8).for_each(|i| writer.put(b"key", &vec![i; 300_000 + usize::from(i)]).unwrap());
            });
            let mut value = Vec::new();
            while !writes.is_finished() {
                if reader.get(b"key", &mut value).unwrap() {
                    assert_eq!(value.len(), 300_000 + usize::from(value[0]));
                    assert!(value.iter().all(|byte| *byte == value[0]), "a mix of versions");
                }
            }
        });
        assert!(local.server.store().counters().used_bytes < 400_000);
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_holds_no_memory() {
    for way in WAYS {
        let local = Local::start(way, StoreOptions::new(16 << 20));
        let client = local.client();
        client.put(b"key", &vec![0; MAX_VALUE]).unwrap();
        let other = local.client();
        // An upload and a download that go no further.
        let session = &other.sessions()[0];
        let change = jakiro::protocol::StoreRequest { mode: StoreMode::Set, flags: 0, time_to_live: None };
        let upload = jakiro::protocol::Request::BeginUpload { change, value_len: 1 << 20, key: b"other" };
        let download = jakiro::protocol::Request::Get { with_version: false, key: b"key" };
        for request in [upload, download] {
            let (mut bytes, mut reply) = (Vec::new(), Vec::new());
            request.encode(&mut bytes);
            session.call(&bytes, &mut reply).unwrap();
        }
        client.delete(b"key").unwrap();
        assert!(local.server.store().counters().used_bytes > 2 << 20);
        drop(other);
        for _ in 0..3000 {
            if local.server.store().counters().used_bytes == 0 {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        assert_eq!(local.server.store().counters().used_bytes, 0, "{way:?}");
    }
}

/// A server of another version: it refuses each request.
struct Future;

impl Service for Future {
    fn call(&self, _: &Peer, _: &[u8], _: &mut Reply<'_>) -> Result<(), CallError> {
        Err("this side has version 2".into())
    }
}

#[test]
fn a_server_of_another_version_and_another_service_are_named() {
    let options = jakiro::ClientOptions::default();
    let host =
        Host::new().unwrap().listen(&["127.0.0.1:0".parse().unwrap()], std::sync::Arc::new(Future)).unwrap();
    let error = Client::connect(&host.addresses()[0], &options).unwrap_err();
    assert_eq!(error.code(), 11);
    assert!(error.to_string().ends_with("this side has version 2"), "{error}");

    // A client of another version.
    let local = Local::start(WAYS[2], StoreOptions::new(4 << 20));
    let session = Session::connect(local.address(), &SessionOptions::default()).unwrap();
    let error = session.call(b"\x40jakiro", &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("version 2 of the protocol, and this side has version 1"), "{error}");

    let error = Client::connect(&"127.0.0.1:1".parse().unwrap(), &options).unwrap_err();
    assert!(error.to_string().starts_with("cannot connect to tcp:127.0.0.1:1: "), "{error}");
}

#[test]
fn a_network_address_needs_keys_and_sizes_are_checked() {
    let address: Address = "127.0.0.1:0".parse().unwrap();
    let listen =
        |options: &ServerOptions, address: &Address| Server::listen(std::slice::from_ref(address), options);
    let options = ServerOptions::new(store());
    let refused = listen(&options, &address).unwrap_err();
    assert!(matches!(refused, ServerError::WithoutKeys(_)), "{refused}");
    let small = ServerOptions::new(StoreOptions::new(1 << 20)).allow_without_keys(true);
    let refused = listen(&small, &address).unwrap_err();
    assert!(refused.to_string().contains("give each partition at least"), "{refused}");
    let open = options.clone().allow_without_keys(true);
    let refused = listen(&open, &"127.0.0.1:65535".parse().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("choose a lower port"), "{refused}");
    let long = Address::Tcp { host: "h".repeat(200), port: 7460 };
    let refused = listen(&open, &long).unwrap_err();
    assert!(refused.to_string().contains("choose a shorter path or name"), "{refused}");
    let refused = Server::listen(&vec![address.clone(); 9], &open).unwrap_err();
    assert_eq!(refused.to_string(), "9 addresses: choose 1 to 8");

    let key = Key { id: "laptop".parse().unwrap(), secret: Secret::random().unwrap() };
    let server = listen(&options.keys(vec![key.clone()]), &address).unwrap();
    let address = &server.addresses()[0];
    assert!(Client::connect(address, &jakiro::ClientOptions::default()).is_err());
    let session = Session::builder().key(key).into_options();
    let client = Client::connect(address, &jakiro::ClientOptions::default().session(session)).unwrap();
    client.put(b"key", b"value").unwrap();
}
