//! Keeps a thread that looks at requests off the cores of those who make them.
//!
//! Who looks takes a core for himself. A client of this host that runs there under SCHED_IDLE, as a mount does that follows its caller, does not run
//! then, and makes no request: the thread looks in vain until its patience is at an end, and is woken by the next ring, there again, as the
//! kernel takes a core that only has such threads for an idle one. One that is an ordinary thread waits for the next yield.
//!
//! A thread that meets a client on its core for much of a millisecond ([`MEETINGS`]) leaves the cores of all whose requests it looks at: for as
//! long as it looks, [`LEASE`] at most. If that does not help, as clients have come to its new core or are on all, it goes where it likes
//! again and does not try for a while, longer each time. Clients on other hosts have no core here.
//!
//! While it keeps off a core, what is started by it does so, too, for good. An affinity that somebody gives it meanwhile stays. One that it takes
//! back is from then on the thread's own: cores that its control group gets later are not added.

use std::time::{Duration, Instant};

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

/// So many meetings within so long are too many.
const MEETINGS: u32 = 8;
const WINDOW: Duration = Duration::from_millis(1);
/// Turns that follow each other sooner are of one meeting.
const MEETING: Duration = Duration::from_micros(20);
/// How long it keeps off before it may go anywhere again.
const LEASE: Duration = Duration::from_millis(100);
/// If it meets somebody that soon after it has moved, moving does not help. Then it does not try for so long, at first and at most.
const IN_VAIN: Duration = Duration::from_millis(10);
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(2)];

/// What the system says and does of the calling thread.
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

/// Where it may run, and where it lets itself run.
#[derive(Clone, Copy, Debug)]
struct Away {
    before: CpuSet,
    now: CpuSet,
    since: Instant,
}

/// Meetings of late.
#[derive(Clone, Copy, Debug)]
struct Met {
    first: Instant,
    last: Instant,
    times: u32,
}

/// One thread's part.
#[derive(Debug, Default)]
pub(super) struct Apart<C = System> {
    cores: C,
    met: Option<Met>,
    away: Option<Away>,
    moved: Option<Instant>,
    /// It does not try before then.
    rests_until: Option<Instant>,
    /// For how long it will not, after the next time in vain; zero is the least.
    pause: Duration,
    /// The system does not let it choose.
    refused: bool,
}

impl<C: Cores> Apart<C> {
    /// To be called between two turns, with the cores of those whose requests are looked at.
    pub(super) fn keep_off(
        &mut self,
        clients: impl Iterator<Item = usize> + Clone,
        now: impl FnOnce() -> Instant,
    ) {
        if self.refused || clients.clone().next().is_none() && self.away.is_none() {
            return;
        }
        let here = self.cores.here();
        let meets = clients.clone().any(|core| core == here);
        if !meets && self.away.is_none() {
            return;
        }
        let now = now();
        if self.away.is_some_and(|away| now.saturating_duration_since(away.since) >= LEASE) {
            // That has helped.
            self.over();
            self.pause = Duration::ZERO;
        }
        let rests = self.rests_until.is_some_and(|until| now < until);
        if !meets || rests || !self.is_too_much(now) {
            return;
        }
        self.over();
        if self.moved.is_some_and(|moved| now.saturating_duration_since(moved) < IN_VAIN) {
            let pause = self.pause.max(PAUSES[0]);
            self.rests_until = Some(now + pause);
            self.pause = (2 * pause).min(PAUSES[1]);
            return;
        }
        self.moved = Some(now);
        if let Err(e) = self.leave(clients, now)
            && matches!(e, Errno::PERM | Errno::ACCESS | Errno::NOSYS)
        {
            log::info!("a thread that serves calls may not choose its core: {e}");
            self.refused = true;
        }
    }

    /// A turn beside a client.
    fn is_too_much(&mut self, now: Instant) -> bool {
        let Some(met) = self.met.as_mut().filter(|met| now.saturating_duration_since(met.first) < WINDOW)
        else {
            self.met = Some(Met { first: now, last: now, times: 1 });
            return false;
        };
        if now.saturating_duration_since(met.last) < MEETING {
            return false;
        }
        (met.last, met.times) = (now, met.times + 1);
        let too_much = met.times == MEETINGS;
        if too_much {
            self.met = None;
        }
        too_much
    }

    fn leave(&mut self, clients: impl Iterator<Item = usize>, since: Instant) -> Result<(), Errno> {
        let before = self.cores.allowed()?;
        let mut now = before;
        // What a client has written: any number.
        clients.filter(|core| *core < CpuSet::MAX_CPU).for_each(|core| now.unset(core));
        if now.count() > 0 {
            self.cores.allow(&now)?;
            self.away = Some(Away { before, now, since });
        }
        Ok(())
    }

