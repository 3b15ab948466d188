//! Tests of heavy but legal loads: more parts than queue entries, and more staging than the pool
//! holds.

use crate::support::{Fixture, at, base, on_each_provider, pattern, providers};
use rdmabox::{PreMrThreshold, RemoteAddr, Session};

const THREADS: usize = 6;
const PARTS: usize = 250;
const AREA: usize = 1 << 19;

/// Reads or writes many small, disjoint pieces, and checks the contents.
fn work(session: &Session, base: RemoteAddr, thread: usize, memory: &rdmabox::Memory) {
    let start = thread * AREA;
    for round in 0..60 {
        let blocks: Vec<Vec<u8>> = (0..PARTS).map(|i| pattern(8, thread * 1000 + round + i)).collect();
        if thread.is_multiple_of(2) {
            for (i, block) in blocks.iter().enumerate() {
                memory.write(start + i * 64, block);
            }
            let mut out = vec![[0u8; 8]; PARTS];
            let mut parts: Vec<_> =
                out.iter_mut().enumerate().map(|(i, o)| (at(base, start + i * 64), &mut o[..])).collect();
            session.read_vectored(&mut parts).unwrap();
            assert!(out.iter().zip(&blocks).all(|(out, block)| out[..] == block[..]));
        } else {
            let parts: Vec<_> =
                blocks.iter().enumerate().map(|(i, b)| (at(base, start + i * 64), &b[..])).collect();
            session.write_vectored(&parts).unwrap();
            let mut found = [0; 8];
            for (i, block) in blocks.iter().enumerate() {
                memory.read(start + i * 64, &mut found);
                assert_eq!(&found[..], &block[..]);
            }
        }
    }
}

#[test]
fn many_threads_with_many_parts_never_overfill_a_queue() {
    for provider in providers() {
        for queue_pairs in [1, 4] {
            let mut f = Fixture::new(provider);
            f.options.queue_pairs = queue_pairs;
            f.options.window_bytes = 64 << 20;
            let session = f.connect();
            let base = base(&session);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (session, memory) = (&session, &f.memory);
                    scope.spawn(move || work(session, base, thread, memory));
                }
            });
            assert!(session.is_connected());
            assert_eq!(session.stats().get("errors"), 0);
        }
    }
}

#[test]
fn merges_of_many_parts_survive_an_exhausted_pool() {
    on_each_provider(|mut f| {
        f.options.window_bytes = 64 << 20;
        f.options.pre_mr_threshold = PreMrThreshold::Bytes(1 << 20);
        // The pool has 8 MiB: more than that is staged at once.
        let (groups, parts_each, len) = (14, 60, 4000);
        let session = f.connect();
        let base = base(&session);
        let data = pattern(parts_each * len, 1);
        let mut parts = Vec::new();
        for group in 0..groups {
            for (i, chunk) in data.chunks(len).enumerate() {
                parts.push((at(base, group * 256 * 1024 + i * len), chunk));
            }
        }
        // Every part of 60 adjacent ones travels with the others; a block of 256 KiB each.
        for _ in 0..4 {
            let before = session.stats();
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| session.write_vectored(&parts).unwrap());
                }
            });
            let after = session.stats();
            let count = (4 * groups * parts_each * len) as u64;
            assert_eq!(after.get("pre_mr_bytes") - before.get("pre_mr_bytes"), count);
        }
        let mut out = vec![vec![0u8; len]; groups * parts_each];
        let mut reads: Vec<_> =
            parts.iter().zip(&mut out).map(|((remote, _), out)| (*remote, &mut out[..])).collect();
        session.read_vectored(&mut reads).unwrap();
        assert!(out.iter().zip(&parts).all(|(out, (_, data))| out[..] == data[..]));
        assert_eq!(session.stats().get("errors"), 0);
    });
}

#[test]
fn one_submission_larger_than_the_pool_is_staged_all_the_same() {
    // Long enough that 12 merges of 600 KB take more blocks of 1 MiB than there are.
    for provider in providers() {
        let mut f = Fixture::with_memory(provider, 12 << 20);
        f.options.window_bytes = 64 << 20;
        f.options.pre_mr_threshold = PreMrThreshold::Bytes(64 << 20);
        let session = f.connect();
        let base = base(&session);
        let data = pattern(60 * 10_000, 2);
        let parts: Vec<_> = (0..12usize)
            .flat_map(|group| {
                data.chunks(10_000)
                    .enumerate()
                    .map(move |(i, chunk)| (at(base, group * (1 << 20) + i * 10_000), chunk))
            })
            .collect();
        let before = session.stats();
        session.write_vectored(&parts).unwrap();
        let after = session.stats();
        let delta = |name: &str| after.get(name) - before.get(name);
        assert_eq!(
            (delta("work_requests"), delta("pre_mr_bytes"), delta("dyn_mr_bytes")),
            (12, 7_200_000, 0)
        );
        // Eight blocks come from the pool, the rest is made for the request.
        assert_eq!(delta("registrations"), 4);
        let mut back = vec![0; data.len()];
        for group in 0..12 {
            f.memory.read(group << 20, &mut back);
            assert!(back == data, "group {group}");
        }
        // Merges longer than a pool block are never staged, independent of the threshold.
        let before = session.stats();
        session.write(base, &vec![1; (1 << 20) + 1]).unwrap();
        assert_eq!(session.stats().get("pre_mr_bytes"), before.get("pre_mr_bytes"));
    }
}
