//! Measuring engines: programs that read and write files below a directory and report their speed.
//!
//! Both engines run as guarded children. Killing the child ends a run on a file system that hangs.

pub mod builtin;
pub mod fio;
pub mod iozone;
pub mod job;
pub mod meter;
pub mod parse;

use std::{path::Path, time::Duration};

use clap::ValueEnum;

use crate::{
    Error, Result,
    interrupt::Interrupt,
    load::memory,
    process::{Guarded, Invocation},
    sample::Sample,
    size,
};

/// The measuring engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineKind {
    /// IOzone if it is installed, else the built-in engine.
    Auto,
    /// IOzone.
    Iozone,
    /// The built-in engine with IOzone's access patterns.
    Builtin,
}

/// One run of an engine.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Directory of the files. After a successful run the engine has removed its files.
    pub dir: &'a Path,
    /// Bytes per operation.
    pub record: u64,
    /// Bytes per file.
    pub file_size: u64,
    /// Processes or threads, each with its own file.
    pub threads: u32,
    /// Time limit of the run.
    pub limit: Duration,
    /// A library for LD_PRELOAD of the program.
    pub library: Option<&'a Path>,
}

impl Run<'_> {
    /// Runs a program in the directory after preparing memory. `phases` counts the completed phases
    /// in its output, and `parse` reads the result.
    fn make(
        &self,
        (command, line): (&Invocation, String),
        (interrupt, phases_done): (&Interrupt, &mut dyn FnMut(usize)),
        phases: impl Fn(&str) -> usize,
        parse: impl Fn(&str) -> std::result::Result<Sample, String>,
    ) -> Result<Outcome> {
        memory::have_at_hand(size::peak(self.file_size, self.threads), interrupt)?;
        let preloaded = self.library.map(|library| preloaded(library, command));
        let line = preloaded.as_ref().map_or(line, Invocation::line);
        let mut child = Guarded::spawn(preloaded.as_ref().unwrap_or(command), self.dir)?;
        let raw = child.wait_success(interrupt, self.limit, |text| phases_done(phases(text)))?;
        let sample = parse(&raw).map_err(|what| Error::Parse { program: command.name.clone(), what })?;
        Ok(Outcome { sample, command: line, raw })
    }

    fn file_names(&self) -> Vec<String> {
        (0..self.threads.max(1)).map(|n| self.dir.join(format!("iozone-{n}")).display().to_string()).collect()
    }
}

/// Returns a command with a library for LD_PRELOAD.
fn preloaded(library: &Path, command: &Invocation) -> Invocation {
    let variable = format!("LD_PRELOAD={}", library.display());
    let name = command.name.clone();
    Invocation { name, ..Invocation::new("env").arg(variable).arg(&command.program).args(&command.args) }
}

/// Result of a run: measurements and output.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Throughput per phase.
    pub sample: Sample,
    /// The command line.
    pub command: String,
    /// Complete standard output.
    pub raw: String,
}

/// A measuring program.
pub trait Engine {
    /// Returns name and version, for reports.
    fn describe(&self) -> String;

    /// Makes the run after preparing memory. Calls `phases_done` with the number of completed
    /// phases.
    fn run(
        &self,
        run: &Run<'_>,
        interrupt: &Interrupt,
        phases_done: &mut dyn FnMut(usize),
    ) -> Result<Outcome>;
}

/// Returns the selected engine. `auto` selects IOzone if it is installed, otherwise the built-in
/// engine.
pub fn choose(kind: EngineKind) -> Result<Box<dyn Engine>> {
    let found = iozone::Iozone::find();
    match (kind, found) {
        (EngineKind::Builtin, _) | (EngineKind::Auto, Err(_)) => Ok(Box::new(builtin::Builtin)),
        (_, Ok(engine)) => Ok(Box::new(engine)),
        (EngineKind::Iozone, Err(err)) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_loaded_into_the_program_alone() {
        let command = Invocation::new("/usr/bin/iozone").arg("-e");
        let preloaded = preloaded(Path::new("/lib/x.so"), &command);
        assert_eq!(preloaded.line(), "env LD_PRELOAD=/lib/x.so /usr/bin/iozone -e");
        assert_eq!(preloaded.name, "iozone");
    }
}
