//! Options on which the benchmark programs agree: where programs are, and where results go.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;

use crate::{Error, Result};

/// Where things are that are measured.
#[derive(Clone, Debug, Args)]
pub struct Places {
    /// Where rfs-server and rfs-fuse are [default: beside this program].
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,

    /// A directory on a tmpfs, for the files of all that is not rfs.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub tmpfs_dir: PathBuf,
}

impl Places {
    /// The directory of rfs-server and rfs-fuse.
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

/// Where results go, and what they say of their origin.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Where results go [default: results/ in the source tree].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// The source tree, for the commit in reports.
    #[arg(long, value_name = "DIR", hide = true, default_value = ".")]
    pub source: PathBuf,
}

impl Output {
    /// The directory of results.
    pub fn dir(&self) -> PathBuf {
        self.out.clone().unwrap_or_else(|| self.source.join("results"))
    }
}

/// A report as it is written to a file.
pub fn json(report: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(report);
    text.map(|text| text + "\n")
        .map_err(|err| Error::Parse { program: "this report".into(), what: err.to_string() })
}

/// Writes files, given as name and text, into a directory, which is created. Their paths.
pub fn write(dir: &Path, files: Vec<(String, String)>) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let write = |(name, text): (String, String)| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(Error::io(&path)).map(|()| path)
    };
    files.into_iter().map(write).collect()
}
