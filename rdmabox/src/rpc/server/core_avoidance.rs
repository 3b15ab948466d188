//! Keeps a polling thread off the cores of the clients whose requests it polls.
//!
//! A client under SCHED_IDLE does not run beside a polling thread. The thread then polls in vain,
//! and is woken on that core again, because the kernel takes such a core for idle. A thread that
//! shares a core with a client [`MAX_ENCOUNTERS`] times within a millisecond excludes all
//! clients' cores from its affinity, for [`MAX_AVOIDANCE`] at most. If that does not help, it
//! pauses, longer each time. Clients on other hosts report no core.
//!
//! The affinity is inherited by threads and processes started meanwhile. A change by another
//! party is respected. A restored affinity is fixed: cores added to the control group later are
//! not included.
//!
//! # Concurrency
//! One instance per thread; no locks.

use std::time::{Duration, Instant};

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

/// Number of encounters within `ENCOUNTER_WINDOW` that triggers a move.
const MAX_ENCOUNTERS: u32 = 8;
const ENCOUNTER_WINDOW: Duration = Duration::from_millis(1);
/// Rounds closer together than this count as one encounter.
const ENCOUNTER_GAP: Duration = Duration::from_micros(20);
/// Time after which the thread may run on any core again.
const MAX_AVOIDANCE: Duration = Duration::from_millis(100);
/// An encounter this soon after a move shows that moving does not help. `PAUSES` are the first
/// and the longest pause that follow.
const FUTILE_WITHIN: Duration = Duration::from_millis(10);
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(2)];

/// The system calls that concern the calling thread's cores.
pub(super) trait Cores {
    fn here(&self) -> usize;
    fn allowed(&self) -> Result<CpuSet, Errno>;
    fn allow(&mut self, cores: &CpuSet) -> Result<(), Errno>;
}

#[derive(Debug, Default)]
pub(super) struct System;

impl Cores for System {
    fn here(&self) -> usize {
        sched_getcpu()
    }

    fn allowed(&self) -> Result<CpuSet, Errno> {
        sched_getaffinity(None)
    }

    fn allow(&mut self, cores: &CpuSet) -> Result<(), Errno> {
        sched_setaffinity(None, cores)
    }
}

/// The affinity before the move, and the restricted one.
#[derive(Clone, Copy, Debug)]
struct Relocation {
    before: CpuSet,
    now: CpuSet,
    since: Instant,
}

/// Encounters in the current window.
#[derive(Clone, Copy, Debug)]
struct Encounters {
    first: Instant,
    last: Instant,
    times: u32,
}

/// Core avoidance of one thread.
#[derive(Debug, Default)]
pub(super) struct CoreAvoidance<C = System> {
    cores: C,
    encounters: Option<Encounters>,
    relocation: Option<Relocation>,
    moved_at: Option<Instant>,
    /// End of the current pause.
    paused_until: Option<Instant>,
    /// Length of the next pause; zero means the shortest.
    pause: Duration,
    /// The system does not permit a change of affinity.
    refused: bool,
}

impl<C: Cores> CoreAvoidance<C> {
    /// Moves the thread off the clients' cores if it meets them often. Called between two rounds.
    pub(super) fn avoid(
        &mut self,
        clients: impl Iterator<Item = usize> + Clone,
        now: impl FnOnce() -> Instant,
    ) {
        if self.refused || clients.clone().next().is_none() && self.relocation.is_none() {
            return;
        }
        let here = self.cores.here();
        let shares_core = clients.clone().any(|core| core == here);
        if !shares_core && self.relocation.is_none() {
            return;
        }
        let now = now();
        if self
            .relocation
            .is_some_and(|relocation| now.saturating_duration_since(relocation.since) >= MAX_AVOIDANCE)
        {
            // The move has helped.
            self.end();
            self.pause = Duration::ZERO;
        }
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        if !shares_core || is_paused || !self.count_encounter(now) {
            return;
        }
        self.end();
        if self.moved_at.is_some_and(|moved_at| now.saturating_duration_since(moved_at) < FUTILE_WITHIN) {
            let pause = self.pause.max(PAUSES[0]);
            self.paused_until = Some(now + pause);
            self.pause = (2 * pause).min(PAUSES[1]);
            return;
        }
        self.moved_at = Some(now);
        if let Err(e) = self.relocate(clients, now)
            && matches!(e, Errno::PERM | Errno::ACCESS | Errno::NOSYS)
        {
            log::info!("cannot set the affinity of a call server thread: {e}");
            self.refused = true;
        }
    }

