//! Random loads and stores of several threads on paged memory, beside a plain array.
//!
//! Thread N of T owns every T-th group of 64 bytes, so all threads use every page. If there is
//! redundancy, servers are killed in the middle, and others after the repair. Devices may have
//! faults. No byte may be lost, torn or taken from another page.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crate::support::{ChildLender, MIB, PAGE, Places, Provider, options, pager, providers, wait_for};
use fastrand::Rng;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use rdmabox::provider::fault::{Faults, Plan as FaultPlan};
use rfs_paging::{PagerEvent, PagerStats, Redundancy};

/// Bytes that a thread owns in one piece.
const GROUP: usize = 64;

#[derive(Clone, Debug)]
struct Plan {
    provider: Provider,
    budget: usize,
    pages: usize,
    threads: usize,
    /// Steps of each thread.
    steps: usize,
    redundancy: Redundancy,
    /// Servers beyond those of the redundancy.
    spare: usize,
    /// The steps of all threads after which servers are killed, in percent.
    kill_at: usize,
    read_ahead: u64,
    /// The device fails, breaks its queue pairs and delays completions now and then.
    faults: bool,
    seed: u64,
}

/// Each of them is tested over each provider.
const REDUNDANCIES: [Redundancy; 4] = [
    Redundancy::None,
    Redundancy::Mirror,
    Redundancy::Coded { data: 2, parity: 1 },
    Redundancy::Coded { data: 3, parity: 2 },
];

fn plan(provider: Provider, redundancy: Redundancy) -> impl Strategy<Value = Plan> {
    let sizes = (32..100_usize, 100..700_usize, 1..5_usize, 200..2500_usize);
    let rest = (0..2_usize, 0..100_usize, prop_oneof![Just(4 << 10), Just(32 << 10), Just(128 << 10)]);
    (sizes, rest, any::<bool>(), any::<u64>()).prop_map(move |(sizes, rest, faults, seed)| {
        let (budget, pages, threads, steps) = sizes;
        let (spare, kill_at, read_ahead) = rest;
        Plan { provider, budget, pages, threads, steps, redundancy, spare, kill_at, read_ahead, faults, seed }
    })
}

/// A thread's view: paged memory by address, and the bytes that have to be there.
struct User<'a> {
    start: usize,
    groups: usize,
    number: usize,
    threads: usize,
    shadow: Vec<u8>,
    rng: Rng,
    done: &'a AtomicUsize,
}

