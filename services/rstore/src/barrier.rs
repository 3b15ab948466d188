//! Coordination of workers by one-byte flags in a region.
//!
//! The region has one line of 64 bytes for the coordinator, then one line for each worker. The
//! first byte of a line is its flag, and the others are data of the program. The coordinator writes
//! the data of the workers, then the number of the phase into its flag. A worker polls that flag,
//! works, and writes the number, or an error, into its own flag. Each flag has one writer, and one
//! byte is never torn, so no other synchronization is needed.
//!
//! No party waits for one that is gone. A party that is dropped says so in its flag. The numbers of
//! all clients follow the lines, and a party that waits asks the master which of them are lost.
//!
//! # Concurrency
//! The coordinator and each worker are one thread each, in any process. No locks.

use std::{
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use pool::ClientId;

use crate::{
    client::{AllocFlags, Mapping, Namespace, Region},
    error::Error,
};

/// Length of a line in bytes.
const LINE: u64 = 64;
/// Bytes of data for each worker.
const DATA: usize = LINE as usize - 1;
/// Length of the number of a client: the number and its complement, so that a half written one is
/// none.
const NAME: u64 = 16;
/// Bit of a worker's flag that says that its work failed. In the phase after its last one, it says
/// that the worker has left.
const FAILED: u8 = 0x80;
/// Flag of a coordinator that has ended.
const ENDED: u8 = 0x80;
/// Phases are 1 to this number, and then 1 again.
const LAST_PHASE: u8 = 0x7f;
/// Longest pause between looks at a flag.
const MAX_PAUSE: Duration = Duration::from_micros(500);
/// Time between questions to the master.
const ASK: Duration = Duration::from_secs(1);

/// The side of a barrier that starts phases. Its drop ends the waits of the workers.
#[derive(Debug)]
pub struct Coordinator {
    board: Board,
    phase: u8,
}

/// The side of a barrier that works. A drop before the end of a phase says that it has failed.
#[derive(Debug)]
pub struct Worker {
    board: Board,
    number: usize,
    phase: u8,
    /// It has begun the phase and not finished it.
    is_working: bool,
    has_failed: bool,
}

/// The region of a barrier.
#[derive(Debug)]
struct Board {
    mapping: Mapping,
    workers: usize,
}

impl Board {
    fn len(workers: usize) -> u64 {
        (workers as u64).saturating_add(1).saturating_mul(LINE + NAME)
    }

    /// Returns the flag of party `at`: 0 for the coordinator, and then the workers.
    fn flag(at: usize) -> u64 {
        LINE * at as u64
    }

    fn name(&self, at: usize) -> Range<u64> {
        let start = LINE * (self.workers as u64 + 1) + NAME * at as u64;
        start..start + NAME
    }

    /// Writes the number of this client.
    fn enter(&mut self, at: usize) -> Result<(), Error> {
        let number = self.mapping.region().client().0;
        let name = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
        self.mapping.write_from(self.name(at).start, &name)
    }

    /// Asks the master for parties that are lost. Returns the first of them.
    fn lost(&mut self, parties: impl IntoIterator<Item = usize>) -> Result<Option<usize>, Error> {
        let mut clients = Vec::new();
        for at in parties {
            let words = self.mapping.read(self.name(at))?.as_chunks().0;
            let [number, complement] = [words[0], words[1]].map(u64::from_le_bytes);
            // A party that has not entered has no name.
            clients.extend((number == !complement).then_some((at, ClientId(number))));
        }
        let numbers = clients.iter().map(|(_, client)| *client).collect();
        // A master that is away loses no client.
        let lost = self.mapping.region().lost(numbers).unwrap_or_default();
        Ok(clients.into_iter().find(|(_, client)| lost.contains(client)).map(|(at, _)| at))
    }
}

/// Repeats a look until it finds a result. The look learns whether it is time to ask the master.
fn poll<T>(limit: Duration, mut look: impl FnMut(bool) -> Result<Option<T>, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    let (mut pause, mut next) = (Duration::from_micros(10), begun + ASK);
    loop {
        let asks = Instant::now() >= next;
        if let Some(found) = look(asks)? {
            return Ok(found);
        }
        if asks {
            next = Instant::now() + ASK;
        }
        if begun.elapsed() > limit {
            return Err(Error::BarrierTimeout(limit));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

impl Coordinator {
    /// Makes the region of a barrier, as the next region of a namespace. Workers open it by its
    /// address.
    ///
    /// # Errors
    /// As for [`Namespace::alloc_reserved`] and [`Region::map`].
    pub fn new(namespace: &Namespace, workers: usize) -> Result<Coordinator, Error> {
        let bytes = Board::len(workers);
        let region = namespace.alloc_reserved(bytes, AllocFlags::InPlace)?;
        let mut mapping = region.map_all()?;
        mapping.local_mut().fill(0);
        mapping.write(0..bytes)?;
        let mut board = Board { mapping, workers };
        board.enter(0)?;
        Ok(Coordinator { board, phase: 0 })
    }

    /// Returns the address of the region.
    pub fn address(&self) -> u64 {
        self.board.mapping.region().address()
    }

    /// Writes the data of a worker for the next phase.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] for more than 63 bytes or an unknown worker, and [`Error::Transfer`].
    pub fn assign(&mut self, worker: usize, data: &[u8]) -> Result<(), Error> {
        if data.len() > DATA || worker >= self.board.workers {
            let (offset, limit) = (worker as u64, DATA as u64);
            return Err(Error::OutOfBounds { offset, len: data.len() as u64, limit, object: "line" });
        }
        self.board.mapping.write_from(Board::flag(worker + 1) + 1, data)
    }

    /// Starts the next phase.
    ///
    /// # Errors
    /// [`Error::Transfer`]. A retry is not safe: it starts another phase.
    pub fn start(&mut self) -> Result<(), Error> {
        self.phase = next(self.phase);
        self.board.mapping.write_from(0, &[self.phase])
    }

    /// Waits until all workers have finished the phase.
    ///
    /// # Errors
    /// [`Error::WorkerFailed`] for a worker that failed or was dropped, [`Error::WorkerLost`] for a
    /// worker whose client is lost, [`Error::BarrierTimeout`] and [`Error::Transfer`].
    pub fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        let Coordinator { board, phase } = self;
        let phase = *phase;
        poll(limit, |asks| {
            // One READ has all flags.
            let end = Board::flag(board.workers + 1);
            let flags = board.mapping.read(0..end)?.chunks(LINE as usize).skip(1).map(|line| line[0]);
            let flags: Vec<u8> = flags.collect();
            if let Some(failed) = flags.iter().position(|flag| *flag == phase | FAILED) {
                return Err(Error::WorkerFailed(failed));
            }
            let is_missing = |flag: u8| flag != phase && flag != next(phase) | FAILED;
            let missing: Vec<usize> =
                (1..).zip(flags).filter(|(_, flag)| is_missing(*flag)).map(|(at, _)| at).collect();
            if missing.is_empty() {
                return Ok(Some(()));
            }
            match asks.then(|| board.lost(missing)).transpose()?.flatten() {
                Some(lost) => Err(Error::WorkerLost(lost - 1)),
                None => Ok(None),
            }
        })
    }

    /// Starts a phase and waits for its end.
    ///
    /// # Errors
    /// As for [`start`](Self::start) and [`wait`](Self::wait).
    pub fn run(&mut self, limit: Duration) -> Result<(), Error> {
        self.start()?;
        self.wait(limit)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // If it fails, the workers ask the master.
        let _ = self.board.mapping.write_from(0, &[ENDED]);
    }
}

impl Worker {
    /// Joins a barrier as worker `number`, from 0 on. Each number has one worker.
    ///
    /// # Errors
    /// As for [`Namespace::open`] and [`Region::map`], and [`Error::OutOfBounds`] for a number that
    /// the barrier does not have.
    pub fn join(namespace: &Namespace, address: u64, number: usize) -> Result<Worker, Error> {
        let region: Region = namespace.open(address, LINE + NAME)?;
        let workers = (region.len() / (LINE + NAME)).saturating_sub(1) as usize;
        if number >= workers {
            let (offset, limit) = (number as u64, workers as u64);
            return Err(Error::OutOfBounds { offset, len: 1, limit, object: "barrier" });
        }
        let mut board = Board { mapping: region.map_all()?, workers };
        board.enter(number + 1)?;
        Ok(Worker { board, number, phase: 0, is_working: false, has_failed: false })
    }

    /// Waits for the next phase. Returns the data of this worker.
    ///
    /// # Errors
    /// [`Error::BarrierEnded`] and [`Error::CoordinatorLost`] if no phase follows,
    /// [`Error::BarrierTimeout`] and [`Error::Transfer`].
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<u8>, Error> {
        let phase = next(self.phase);
        let board = &mut self.board;
        poll(limit, |asks| {
            let mut flag = [0];
            board.mapping.read_into(0, &mut flag)?;
            match flag[0] {
                ENDED => Err(Error::BarrierEnded),
                flag if flag == phase => Ok(Some(())),
                _ if asks && board.lost([0])?.is_some() => Err(Error::CoordinatorLost),
                _ => Ok(None),
            }
        })?;
        (self.phase, self.is_working, self.has_failed) = (phase, true, false);
        let at = Board::flag(self.number + 1) + 1;
        Ok(self.board.mapping.read(at..at + DATA as u64)?.to_vec())
    }

    /// Says that this worker has finished the phase, or that it failed.
    ///
    /// # Errors
    /// [`Error::Transfer`]. A retry is safe.
    pub fn finish(&mut self, succeeded: bool) -> Result<(), Error> {
        let flag = if succeeded { self.phase } else { self.phase | FAILED };
        self.board.mapping.write_from(Board::flag(self.number + 1), &[flag])?;
        (self.is_working, self.has_failed) = (false, !succeeded);
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.has_failed {
            let phase = if self.is_working { self.phase } else { next(self.phase) };
            // If it fails, the coordinator asks the master.
            let _ = self.board.mapping.write_from(Board::flag(self.number + 1), &[phase | FAILED]);
        }
    }
}

/// Returns the results of a job, or the failure that explains the others: the end of the barrier
/// follows from the failure of another party.
pub(crate) fn outcome<T, U>(
    coordinator: Result<T, Error>,
    workers: Vec<Result<U, Error>>,
) -> Result<(T, Vec<U>), Error> {
    let mut results = Vec::new();
    for worker in workers {
        match worker {
            Ok(result) => results.push(Ok(result)),
            Err(Error::BarrierEnded) => results.push(Err(Error::BarrierEnded)),
            Err(error) => return Err(error),
        }
    }
    Ok((coordinator?, results.into_iter().collect::<Result<_, _>>()?))
}

fn next(phase: u8) -> u8 {
    if phase >= LAST_PHASE { 1 } else { phase + 1 }
}
