//! Finds the request size above which registering the caller's memory costs less than copying it.
//!
//! RDMAbox describes the trade-off (section IV-A and Fig. 5) and measures 928 KiB in user space
//! on its card. [`measure`] performs both operations on a domain and a pool. [`threshold_of`]
//! computes the threshold from the resulting table without I/O, locks or clock.
//!
//! The measurement covers the best case of both ways: the memory is present and, if it fits, in
//! the processor's caches. Worse cases slow down copying more, so the threshold is too large
//! rather than too small.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::PreMrPool;
use crate::verbs::{Access, ProtectionDomain};

/// Smallest measured size in bytes. Below it, the pool's lock dominates the cost of a copy.
const SMALLEST: usize = 512;
/// Maximum number of repetitions; the shortest duration counts.
const ROUNDS: usize = 5;
/// Time after which no further repetition begins. The first repetition always runs and also
/// faults the memory in. With a largest block of 1 MiB it costs about as much as copying 4 MiB.
const BUDGET: Duration = Duration::from_millis(2);

/// Durations of moving `bytes` through local memory by copy and by registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    /// Size of the transfer in bytes.
    bytes: u64,
    /// Nanoseconds to take a pool block, copy the bytes into it and return it.
    copy: u64,
    /// Nanoseconds to register and deregister the bytes; `u64::MAX` if the domain refused.
    register: u64,
}

/// Returns the largest size for which a copy is cheaper: 0 if registering is always cheaper,
/// `u64::MAX` if it never is.
///
/// `table` is in ascending order of size. Registering is cheaper for every size in the table
/// above the result. Smaller sizes for which registering happens to be cheaper do not count. The
/// result is interpolated linearly between the two neighbouring sizes.
fn threshold_of(table: &[Measured]) -> u64 {
    let Some(last) = table.iter().rposition(|m| m.copy <= m.register) else { return 0 };
    let (Some(below), Some(above)) = (table.get(last), table.get(last + 1)) else { return u64::MAX };
    // The lines cross at the ratio of the gain at the smaller size to the loss at the larger size.
    let gain = u128::from(below.register - below.copy);
    let loss = u128::from(above.copy - above.register);
    let step = u128::from(above.bytes.saturating_sub(below.bytes));
    // Less than `step`, because `loss` is not zero.
    let beyond = u64::try_from(step * gain / (gain + loss)).unwrap_or(0);
    below.bytes + beyond
}

/// Measures powers of two from 512 bytes to the pool's largest block. Allocates a buffer of the
/// largest size and takes one pool block at a time. Sizes for which the pool has no block are
/// left out.
fn measure(pd: &dyn ProtectionDomain, pool: &Arc<PreMrPool>) -> Vec<Measured> {
    let started = Instant::now();
    // Written, so that the process has a private page for every part of the buffer.
    let mut buffer = vec![1u8; pool.max_block()];
    let sizes = std::iter::successors(Some(SMALLEST), |size| size.checked_mul(2));
    let mut table: Vec<Measured> = sizes
        .take_while(|size| *size <= buffer.len())
        .map(|size| Measured { bytes: size as u64, copy: u64::MAX, register: u64::MAX })
        .collect();
    for round in 0..ROUNDS {
        if round > 0 && started.elapsed() >= BUDGET {
            break;
        }
        for measured in &mut table {
            let bytes = &mut buffer[..measured.bytes as usize];
            let copied = nanos(|| {
                let block = pool.acquire(bytes.len())?;
                block.write(0, bytes);
                Some(())
            });
            measured.copy = measured.copy.min(copied.unwrap_or(u64::MAX));
            let registered = nanos(|| {
                // SAFETY: this closure has the bytes to itself, no request uses the registration,
                // and the closure drops it before it returns.
                unsafe {
                    pd.register_borrowed(bytes.as_mut_ptr() as u64, bytes.len() as u64, Access::LOCAL_WRITE)
                }
                .map(drop)
                .ok()
            });
            measured.register = measured.register.min(registered.unwrap_or(u64::MAX));
        }
    }
    table.retain(|measured| measured.copy != u64::MAX);
    table
}

