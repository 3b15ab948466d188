//! Draws programs of operations.
//!
//! A [`Program`] depends on its seed and its [`Shape`] only. No I/O, no locks, no clock.

use std::{fmt, str::FromStr};

use super::operation::{DIRS, FILES, How, LOCKED, Lock, Op, Path, Renaming, SLOTS, Space};

/// A kind of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads, writes, truncation, space, copies of open files.
    Data,
    /// Files are open to append, too.
    Appends,
    /// Files are open with O_DIRECT, too.
    Direct,
    /// Names: creating, removing, renaming, listing.
    Names,
    /// Modes, owners, extended attributes.
    Attributes,
    /// `flock` and record locks.
    Locks,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        match name {
            "data" => Ok(Kind::Data),
            "appends" => Ok(Kind::Appends),
            "direct" => Ok(Kind::Direct),
            "names" => Ok(Kind::Names),
            "attributes" => Ok(Kind::Attributes),
            "locks" => Ok(Kind::Locks),
            _ => Err(format!("no kind '{name}': data, appends, direct, names, attributes or locks")),
        }
    }
}

/// Parameters of the programs.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Workers of all mounts.
    pub(crate) workers: usize,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) rounds: usize,
    /// One of this number of rounds kills a client; 0: none.
    pub(crate) kill_every: u64,
    pub(crate) mounts: usize,
}

/// An operation, the worker that performs it, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) worker: usize,
    pub(crate) id: u64,
    pub(crate) op: Op,
}

/// Stages run one after the other; the tasks of a stage run at the same time. Then all mounts
/// are checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) stages: Vec<Vec<Task>>,
    /// The mount whose client is killed during the last stage, and the microseconds after the stage
    /// has begun.
    pub(crate) kill: Option<(usize, u64)>,
}

/// All rounds of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) rounds: Vec<Round>,
}

impl Program {
    /// Returns the number of operations.
    pub(crate) fn operations(&self) -> usize {
        self.rounds.iter().flat_map(|round| &round.stages).map(Vec::len).sum()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, round) in self.rounds.iter().enumerate() {
            writeln!(f, "round {number}")?;
            for stage in &round.stages {
                let tasks: Vec<_> = stage
                    .iter()
                    .map(|task| format!("worker {}: {:?} ({})", task.worker, task.op, task.id))
                    .collect();
                writeln!(f, "    {}", tasks.join(" | "))?;
            }
            if let Some((mount, after)) = round.kill {
                writeln!(f, "    client {mount} killed after {after} us")?;
            }
        }
        Ok(())
    }
}

pub(crate) fn draw(seed: u64, shape: &Shape) -> Program {
    let random = fastrand::Rng::with_seed(seed);
    let open = vec![[false; SLOTS as usize]; shape.workers];
    let mut pen = Pen { random, shape, open, next: 0, locks: true };
    Program { rounds: (0..shape.rounds).map(|_| pen.round()).collect() }
}

struct Pen<'a> {
    random: fastrand::Rng,
    shape: &'a Shape,
    /// Slots that are taken, if every operation succeeds.
    open: Vec<[bool; SLOTS as usize]>,
    next: u64,
    /// Locks may be drawn.
    locks: bool,
}

