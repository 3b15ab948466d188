//! The load on many files, in a child process. Each thread has a share of the files. All threads
//! start together; the measured time ends with the last thread.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::thread_group;
use crate::{Error, Result};

/// Layout of the directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One directory.
    Flat,
    /// A hundred directories: ten in each of ten.
    Tree,
}

/// An action on the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// `open` with `O_CREAT` and `O_EXCL`, and `close`.
    Create,
    /// `lstat`.
    Stat,
    /// `unlink`.
    Unlink,
    /// `ls -l` of the directory.
    List,
}

/// The task of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Work {
    /// Parent directory.
    #[arg(long)]
    pub dir: PathBuf,
    /// Number of files.
    #[arg(long)]
    pub files: usize,
    /// Layout of the directories.
    #[arg(long, value_enum)]
    pub shape: Shape,
    /// Action.
    #[arg(long, value_enum)]
    pub action: Action,
    /// Number of threads that share the files.
    #[arg(long)]
    pub threads: usize,
}

/// Number of directories at each of the two levels of a tree.
const FAN_OUT: usize = 10;

/// Performs the work and prints the seconds. Directories of a tree are created before and removed
/// after the measured time.
pub fn work(work: &Work, out: &mut impl Write) -> Result<()> {
    if work.action == Action::Create {
        for dir in directories(work) {
            fs::create_dir(&dir).map_err(Error::io(dir))?;
        }
    }
    let seconds = match work.action {
        Action::List => list(&work.dir)?,
        _ => timed(work)?,
    };
    if work.action == Action::Unlink {
        for dir in directories(work).into_iter().rev() {
            fs::remove_dir(&dir).map_err(Error::io(dir))?;
        }
    }
    writeln!(out, "{seconds:.9}").and_then(|()| out.flush()).map_err(Error::io("output"))
}

/// Returns the directories of a tree, parents first.
fn directories(work: &Work) -> Vec<PathBuf> {
    let upper = (0..FAN_OUT).map(|upper| work.dir.join(format!("u{upper}")));
    match work.shape {
        Shape::Flat => Vec::new(),
        Shape::Tree => upper
            .flat_map(|dir| {
                let lower = (0..FAN_OUT).map(|lower| dir.join(format!("l{lower}"))).collect::<Vec<_>>();
                std::iter::once(dir).chain(lower)
            })
            .collect(),
    }
}

/// Returns the path of a file. In a tree, the directories are filled one after the other.
fn path(work: &Work, index: usize) -> PathBuf {
    let name = format!("f{index:07}");
    match work.shape {
        Shape::Flat => work.dir.join(name),
        Shape::Tree => {
            let leaf = index * FAN_OUT * FAN_OUT / work.files;
            work.dir.join(format!("u{}/l{}/{name}", leaf / FAN_OUT, leaf % FAN_OUT))
        }
    }
}

fn timed(work: &Work) -> Result<f64> {
    let threads = work.threads.clamp(1, work.files);
    // Paths are built before the measured time.
    let shares: Vec<Vec<PathBuf>> = (0..threads)
        .map(|thread| {
            let bounds = work.files * thread / threads..work.files * (thread + 1) / threads;
            bounds.map(|index| path(work, index)).collect()
        })
        .collect();
    let act =
        |share: &[PathBuf]| share.iter().try_for_each(|path| one(work.action, path).map_err(Error::io(path)));
    let jobs = shares.iter().map(|share| || act(share)).collect();
    thread_group::run(jobs).map(|(seconds, _)| seconds)
}

fn one(action: Action, path: &Path) -> io::Result<()> {
    match action {
        Action::Create => OpenOptions::new().write(true).create_new(true).open(path).map(drop),
        Action::Stat => fs::symlink_metadata(path).map(drop),
        Action::Unlink => fs::remove_file(path),
        Action::List => Ok(()),
    }
}

fn list(dir: &Path) -> Result<f64> {
    let began = Instant::now();
    let listed = Command::new("ls").arg("-l").arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = listed.map_err(|source| Error::Spawn { program: "ls".into(), source })?;
    match status.success() {
        true => Ok(began.elapsed().as_secs_f64()),
        false => Err(Error::Child { program: "ls".into(), what: status.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(dir: &Path) -> usize {
        let entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
        let below = entries.iter().filter(|entry| entry.file_type().unwrap().is_dir());
        entries.len() + below.map(|entry| count(&entry.path())).sum::<usize>()
    }

    #[test]
    fn files_come_and_go_in_both_layouts_with_any_number_of_threads() {
        for (shape, there) in [(Shape::Flat, 250), (Shape::Tree, 250 + 110)] {
            let dir = tempfile::tempdir().unwrap();
            let mut out = Vec::new();
            let mut act = |action, threads| {
                let dir = dir.path().to_owned();
                work(&Work { dir, files: 250, shape, action, threads }, &mut out).unwrap();
            };
            act(Action::Create, 3);
            assert_eq!(count(dir.path()), there);
            act(Action::Stat, 1);
            act(Action::List, 1);
            act(Action::Unlink, 7);
            assert_eq!(count(dir.path()), 0);
            let seconds: Vec<f64> =
                String::from_utf8(out).unwrap().lines().map(|line| line.parse().unwrap()).collect();
            assert!(seconds.len() == 4 && seconds.iter().all(|s| *s > 0.0));
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let work_on = Work {
            dir: dir.path().to_owned(),
            files: 1,
            shape: Shape::Flat,
            action: Action::Stat,
            threads: 1,
        };
        let error = work(&work_on, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("f0000000: "), "{error}");
    }

    #[test]
    fn a_tree_is_filled_evenly() {
        let work =
            Work { dir: "/d".into(), files: 200, shape: Shape::Tree, action: Action::Stat, threads: 1 };
        assert_eq!(path(&work, 0), Path::new("/d/u0/l0/f0000000"));
        assert_eq!(path(&work, 2), Path::new("/d/u0/l1/f0000002"));
        assert_eq!(path(&work, 199), Path::new("/d/u9/l9/f0000199"));
        assert_eq!(directories(&work).len(), 110);
    }
}
