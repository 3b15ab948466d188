//! Where registering a caller's memory becomes cheaper than copying it through the pool (RDMAbox, section IV-A and Fig.
//! 5: 928 KiB in user space on the paper's card).
//!
//! Measuring and deciding are apart: [`measure`] does to a domain and a pool what requests would, [`threshold_of`] is a
//! pure function of the table that comes out.
//!
//! What is measured is the best case of both: memory that is present and, up to the size of the processor's caches, at
//! hand there. Copying has more to lose from the worse cases, and so the result is rather too large than too small.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::PreMrPool;
use crate::verbs::{Access, ProtectionDomain};

/// Smallest size measured. Below it, copying is a matter of the pool's lock and not of bytes.
const SMALLEST: usize = 512;
/// Most repetitions; the least duration of them counts.
const ROUNDS: usize = 5;
/// Time after which no further repetition begins. The first, which also brings the memory in, is always made: for a
/// largest block of 1 MiB it costs about as much as copying 4 MiB.
const BUDGET: Duration = Duration::from_millis(2);

/// What moving `bytes` through local memory takes in either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The size.
    pub bytes: u64,
    /// Nanoseconds to take a block of the pool, copy the bytes there and give it back.
    pub copy: u64,
    /// Nanoseconds to register the bytes and undo it; `u64::MAX` where the domain refused.
    pub register: u64,
}

/// The largest size up to which a request is better copied: 0 if registering is always cheaper, `u64::MAX` if it never is.
///
/// `table` is in ascending order of size. From the result on, registering is cheaper for every larger size in it; a
/// smaller one at which it happens to be cheaper as well does not count. Between the two sizes in question the
/// durations are taken to be straight lines.
pub fn threshold_of(table: &[Measured]) -> u64 {
    let Some(last) = table.iter().rposition(|m| m.copy <= m.register) else { return 0 };
    let (Some(below), Some(above)) = (table.get(last), table.get(last + 1)) else { return u64::MAX };
    // How much copying gains at the one, and loses at the other: the lines cross in between in that proportion.
    let gain = u128::from(below.register - below.copy);
    let loss = u128::from(above.copy - above.register);
    let step = u128::from(above.bytes.saturating_sub(below.bytes));
    // Less than the step, as the loss is not zero.
    let beyond = u64::try_from(step * gain / (gain + loss)).unwrap_or(0);
    below.bytes + beyond
}

/// Measures sizes of powers of two from 512 bytes to the pool's largest block. Takes memory of that size meanwhile, and
/// blocks of the pool one at a time; sizes that it cannot have are left out.
pub fn measure(pd: &dyn ProtectionDomain, pool: &Arc<PreMrPool>) -> Vec<Measured> {
    let started = Instant::now();
    // Written, so that every page is there, and its own.
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
            let copied = nanos(|| pool.acquire(bytes.len()).map(|block| block.write(0, bytes)));
            measured.copy = measured.copy.min(copied.unwrap_or(u64::MAX));
            let registered = nanos(|| {
                // SAFETY: the bytes are lent to this closure alone, no request uses the registration, and it is gone
                // when the closure returns.
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

/// Nanoseconds that `f` takes, if it works.
fn nanos(f: impl FnOnce() -> Option<()>) -> Option<u64> {
    let started = Instant::now();
    f()?;
    Some(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX - 1))
}

/// The threshold between preMR and dynMR for a domain and a pool, found in a few milliseconds; see [`threshold_of`].
pub fn calibrate(pd: &dyn ProtectionDomain, pool: &Arc<PreMrPool>) -> u64 {
    let table = measure(pd, pool);
    let threshold = threshold_of(&table);
    log::debug!("copying up to {threshold} bytes, registering from there: {table:?}");
    threshold
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        memory::Memory,
        provider::soft::SoftDevice,
        verbs::{Device, MrHandle, QpInit, QueuePair, VerbsError},
    };

    fn table(rows: &[(u64, u64, u64)]) -> Vec<Measured> {
        rows.iter().map(|&(bytes, copy, register)| Measured { bytes, copy, register }).collect()
    }

    #[test]
    fn the_lines_cross_between_two_sizes() {
        let rows = [(4096, 100, 1000), (8192, 200, 1000), (16384, 400, 1000), (32768, 1200, 1000)];
        // 600 of 800 nanoseconds of the way.
        assert_eq!(threshold_of(&table(&rows)), 16384 + 16384 * 6 / 8);
    }

    #[test]
    fn always_and_never() {
        assert_eq!(threshold_of(&table(&[(4096, 100, 99), (8192, 200, 99)])), 0);
        assert_eq!(threshold_of(&table(&[(4096, 100, 200), (8192, 200, 200)])), u64::MAX);
        assert_eq!(threshold_of(&table(&[(4096, 100, u64::MAX), (8192, 200, u64::MAX)])), u64::MAX);
        assert_eq!(threshold_of(&[]), 0);
    }

    #[test]
    fn one_small_size_that_is_quick_to_register_does_not_count() {
        let rows = [(4096, 300, 200), (8192, 200, 200), (16384, 500, 200)];
        assert_eq!(threshold_of(&table(&rows)), 8192);
    }

    fn pool(blocks: usize) -> Arc<PreMrPool> {
        PreMrPool::new(Arc::new(Memory::private(blocks * 4096).unwrap()), 64 << 10)
    }

    #[test]
    fn every_size_is_measured_and_everything_given_back() {
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

    /// Registers up to a size, and knows what is registered.
    #[derive(Debug)]
    struct Limited {
        inner: Arc<dyn ProtectionDomain>,
        max: u64,
    }

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
            // SAFETY: as this function's contract.
            unsafe { self.inner.register_borrowed(addr, length, access) }
        }

        fn create_qp(&self, _: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
            unreachable!("nothing is sent")
        }
    }

    #[test]
    fn what_cannot_be_registered_is_copied() {
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
        fn straight_lines_cross_where_they_do(
            per_kib in 1..1000u64,
            fixed in 1..1_000_000_000u64,
        ) {
            // A copy costs so much per KiB, and registering always the same.
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
