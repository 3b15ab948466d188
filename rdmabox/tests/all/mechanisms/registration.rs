//! Tests of preMR, dynMR and inline data.

use rdmabox::{PreMrThreshold, ProviderKind, Session, provider::rdma, stats::StatsSnapshot};

use super::{offsets, on_each_that_posts_and_cards, submit};
use crate::support::{at, base, on_each_that_posts, pattern};

#[test]
fn the_threshold_decides_for_single_and_merged_requests() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        for threshold in [0u64, 1, 4096, 10_000, u64::MAX] {
            f.options.pre_mr_threshold = PreMrThreshold::Bytes(threshold);
            let session = f.connect();
            let base = base(&session);
            for write in [true, false] {
                for (parts, len) in [
                    (1, 1),
                    (1, 2),
                    (1, 4096),
                    (1, 4097),
                    (1, 10_000),
                    (1, 10_001),
                    (2, 2048),
                    (3, 2048),
                    (5, 2000),
                    (5, 2001),
                ] {
                    let places = offsets(base, (0..parts).map(|i| i * len));
                    let took = submit(&session, write, &places, len);
                    let sum = (parts * len) as u64;
                    let staged = sum <= threshold;
                    let (pre, dynamic) = if staged { (sum, 0) } else { (0, sum) };
                    let registrations = if staged { 0 } else { parts as u64 };
                    assert_eq!(took.work_requests, 1);
                    assert_eq!(
                        (took.pre_mr_bytes, took.dyn_mr_bytes),
                        (pre, dynamic),
                        "{threshold} {parts}x{len}"
                    );
                    assert_eq!((took.registrations, took.registered_bytes), (registrations, 0));
                }
            }
        }
    });
}

#[test]
fn requests_register_their_memory_while_the_pool_is_in_use() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        let session = f.connect();
        let base = base(&session);
        let counted = |s: &StatsSnapshot| (s.pool_misses, s.pre_mr_bytes, s.dyn_mr_bytes, s.registrations);
        assert_eq!(counted(&submit(&session, true, &[base], 1000)), (0, 1000, 0, 0));
        let held: Vec<_> = std::iter::from_fn(|| session.buffer(1 << 20)).collect();
        assert_eq!(held.len(), 8);
        for write in [true, false] {
            assert_eq!(counted(&submit(&session, write, &[base], 1000)), (1, 0, 1000, 1));
            // More parts than a work request has elements: they get one block of their own.
            let took = submit(&session, write, &offsets(base, (0..40).map(|i| i * 100)), 100);
            assert_eq!((counted(&took), took.work_requests), ((1, 4000, 0, 1), 1));
            // Long requests never use the pool.
            assert_eq!(counted(&submit(&session, write, &[base], 5000)), (0, 0, 5000, 1));
        }
        drop(held);
        assert_eq!(counted(&submit(&session, true, &[base], 1000)), (0, 1000, 0, 0));
    });
}

#[test]
fn a_buffer_of_another_session_is_ordinary_memory_and_outlives_its_session() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        let (owner, session) = (f.connect(), f.connect());
        let base = base(&session);
        let buffers = [owner.allocate(8192).unwrap(), owner.buffer(8192).unwrap()];
        let mut owner = Some(owner);
        for (seed, mut buffer) in buffers.into_iter().enumerate() {
            buffer.copy_from_slice(&pattern(8192, seed));
            for (len, copied, registrations) in [(4096, 4096, 0), (8192, 0, 1)] {
                let before = session.stats();
                let sent = session.start_write(base, buffer.slice(..len)).wait().unwrap();
                let read = session.start_read(base, sent).wait().unwrap();
                let took = session.stats().since(&before);
                assert_eq!((took.registered_bytes, took.cache_hits), (0, 0), "{len}");
                assert_eq!((took.pre_mr_bytes, took.registrations), (2 * copied, 2 * registrations), "{len}");
                buffer = read.into_inner();
                assert!(*buffer == *pattern(8192, seed));
                // The second request of each buffer comes after the end of its session.
                owner = None;
            }
        }
        assert!(owner.is_none());
    });
}

