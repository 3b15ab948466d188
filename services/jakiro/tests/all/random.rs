//! Several clients at random, against maps.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::support::{Local, WAYS, Way};
use fastrand::Rng;
use jakiro::{Client, Delta, Put, StoreMode, StoreOptions, StoreOutcome};

const CLIENTS: u64 = 4;
const STEPS: usize = 600;

/// Returns a value whose length and content follow from a number. Few are long.
fn bytes(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.u8(..40) {
        0 => rng.usize(60_000..150_000),
        1..4 => rng.usize(1000..60_000),
        _ => rng.usize(..300),
    };
    vec![rng.u8(..); len]
}

/// Runs random steps on the keys of one client. No other client uses them.
fn run(client: &Client, number: u64, seed: u64) {
    let (mut rng, mut map) = (Rng::with_seed(seed), HashMap::<Vec<u8>, Vec<u8>>::new());
    let mut value = Vec::new();
    for step in 0..STEPS {
        let key = format!("client {number} key {}", rng.u32(..30)).into_bytes();
        match rng.u8(..10) {
            0..3 => {
                let bytes = bytes(&mut rng);
                client.put(&key, &bytes).unwrap();
                map.insert(key, bytes);
            }
            3 => assert_eq!(client.delete(&key).unwrap(), map.remove(&key).is_some(), "step {step}"),
            4 => {
                let bytes = bytes(&mut rng);
                let outcome = client.store(&key, &bytes, &Put::new(StoreMode::Add)).unwrap();
                assert_eq!(outcome == StoreOutcome::NotStored, map.contains_key(&key), "step {step}");
                map.entry(key).or_insert(bytes);
            }
            5 => {
                let keys: Vec<Vec<u8>> = map.keys().cloned().chain([b"none".to_vec()]).collect();
                let list: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let mut count = 0;
                let check = |place: usize, found: Option<&[u8]>| {
                    assert!(found == map.get(&keys[place]).map(Vec::as_slice), "step {step}");
                    count += 1;
                };
                client.get_many(&list, check).unwrap();
                assert_eq!(count, keys.len());
            }
            6 => {
                let delta = Delta::Up(rng.u64(..5));
                let (Delta::Up(by) | Delta::Down(by)) = delta;
                SUM.fetch_add(by, Ordering::Relaxed);
                client.change_number(b"sum", delta).unwrap().expect("the counter");
            }
            _ => {
                let found = client.get(&key, &mut value).unwrap();
                assert!(found.then_some(&value) == map.get(&key), "step {step}");
            }
        }
    }
}

static SUM: AtomicU64 = AtomicU64::new(0);

/// Adds 1 to a value by compare-and-swap, `times` times.
fn count_by_versions(client: &Client, times: u64) {
    let mut value = Vec::new();
    for _ in 0..times {
        loop {
            let info = client.get_item(b"cas", &mut value).unwrap().expect("the item");
            let count = u64::from_le_bytes(value[..].try_into().unwrap()) + 1;
            let put = Put::new(StoreMode::CompareVersion(info.version));
            if matches!(client.store(b"cas", &count.to_le_bytes(), &put).unwrap(), StoreOutcome::Stored(_)) {
                break;
            }
        }
    }
}

fn all_clients(way: Way) {
    let local = Local::start(way, StoreOptions::new(96 << 20).partitions(2));
    let first = local.client();
    first.put(b"sum", b"0").unwrap();
    first.put(b"cas", &0_u64.to_le_bytes()).unwrap();
    SUM.store(0, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let local = &local;
            scope.spawn(move || {
                let client = local.client();
                run(&client, number, 1000 + number);
                count_by_versions(&client, 50);
            });
        }
    });
    assert_eq!(local.server.store().counters().evictions, 0);
    let sum = first.change_number(b"sum", Delta::Up(0)).unwrap();
    assert_eq!(sum, Some(SUM.load(Ordering::Relaxed)), "{way:?}");
    let mut value = Vec::new();
    assert!(first.get(b"cas", &mut value).unwrap());
    assert_eq!(value, (50 * CLIENTS).to_le_bytes(), "{way:?}");
}

#[test]
fn several_clients_see_maps() {
    WAYS.into_iter().for_each(all_clients);
}

/// One client that threads share, with a store that evicts: a get finds the last value or none.
#[test]
fn threads_share_a_client_of_a_full_store() {
    for way in WAYS {
        let local = Local::start(way, StoreOptions::new(2 << 20).partitions(2).max_value(100_000));
        let client = local.client();
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let client = &client;
                scope.spawn(move || {
                    let (mut rng, mut map) = (Rng::with_seed(number), HashMap::<u32, Vec<u8>>::new());
                    let (mut value, mut hits) = (Vec::new(), 0);
                    for _ in 0..STEPS {
                        let name = rng.u32(..60);
                        let key = format!("{number} {name}");
                        if rng.bool() {
                            let bytes = vec![rng.u8(..); rng.usize(..30_000)];
                            client.put(key.as_bytes(), &bytes).unwrap();
                            map.insert(name, bytes);
                        } else if client.get(key.as_bytes(), &mut value).unwrap() {
                            assert!(map.get(&name) == Some(&value), "{way:?}");
                            hits += 1;
                        }
                    }
                    assert!(hits > 0);
                });
            }
        });
        let counters = local.server.store().counters();
        assert!(counters.evictions > 0 && counters.used_bytes <= counters.total_bytes);
    }
}
