//! The files of a report.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{Error, Result};

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

/// Prints the paths of written files.
pub fn tell(paths: &[PathBuf]) {
    for path in paths {
        println!("wrote {}", path.display());
    }
}
