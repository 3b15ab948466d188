//! A substitute for IOzone: the same system calls in the same order, or the calls of the native
//! API.
//!
//! [`load::builtin`] and [`load::native`] have the calls. They run in a child process.

use super::{Engine, Outcome, Run, parse};
use crate::{Result, interrupt::Interrupt, load, process::Invocation};

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
        let command = sized(load::command("builtin")?, run).args(run.file_names());
        make(&command, run, interrupt, phases_done)
    }
}

/// The built-in engine in the native API, on the files of a server. It uses no mount.
#[derive(Debug)]
pub struct Native {
    /// The address of the server.
    pub server: String,
}

impl Engine for Native {
    fn describe(&self) -> String {
        format!("native API {} (IOzone's access patterns)", env!("CARGO_PKG_VERSION"))
    }

    fn run(
        &self,
        run: &Run<'_>,
        interrupt: &Interrupt,
        phases_done: &mut dyn FnMut(usize),
    ) -> Result<Outcome> {
        let command = sized(load::command("native")?, run).args(["--server", &self.server]);
        let names = (0..run.threads.max(1)).map(|n| format!("native-{n}"));
        make(&command.args(names), run, interrupt, phases_done)
    }
}

fn sized(command: Invocation, run: &Run<'_>) -> Invocation {
    command
        .args(["--record".to_owned(), run.record.to_string()])
        .args(["--file-size".to_owned(), run.file_size.to_string()])
}

fn make(
    command: &Invocation,
    run: &Run<'_>,
    interrupt: &Interrupt,
    phases_done: &mut dyn FnMut(usize),
) -> Result<Outcome> {
    let rest = command.args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let line = format!("rfs-iozone {rest}");
    run.make((command, line), (interrupt, phases_done), |text| text.lines().count(), parse::builtin)
}