    /// It looks no longer: it goes where it likes.
    pub(super) fn over(&mut self) {
        let Some(away) = self.away.take() else { return };
        // Unless somebody else has said by now where that is.
        if self.cores.allowed() == Ok(away.now)
            && let Err(e) = self.cores.allow(&away.before)
        {
            log::debug!("a thread that serves calls stays on fewer cores than it may: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on the first core that it may, if it has to leave the one where it is.
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
        apart: Apart<Fake>,
        now: Instant,
    }

    const TURN: Duration = Duration::from_micros(5);

    impl Trial {
        fn on(here: usize, allowed: &[usize]) -> Trial {
            let cores = Fake { here, allowed: set(allowed), ..Fake::default() };
            Trial { apart: Apart { cores, ..Apart::default() }, now: Instant::now() }
        }

        /// Turns for so long, with clients that are there.
        fn turns(&mut self, time: Duration, clients: &[usize]) {
            self.turns_with(time, |_| clients.to_vec());
        }

        /// The same, with clients that are where they like.
        fn turns_with(&mut self, time: Duration, clients: impl Fn(usize) -> Vec<usize>) {
            let end = self.now + time;
            while self.now < end {
                self.now += TURN;
                let now = self.now;
                self.apart.keep_off(clients(self.apart.cores.here).into_iter(), || now);
            }
        }

        fn cores(&self) -> (usize, CpuSet, usize) {
            (self.apart.cores.here, self.apart.cores.allowed, self.apart.cores.changes)
        }
    }

    #[test]
    fn it_leaves_the_cores_of_clients_for_a_while() {
        let mut trial = Trial::on(1, &[0, 1, 2]);
        trial.turns(MEETING * 6, &[1, 2]);
        assert_eq!(trial.cores(), (1, set(&[0, 1, 2]), 0), "not for a few calls");
        trial.turns(MEETING * 3, &[1, 2]);
        assert_eq!(trial.cores(), (0, set(&[0]), 1));
        trial.turns(LEASE - MEETING * 3, &[1, 2]);
        assert_eq!(trial.cores(), (0, set(&[0]), 1));
        trial.turns(MEETING * 4, &[1, 2]);
        assert_eq!(trial.cores(), (0, set(&[0, 1, 2]), 2), "it stays without having to");
        // One that has come there since.
        trial.turns(MEETING * 10, &[0]);
        assert_eq!(trial.cores(), (1, set(&[1, 2]), 3));
        trial.apart.over();
        assert_eq!(trial.cores(), (1, set(&[0, 1, 2]), 4));
        trial.apart.over();
        assert_eq!(trial.cores().2, 4);
    }

    #[test]
    fn it_does_not_move_for_who_is_elsewhere_or_calls_rarely() {
        let mut trial = Trial::on(1, &[0, 1]);
        trial.turns(WINDOW * 3, &[0, 7]);
        for _ in 0..100 {
            trial.turns(MEETING * 3, &[1]);
            trial.now += WINDOW / 2;
        }
        assert_eq!(trial.cores().2, 0);
    }

    #[test]
    fn where_moving_does_not_help_it_is_rarely_tried() {
        // Whoever makes a call is always beside the thread that looks.
        let mut trial = Trial::on(1, &[0, 1]);
        trial.turns_with(Duration::from_secs(1), |here| vec![here]);
        let (_, allowed, changes) = trial.cores();
        assert_eq!(allowed, set(&[0, 1]));
        // There and back after 0 ms, 20, 60, 140, 300 and 620.
        assert_eq!(changes, 12);
        // On all cores, or on the only one that it may use.
        for (here, allowed, clients) in [(1, &[0, 1][..], &[0, 1][..]), (3, &[3], &[3, 1])] {
            let mut trial = Trial::on(here, allowed);
            trial.turns(Duration::from_secs(1), clients);
            assert_eq!(trial.cores(), (here, set(allowed), 0));
        }
    }

    #[test]
    fn what_somebody_else_says_counts() {
        let mut trial = Trial::on(1, &[0, 1, 2]);
        trial.turns(WINDOW, &[1]);
        assert_eq!(trial.cores(), (0, set(&[0, 2]), 1));
        trial.apart.cores.allowed = set(&[2]);
        trial.apart.over();
        assert_eq!(trial.cores(), (0, set(&[2]), 1));
    }

    #[test]
    fn what_a_client_makes_up_and_a_system_that_refuses_change_nothing() {
        let mut trial = Trial::on(0, &[0, 1]);
        trial.turns(WINDOW, &[0, usize::MAX, CpuSet::MAX_CPU, 1000]);
        assert_eq!(trial.cores(), (1, set(&[1]), 1));
        for (error, tries) in [(Errno::PERM, 1), (Errno::INVAL, 2)] {
            let mut refused = Trial::on(0, &[0, 1]);
            refused.apart.cores.error = Some(error);
            refused.turns(WINDOW, &[0]);
            refused.now += LEASE;
            refused.turns(WINDOW, &[0]);
            assert_eq!(refused.cores(), (0, set(&[0, 1]), tries));
        }
    }

    #[test]
    fn the_system_does_what_is_asked_of_it() {
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
