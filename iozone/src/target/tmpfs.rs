//! A directory in memory without FUSE: the upper limit of this machine.

use std::path::{Path, PathBuf};

use super::{Running, Side, Target, WorkDir};
use crate::{Error, Result, interrupt::Interrupt, size};

/// A directory on a tmpfs: `/dev/shm` is one on every Debian.
#[derive(Debug)]
pub struct Tmpfs {
    files: u64,
    parent: PathBuf,
}

impl Tmpfs {
    /// Returns a target for `files` bytes of files, below `parent`.
    pub fn new(files: u64, parent: PathBuf) -> Self {
        Self { files, parent }
    }
}

impl Target for Tmpfs {
    fn name(&self) -> &str {
        "tmpfs"
    }

    fn title(&self) -> &str {
        "a directory in memory, no FUSE: the ceiling of the machine"
    }

    fn side(&self) -> Side {
        Side::Ceiling
    }

    fn start(&self, _: &Interrupt) -> Result<Box<dyn Running>> {
        let stat = rustix::fs::statvfs(&self.parent).map_err(|err| Error::io(&self.parent)(err.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < self.files {
            return Err(Error::Usage(format!(
                "{} has {} free, the files need {}; give a smaller --file-size or leave tmpfs out of --providers",
                self.parent.display(),
                size::show(free),
                size::show(self.files)
            )));
        }
        Ok(Box::new(Started(WorkDir::new(&self.parent)?)))
    }
}

struct Started(WorkDir);

impl Running for Started {
    fn mountpoint(&self) -> &Path {
        self.0.path()
    }

    fn commands(&self) -> Vec<String> {
        Vec::new()
    }

    fn explain(&mut self, error: Error) -> Error {
        error
    }

    fn stop(mut self: Box<Self>) -> Result<String> {
        self.0.remove().map(|()| String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_and_goes() {
        let target = Tmpfs::new(0, std::env::temp_dir());
        let running = target.start(&Interrupt::unset()).unwrap();
        let dir = running.mountpoint().to_owned();
        std::fs::write(dir.join("left"), b"x").unwrap();
        running.stop().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let target = Tmpfs::new(u64::MAX, std::env::temp_dir());
        let err = target.start(&Interrupt::unset()).err().unwrap();
        assert_eq!(err.exit_code(), 2);
    }
}
