//! What measures: a program that reads and writes files below a directory and says how fast it was.
//!
//! Both engines run as guarded children, so that a hanging file system can be left behind by killing them.

pub mod builtin;
pub mod iozone;
pub mod parse;

use std::{path::Path, time::Duration};

use crate::{Result, cli::EngineKind, interrupt::Interrupt, memory, sample::Sample, size};

/// One run of an engine.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// Where its files go. The engine's own files are gone afterwards if it succeeded.
    pub dir: &'a Path,
    /// Bytes per operation.
    pub record: u64,
    /// Bytes per file.
    pub file_size: u64,
    /// Processes or threads, each with its own file.
    pub threads: u32,
    /// Longest time that the run may take.
    pub limit: Duration,
}

impl Job<'_> {
    /// Has the machine have at hand what it will take.
    fn have_memory(&self, interrupt: &Interrupt) -> Result<()> {
        memory::have_at_hand(size::peak(self.file_size, self.threads), interrupt)
    }

    fn file_names(&self) -> Vec<String> {
        (0..self.threads.max(1)).map(|n| self.dir.join(format!("iozone-{n}")).display().to_string()).collect()
    }
}

/// Result of a run: the numbers, and what the engine printed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Throughput per phase.
    pub sample: Sample,
    /// The command line.
    pub command: String,
    /// Standard output, whole.
    pub raw: String,
}

/// A program that measures.
pub trait Engine {
    /// Name and version, for reports.
    fn describe(&self) -> String;

    /// Measures, with memory at hand. `phases_done` hears how many phases have ended, as they do.
    fn run(
        &self,
        job: &Job<'_>,
        interrupt: &Interrupt,
        phases_done: &mut dyn FnMut(usize),
    ) -> Result<Outcome>;
}

/// The engine that was asked for; for `auto` IOzone, or the built-in engine where IOzone is missing.
pub fn choose(kind: EngineKind) -> Result<Box<dyn Engine>> {
    let found = iozone::Iozone::find();
    match (kind, found) {
        (EngineKind::Builtin, _) => Ok(Box::new(builtin::Builtin::new()?)),
        (_, Ok(engine)) => Ok(Box::new(engine)),
        (EngineKind::Auto, Err(_)) => Ok(Box::new(builtin::Builtin::new()?)),
        (EngineKind::Iozone, Err(err)) => Err(err),
    }
}