/// Returns the nanoseconds that `f` takes, or `None` if `f` fails.
fn nanos(f: impl FnOnce() -> Option<()>) -> Option<u64> {
    let started = Instant::now();
    f()?;
    Some(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
}

/// Returns the threshold between preMR and dynMR for a domain and a pool, within a few
/// milliseconds. See [`threshold_of`].
pub(crate) fn calibrate(pd: &dyn ProtectionDomain, pool: &Arc<PreMrPool>) -> u64 {
    let table = measure(pd, pool);
    let threshold = threshold_of(&table);
    log::debug!("preMR threshold {threshold} bytes: {table:?}");
    threshold
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        mapping::Memory,
        provider::soft::SoftDevice,
        verbs::{Device, MrHandle, QpInit, QueuePair, VerbsError},
    };

    fn table(rows: &[(u64, u64, u64)]) -> Vec<Measured> {
        rows.iter().map(|&(bytes, copy, register)| Measured { bytes, copy, register }).collect()
    }

    #[test]
    fn the_lines_cross_between_two_sizes() {
        let rows = [(4096, 100, 1000), (8192, 200, 1000), (16384, 400, 1000), (32768, 1200, 1000)];
        // 600 ns of the gap of 800 ns, so 6/8 of the step.
        assert_eq!(threshold_of(&table(&rows)), 16384 + 16384 * 6 / 8);
    }

    #[test]
    fn the_threshold_is_zero_or_unlimited_if_one_way_is_always_cheaper() {
        assert_eq!(threshold_of(&table(&[(4096, 100, 99), (8192, 200, 99)])), 0);
        assert_eq!(threshold_of(&table(&[(4096, 100, 200), (8192, 200, 200)])), u64::MAX);
        assert_eq!(threshold_of(&table(&[(4096, 100, u64::MAX), (8192, 200, u64::MAX)])), u64::MAX);
        assert_eq!(threshold_of(&[]), 0);
    }

    #[test]
    fn a_single_small_size_that_registers_quickly_does_not_count() {
        let rows = [(4096, 300, 200), (8192, 200, 200), (16384, 500, 200)];
        assert_eq!(threshold_of(&table(&rows)), 8192);
    }

    fn pool(blocks: usize) -> Arc<PreMrPool> {
        PreMrPool::new(Arc::new(Memory::private(blocks * 4096).unwrap()), 64 << 10)
    }

    #[test]
    fn every_size_is_measured_and_every_block_returned() {
        let pool = pool(64);
        let pd = SoftDevice::new().unwrap().alloc_pd().unwrap();
        let table = measure(&*pd, &pool);
        let sizes: Vec<u64> = table.iter().map(|measured| measured.bytes).collect();
        assert_eq!(sizes, [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]);
        assert!(table.iter().all(|measured| measured.register != u64::MAX));
        assert_eq!(pool.available(), 64 * 4096);
    }

    #[test]
    fn sizes_that_the_pool_does_not_have_are_left_out() {
        let pool = pool(2);
        let pd = SoftDevice::new().unwrap().alloc_pd().unwrap();
        let table = measure(&*pd, &pool);
        assert_eq!(
            table.iter().map(|measured| measured.bytes).collect::<Vec<_>>(),
            [512, 1024, 2048, 4096, 8192]
        );
    }

    /// Domain that refuses registrations longer than `max`.
    #[derive(Debug)]
    struct Limited {
        inner: Arc<dyn ProtectionDomain>,
        max: u64,
    }

    impl crate::verbs::Sealed for Limited {}

    impl ProtectionDomain for Limited {
        fn register(&self, _: &Arc<Memory>, _: u64, _: u64, _: Access) -> Result<MrHandle, VerbsError> {
            unreachable!("only borrowed memory is measured")
        }

        unsafe fn register_borrowed(
            &self,
            addr: u64,
            length: u64,
            access: Access,
        ) -> Result<MrHandle, VerbsError> {
            if length > self.max {
                return Err(VerbsError::Limit { what: "length", asked: length, limit: self.max });
            }
            // SAFETY: the caller keeps this function's contract.
            unsafe { self.inner.register_borrowed(addr, length, access) }
        }

        fn create_qp(&self, _: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
            unreachable!("nothing is sent")
        }
    }

    #[test]
    fn sizes_that_cannot_be_registered_are_copied() {
        let inner = SoftDevice::new().unwrap().alloc_pd().unwrap();
        let table = measure(&Limited { inner: Arc::clone(&inner), max: 16384 }, &pool(64));
        let refused: Vec<bool> = table.iter().map(|measured| measured.register == u64::MAX).collect();
        assert_eq!(refused, [false, false, false, false, false, false, true, true]);
        assert_eq!(calibrate(&Limited { inner, max: 0 }, &pool(64)), u64::MAX);
    }

    proptest! {
        #[test]
        fn beyond_the_threshold_registering_is_cheaper_and_at_it_copying_is(
            costs in prop::collection::vec((any::<u64>(), any::<u64>(), 0..64u32), 0..12),
        ) {
            let table: Vec<Measured> = costs
                .into_iter()
                .zip(9..)
                .map(|((copy, register, shift), order)| {
                    Measured { bytes: 1 << order, copy: copy >> shift, register: register >> shift }
                })
                .collect();
            let threshold = threshold_of(&table);
            let within = table.iter().rfind(|measured| measured.bytes <= threshold);
            prop_assert!(within.is_none_or(|measured| measured.copy <= measured.register));
            let mut beyond = table.iter().filter(|measured| measured.bytes > threshold);
            prop_assert!(beyond.all(|measured| measured.register < measured.copy));
            prop_assert_eq!(threshold == 0, within.is_none());
        }

        #[test]
        fn the_threshold_is_where_two_straight_lines_cross(
            per_kib in 1..1000u64,
            fixed in 1..1_000_000_000u64,
        ) {
            // The cost of a copy is proportional to its size; the cost of a registration is
            // constant.
            let table: Vec<Measured> = (10..30)
                .map(|order| Measured { bytes: 1 << order, copy: per_kib << (order - 10), register: fixed })
                .collect();
            let exact = fixed * 1024 / per_kib;
            let expected = match exact {
                _ if exact < 1 << 10 => 0,
                _ if exact >= 1 << 29 => u64::MAX,
                _ => exact,
            };
            let found = threshold_of(&table);
            prop_assert!(found.abs_diff(expected) <= 1024, "{found} for {expected}");
        }
    }
}
