//! Runs IOzone.

use std::{path::PathBuf, process::Command};

use super::{Engine, Outcome, Run, parse};
use crate::{Error, Result, interrupt::Interrupt, process::Invocation};

/// An installed IOzone.
#[derive(Debug)]
pub struct Iozone {
    program: PathBuf,
    version: String,
}

impl Iozone {
    /// Finds `iozone` in `PATH` and reads its version.
    pub fn find() -> Result<Self> {
        let program = PathBuf::from("iozone");
        let out = Command::new(&program)
            .arg("-v")
            .output()
            .map_err(|source| Error::Spawn { program: "iozone".into(), source })?;
        let version = version(&String::from_utf8_lossy(&out.stdout))
            .ok_or_else(|| Error::Parse { program: "iozone -v".into(), what: "no version in it".into() })?;
        Ok(Self { program, version })
    }
}

/// Returns `3.489` for `Version $Revision: 3.489 $`.
fn version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("$Revision:")?;
    Some(rest.split_once('$')?.0.trim().to_owned())
}

impl Engine for Iozone {
    fn describe(&self) -> String {
        format!("IOzone {}", self.version)
    }

    fn run(
        &self,
        run: &Run<'_>,
        interrupt: &Interrupt,
        phases_done: &mut dyn FnMut(usize),
    ) -> Result<Outcome> {
        let command = command(&self.program, run);
        let several = run.threads > 1;
        let phases = if several { parse::phases_in_throughput } else { parse::phases_in_row };
        run.make((&command, command.line()), (interrupt, phases_done), phases, |raw| match several {
            true => parse::throughput(raw),
            false => parse::single(raw, run.record, run.file_size),
        })
    }
}

/// Returns the command line. `-e` includes fsync in the times. One process uses `-f`; several use
/// `-t` with a file each.
fn command(program: &std::path::Path, run: &Run<'_>) -> Invocation {
    let kib = |bytes: u64| format!("{}k", bytes / 1024);
    let base = Invocation::new(program)
        .args(["-i", "0", "-i", "1", "-i", "2", "-e", "-r"])
        .arg(kib(run.record))
        .arg("-s")
        .arg(kib(run.file_size));
    if run.threads > 1 {
        base.arg("-t").arg(run.threads.to_string()).arg("-F").args(run.file_names())
    } else {
        base.arg("-f").args(run.file_names())
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;

    fn run(threads: u32) -> Run<'static> {
        let limit = Duration::from_secs(1);
        Run { dir: Path::new("/m"), record: 65536, file_size: 1 << 20, threads, limit, library: None }
    }

    #[test]
    fn command_lines() {
        assert_eq!(
            command(Path::new("iozone"), &run(1)).line(),
            "iozone -i 0 -i 1 -i 2 -e -r 64k -s 1024k -f /m/iozone-0"
        );
        assert_eq!(
            command(Path::new("iozone"), &run(2)).line(),
            "iozone -i 0 -i 1 -i 2 -e -r 64k -s 1024k -t 2 -F /m/iozone-0 /m/iozone-1"
        );
    }

    #[test]
    fn the_version_is_read() {
        assert_eq!(
            version("   'Iozone' Filesystem\n\tVersion $Revision: 3.489 $\n").as_deref(),
            Some("3.489")
        );
        assert_eq!(version("something else"), None);
    }
}