/// Catches a registration of the caller that its requests do not find, that others find later, or
/// that another session takes for its own.
#[test]
fn memory_of_a_caller_is_registered_once() {
    const LEN: usize = 1 << 18;
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        let (session, other) = (f.connect(), f.connect());
        let (base, mut bytes) = (base(&session), pattern(LEN, 1));
        let before = session.stats();
        // SAFETY: the bytes live to the end of the test.
        let mr = unsafe { session.register(bytes.as_mut_ptr(), LEN) }.unwrap();
        assert!(session.has_registered(&mr, &bytes) && !other.has_registered(&mr, &bytes));
        assert!(!session.has_registered(&mr, &pattern(8, 1)));
        for part in [&bytes[..], &bytes[100..5000], &bytes[LEN - 8..]] {
            session.with_registration(&mr, part, || session.write(base, part)).unwrap();
            let mut found = vec![0; part.len()];
            f.memory.read(0, &mut found);
            assert!(found == part);
        }
        let took = session.stats().since(&before);
        let sent = (LEN + 4900 + 8) as u64;
        assert_eq!((took.registrations, took.cache_hits, took.registered_bytes), (1, 3, sent));
        assert_eq!((took.pre_mr_bytes, took.dyn_mr_bytes), (0, 0));
        // Outside of the call, and for a READ, it is ordinary memory.
        session.write(base, &bytes).unwrap();
        let mut out = vec![0; LEN];
        session.with_registration(&mr, &bytes, || session.read(base, &mut out)).unwrap();
        assert!(out == bytes);
        // For another session as well.
        other.with_registration(&mr, &bytes, || other.write(base, &bytes)).unwrap();
        assert_eq!(session.stats().since(&before).dyn_mr_bytes, 2 * LEN as u64);
        assert_eq!((other.stats().dyn_mr_bytes, other.stats().cache_hits), (LEN as u64, 0));
    });
}

#[test]
fn short_requests_beside_registered_memory_are_still_copied() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        for (threshold, work_requests, copied, registered) in [(8192, 2, 4096, 0), (4096, 1, 0, 4096)] {
            f.options.pre_mr_threshold = PreMrThreshold::Bytes(threshold);
            let session = f.connect();
            let base = base(&session);
            let own = session.buffer(4096).unwrap();
            let parts = [(base, &own[..]), (at(base, 4096), &[7; 4096][..])];
            let before = session.stats();
            session.write_vectored(&parts).unwrap();
            let took = session.stats().since(&before);
            assert_eq!((took.work_requests, took.doorbells), (work_requests, 1));
            assert_eq!((took.registered_bytes, took.pre_mr_bytes), (4096, copied));
            assert_eq!(took.dyn_mr_bytes, registered);
        }
    });
}

/// Catches a default that differs from the documented one: an RDMA device is measured, once. All
/// else copies up to 4 KiB, with a modelled card as well.
#[test]
fn the_threshold_is_measured_by_default_over_rdma_only() {
    on_each_that_posts_and_cards(|mut f| {
        f.options.max_inline = 0;
        let mut connect = |threshold| {
            f.options.pre_mr_threshold = threshold;
            f.connect()
        };
        let session = connect(PreMrThreshold::ByProvider);
        let measured = connect(PreMrThreshold::Auto).pre_mr_threshold();
        let is_measured = f.options.provider == Some(ProviderKind::Rdma);
        let threshold = session.pre_mr_threshold();
        assert_eq!(threshold, if is_measured { measured } else { 4096 });
        let (base, len) = (base(&session), threshold as usize);
        let took = [len, len + 1].map(|len| submit(&session, true, &[base], len));
        let bytes = took.map(|took| (took.pre_mr_bytes, took.dyn_mr_bytes));
        assert_eq!(bytes, [(threshold, 0), (0, threshold + 1)]);
    });
}

#[test]
fn a_measured_threshold_is_the_one_in_force() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        f.options.pre_mr_threshold = PreMrThreshold::Auto;
        let session = f.connect();
        let base = base(&session);
        // The threshold depends on the machine, but never exceeds a block of the pool.
        let threshold = session.pre_mr_threshold();
        assert!(threshold <= 1 << 20, "{threshold}");
        for write in [true, false] {
            if threshold > 0 {
                let took = submit(&session, write, &[base], threshold as usize);
                assert_eq!((took.work_requests, took.pre_mr_bytes, took.dyn_mr_bytes), (1, threshold, 0));
            }
            let took = submit(&session, write, &[base], threshold as usize + 1);
            assert_eq!((took.work_requests, took.pre_mr_bytes, took.dyn_mr_bytes), (1, 0, threshold + 1));
        }
    });
}

#[test]
fn inline_data_has_its_own_limit() {
    on_each_that_posts(|mut f| {
        // The inline limit of the device.
        let most = match f.address.provider() {
            ProviderKind::Rdma => rdma::open(&f.options.rdma).unwrap().attr().max_inline_data,
            _ => 1024,
        };
        let bytes = u64::from(most);
        for (max, len, inline) in [
            (0, 1, 0),
            (0, 8, 0),
            (8, 8, 8),
            (8, 9, 0),
            (220, 220, 220),
            (220, 221, 0),
            (most, most as usize, bytes),
        ] {
            f.options.max_inline = max;
            let session = f.connect();
            let base = base(&session);
            let took = submit(&session, true, &[base], len);
            assert_eq!((took.inline_bytes, took.pre_mr_bytes), (inline, len as u64 - inline), "{max} {len}");
            // A READ never is.
            assert_eq!(submit(&session, false, &[base], len).inline_bytes, 0);
        }
        f.options.max_inline = most + 1;
        // The error names the option, not only the device.
        let refused = Session::connect(&f.address, &f.options).unwrap_err().to_string();
        let expected =
            format!("max_inline = {}: choose 0 to {most} bytes, the limit of the device", most + 1);
        assert_eq!(refused, expected);
    });
}
