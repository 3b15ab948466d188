//! Namespaces, regions, reads and writes with real programs, over shared memory and TCP.

use rstore::{AllocFlags, Error, Refusal};

use crate::support::{CHUNK, PROVIDERS, Pool};

fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Refusal {
    match outcome {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_of_a_region_on_three_stores_are_read_and_written_without_the_master() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 3, 8, &[]);
        let (one, two) = (pool.client(), pool.client());
        let namespace = one.create("numbers").expect("a namespace");
        namespace.reserve(7 * CHUNK).expect("memory");
        let region = namespace.alloc(6 * CHUNK + 100, AllocFlags::InPlace).expect("a region");
        assert_eq!(region.stores(), 3);
        let mut mapping = region.map_all().expect("a mapping");
        let other = two.join("numbers").expect("the namespace");
        let mut part = other
            .open(region.address(), region.len())
            .expect("the region")
            .map(CHUNK - 8..5 * CHUNK)
            .expect("a part");
        let calls = (one.calls(), two.calls(), pool.status().calls);
        for (at, byte) in mapping.local_mut().iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        mapping.write(0..region.len()).expect("a write");
        let len = part.len();
        let found = part.read(0..len).expect("a read");
        let expected = |at: usize| ((at + CHUNK as usize - 8) % 251) as u8;
        assert!(found.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
        part.write_from(3, b"bytes").expect("a write");
        let mut back = [0; 5];
        mapping.read_into(CHUNK - 5, &mut back).expect("a read");
        assert_eq!(&back, b"bytes");
        // The status itself is a call.
        assert_eq!((one.calls(), two.calls(), pool.status().calls), (calls.0, calls.1, calls.2 + 1));
        let outside = mapping.read(region.len() - 1..region.len() + 1).map(<[u8]>::len);
        assert!(matches!(outside, Err(Error::OutOfBounds { .. })));
        drop((mapping, part));
        region.free().expect("the last handle");
        namespace.delete().expect("no handle");
        pool.wait_free();
    }
}

#[test]
fn released_memory_is_used_again_without_a_registration() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 4, &[]);
        let client = pool.client();
        let namespace = client.create("a").expect("a namespace");
        namespace.reserve(8 * CHUNK).expect("memory");
        let prepared = |pool: &Pool| pool.status().stores.iter().map(|store| store.prepared).sum::<u64>();
        assert_eq!(prepared(&pool), 8);
        for _ in 0..5 {
            namespace.release(8 * CHUNK).expect("a reservation");
            assert_eq!(pool.status().chunks.free, 8);
            let other = client.create("b").expect("a namespace");
            other.reserve(5 * CHUNK).expect("free chunks");
            other.delete().expect("no region");
            namespace.reserve(8 * CHUNK).expect("free chunks");
        }
        assert_eq!(prepared(&pool), 8);
    }
}

#[test]
fn a_small_cache_returns_memory_to_the_machines() {
    let pool = Pool::start(PROVIDERS[0], 2, 4, &["--cache", &(3 * CHUNK).to_string()]);
    let namespace = pool.client().create("a").expect("a namespace");
    namespace.reserve(8 * CHUNK).expect("memory");
    namespace.release(8 * CHUNK).expect("a reservation");
    pool.wait("three chunks stay", |status| {
        status.chunks.free == 3 && status.stores.iter().map(|store| store.prepared).sum::<u64>() == 3
    });
    namespace.reserve(8 * CHUNK).expect("the room is back");
}

#[test]
fn bad_input_has_typed_errors_and_leaks_nothing() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 4, &[]);
        let client = pool.client();
        let namespace = client.create("a").expect("a namespace");
        assert_eq!(refusal(client.create("a")), Refusal::NamespaceExists("a".into()));
        assert_eq!(refusal(client.join("b")), Refusal::NoSuchNamespace("b".into()));
        assert_eq!(refusal(client.create(&"x".repeat(300))), Refusal::InvalidName);
        assert_eq!(refusal(namespace.reserve(0)), Refusal::InvalidSize(0));
        for bytes in [9 * CHUNK, 1 << 63, u64::MAX] {
            let refused = refusal(namespace.reserve(bytes));
            assert!(matches!(refused, Refusal::NotEnoughMemory { room: 8, .. }), "{bytes}: {refused}");
            assert!(refusal(namespace.alloc(bytes, AllocFlags::InPlace)).code() > 0);
        }
        let refused = refusal(namespace.alloc(1, AllocFlags::InPlace));
        assert_eq!(refused, Refusal::NotReserved { wanted: 1, reserved: 0 });
        assert!(matches!(refusal(namespace.open(1 << 63, 1 << 63)), Refusal::InvalidSize(_)));
        assert!(matches!(refusal(namespace.open(CHUNK, 1)), Refusal::NoSuchRegion { .. }));
        let region = namespace.alloc_reserved(100, AllocFlags::InPlace).expect("a region");
        assert!(matches!(region.map(50..101), Err(Error::OutOfBounds { .. })));
        assert!(matches!(region.map(5..5), Err(Error::OutOfBounds { .. })));
        assert_eq!(refusal(region.update(0..1)), Refusal::NotCopyOnWrite);
        let clone = region.clone();
        assert!(matches!(clone.free(), Err(Error::StillMapped)));
        assert_eq!(refusal(namespace.clone().delete()), Refusal::NamespaceInUse { references: 1 });
        let second = namespace.open(region.address(), 100).expect("the region");
        assert_eq!(refusal(second.free()), Refusal::RegionInUse { references: 1 });
        region.free().expect("the last handle");
        namespace.delete().expect("no handle");
        pool.wait_free();
    }
}

#[test]
fn several_clients_at_random_find_what_they_wrote() {
    const CLIENTS: u64 = 4;
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 3, 16, &[]);
        let namespace = pool.client().create("shared").expect("a namespace");
        let len = 5 * CHUNK;
        let region = namespace.alloc_reserved(CLIENTS * len, AllocFlags::InPlace).expect("a region");
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let (pool, address) = (&pool, region.address());
                scope.spawn(move || {
                    let client = pool.client();
                    let namespace = client.join("shared").expect("the namespace");
                    let region = namespace.open(address, CLIENTS * len).expect("the region");
                    let mut mapping = region.map(number * len..(number + 1) * len).expect("a mapping");
                    let mut model = vec![0_u8; len as usize];
                    mapping.write_from(0, &model).expect("a write");
                    let mut random = fastrand::Rng::with_seed(number);
                    for _ in 0..200 {
                        let start = random.u64(0..len);
                        let end = random.u64(start..=len.min(start + 2 * CHUNK));
                        let local = start as usize..end as usize;
                        if random.bool() {
                            random.fill(&mut model[local.clone()]);
                            mapping.write_from(start, &model[local]).expect("a write");
                        } else {
                            assert_eq!(mapping.read(start..end).expect("a read"), &model[local]);
                        }
                    }
                });
            }
        });
    }
}
