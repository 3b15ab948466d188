//! The load of the built-in engine, in a child process: the same system calls as IOzone's, in the
//! same order.
//!
//! Each phase opens the file and calls fsync. A sequential read phase also reads one record and
//! seeks back to the start, like IOzone. The timed part processes every record once with `read` or
//! `write`, in random phases after `lseek`, and then calls fsync. Files are closed between phases,
//! so the page cache has the same effect as with IOzone.
//!
//! # Concurrency
//! The child has one thread per file. A barrier starts each phase. Throughput is the sum over the
//! threads.

use std::{
    fs,
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::Instant,
};

use clap::Args;

use crate::{Error, Result, sample::Phase};

/// Options of the worker.
#[derive(Clone, Debug, Args)]
pub struct Job {
    /// Bytes per operation.
    #[arg(long)]
    record: usize,
    /// Bytes per file.
    #[arg(long)]
    file_size: u64,
    /// One file per thread.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Returns an error unless a file has whole records.
pub(super) fn check(record: usize, file_size: u64) -> Result<()> {
    if record == 0 || !file_size.is_multiple_of(record as u64) {
        return Err(Error::Usage("the file size must be a multiple of the record size".into()));
    }
    Ok(())
}

/// Runs all phases and prints a line for each. Removes the files at the end in any case.
pub fn work(job: &Job, out: &mut impl Write) -> Result<()> {
    check(job.record, job.file_size)?;
    let result = phases(job, out);
    for file in &job.files {
        // A failure to remove is either a missing file or has the cause that is already returned.
        let _ = fs::remove_file(file);
    }
    result
}

fn phases(job: &Job, out: &mut impl Write) -> Result<()> {
    let one =
        |phase, file: &PathBuf, barrier: &Barrier| one(phase, job, file, barrier).map_err(Error::io(file));
    run_phases(&job.files, one, out)
}

/// Runs all phases, each with a thread per file, and prints a line for each. `one` runs a phase on
/// a file, waits at the barrier before the timed part, and returns the throughput in KiB/s.
pub(super) fn run_phases<F: Sync>(
    files: &[F],
    one: impl Fn(Phase, &F, &Barrier) -> Result<f64> + Sync,
    out: &mut impl Write,
) -> Result<()> {
    let one = &one;
    for phase in Phase::ALL {
        let barrier = &Barrier::new(files.len());
        let sum = thread::scope(|scope| {
            let threads: Vec<_> =
                files.iter().map(|file| scope.spawn(move || one(phase, file, barrier))).collect();
            let mut sum = 0.0;
            for thread in threads {
                sum += thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok::<f64, Error>(sum)
        })?;
        writeln!(out, "{} {sum:.2}", phase.name()).and_then(|()| out.flush()).map_err(Error::io("output"))?;
    }
    Ok(())
}

/// Runs one phase on one file. Returns the throughput in KiB/s.
fn one(phase: Phase, job: &Job, path: &Path, barrier: &Barrier) -> io::Result<f64> {
    let prepared = prepare(phase, job, path);
    // A failed thread also waits at the barrier. Otherwise the other threads would block forever.
    barrier.wait();
    let (mut file, mut buffer, offsets) = prepared?;
    let start = Instant::now();
    for offset in offsets {
        if matches!(phase, Phase::RandomRead | Phase::RandomWrite) {
            file.seek(SeekFrom::Start(offset))?;
        }
        match phase {
            Phase::Write | Phase::Rewrite | Phase::RandomWrite => file.write_all(&buffer)?,
            Phase::Read | Phase::Reread | Phase::RandomRead => file.read_exact(&mut buffer)?,
        }
    }
    file.sync_all()?;
    let seconds = start.elapsed().as_secs_f64().max(1e-6);
    Ok(job.file_size as f64 / 1024.0 / seconds)
}

fn prepare(phase: Phase, job: &Job, path: &Path) -> io::Result<(File, Vec<u8>, Vec<u64>)> {
    let mut buffer = contents(job.record);
    let mut open = OpenOptions::new();
    let mut file = match phase {
        Phase::Write => {
            drop(File::create(path)?);
            fs::remove_file(path)?;
            drop(File::create(path)?);
            open.read(true).write(true).open(path)?
        }
        Phase::Rewrite | Phase::RandomRead | Phase::RandomWrite => open.read(true).write(true).open(path)?,
        Phase::Read | Phase::Reread => open.read(true).open(path)?,
    };
    file.sync_all()?;
    if matches!(phase, Phase::Read | Phase::Reread) {
        file.read_exact(&mut buffer)?;
        file.seek(SeekFrom::Start(0))?;
    }
    Ok((file, buffer, offsets(phase, job.record, job.file_size)))
}

/// Returns the bytes that a phase writes.
pub(super) fn contents(record: usize) -> Vec<u8> {
    (0..record).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect()
}

/// Returns the offsets of the records in the order of a phase.
pub(super) fn offsets(phase: Phase, record: usize, file_size: u64) -> Vec<u64> {
    let record = record as u64;
    let mut offsets: Vec<u64> = (0..file_size / record).map(|n| n * record).collect();
    if matches!(phase, Phase::RandomRead | Phase::RandomWrite) {
        shuffle(&mut offsets);
    }
    offsets
}

/// Permutes offsets in a fixed way (Fisher-Yates over a 64-bit xorshift), the same in every run.
fn shuffle(offsets: &mut [u64]) {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    for i in (1..offsets.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // The remainder is below `i + 1`, which is a `usize`.
        offsets.swap(i, (state % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_phases_and_no_file_left() {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![dir.path().join("a"), dir.path().join("b")];
        let mut out = Vec::new();
        work(&Job { record: 4096, file_size: 64 * 1024, files }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().count() == 6 && text.starts_with("write "), "{text}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_failure_names_the_file_and_ends_all_threads() {
        let dir = tempfile::tempdir().unwrap();
        let files = vec![dir.path().join("a"), dir.path().join("missing/b")];
        let mut out = Vec::new();
        let err = work(&Job { record: 4096, file_size: 8192, files }, &mut out).unwrap_err().to_string();
        assert!(err.contains("missing/b: No such file or directory"), "{err}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn uneven_sizes_are_refused() {
        for (record, file_size) in [(0, 4096), (4096, 6000)] {
            assert!(work(&Job { record, file_size, files: vec!["x".into()] }, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn random_order_visits_everything_once() {
        let mut offsets: Vec<u64> = (0..1000).collect();
        shuffle(&mut offsets);
        assert_ne!(offsets, (0..1000).collect::<Vec<_>>());
        offsets.sort_unstable();
        assert_eq!(offsets, (0..1000).collect::<Vec<_>>());
    }
}
