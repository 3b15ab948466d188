//! Compares the locks with a plain model: a table of bytes, a list of waiters, and a matrix of
//! waits between owners. The model computes the matrix anew for each question.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const OWNERS: usize = 4;
const BYTES: usize = 6;
const INODES: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    ino: usize,
    owner: usize,
    first: usize,
    last: usize,
    exclusive: bool,
    insists: bool,
}

impl Waiting {
    fn conflicts(&self, other: &Waiting) -> bool {
        self.ino == other.ino
            && self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.first <= other.last
            && other.first <= self.last
    }
}

#[derive(Clone, Debug, Default)]
struct Model {
    /// The lock of each byte and owner: `Some(true)` if it is exclusive.
    table: [[[Option<bool>; OWNERS]; BYTES]; INODES],
    /// Waiters in the order of their requests.
    list: Vec<Waiting>,
}

impl Model {
    /// Returns the owners that hold conflicting locks.
    fn holders(&self, w: &Waiting) -> [bool; OWNERS] {
        let blocks = |owner: usize| {
            let bytes = &self.table[w.ino][w.first..=w.last];
            owner != w.owner && bytes.iter().any(|byte| byte[owner].is_some_and(|held| held || w.exclusive))
        };
        std::array::from_fn(blocks)
    }

    /// Returns for each owner the owners that it transitively waits for; `order` includes queue
    /// order.
    fn matrix(&self, order: bool) -> [[bool; OWNERS]; OWNERS] {
        let mut matrix = [[false; OWNERS]; OWNERS];
        for (at, w) in self.list.iter().enumerate() {
            let holders = self.holders(w);
            (0..OWNERS).for_each(|owner| matrix[w.owner][owner] |= holders[owner]);
            if order && !w.insists {
                let before = self.list[..at].iter().filter(|before| before.conflicts(w));
                before.for_each(|before| matrix[w.owner][before.owner] = true);
            }
        }
        for over in 0..OWNERS {
            for from in 0..OWNERS {
                for to in 0..OWNERS {
                    matrix[from][to] |= matrix[from][over] && matrix[over][to];
                }
            }
        }
        matrix
    }

    /// Returns true if the request would wait for its own owner over held locks.
    fn circle(&self, w: &Waiting) -> bool {
        let matrix = self.matrix(false);
        let holders = self.holders(w);
        (0..OWNERS).any(|holder| holders[holder] && matrix[holder][w.owner])
    }

    fn can(&self, w: &Waiting, before: &[Waiting]) -> bool {
        let matrix = self.matrix(true);
        let elsewhere = self.list.iter().any(|other| other.owner == w.owner && other.ticket != w.ticket);
        let has_any = self.table.iter().flatten().any(|byte| byte[w.owner].is_some());
        let waits_for_him = |owner: usize| (elsewhere || has_any) && matrix[owner][w.owner];
        let behind = before.iter().any(|before| before.conflicts(w) && !waits_for_him(before.owner));
        !self.holders(w).contains(&true) && (w.insists || !behind)
    }

    fn set(&mut self, w: &Waiting, to: Option<bool>) {
        self.table[w.ino][w.first..=w.last].iter_mut().for_each(|byte| byte[w.owner] = to);
    }

    /// Grants a lock, and refuses the waiters that it put on a cycle.
    fn take(&mut self, w: &Waiting) -> Answers {
        self.set(w, Some(w.exclusive));
        let mut answers = Vec::new();
        while let Some(at) = self.list.iter().position(|other| other.ino == w.ino && self.circle(other)) {
            answers.push((self.list.remove(at).ticket, Err(Errno::EDEADLK)));
        }
        answers
    }

    /// Grants all waiters that can be granted, in order.
    fn settle(&mut self) -> Answers {
        let mut answers = Vec::new();
        while let Some(at) = (0..self.list.len()).find(|&at| self.can(&self.list[at], &self.list[..at])) {
            let w = self.list.remove(at);
            answers.push((w.ticket, Ok(())));
            answers.extend(self.take(&w));
        }
        answers
    }
}

type Answers = Vec<(Ticket, Result<(), Errno>)>;

