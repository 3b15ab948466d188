//! The load on names, in a child process: creates, looks up and removes empty files in one
//! directory.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::BorrowedFd,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx, unlinkat};

use super::{
    Pattern,
    latency::{Times, line},
};
use crate::{Error, Result};

/// Output of the child when all files exist.
pub const THERE: &str = "all are there";
/// Pause of the child at that time, in which its parent measures memory.
const LEAVES: Duration = Duration::from_millis(100);

/// The task of a child.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Work {
    /// The directory.
    #[arg(long)]
    pub dir: PathBuf,
    /// Number of files that exist at a time.
    #[arg(long)]
    pub count: u64,
    /// Number of repetitions.
    #[arg(long)]
    pub times: u64,
}

/// The actions in their order, which is also the order of their output lines.
pub const ACTIONS: [Pattern; 3] = [Pattern::Create, Pattern::Stat, Pattern::Unlink];

/// Performs the work. Prints [`THERE`] when all files exist for the last time, and then the results
/// of each action.
pub fn work(work: &Work, out: &mut impl Write) -> Result<()> {
    let dir = File::open(&work.dir).map_err(Error::io(&work.dir))?;
    let dir = rustix::fd::AsFd::as_fd(&dir);
    let mut done = [(0.0, Times::new()?), (0.0, Times::new()?), (0.0, Times::new()?)];
    for time in 1..=work.times {
        for (action, (seconds, times)) in ACTIONS.into_iter().zip(&mut done) {
            if action == Pattern::Unlink && time == work.times {
                writeln!(out, "{THERE}").and_then(|()| out.flush()).map_err(Error::io("output"))?;
                thread::sleep(LEAVES);
            }
            let began = Instant::now();
            let mut before = began;
            for n in 0..work.count {
                let name = format!("f{n:07}");
                one(action, dir, &name).map_err(|err| Error::io(work.dir.join(&name))(err))?;
                let after = Instant::now();
                times.record(after - before);
                before = after;
            }
            *seconds += began.elapsed().as_secs_f64();
        }
    }
    for (seconds, times) in &done {
        writeln!(out, "{}", line(&times.done(*seconds))?).map_err(Error::io("output"))?;
    }
    out.flush().map_err(Error::io("output"))
}

fn one(action: Pattern, dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match action {
        Pattern::Create => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(dir, name, flags, Mode::from_raw_mode(0o644))?);
        }
        Pattern::Stat => drop(statx(dir, name, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?),
        _ => unlinkat(dir, name, AtFlags::empty())?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::latency::{Done, read};

    #[test]
    fn files_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        work(&Work { dir: dir.path().into(), count: 7, times: 3 }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let (there, rest) = text.split_once('\n').unwrap();
        assert_eq!(there, THERE);
        let done: Vec<Done> = rest.lines().map(|line| read(line).unwrap()).collect();
        assert_eq!(done.iter().map(|done| done.operations).collect::<Vec<_>>(), [21; 3]);
        assert!(done.iter().all(|done| done.seconds > 0.0));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_existing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f0000001"), b"").unwrap();
        let on = Work { dir: dir.path().into(), count: 2, times: 1 };
        let error = work(&on, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("f0000001: File exists"), "{error}");
    }
}
