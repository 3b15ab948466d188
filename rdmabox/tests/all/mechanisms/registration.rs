//! Tests of preMR, dynMR and inline data.

use rdmabox::{ProviderKind, Session, provider::rdma};

use super::{offsets, submit};
use crate::support::{base, on_each_that_posts};

#[test]
fn the_threshold_decides_for_single_and_merged_requests() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        for threshold in [0u64, 1, 4096, 10_000, u64::MAX] {
            f.options.pre_mr_threshold = rdmabox::PreMrThreshold::Bytes(threshold);
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
fn a_measured_threshold_is_the_one_in_force() {
    on_each_that_posts(|mut f| {
        f.options.max_inline = 0;
        f.options.pre_mr_threshold = rdmabox::PreMrThreshold::Auto;
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
            ProviderKind::Shm | ProviderKind::Tcp => 1024,
            ProviderKind::Rdma => rdma::open(&f.options.rdma).unwrap().attr().max_inline_data,
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
        assert!(Session::connect(&f.address, &f.options).is_err());
    });
}