#[derive(Clone, Debug)]
enum Step {
    Set { kind: LockKind, waits: bool },
    Stop,
    Insist,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    use LockKind::{Exclusive, Shared, Unlock};
    prop_oneof![
        8 => (prop::sample::select(vec![Exclusive, Exclusive, Shared, Unlock]), any::<bool>())
            .prop_map(|(kind, waits)| Step::Set { kind, waits }),
        1 => Just(Step::Stop),
        1 => Just(Step::Insist),
        1 => Just(Step::Close),
    ]
}

/// Returns an owner; each session has two owners.
fn owner(number: usize) -> Owner {
    (number as u64 / 2, number as u64)
}

/// One request to both: its number, the owner's index, the inode and the range.
#[derive(Clone, Copy, Debug)]
struct LockTarget {
    number: u64,
    who: usize,
    ino: usize,
    first: usize,
    last: usize,
}

impl LockTarget {
    fn request(self) -> LockRequest {
        let range = LockRange { first: self.first as u64, last: self.last as u64 };
        LockRequest { owner: owner(self.who), class: LockClass::Record, range, pid: 0 }
    }

    fn waiting(self, exclusive: bool) -> Waiting {
        let LockTarget { number, who, ino, first, last } = self;
        Waiting { ticket: (owner(who).0, number), ino, owner: who, first, last, exclusive, insists: false }
    }
}

/// The locks beside the model, and the tickets of the waiters without an answer.
#[derive(Default)]
struct Compared {
    locks: Locks,
    model: Model,
    open: BTreeMap<Ticket, ()>,
}

impl Compared {
    /// Performs a step with both. Returns the answers that it gives to waiters of the model.
    fn perform(
        &mut self,
        step: &Step,
        target: LockTarget,
        waiting: Option<usize>,
    ) -> Result<Answers, TestCaseError> {
        let mut refused = Vec::new();
        match *step {
            Step::Set { kind: LockKind::Unlock, .. } => {
                let got = self.locks.set(target.ino as u64, target.request(), LockKind::Unlock, None);
                prop_assert_eq!(got, Ok(LockOutcome::Done));
                self.model.set(&target.waiting(false), None);
            }
            Step::Set { kind, waits } => refused = self.lock(target, kind, waits)?,
            Step::Stop => {
                if let Some(at) = waiting {
                    let ticket = self.model.list.remove(at).ticket;
                    prop_assert!(self.locks.stop_waiting(ticket) && !self.locks.stop_waiting(ticket));
                    self.open.remove(&ticket);
                }
            }
            Step::Insist => {
                if let Some(at) = waiting {
                    self.model.list[at].insists = true;
                    prop_assert!(self.locks.insist(self.model.list[at].ticket));
                }
            }
            Step::Close => self.close(target)?,
        }
        Ok(refused)
    }

    /// Requests a lock. Returns the waiters that the model refuses because of it.
    fn lock(&mut self, target: LockTarget, kind: LockKind, waits: bool) -> Result<Answers, TestCaseError> {
        let w = target.waiting(kind == LockKind::Exclusive);
        let got = self.locks.set(target.ino as u64, target.request(), kind, waits.then_some(target.number));
        let model = &mut self.model;
        let expected = match waits {
            false if model.holders(&w).contains(&true) => Err(Errno::EAGAIN),
            true if !model.can(&w, &model.list) => match model.circle(&w) {
                true => Err(Errno::EDEADLK),
                false => Ok(LockOutcome::Waits),
            },
            _ => Ok(LockOutcome::Done),
        };
        prop_assert_eq!(got, expected, "{:?}", w);
        match got {
            Ok(LockOutcome::Done) => return Ok(model.take(&w)),
            Ok(LockOutcome::Waits) => {
                model.list.push(w);
                self.open.insert(w.ticket, ());
            }
            Err(_) => {}
        }
        Ok(Vec::new())
    }

