//! Coordination of workers by one-byte flags in a region.
//!
//! The region has one line of 64 bytes for the coordinator, then one line for each worker. The
//! first byte of a line is its flag, and the others are data of the program. The coordinator writes
//! the data of the workers, then the number of the phase into its flag. A worker polls that flag,
//! works, and writes the number, or an error, into its own flag. Each flag has one writer, and one
//! byte is never torn, so no other synchronization is needed.
//!
//! # Concurrency
//! The coordinator and each worker are one thread each, in any process. No locks.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    client::{AllocFlags, Mapping, Namespace, Region},
    error::Error,
};

/// Length of a line in bytes.
const LINE: u64 = 64;
/// Bytes of data for each worker.
const DATA: usize = LINE as usize - 1;
/// Bit of a worker's flag that says that its work failed.
const FAILED: u8 = 0x80;
/// Phases are 1 to this number, and then 1 again.
const LAST_PHASE: u8 = 0x7f;
/// Longest pause between looks at a flag.
const MAX_PAUSE: Duration = Duration::from_micros(500);

/// The side of a barrier that starts phases.
#[derive(Debug)]
pub struct Coordinator {
    mapping: Mapping,
    workers: usize,
    phase: u8,
}

/// The side of a barrier that works.
#[derive(Debug)]
pub struct Worker {
    mapping: Mapping,
    number: usize,
    phase: u8,
}

/// Repeats a look until it finds a result.
fn poll<T>(limit: Duration, mut look: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(10);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
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
        let bytes = (workers as u64 + 1).saturating_mul(LINE);
        let region = namespace.alloc_reserved(bytes, AllocFlags::InPlace)?;
        let mut mapping = region.map_all()?;
        mapping.local_mut().fill(0);
        mapping.write(0..bytes)?;
        Ok(Coordinator { mapping, workers, phase: 0 })
    }

    /// The address of the region.
    pub fn address(&self) -> u64 {
        self.mapping.region().address()
    }

    /// Writes the data of a worker for the next phase.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] for more than 63 bytes or an unknown worker, and [`Error::Transfer`].
    pub fn assign(&mut self, worker: usize, data: &[u8]) -> Result<(), Error> {
        if data.len() > DATA || worker >= self.workers {
            let (offset, limit) = (worker as u64, DATA as u64);
            return Err(Error::OutOfBounds { offset, len: data.len() as u64, limit, object: "line" });
        }
        self.mapping.write_from(LINE * (worker as u64 + 1) + 1, data)
    }

    /// Starts the next phase.
    ///
    /// # Errors
    /// [`Error::Transfer`]. A retry is not safe: it starts another phase.
    pub fn start(&mut self) -> Result<(), Error> {
        self.phase = next(self.phase);
        self.mapping.write_from(0, &[self.phase])
    }

    /// Waits until all workers have finished the phase.
    ///
    /// # Errors
    /// [`Error::WorkerFailed`], [`Error::BarrierTimeout`] and [`Error::Transfer`].
    pub fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        let Coordinator { mapping, workers, phase } = self;
        poll(limit, || {
            // One READ has all flags.
            let end = LINE * (*workers as u64 + 1);
            let lines = mapping.read(0..end)?;
            let mut flags = lines.chunks(LINE as usize).skip(1).map(|line| line[0]);
            if let Some(failed) = flags.clone().position(|flag| flag == *phase | FAILED) {
                return Err(Error::WorkerFailed(failed));
            }
            Ok(flags.all(|flag| flag == *phase).then_some(()))
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

impl Worker {
    /// Joins a barrier as worker `number`, from 0 on. Each number has one worker.
    ///
    /// # Errors
    /// As for [`Namespace::open`] and [`Region::map`].
    pub fn join(namespace: &Namespace, address: u64, number: usize) -> Result<Worker, Error> {
        let region: Region = namespace.open(address, (number as u64 + 2).saturating_mul(LINE))?;
        let mapping = region.map_all()?;
        Ok(Worker { mapping, number, phase: 0 })
    }

    /// Waits for the next phase. Returns the data of this worker.
    ///
    /// # Errors
    /// [`Error::BarrierTimeout`] and [`Error::Transfer`].
    pub fn wait(&mut self, limit: Duration) -> Result<Vec<u8>, Error> {
        let phase = next(self.phase);
        let mapping = &mut self.mapping;
        poll(limit, || {
            let mut flag = [0];
            mapping.read_into(0, &mut flag)?;
            Ok((flag[0] == phase).then_some(()))
        })?;
        self.phase = phase;
        let at = LINE * (self.number as u64 + 1) + 1;
        Ok(self.mapping.read(at..at + DATA as u64)?.to_vec())
    }

    /// Says that this worker has finished the phase, or that it failed.
    ///
    /// # Errors
    /// [`Error::Transfer`]. A retry is safe.
    pub fn finish(&mut self, succeeded: bool) -> Result<(), Error> {
        let flag = if succeeded { self.phase } else { self.phase | FAILED };
        self.mapping.write_from(LINE * (self.number as u64 + 1), &[flag])
    }
}

fn next(phase: u8) -> u8 {
    if phase >= LAST_PHASE { 1 } else { phase + 1 }
}
