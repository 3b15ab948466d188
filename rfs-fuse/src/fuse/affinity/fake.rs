//! A scheduler for tests.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::thread::Pid;

use super::sched::Scheduler;

/// Schedule of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Schedule {
    pub(super) idle: bool,
    pub(super) core: Option<usize>,
}

/// Returns the schedule of a pinned thread.
pub(super) fn pinned(core: usize) -> Schedule {
    Schedule { idle: true, core: Some(core) }
}

/// Core of a thread that was separated from another one.
pub(super) const ELSEWHERE: usize = usize::MAX;

/// Change by another thread.
type Event = Box<dyn FnOnce(&mut World) + Send>;

#[derive(Default)]
pub(super) struct World {
    /// Cores of callers.
    pub(super) cores: HashMap<u32, usize>,
    pub(super) own_core: usize,
    pub(super) runnable: HashSet<u32>,
    pub(super) threads: HashMap<Pid, Schedule>,
    pub(super) refuses: bool,
    /// Threads that were separated, with their schedules before.
    pub(super) separated: Vec<(Pid, Schedule)>,
    /// Runs before the next move, or before the next separation.
    pub(super) meanwhile: Option<Event>,
}

#[derive(Clone, Default)]
pub(super) struct Fake(pub(super) Arc<Mutex<World>>);

pub(super) fn pid(tid: u32) -> Pid {
    Pid::from_raw(tid as i32).expect("a thread's number")
}

impl Fake {
    /// Returns the threads whose schedule is not the default.
    pub(super) fn changed(&self) -> Vec<(u32, Schedule)> {
        let world = self.0.lock();
        let changed = world.threads.iter().filter(|(_, schedule)| **schedule != Schedule::default());
        let mut changed: Vec<_> =
            changed.map(|(tid, schedule)| (tid.as_raw_nonzero().get() as u32, *schedule)).collect();
        changed.sort_unstable();
        changed
    }
}

impl Scheduler for Fake {
    fn core_of(&mut self, tid: u32) -> Option<usize> {
        self.0.lock().cores.get(&tid).copied()
    }

    fn is_runnable(&mut self, tid: u32) -> bool {
        self.0.lock().runnable.contains(&tid)
    }

    fn pin(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        self.0.lock().threads.entry(tid).or_default().idle = true;
        self.move_to(tid, core)
    }

    fn own_core(&self) -> usize {
        self.0.lock().own_core
    }

    fn move_to(&mut self, tid: Pid, core: usize) -> io::Result<()> {
        let mut world = self.0.lock();
        if let Some(meanwhile) = world.meanwhile.take() {
            meanwhile(&mut world);
        }
        if world.refuses {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        world.threads.entry(tid).or_default().core = Some(core);
        Ok(())
    }

    fn separate(&mut self, tid: Pid, other: Pid) -> io::Result<()> {
        let mut world = self.0.lock();
        let known = |world: &World, tid| world.threads.get(&tid).copied().unwrap_or_default();
        let (pinned, others) = (known(&world, tid), known(&world, other));
        if let Some(meanwhile) = world.meanwhile.take() {
            meanwhile(&mut world);
        }
        if world.refuses {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if pinned.core == others.core {
            world.separated.push((tid, pinned));
            world.threads.entry(tid).or_default().core = Some(ELSEWHERE);
        }
        Ok(())
    }

    fn unpin(&mut self, tid: Pid) -> io::Result<()> {
        self.0.lock().threads.remove(&tid);
        Ok(())
    }

    fn unpin_all_but(&mut self, pinned: &[Pid]) {
        self.0.lock().threads.retain(|tid, schedule| pinned.contains(tid) || !schedule.idle);
    }
}
