//! A substitute for IOzone: the same system calls in the same order.
//!
//! [`load::builtin`](crate::load::builtin) has the system calls. They run in a child process.

use super::{Engine, Outcome, Run, parse};
use crate::{Error, Result, interrupt::Interrupt, load, process::Guarded};

/// The built-in engine.
#[derive(Debug)]
pub struct Builtin;

impl Engine for Builtin {
    fn describe(&self) -> String {
        format!("built-in engine {} (IOzone's access patterns, not IOzone)", env!("CARGO_PKG_VERSION"))
    }

    fn run(
        &self,
        run: &Run<'_>,
        interrupt: &Interrupt,
        phases_done: &mut dyn FnMut(usize),
    ) -> Result<Outcome> {
        run.have_memory(interrupt)?;
        let command = load::command("builtin")?
            .args(["--record".to_owned(), run.record.to_string()])
            .args(["--file-size".to_owned(), run.file_size.to_string()])
            .args(run.file_names());
        let mut child = Guarded::spawn(&command, run.dir)?;
        let raw = child.wait_success(interrupt, run.limit, |text| phases_done(text.lines().count()))?;
        let sample = parse::builtin(&raw)
            .map_err(|what| Error::Parse { program: "the built-in engine".into(), what })?;
        let rest = command.args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
        Ok(Outcome { sample, command: format!("rfs-iozone {rest}"), raw })
    }
}