impl User<'_> {
    /// Returns the offset of the n-th group that this thread owns.
    fn offset(&self, n: usize) -> usize {
        (n * self.threads + self.number) * GROUP
    }

    fn owned(&self) -> usize {
        (self.groups - self.number).div_ceil(self.threads)
    }

    fn load(&self, offset: usize) -> [u8; GROUP] {
        let mut bytes = [0; GROUP];
        // SAFETY: The group lies in memory that outlives the thread, and no other thread uses it.
        unsafe {
            std::ptr::copy_nonoverlapping((self.start + offset) as *const u8, bytes.as_mut_ptr(), GROUP);
        }
        bytes
    }

    fn store(&mut self, offset: usize, bytes: [u8; GROUP]) {
        // SAFETY: As for `load`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.start + offset) as *mut u8, GROUP) };
        self.shadow[offset..offset + GROUP].copy_from_slice(&bytes);
    }

    fn check(&self, offset: usize) {
        let expected = &self.shadow[offset..offset + GROUP];
        assert_eq!(self.load(offset), expected, "page {} at {offset}", offset / PAGE);
    }

    fn check_all(&self) {
        (0..self.owned()).for_each(|n| self.check(self.offset(n)));
    }

    fn step(&mut self) {
        let first = self.rng.usize(..self.owned());
        match self.rng.u32(..10) {
            0..4 => {
                let byte = self.rng.u8(..);
                self.store(self.offset(first), std::array::from_fn(|at| byte.wrapping_add(at as u8)));
            }
            4..8 => self.check(self.offset(first)),
            8 => (first..self.owned().min(first + 200)).for_each(|n| self.check(self.offset(n))),
            _ => (first..self.owned().min(first + 100)).for_each(|n| self.store(self.offset(n), [0; GROUP])),
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns faults after which a request can be repeated.
fn faults(seed: u64) -> Faults {
    let mut faults = Faults::none(seed);
    (faults.late, faults.failed, faults.short, faults.broken, faults.refused) = (100, 10, 10, 5, 100);
    faults
}

/// Returns true if the last loss has been repaired.
fn is_repaired(log: &[PagerEvent], losses: usize) -> bool {
    let lost = log.iter().filter(|event| matches!(event, PagerEvent::ServerLost { .. })).count();
    lost == losses && matches!(log.last(), Some(PagerEvent::Repaired { .. }))
}

fn run(plan: &Plan) -> PagerStats {
    let mut places = Places::new();
    let servers = plan.redundancy.servers() + plan.spare;
    let listen = |_| ChildLender::start(&places.address(plan.provider), 8 * MIB);
    let mut lenders: Vec<ChildLender> = (0..servers).map(listen).collect();
    let addresses: Vec<_> = lenders.iter().map(|lender| lender.address.clone()).collect();
    let (options, log) = options(plan.provider, plan.budget);
    let mut options = options.redundancy(plan.redundancy).read_ahead(plan.read_ahead);
    if plan.faults {
        options.session.faults = Some(Arc::new(FaultPlan::new(faults(plan.seed))));
    }
    let pager = pager(&addresses, options);
    let mut memory = pager.map(plan.pages * PAGE).expect("memory");

    let first = plan.seed as usize % servers;
    let mut kill = |n: usize| lenders[(first + n) % servers].kill();
    let (start, done) = (memory.as_mut_ptr() as usize, AtomicUsize::new(0));
    let user = |number| User {
        start,
        groups: plan.pages * PAGE / GROUP,
        number,
        threads: plan.threads,
        shadow: vec![0; plan.pages * PAGE],
        rng: Rng::with_seed(plan.seed ^ number as u64),
        done: &done,
    };
    let (data, kills) = match plan.redundancy {
        Redundancy::Coded { data, parity } => (data, parity),
        redundancy => (1, redundancy.servers() - 1),
    };
    let all_steps = plan.steps * plan.threads;
    let users: Vec<User> = thread::scope(|scope| {
        let users: Vec<_> = (0..plan.threads)
            .map(|number| {
                let mut user = user(number);
                scope.spawn(move || {
                    (0..plan.steps).for_each(|_| user.step());
                    user.check_all();
                    user
                })
            })
            .collect();
        let ended = || users.iter().all(|user| user.is_finished());
        while done.load(Ordering::Relaxed) * 100 < all_steps * plan.kill_at && !ended() {
            // Without a pause this takes a processor.
            thread::sleep(Duration::from_micros(200));
        }
        (0..kills).for_each(&mut kill);
        users.into_iter().map(|user| user.join().expect("the bytes")).collect()
    });
    let more = plan.redundancy.servers().min(servers - kills) - data;
    if kills > 0 && more > 0 && pager.stats().servers_lost == kills as u64 {
        // With the redundancy repaired as far as servers are left, other servers may be lost.
        wait_for("the repair", || is_repaired(&log.lock(), kills));
        (kills..kills + more).for_each(&mut kill);
        users.iter().for_each(User::check_all);
    }
    let stats = pager.stats();
    assert!(stats.max_resident <= plan.budget as u64, "{stats:?}");
    assert_eq!((stats.pages_lost, stats.over_budget), (0, 0), "{stats:?}");
    assert!(kills > 0 || stats.servers_lost == 0, "{stats:?}");
    stats
}

#[test]
fn requests_that_fail_are_repeated() {
    for provider in providers() {
        let steps = if is_emulated() { 400 } else { 1500 };
        let (budget, pages, threads) = (64, 600, 2);
        let (kill_at, read_ahead, faults, seed) = (100, 32 << 10, true, 7);
        for redundancy in [Redundancy::None, Redundancy::Coded { data: 2, parity: 1 }] {
            let spare = 1;
            let stats = run(&Plan {
                provider,
                budget,
                pages,
                threads,
                steps,
                redundancy,
                spare,
                kill_at,
                read_ahead,
                faults,
                seed,
            });
            assert!(stats.retries > 0, "{stats:?}");
        }
    }
}

/// Returns true if the processors are emulated, so that everything takes ten times as long:
/// `ci/guest/boot` sets RDMA_VM.
fn is_emulated() -> bool {
    std::env::var_os("RDMA_VM").is_some()
}

/// Returns the number of random plans, over all pairs of a provider and a redundancy.
fn cases() -> usize {
    let is_long = std::env::var_os("RFS_TEST_LONG").is_some();
    if is_emulated() {
        4
    } else if is_long {
        48
    } else {
        12
    }
}

#[test]
fn threads_find_the_bytes_that_they_stored() {
    let providers = providers();
    let cases = cases().div_ceil(providers.len() * REDUNDANCIES.len()) as u32;
    for provider in providers {
        for redundancy in REDUNDANCIES {
            let config =
                Config { cases, max_shrink_iters: 20, failure_persistence: None, ..Config::default() };
            let outcome = TestRunner::new(config).run(&plan(provider, redundancy), |plan| {
                run(&plan);
                Ok(())
            });
            outcome.unwrap_or_else(|error| panic!("{provider:?}, {redundancy}: {error}"));
        }
    }
}
