//! Programs for the middle of a trial that are started before: a shell that runs commands, and one that waits to become another program.
//!
//! A program that this process starts has all of its files for a moment, and closes them: those on a mount that does not answer
//! hold it up until that does. These have none of them.

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

use crate::{Error, Result, stand::kill};

/// Reads lines from the file that is its first argument, and says what became of each.
const SCRIPT: &str =
    r#"while read -r line; do if eval "$line" >&2; then echo done; else echo failed; fi; done <"$0""#;
/// No command takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// The shell. It ends when it is dropped, and all that it has started.
#[derive(Debug)]
pub(crate) struct Hand {
    shell: Guarded,
    lines: File,
    given: usize,
}

/// A program that has been started, and waits to be wanted.
#[derive(Debug)]
pub(crate) struct Waiting {
    program: Guarded,
    word: File,
}

/// A fifo that can be written to though nobody reads it yet.
fn fifo(path: &Path) -> Result<File> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .map_err(|e| Error::io("a fifo")(e.into()))?;
    // One that is open both ways waits for nobody.
    OpenOptions::new().read(true).write(true).open(path).map_err(Error::io("a fifo"))
}

impl Waiting {
    /// Starts what is to become `command`, in a directory where it has a file of its own, of this name.
    pub(crate) fn start(dir: &Path, name: &str, command: &Invocation) -> Result<Waiting> {
        let path = dir.join(name);
        fs::remove_file(&path).or_else(|e| match e.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(Error::io("a fifo")(e)),
        })?;
        let word = fifo(&path)?;
        let shell =
            Invocation::new("sh").args(["-c", r#"echo waiting; read -r _ <"$0" && exec "$@""#]).arg(&path);
        let shell = shell.arg(&command.program).args(&command.args);
        let mut program = Guarded::spawn(&Invocation { name: command.name.clone(), ..shell }, dir)?;
        // It has closed all that it was born with by the time that it says something.
        let is_there = |said: &str| said.contains("waiting").then_some(());
        program.wait_output(&Interrupt::unset(), LONGEST, is_there)?;
        Ok(Waiting { program, word })
    }

    /// It is wanted now, and is there when `ready` has found what it looks for in what it says.
    pub(crate) fn go<T>(mut self, ready: impl FnOnce(&mut Guarded) -> Result<T>) -> Result<(Guarded, T)> {
        writeln!(self.word).map_err(Error::io("a fifo"))?;
        let found = ready(&mut self.program)?;
        Ok((self.program, found))
    }

    /// It is wanted, and killed so long afterwards, whether or not it is there by then.
    pub(crate) fn go_and_be_killed(mut self, after: Duration) -> Result<()> {
        writeln!(self.word).map_err(Error::io("a fifo"))?;
        std::thread::sleep(after);
        kill(&mut self.program)
    }
}

impl Hand {
    /// Starts it, in a directory where it has a file of its own.
    pub(crate) fn start(dir: &Path) -> Result<Hand> {
        let path = dir.join("commands");
        let lines = fifo(&path)?;
        let shell = Guarded::spawn(&Invocation::new("sh").args(["-c", SCRIPT]).arg(&path), dir)?;
        Ok(Hand { shell, lines, given: 0 })
    }

    /// Runs a command, which has to end with success.
    pub(crate) fn run(&mut self, line: &str) -> Result<()> {
        writeln!(self.lines, "{line}").map_err(Error::io("a command"))?;
        self.given += 1;
        let nth = self.given - 1;
        let outcome = |said: &str| said.lines().nth(nth).map(|line| line == "done");
        match self.shell.wait_output(&Interrupt::unset(), LONGEST, outcome)? {
            true => Ok(()),
            false => Err(self.shell.failure(&format!("'{line}' fails")).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_run_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut hand = Hand::start(dir.path()).unwrap();
        hand.run("echo one two >said").unwrap();
        let error = hand.run("echo no such thing && false").unwrap_err().to_string();
        assert!(error.contains("'echo no such thing && false' fails"), "{error}");
        hand.run("test \"$(cat said)\" = 'one two'").unwrap();
    }

    #[test]
    fn a_program_begins_when_it_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        for word in ["first", "second"] {
            let waiting = Waiting::start(dir.path(), "waiting", &Invocation::new("echo").arg(word)).unwrap();
            assert_eq!(waiting.program.stdout.text(), "waiting\n");
            let said = |said: &str| said.lines().nth(1).map(str::to_owned);
            let ready =
                |program: &mut Guarded| Ok(program.wait_output(&Interrupt::unset(), LONGEST, said)?);
            assert_eq!(waiting.go(ready).unwrap().1, word);
        }
    }
}
