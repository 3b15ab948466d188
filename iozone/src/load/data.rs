//! The load on data, in a child process: threads on files, all started together.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use rustix::fs::{Advice, OFlags, fadvise};

use super::{
    Pattern,
    latency::{Times, line},
    thread_group,
};
use crate::{
    Error, Result,
    size::{KIB, MIB},
};

/// Bytes of a sequential request, and of a random request for a record.
pub const RECORD: u64 = MIB;
/// Bytes of a small random request. Memory addresses and file offsets of blocks are multiples of
/// it.
pub const BLOCK: usize = 4 * KIB as usize;

/// The task of a child.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Work {
    /// Access pattern.
    #[arg(long, value_enum)]
    pub pattern: Pattern,
    /// Bytes of each file, a multiple of the record size for each thread.
    #[arg(long)]
    pub bytes: u64,
    /// Threads per file; sequential patterns divide the file among them.
    #[arg(long)]
    pub threads: u64,
    /// Duration of random requests, in milliseconds.
    #[arg(long)]
    pub ms: u64,
    /// The files.
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
}

/// Performs the work and prints the results.
pub fn work(work: &Work, out: &mut impl Write) -> Result<()> {
    if work.threads == 0 || work.bytes == 0 || !work.bytes.is_multiple_of(work.threads * RECORD) {
        return Err(Error::Usage("the size of a file must be whole records for each thread".into()));
    }
    let mut jobs = Vec::new();
    for (n, path) in work.files.iter().enumerate() {
        if work.pattern == Pattern::Read {
            forget(path).map_err(Error::io(path))?;
        }
        for thread in 0..work.threads {
            let seed = n as u64 * work.threads + thread + 1;
            let times = Times::new()?;
            let job = Job::open(work, path, thread, seed, times).map_err(Error::io(path))?;
            jobs.push(move || job.run().map_err(Error::io(path)));
        }
    }
    let (seconds, times) = thread_group::run(jobs)?;
    let done = Times::sum(times)?.done(seconds);
    writeln!(out, "{}", line(&done)?).and_then(|()| out.flush()).map_err(Error::io("output"))
}

/// Drops the cached pages of a file.
fn forget(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}

/// Opens a file with O_DIRECT. Falls back to cached reads where O_DIRECT is not supported, such as
/// on a tmpfs of an old kernel.
fn direct(path: &Path) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    opened.or_else(|err| match err.kind() {
        io::ErrorKind::InvalidInput => File::open(path),
        _ => Err(err),
    })
}

/// The work of one thread.
struct Job {
    file: File,
    pattern: Pattern,
    /// Offset of the thread's sequential part.
    first: u64,
    /// Length of the sequential part; for random reads, length of the file.
    bytes: u64,
    time: Duration,
    seed: u64,
    times: Times,
    buffer: Buffer,
}

impl Job {
    fn open(work: &Work, path: &Path, thread: u64, seed: u64, times: Times) -> io::Result<Self> {
        let file = match work.pattern {
            Pattern::Write => OpenOptions::new().write(true).create(true).truncate(false).open(path)?,
            Pattern::RandomRecordWrite => OpenOptions::new().write(true).open(path)?,
            Pattern::RandomRead | Pattern::RandomRecordRead => direct(path)?,
            _ => File::open(path)?,
        };
        let (random, request) = match work.pattern {
            Pattern::RandomRead => (true, BLOCK),
            Pattern::RandomRecordRead | Pattern::RandomRecordWrite => (true, RECORD as usize),
            _ => (false, RECORD as usize),
        };
        let part = work.bytes / work.threads;
        Ok(Self {
            file,
            pattern: work.pattern,
            first: if random { 0 } else { thread * part },
            bytes: if random { work.bytes } else { part },
            time: Duration::from_millis(work.ms),
            seed,
            times,
            buffer: Buffer::new(request),
        })
    }

