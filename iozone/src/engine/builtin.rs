//! A substitute for IOzone: the same system calls in the same order.
//!
//! [`load::builtin`] has the system calls. They run in a child process.

use super::{Engine, Outcome, Run, parse};
use crate::{Result, interrupt::Interrupt, load};

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
        let command = load::command("builtin")?
            .args(["--record".to_owned(), run.record.to_string()])
            .args(["--file-size".to_owned(), run.file_size.to_string()])
            .args(run.file_names());
        let rest = command.args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let line = format!("rfs-iozone {rest}");
        run.make((&command, line), (interrupt, phases_done), |text| text.lines().count(), parse::builtin)
    }
}
