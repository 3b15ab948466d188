//! Options of every plan.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use crate::{Error, Result};

/// Options of every plan.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Repeat everything, in alternating order, and report medians [default: 1; 5 with --compare
    /// and --fresh, 3 with --scaling and --names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Run one small round of everything, to check that it works.
    #[arg(long)]
    pub quick: bool,

    /// Exit with status 1 if a result misses its requirement. The plain run has no requirements.
    #[arg(long)]
    pub check: bool,

    /// Start no round after this number of minutes [default: 60 with --compare and --scaling].
    #[arg(long, value_name = "MINUTES")]
    pub minutes: Option<u64>,

    /// Time limit for one run of a measuring program, in seconds [default: 600; 300 with --compare,
    /// 1800 with --scaling].
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,

    /// Output options.
    #[command(flatten)]
    pub output: Output,

    /// Locations of programs and files.
    #[command(flatten)]
    pub places: Places,
}

impl Common {
    /// Returns the number of rounds: as given, or one with `--quick`, or else `usual`.
    pub fn rounds(&self, usual: u32) -> u32 {
        self.usual(self.rounds, usual, 1)
    }

    /// Returns the value of an option: as given, or `quick` with `--quick`, or else `usual`.
    pub fn usual<T>(&self, given: Option<T>, usual: T, quick: T) -> T {
        given.unwrap_or(if self.quick { quick } else { usual })
    }

    /// Returns the time after which no round begins; `usual` is the default in minutes.
    pub fn round_limit(&self, usual: Option<u64>) -> Option<Duration> {
        let minutes = self.minutes.or(usual)?;
        Some(Duration::from_secs(minutes.saturating_mul(60)))
    }

    /// Returns the time limit for one run of a program; `usual` is the default in seconds.
    pub fn timeout(&self, usual: u64) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(usual))
    }
}

/// Locations of programs and files.
#[derive(Clone, Debug, Args)]
pub struct Places {
    /// Directory of rfs-server and rfs-fuse [default: directory of this program].
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,

    /// Directory on a tmpfs, for the files of all targets except rfs.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub tmpfs_dir: PathBuf,
}

impl Places {
    /// Returns the directory of rfs-server and rfs-fuse.
    pub fn bin_dir(&self) -> Result<PathBuf> {
        match &self.bin_dir {
            Some(dir) => Ok(dir.clone()),
            None => {
                let exe = std::env::current_exe().map_err(Error::io("the path of this program"))?;
                Ok(exe.parent().map(Path::to_owned).unwrap_or_default())
            }
        }
    }
}

/// Output options.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Directory for results [default: results/ in the source tree].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// The source tree, for the commit in reports.
    #[arg(long, value_name = "DIR", hide = true, default_value = ".")]
    pub source: PathBuf,
}

impl Output {
    /// Returns the directory for results.
    pub fn dir(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| self.source.join("results"))
    }
}
