//! Copy-on-write regions with several clients.

use std::sync::atomic::{AtomicBool, Ordering};

use rstore::{AllocFlags, Error, Refusal};

use crate::support::{CHUNK, PROVIDERS, Pool, wait_for};

const LEN: u64 = 3 * CHUNK;

#[test]
fn readers_keep_their_version_and_see_marks_of_the_next_one() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 8, &[]);
        let (writer, reader) = (pool.client(), pool.client());
        let namespace = writer.create("a").expect("a namespace");
        namespace.reserve(9 * CHUNK).expect("memory");
        let region = namespace.alloc(LEN, AllocFlags::CopyOnWrite).expect("a region");
        let mut update = region.update(0..3).expect("a lease");
        update.write(0, &vec![1; LEN as usize]).expect("a write");
        let first = update.commit().expect("a version");
        let old = reader.join("a").expect("the namespace").open(region.address(), LEN).expect("the region");
        let mut mapping = old.map_all().expect("a mapping");
        assert!(mapping.read(0..LEN).expect("a read").iter().all(|byte| *byte == 1));
        assert_eq!(mapping.tainted(), 0);
        assert!(matches!(mapping.write(0..1), Err(Error::CopyOnWrite)));

        // One writer at a time; an update without a commit changes nothing.
        let mut update = first.update(1..2).expect("a lease");
        let second = old.update(0..1);
        assert!(matches!(second, Err(Error::Refused(Refusal::WriterExists(_)))), "{second:?}");
        update.write(0, &[2; CHUNK as usize]).expect("a write");
        assert!(mapping.read(0..LEN).expect("a read").iter().all(|byte| *byte == 1));
        let newest = update.commit().expect("a version");
        assert!(newest.version() > first.version());

        // The reader still has its version, and learns that there is another one.
        wait_for("a mark", || {
            assert!(mapping.read(0..LEN).expect("a read").iter().all(|byte| *byte == 1));
            (mapping.tainted() == 1).then_some(())
        });
        drop(mapping);
        let mut mapping = old.newest().expect("the newest version").map_all().expect("a mapping");
        let bytes = mapping.read(0..LEN).expect("a read").to_vec();
        assert_eq!([0, CHUNK, LEN - 1].map(|at| bytes[at as usize]), [1, 2, 1]);
        assert_eq!(mapping.tainted(), 0);
        let bound = |pool: &Pool| pool.status().chunks.bound;
        assert_eq!(bound(&pool), 7, "three versions: the empty one, the first, and one more chunk");
        drop((mapping, old, region, first));
        pool.wait("old versions end", |status| status.chunks.bound == 3);
    }
}

#[test]
fn a_slow_writer_loses_its_lease_and_cannot_harm_the_next_one() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 8, &["--lease", "5000"]);
        let (slow, next) = (pool.client(), pool.client());
        let namespace = slow.create("a").expect("a namespace");
        namespace.reserve(9 * CHUNK).expect("memory");
        let region = namespace.alloc(LEN, AllocFlags::CopyOnWrite).expect("a region");
        let mut first = region.update(0..3).expect("a lease");
        first.write(0, &vec![0; LEN as usize]).expect("a write");
        let region = first.commit().expect("a version");
        let mut kept = region.map_all().expect("a mapping");
        let mut late = region.update(0..3).expect("a lease");
        // In time, or on a very slow machine too late.
        let _ = late.write(0, &[1; 100]);
        pool.wait("the lease ends", |status| status.chunks.leased + status.chunks.fenced == 0);
        assert!(matches!(late.write(0, &[1; 100]), Err(Error::Transfer(_))), "its sessions have ended");
        // Another writer gets the same chunks.
        let other = next.join("a").expect("the namespace").open(region.address(), LEN).expect("the region");
        let mut update = other.update(0..3).expect("a lease");
        update.write(0, &vec![2; LEN as usize]).expect("a write");
        assert!(late.write(0, &[1; 100]).is_err());
        let newest = update.commit().expect("a version");
        let refused = late.commit();
        assert!(matches!(refused, Err(Error::Refused(Refusal::LeaseExpired))), "{refused:?}");
        let mut mapping = newest.map_all().expect("a mapping");
        assert!(mapping.read(0..LEN).expect("a read").iter().all(|byte| *byte == 2));
        // The slow client goes on in its next epoch, also with mappings of before.
        wait_for("the session ends", || kept.read(0..LEN).err());
        kept.relink().expect("links in the next epoch");
        assert!(kept.read(0..LEN).expect("a read").iter().all(|byte| *byte == 0));
        let mut mapping = region.newest().expect("a version").map_all().expect("a mapping");
        assert!(mapping.read(0..LEN).expect("a read").iter().all(|byte| *byte == 2));
    }
}

#[test]
fn readers_never_see_a_mixed_version() {
    for provider in PROVIDERS {
        let pool = Pool::start(provider, 2, 16, &[]);
        let namespace = pool.client().create("a").expect("a namespace");
        namespace.reserve(24 * CHUNK).expect("memory");
        let region = namespace.alloc(LEN, AllocFlags::CopyOnWrite).expect("a region");
        let mut update = region.update(0..3).expect("a lease");
        update.write(0, &vec![0; LEN as usize]).expect("a write");
        let mut newest = update.commit().expect("a version");
        let (address, done) = (region.address(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (pool, done) = (&pool, &done);
                scope.spawn(move || {
                    let namespace = pool.client().join("a").expect("the namespace");
                    let mut version = namespace.open(address, LEN).expect("the region");
                    while !done.load(Ordering::Relaxed) {
                        let mut mapping = version.map_all().expect("a mapping");
                        let bytes = mapping.read(0..LEN).expect("a read");
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixed version");
                        let next = version.newest().expect("a version");
                        assert!(next.version() >= version.version());
                        version = next;
                    }
                });
            }
            for value in 1..30 {
                let mut update = newest.update(0..3).expect("a lease");
                update.write(0, &vec![value; LEN as usize]).expect("a write");
                newest = update.commit().expect("a version");
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