    /// Counts an encounter. Returns true if the limit is reached.
    fn count_encounter(&mut self, now: Instant) -> bool {
        let Some(encounters) = self
            .encounters
            .as_mut()
            .filter(|encounters| now.saturating_duration_since(encounters.first) < ENCOUNTER_WINDOW)
        else {
            self.encounters = Some(Encounters { first: now, last: now, times: 1 });
            return false;
        };
        if now.saturating_duration_since(encounters.last) < ENCOUNTER_GAP {
            return false;
        }
        (encounters.last, encounters.times) = (now, encounters.times + 1);
        let exceeded = encounters.times == MAX_ENCOUNTERS;
        if exceeded {
            self.encounters = None;
        }
        exceeded
    }

    fn relocate(&mut self, clients: impl Iterator<Item = usize>, since: Instant) -> Result<(), Errno> {
        let before = self.cores.allowed()?;
        let mut now = before;
        // Clients may write any number.
        clients.filter(|core| *core < CpuSet::MAX_CPU).for_each(|core| now.unset(core));
        if now.count() > 0 {
            self.cores.allow(&now)?;
            self.relocation = Some(Relocation { before, now, since });
        }
        Ok(())
    }

    /// Restores the affinity when the thread stops polling.
    pub(super) fn end(&mut self) {
        let Some(relocation) = self.relocation.take() else { return };
        // Another party may have changed the affinity meanwhile.
        if self.cores.allowed() == Ok(relocation.now)
            && let Err(e) = self.cores.allow(&relocation.before)
        {
            log::debug!("cannot restore the affinity of a call server thread: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake that moves to the first permitted core if its core is excluded.
    #[derive(Debug, Default)]
    struct Fake {
        here: usize,
        allowed: CpuSet,
        changes: usize,
        error: Option<Errno>,
    }

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        set
    }

    impl Cores for Fake {
        fn here(&self) -> usize {
            self.here
        }

        fn allowed(&self) -> Result<CpuSet, Errno> {
            Ok(self.allowed)
        }

        fn allow(&mut self, cores: &CpuSet) -> Result<(), Errno> {
            self.changes += 1;
            if let Some(error) = self.error {
                return Err(error);
            }
            self.allowed = *cores;
            if !cores.is_set(self.here) {
                self.here = (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core)).expect("a core");
            }
            Ok(())
        }
    }

    /// A thread and a clock.
    struct Trial {
        avoidance: CoreAvoidance<Fake>,
        now: Instant,
    }

    const TURN: Duration = Duration::from_micros(5);

    impl Trial {
        fn on(here: usize, allowed: &[usize]) -> Trial {
            let cores = Fake { here, allowed: set(allowed), ..Fake::default() };
            Trial { avoidance: CoreAvoidance { cores, ..CoreAvoidance::default() }, now: Instant::now() }
        }

        /// Runs rounds for `time` with clients on fixed cores.
        fn turns(&mut self, time: Duration, clients: &[usize]) {
            self.turns_with(time, |_| clients.to_vec());
        }

        /// Runs rounds for `time` with clients that choose their cores.
        fn turns_with(&mut self, time: Duration, clients: impl Fn(usize) -> Vec<usize>) {
            let end = self.now + time;
            while self.now < end {
                self.now += TURN;
                let now = self.now;
                self.avoidance.avoid(clients(self.avoidance.cores.here).into_iter(), || now);
            }
        }

        fn cores(&self) -> (usize, CpuSet, usize) {
            (self.avoidance.cores.here, self.avoidance.cores.allowed, self.avoidance.cores.changes)
        }
    }

    #[test]
    fn a_thread_leaves_the_clients_cores_for_a_limited_time() {
        let mut trial = Trial::on(1, &[0, 1, 2]);
        trial.turns(ENCOUNTER_GAP * 6, &[1, 2]);
        assert_eq!(trial.cores(), (1, set(&[0, 1, 2]), 0), "not for a few calls");
        trial.turns(ENCOUNTER_GAP * 3, &[1, 2]);
        assert_eq!(trial.cores(), (0, set(&[0]), 1));
        trial.turns(MAX_AVOIDANCE - ENCOUNTER_GAP * 3, &[1, 2]);
        assert_eq!(trial.cores(), (0, set(&[0]), 1));
        trial.turns(ENCOUNTER_GAP * 4, &[1, 2]);
        assert_eq!(trial.cores(), (0, set(&[0, 1, 2]), 2), "it stays without having to");
        // A client has moved to this core.
        trial.turns(ENCOUNTER_GAP * 10, &[0]);
        assert_eq!(trial.cores(), (1, set(&[1, 2]), 3));
        trial.avoidance.end();
        assert_eq!(trial.cores(), (1, set(&[0, 1, 2]), 4));
        trial.avoidance.end();
        assert_eq!(trial.cores().2, 4);
    }

    #[test]
    fn a_thread_does_not_move_for_distant_or_rare_clients() {
        let mut trial = Trial::on(1, &[0, 1]);
        trial.turns(ENCOUNTER_WINDOW * 3, &[0, 7]);
        for _ in 0..100 {
            trial.turns(ENCOUNTER_GAP * 3, &[1]);
            trial.now += ENCOUNTER_WINDOW / 2;
        }
        assert_eq!(trial.cores().2, 0);
    }

    #[test]
    fn a_futile_move_is_rarely_repeated() {
        // The client always runs beside the polling thread.
        let mut trial = Trial::on(1, &[0, 1]);
        trial.turns_with(Duration::from_secs(1), |here| vec![here]);
        let (_, allowed, changes) = trial.cores();
        assert_eq!(allowed, set(&[0, 1]));
        // Moves after 0, 20, 60, 140, 300 and 620 ms, each with a return.
        assert_eq!(changes, 12);
        // Clients on all cores, or on the only permitted one.
        for (here, allowed, clients) in [(1, &[0, 1][..], &[0, 1][..]), (3, &[3], &[3, 1])] {
            let mut trial = Trial::on(here, allowed);
            trial.turns(Duration::from_secs(1), clients);
            assert_eq!(trial.cores(), (here, set(allowed), 0));
        }
    }

    #[test]
    fn an_affinity_set_by_another_party_stays() {
        let mut trial = Trial::on(1, &[0, 1, 2]);
        trial.turns(ENCOUNTER_WINDOW, &[1]);
        assert_eq!(trial.cores(), (0, set(&[0, 2]), 1));
        trial.avoidance.cores.allowed = set(&[2]);
        trial.avoidance.end();
        assert_eq!(trial.cores(), (0, set(&[2]), 1));
    }

    #[test]
    fn invalid_cores_and_a_refusing_system_change_nothing() {
        let mut trial = Trial::on(0, &[0, 1]);
        trial.turns(ENCOUNTER_WINDOW, &[0, usize::MAX, CpuSet::MAX_CPU, 1000]);
        assert_eq!(trial.cores(), (1, set(&[1]), 1));
        for (error, tries) in [(Errno::PERM, 1), (Errno::INVAL, 2)] {
            let mut refused = Trial::on(0, &[0, 1]);
            refused.avoidance.cores.error = Some(error);
            refused.turns(ENCOUNTER_WINDOW, &[0]);
            refused.now += MAX_AVOIDANCE;
            refused.turns(ENCOUNTER_WINDOW, &[0]);
            assert_eq!(refused.cores(), (0, set(&[0, 1]), tries));
        }
    }

    #[test]
    fn the_system_sets_the_requested_affinity() {
        let mut system = System;
        let allowed = system.allowed().expect("told");
        assert!(allowed.is_set(system.here()));
        let only = set(&[system.here()]);
        system.allow(&only).expect("allowed");
        assert_eq!(system.allowed(), Ok(only));
        system.allow(&allowed).expect("allowed");
        assert_eq!(system.allowed(), Ok(allowed));
    }
}
