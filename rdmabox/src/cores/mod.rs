//! Which core a thread of a host runs on, where a client of the same host shares the cores with it.
//!
//! Two opposite choices: a thread that looks for work without sleeping keeps off the cores of those who make it ([`apart`]), and one that sleeps
//! until a client that waits for it sends something goes beside that client ([`beside`]).

pub(crate) mod apart;
pub(crate) mod beside;

use rustix::{
    io::Errno,
    thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
};

pub(crate) use apart::Apart;
pub(crate) use beside::Beside;

/// What the system says and does of the calling thread.
pub(crate) trait Cores {
    fn here(&self) -> usize;
    fn allowed(&self) -> Result<CpuSet, Errno>;
    fn allow(&mut self, cores: &CpuSet) -> Result<(), Errno>;
}

#[derive(Debug, Default)]
pub(crate) struct System;

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

/// Where a thread may run, and where it lets itself run.
#[derive(Clone, Copy, Debug)]
struct Narrowed {
    before: CpuSet,
    now: CpuSet,
}

impl Narrowed {
    /// It goes where it may, unless somebody else has said by now where that is.
    fn undo(self, cores: &mut impl Cores) {
        if cores.allowed() == Ok(self.now)
            && let Err(e) = cores.allow(&self.before)
        {
            log::debug!("a thread stays on fewer cores than it may: {e}");
        }
    }
}

/// True if the system will never let it choose.
fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::PERM | Errno::ACCESS | Errno::NOSYS)
}

#[cfg(test)]
mod fake {
    use super::*;

    /// Runs on the first core that it may, if it has to leave the one where it is.
    #[derive(Debug, Default)]
    pub(super) struct Fake {
        pub here: usize,
        pub allowed: CpuSet,
        pub changes: usize,
        pub error: Option<Errno>,
    }

    pub(super) fn set(cores: &[usize]) -> CpuSet {
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
}

#[cfg(test)]
mod tests {
    use super::{fake::set, *};

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
