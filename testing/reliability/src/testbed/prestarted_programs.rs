//! Programs that are started before they are needed: a shell that runs commands, and a process that
//! waits to exec a program.
//!
//! A forked child briefly holds copies of this process's open files, and closes them at exec. A
//! close on a mount that does not respond would block the child. These programs are forked early,
//! so they have no such files.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
    time::Duration,
};

use measure::{
    interrupt::Interrupt,
    process::{Guarded, Invocation},
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::processes::kill;
use crate::error::{Error, Result};

/// Reads lines from the file that is its first argument, runs them, and prints the outcome of each.
const SCRIPT: &str =
    r#"while read -r line; do if eval "$line" >&2; then echo done; else echo failed; fi; done <"$0""#;
/// Time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running shell. Drop ends it and all processes that it has started.
#[derive(Debug)]
pub(crate) struct CommandShell {
    shell: Guarded,
    lines: File,
    commands: usize,
}

/// A process that waits for a signal to exec its program.
#[derive(Debug)]
pub(crate) struct PrestartedProgram {
    program: Guarded,
    trigger: File,
}

/// Creates a fifo that can be written to before a reader opens it.
fn fifo(path: &Path) -> Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .map_err(|e| Error::io("a fifo")(e.into()))?;
    // Opening a fifo for reading and writing does not block.
    OpenOptions::new().read(true).write(true).open(path).map_err(Error::io("a fifo"))
}

impl PrestartedProgram {
    /// Starts a process that will exec `command`. Creates a fifo of the given name in `dir`.
    pub(crate) fn start(dir: &Path, name: &str, command: &Invocation) -> Result<PrestartedProgram> {
        let path = dir.join(name);
        fs::remove_file(&path).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(Error::io("a fifo")(e)),
        })?;
        let trigger = fifo(&path)?;
        let shell =
            Invocation::new("sh").args(["-c", r#"echo waiting; read -r _ <"$0" && exec "$@""#]).arg(&path);
        let shell = shell.arg(&command.program).args(&command.args);
        let mut program = Guarded::spawn(&Invocation { name: command.name.clone(), ..shell }, dir)?;
        // When the process prints, it has already closed the inherited files.
        let is_waiting = |output: &str| output.contains("waiting").then_some(());
        program.wait_output(&Interrupt::unset(), TIMEOUT, is_waiting)?;
        Ok(PrestartedProgram { program, trigger })
    }

    /// Starts the program. Returns it with the value of `ready`, which blocks until the program is
    /// ready.
    pub(crate) fn go<T>(mut self, ready: impl FnOnce(&mut Guarded) -> Result<T>) -> Result<(Guarded, T)> {
        writeln!(self.trigger).map_err(Error::io("a fifo"))?;
        let found = ready(&mut self.program)?;
        Ok((self.program, found))
    }

    /// Starts the program and kills it after `after`, even if it is not ready by then.
    pub(crate) fn go_and_be_killed(mut self, after: Duration) -> Result<()> {
        writeln!(self.trigger).map_err(Error::io("a fifo"))?;
        std::thread::sleep(after);
        kill(&mut self.program)
    }
}

impl CommandShell {
    /// Starts the shell. Creates the fifo `commands` in `dir`.
    pub(crate) fn start(dir: &Path) -> Result<CommandShell> {
        let path = dir.join("commands");
        let lines = fifo(&path)?;
        let shell = Guarded::spawn(&Invocation::new("sh").args(["-c", SCRIPT]).arg(&path), dir)?;
        Ok(CommandShell { shell, lines, commands: 0 })
    }

    /// Runs a command and waits for it. Returns an error if the command fails.
    pub(crate) fn run(&mut self, line: &str) -> Result<()> {
        writeln!(self.lines, "{line}").map_err(Error::io("a command"))?;
        self.commands += 1;
        let nth = self.commands - 1;
        let outcome = |output: &str| output.lines().nth(nth).map(|line| line == "done");
        match self.shell.wait_output(&Interrupt::unset(), TIMEOUT, outcome)? {
            true => Ok(()),
            false => Err(self.shell.failure(&format!("'{line}' fails")).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = CommandShell::start(dir.path()).unwrap();
        shell.run("echo one two >said").unwrap();
        let error = shell.run("echo no such thing && false").unwrap_err().to_string();
        assert!(error.contains("'echo no such thing && false' fails"), "{error}");
        shell.run("test \"$(cat said)\" = 'one two'").unwrap();
    }

    #[test]
    fn a_prestarted_program_begins_when_it_is_triggered() {
        let dir = tempfile::tempdir().unwrap();
        for word in ["first", "second"] {
            let waiting =
                PrestartedProgram::start(dir.path(), "waiting", &Invocation::new("echo").arg(word)).unwrap();
            assert_eq!(waiting.program.stdout.text(), "waiting\n");
            let second_line = |output: &str| output.lines().nth(1).map(str::to_owned);
            let ready =
                |program: &mut Guarded| Ok(program.wait_output(&Interrupt::unset(), TIMEOUT, second_line)?);
            assert_eq!(waiting.go(ready).unwrap().1, word);
        }
    }
}
