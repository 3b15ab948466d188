//! The load of the built-in engine in the native API: the phases of [`builtin`](super::builtin)
//! without a mount.
//!
//! Each thread has a file in a session that all threads share. A record is one call.
//!
//! # Concurrency
//! As [`builtin`](super::builtin).

use std::{io::Write, sync::Barrier, time::Instant};

use clap::Args;
use rfs_native::{File, Mount, MountOptions, OpenOptions};

use super::builtin::{check, contents, offsets, run_phases};
use crate::{Error, Result, sample::Phase};

/// Options of the worker.
#[derive(Clone, Debug, Args)]
pub struct Job {
    /// The address of the server.
    #[arg(long)]
    server: String,
    /// Bytes per operation.
    #[arg(long)]
    record: usize,
    /// Bytes per file.
    #[arg(long)]
    file_size: u64,
    /// One file per thread, by its path in the export.
    #[arg(required = true)]
    files: Vec<String>,
}

/// Runs all phases and prints a line for each. Removes the files at the end in any case.
pub fn work(job: &Job, out: &mut impl Write) -> Result<()> {
    check(job.record, job.file_size)?;
    let refused = |e: &dyn std::fmt::Display| Error::Usage(format!("{}: {e}", job.server));
    let mount = Mount::connect(&job.server, &MountOptions::default()).map_err(|e| refused(&e))?;
    let one = |phase, file: &String, barrier: &Barrier| {
        one(phase, job, (&mount, file.as_str()), barrier).map_err(|e| refused(&e))
    };
    let outcome = run_phases(&job.files, one, out);
    for file in &job.files {
        // A failure to remove is either a missing file or has the cause that is already returned.
        let _ = mount.remove_file(file);
    }
    outcome
}

/// Runs one phase on one file. Returns the throughput in KiB/s.
fn one(phase: Phase, job: &Job, (mount, name): (&Mount, &str), barrier: &Barrier) -> rfs_native::Result<f64> {
    let prepared = prepare(phase, mount, name);
    // A failed thread also waits at the barrier. Otherwise the other threads would block forever.
    barrier.wait();
    let file = prepared?;
    let mut buffer = contents(job.record);
    let offsets = offsets(phase, job.record, job.file_size);
    let start = Instant::now();
    for offset in offsets {
        match phase.reads() {
            true => file.read_exact_at(&mut buffer, offset)?,
            false => file.write_all_at(&buffer, offset)?,
        }
    }
    file.sync()?;
    Ok(job.file_size as f64 / 1024.0 / start.elapsed().as_secs_f64().max(1e-6))
}

fn prepare(phase: Phase, mount: &Mount, name: &str) -> rfs_native::Result<File> {
    match phase {
        Phase::Write => mount.create(name),
        Phase::Read | Phase::Reread => mount.open(name),
        _ => mount.open_with(name, OpenOptions::new().read(true).write(true)),
    }
}