    /// Closes the inode for the session of the owner: its waiters there get errors.
    fn close(&mut self, target: LockTarget) -> Result<(), TestCaseError> {
        let LockTarget { who, ino, .. } = target;
        let (session, Compared { locks, model, open }) = (owner(who).0, self);
        locks.closed(session, ino as u64);
        let gone = |w: &Waiting| w.ticket.0 == session && w.ino == ino;
        let told: Vec<Answer> = locks.answers.iter().copied().take_while(|a| a.outcome.is_err()).collect();
        let expected: Vec<Ticket> = model.list.iter().filter(|w| gone(w)).map(|w| w.ticket).collect();
        prop_assert_eq!(told.iter().map(|a| a.ticket).collect::<Vec<_>>(), expected.clone());
        locks.answers.drain(..told.len());
        open.retain(|ticket, ()| !expected.contains(ticket));
        model.list.retain(|w| !gone(w));
        for number in (0..OWNERS).filter(|&number| owner(number).0 == session) {
            model.table[ino].iter_mut().for_each(|byte| byte[number] = None);
        }
        Ok(())
    }

    /// Compares the answers to waiters. The model has `refused` some of them already.
    fn compare_answers(&mut self, refused: Answers) -> Result<(), TestCaseError> {
        let mut answers: Vec<_> = self.locks.take_answers().iter().map(|a| (a.ticket, a.outcome)).collect();
        let mut expected = self.model.settle();
        expected.extend(refused);
        answers.sort_by_key(|(ticket, _)| *ticket);
        expected.sort_by_key(|(ticket, _)| *ticket);
        prop_assert_eq!(&answers, &expected);
        for (ticket, _) in answers {
            prop_assert!(self.open.remove(&ticket).is_some(), "answered once");
        }
        prop_assert_eq!(self.open.len(), self.model.list.len());
        Ok(())
    }

    /// Compares the conflicts of each owner at each byte.
    fn compare_bytes(&self) -> Result<(), TestCaseError> {
        for (ino, bytes) in self.model.table.iter().enumerate() {
            for (at, owners) in bytes.iter().enumerate() {
                prop_assert!(owners.iter().flatten().count() <= 1 || !owners.contains(&Some(true)));
                for who in 0..OWNERS {
                    let probe = LockTarget { number: 0, who, ino, first: at, last: at }.request();
                    let others =
                        owners.iter().enumerate().any(|(other, held)| other != who && held.is_some());
                    prop_assert_eq!(self.locks.conflict(ino as u64, probe, true).is_some(), others);
                }
            }
        }
        Ok(())
    }

    /// Unlocks everything for all owners. Then all waiters are granted.
    fn unlock_all(&mut self) -> Result<(), TestCaseError> {
        let Compared { locks, open, .. } = self;
        for _ in 0..=open.len() {
            for number in 0..OWNERS {
                for ino in 0..INODES as u64 {
                    let all = LockRange::ALL;
                    let wish =
                        LockRequest { owner: owner(number), class: LockClass::Record, range: all, pid: 0 };
                    locks.set(ino, wish, LockKind::Unlock, None).unwrap();
                }
            }
            for answer in locks.take_answers() {
                prop_assert!(open.remove(&answer.ticket).is_some());
            }
        }
        prop_assert!(open.is_empty() && locks.tickets.is_empty() && locks.by_owner.is_empty());
        Ok(())
    }

    /// Closes all files. Then no state is left.
    fn close_all(&mut self) -> Result<(), TestCaseError> {
        let locks = &mut self.locks;
        for session in 0..2 {
            (0..INODES as u64).for_each(|ino| locks.closed(session, ino));
        }
        prop_assert!(locks.files.is_empty() && locks.counts.is_empty() && locks.holding.is_empty());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(
        (step(), 0..OWNERS, 0..INODES, 0..BYTES, 1..=BYTES, any::<prop::sample::Index>()), 1..80,
    )) {
        let mut both = Compared::default();
        for (number, (step, who, ino, first, len, index)) in steps.into_iter().enumerate() {
            let last = (first + len - 1).min(BYTES - 1);
            let target = LockTarget { number: number as u64, who, ino, first, last };
            let waiters = both.model.list.len();
            let waiting = (waiters > 0).then(|| index.index(waiters));
            let refused = both.perform(&step, target, waiting)?;
            both.compare_answers(refused)?;
            both.compare_bytes()?;
        }
        both.unlock_all()?;
        both.close_all()?;
    }
}