impl Pen<'_> {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.usize(..from.len())]
    }

    fn chance(&mut self, of: u64) -> bool {
        self.random.u64(..of) == 0
    }

    fn round(&mut self) -> Round {
        let kills = self.shape.kill_every != 0 && self.chance(self.shape.kill_every);
        let kill = kills.then(|| (self.random.usize(..self.shape.mounts), self.random.u64(..600)));
        let stages = if kills { 1 } else { self.random.usize(1..=4) };
        self.locks = !kills;
        let stages = (0..stages).map(|_| self.stage()).collect();
        if let Some((mount, _)) = kill {
            for worker in (0..self.shape.workers).filter(|worker| worker % self.shape.mounts == mount) {
                self.open[worker] = Default::default();
            }
        }
        Round { stages, kill }
    }

    fn stage(&mut self) -> Vec<Task> {
        let mut workers: Vec<_> = (0..self.shape.workers).collect();
        self.random.shuffle(&mut workers);
        workers.truncate(self.random.usize(1..=self.shape.workers.min(4)));
        let mut tasks = Vec::new();
        for worker in workers {
            // A second operation overlaps with other workers' operations at another moment.
            for _ in 0..if self.chance(5) { 2 } else { 1 } {
                let op = self.op(worker);
                self.next += 1;
                tasks.push(Task { worker, id: self.next, op });
            }
        }
        tasks
    }

    fn op(&mut self, worker: usize) -> Op {
        let free = (0..SLOTS).find(|&slot| !self.open[worker][usize::from(slot)]);
        if let Some(slot) = free {
            // A worker has about two files open.
            if self.chance(if slot == 0 { 1 } else { 6 }) {
                return self.open_op(worker, slot);
            }
        }
        let slot = self.slot(worker);
        let kind = match self.random.u64(..100) {
            0..55 => Kind::Data,
            55..78 => Kind::Names,
            78..88 => Kind::Attributes,
            _ => Kind::Locks,
        };
        let kind = if self.shape.kinds.contains(&kind) { kind } else { self.shape.kinds[0] };
        match kind {
            Kind::Data | Kind::Appends | Kind::Direct => self.data_op(worker, slot),
            Kind::Names => self.name_op(),
            Kind::Attributes => self.attribute_op(),
            Kind::Locks if self.locks => self.lock_op(slot),
            Kind::Locks => Op::Stat { slot },
        }
    }

    /// Returns a slot that is taken if all went well.
    fn slot(&mut self, worker: usize) -> u8 {
        let taken: Vec<_> = (0..SLOTS).filter(|&slot| self.open[worker][usize::from(slot)]).collect();
        if taken.is_empty() { 0 } else { self.pick(&taken) }
    }

    /// Returns a name of a file; the first ones are the most frequent.
    fn file(&mut self) -> Path {
        let names = self.shape.kinds.contains(&Kind::Names);
        let among = if names { FILES.len() } else { 2 };
        let (a, b) = (self.random.usize(..among), self.random.usize(..among));
        FILES[a.min(b)]
    }

    fn open_op(&mut self, worker: usize, slot: u8) -> Op {
        self.open[worker][usize::from(slot)] = true;
        let mut how = How { write: !self.chance(6), create: !self.chance(4), ..How::default() };
        if how.write {
            how.append = self.chance(5) && self.shape.kinds.contains(&Kind::Appends);
            how.truncate = self.chance(8);
        }
        how.direct = self.chance(5) && self.shape.kinds.contains(&Kind::Direct);
        how.exclusive = how.create && self.chance(12);
        Op::Open { slot, path: self.file(), how }
    }

    /// Returns a place in a file: near the beginning, near ends of blocks, anywhere.
    fn at(&mut self) -> u64 {
        match self.random.u64(..10) {
            0..3 => self.random.u64(..200),
            3..7 => self.random.u64(..12_300),
            7..9 => (self.random.u64(1..5) * 4096).saturating_add_signed(self.random.i64(-20..20)),
            _ => self.random.u64(..70_000),
        }
    }

    fn len(&mut self) -> u64 {
        match self.random.u64(..10) {
            0..4 => self.random.u64(1..64),
            4..8 => self.random.u64(1..5000),
            8 => 4096,
            _ => self.random.u64(1..40_000),
        }
    }

    fn data_op(&mut self, worker: usize, slot: u8) -> Op {
        let (at, len) = (self.at(), self.len());
        match self.random.u64(..100) {
            0..26 => Op::Write { slot, at, len },
            26..44 => Op::Read { slot, at, len },
            44..50 => Op::ReadName { path: self.file(), at, len },
            50..60 => Op::Truncate { slot, size: at },
            60..64 => Op::TruncateName { path: self.file(), size: at },
            64..74 => {
                let all = [Space::Allocate, Space::AllocateKeep, Space::Punch, Space::Zero, Space::ZeroKeep];
                Op::Allocate { slot, space: self.pick(&all), at, len }
            }
            74..80 => {
                let (to, target) = (self.slot(worker), self.at());
                Op::Copy { from: slot, to, at, target, len }
            }
            80..88 => Op::Stat { slot },
            88..94 => Op::Seek { slot, hole: self.random.bool(), at },
            _ => {
                self.open[worker][usize::from(slot)] = false;
                Op::Close { slot }
            }
        }
    }

    fn name_op(&mut self) -> Op {
        let path = self.file();
        match self.random.u64(..100) {
            0..30 => {
                let others: Vec<_> = FILES.into_iter().filter(|&other| other != path).collect();
                let how = match self.random.u64(..10) {
                    0..6 => Renaming::Replace,
                    6..8 => Renaming::NoReplace,
                    _ => Renaming::Exchange,
                };
                Op::Rename { from: path, to: self.pick(&others), how }
            }
            30..42 => {
                let others: Vec<_> = FILES.into_iter().filter(|&other| other != path).collect();
                Op::Link { from: path, to: self.pick(&others) }
            }
            42..57 => Op::Unlink { path },
            57..70 => Op::Mkdir { path: self.pick(&DIRS[1..]) },
            70..77 => Op::Rmdir { path: self.pick(&DIRS[1..]) },
            77..87 => Op::List { path: self.pick(&DIRS) },
            87..90 => Op::StatName { path: self.pick(&DIRS) },
            _ => Op::StatName { path },
        }
    }

    fn attribute_op(&mut self) -> Op {
        let path = if self.chance(6) { self.pick(&DIRS[1..]) } else { self.file() };
        match self.random.u64(..100) {
            0..25 => Op::Chmod { path, mode: self.pick(&[0o600, 0o644, 0o755, 0o777]) },
            25..45 => Op::Chown { path, owner: self.pick(&[0, 1000, 1001]) },
            45..65 => Op::SetAttribute { path },
            65..80 => Op::GetAttribute { path },
            _ => Op::StatName { path },
        }
    }

    fn lock_op(&mut self, slot: u8) -> Op {
        let lock = self.pick(&[Lock::Free, Lock::Shared, Lock::Exclusive, Lock::Exclusive]);
        if self.random.bool() {
            return Op::LockFile { slot, lock };
        }
        let at = self.random.u8(..LOCKED as u8 - 1);
        let len = self.random.u8(1..=LOCKED as u8 - at);
        Op::LockRange { slot, lock, at, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { workers: 4, kinds: Vec::new(), rounds: 50, kill_every: 10, mounts: 2 };

    #[test]
    fn a_seed_gives_the_same_program() {
        let shape = Shape { kinds: vec![Kind::Data, Kind::Names, Kind::Attributes, Kind::Locks], ..SHAPE };
        assert_eq!(draw(7, &shape), draw(7, &shape));
        assert_ne!(draw(7, &shape), draw(8, &shape));
        let program = draw(7, &shape);
        assert!(program.rounds.iter().any(|round| round.kill.is_some()));
        assert!(program.operations() > 100);
    }

    #[test]
    fn only_the_kinds_that_were_asked_for_are_drawn() {
        let program = draw(1, &Shape { kinds: vec![Kind::Data], ..SHAPE });
        let tasks = program.rounds.iter().flat_map(|round| round.stages.iter().flatten());
        for task in tasks {
            let wrong = matches!(task.op, Op::Rename { .. } | Op::Chmod { .. } | Op::LockFile { .. });
            assert!(!wrong, "{task:?}");
        }
    }

    #[test]
    fn locks_are_drawn_within_the_bytes_that_the_model_knows() {
        let program = draw(3, &Shape { kinds: vec![Kind::Locks], ..SHAPE });
        let mut locks = 0;
        for task in program.rounds.iter().flat_map(|round| round.stages.iter().flatten()) {
            if let Op::LockRange { at, len, .. } = task.op {
                assert!(len > 0 && usize::from(at + len) <= LOCKED);
                locks += 1;
            }
        }
        assert!(locks > 10);
    }
}