    fn run(mut self) -> io::Result<Times> {
        match self.pattern {
            Pattern::RandomRead | Pattern::RandomRecordRead | Pattern::RandomRecordWrite => {
                self.at_random()?;
            }
            _ => self.in_order()?,
        }
        Ok(self.times)
    }

    fn in_order(&mut self) -> io::Result<()> {
        let write = self.pattern == Pattern::Write;
        for offset in (self.first..self.first + self.bytes).step_by(RECORD as usize) {
            let began = Instant::now();
            match write {
                true => self.file.write_all_at(self.buffer.bytes(), offset)?,
                false => self.file.read_exact_at(self.buffer.bytes(), offset)?,
            }
            self.times.record(began.elapsed());
        }
        if write { self.file.sync_all() } else { Ok(()) }
    }

    fn at_random(&mut self) -> io::Result<()> {
        let write = self.pattern == Pattern::RandomRecordWrite;
        let request = self.buffer.len as u64;
        let requests = self.bytes / request;
        let start = Instant::now();
        let mut began = start;
        while began - start < self.time {
            // A 64-bit xorshift gives the same offsets in every run.
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            let offset = self.seed % requests * request;
            match write {
                true => self.file.write_all_at(self.buffer.bytes(), offset)?,
                false => self.file.read_exact_at(self.buffer.bytes(), offset)?,
            }
            let ended = Instant::now();
            self.times.record(ended - began);
            began = ended;
        }
        if write { self.file.sync_all() } else { Ok(()) }
    }
}

/// Memory aligned for O_DIRECT.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        // Nonzero bytes force the allocation of all pages before the measured time.
        let memory = vec![0xa5; len + BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        Self { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::latency::{Done, read};

    fn done(work_on: &Work) -> Result<Done> {
        let mut out = Vec::new();
        work(work_on, &mut out)?;
        read(&String::from_utf8(out).unwrap())
    }

    #[test]
    fn every_thread_does_its_part() {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![dir.path().join("a"), dir.path().join("b")];
        let mut on = Work { pattern: Pattern::Write, bytes: 6 * MIB, threads: 3, ms: 5, files };
        assert_eq!(done(&on).unwrap().operations, 12);
        for file in &on.files {
            let bytes = std::fs::read(file).unwrap();
            assert!(bytes.len() == 6 << 20 && bytes.iter().all(|byte| *byte == 0xa5));
        }
        on.pattern = Pattern::Read;
        let read = done(&on).unwrap();
        assert!(read.operations == 12 && read.seconds > 0.0 && read.latency.p50 > 0.0, "{read:?}");
    }

    #[test]
    fn random_requests_end_at_the_time_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        for pattern in [Pattern::RandomRead, Pattern::RandomRecordRead, Pattern::RandomRecordWrite] {
            let on = Work { pattern, bytes: MIB, threads: 1, ms: 20, files: vec![path.clone()] };
            let done = done(&on).unwrap();
            assert!(done.seconds >= 0.02 && done.operations > 0, "{done:?}");
            // Only writes change the file, and all of the record.
            let first = if pattern == Pattern::RandomRecordWrite { 0xa5 } else { 1 };
            assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == first), "{pattern:?}");
        }
    }

    #[test]
    fn invalid_work_is_refused_and_a_missing_file_is_named() {
        let on = |bytes, threads| Work {
            pattern: Pattern::Read,
            bytes,
            threads,
            ms: 1,
            files: vec!["/nowhere/x".into()],
        };
        for on in [on(0, 1), on(MIB, 0), on(3 * MIB, 2)] {
            assert_eq!(done(&on).unwrap_err().exit_code(), 2, "{on:?}");
        }
        assert!(done(&on(MIB, 1)).unwrap_err().to_string().starts_with("/nowhere/x: "));
    }

    #[test]
    fn buffers_begin_at_a_block() {
        for len in [BLOCK, RECORD as usize] {
            let mut buffer = Buffer::new(len);
            let bytes = buffer.bytes();
            assert_eq!((bytes.len(), bytes.as_ptr().align_offset(BLOCK)), (len, 0));
        }
    }
}
