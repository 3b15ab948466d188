//! Options that all benchmark programs share: locations of programs and of results.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;

use crate::{Error, Result};

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

/// Returns the JSON text of a report.
pub fn json(report: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(report);
    text.map(|text| text + "\n")
        .map_err(|err| Error::Parse { program: "this report".into(), what: err.to_string() })
}

/// Writes files, given as name and text, into a directory, which is created. Returns their paths.
pub fn write(dir: &Path, files: Vec<(String, String)>) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let write = |(name, text): (String, String)| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(Error::io(&path)).map(|()| path)
    };
    files.into_iter().map(write).collect()
}
