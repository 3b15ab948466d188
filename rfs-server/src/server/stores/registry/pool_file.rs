//! The file of `--pool`: which stores the pool has.
//!
//! A line has the address of a store. One line may be `view N`, the number of the last change.
//! Empty lines and lines that begin with `#` are kept as they are. The file is replaced as a whole,
//! so a reader and a server that starts find the old lines or the new ones.
//!
//! # Concurrency
//! No locks. One change at a time; the caller makes sure.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rdmabox::Address;
use rustix::fs::OFlags;

use crate::memory_object::ownership::{OwnershipError, open_file};

/// The longest file that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;
/// Word before the number of the view.
const VIEW: &str = "view ";

/// Why a pool file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolFileError {
    /// There is no such file.
    #[error("--pool {}: no such file: create it, with the address of a store in each line, or empty", .0.display())]
    Missing(PathBuf),
    /// Another user can change the file.
    #[error("--pool {}: {source}", path.display())]
    Ownership {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: OwnershipError,
    },
    /// The file cannot be read or replaced.
    #[error("--pool {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A line is neither an address nor the number of the view.
    #[error("--pool {}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
}

/// A pool file as it was read or written last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolFile {
    path: PathBuf,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// An empty line or a comment.
    Other(String),
    View(u64),
    Store(Address),
}

impl PoolFile {
    /// Reads a file that only this user and root can change.
    pub(super) fn read(path: &Path) -> Result<PoolFile, PoolFileError> {
        let owned = path.to_owned();
        let failed = |source| PoolFileError::Io { path: owned.clone(), source };
        let mut file = match open_file(path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(OwnershipError::Os(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PoolFileError::Missing(owned));
            }
            Err(OwnershipError::Os(source)) => return Err(failed(source)),
            Err(source) => return Err(PoolFileError::Ownership { path: owned, source }),
        };
        let mut text = String::new();
        Read::by_ref(&mut file).take(MAX_LEN).read_to_string(&mut text).map_err(failed)?;
        let lines =
            parse(&text).map_err(|(line, why)| PoolFileError::Line { path: owned.clone(), line, why })?;
        Ok(PoolFile { path: owned, lines })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the addresses of the stores, in order.
    pub(super) fn stores(&self) -> Vec<Address> {
        let address = |line: &Line| match line {
            Line::Store(address) => Some(address.clone()),
            _ => None,
        };
        self.lines.iter().filter_map(address).collect()
    }

    /// Returns the number of the last change; 0 if there was none.
    pub(super) fn view(&self) -> u64 {
        let view = |line: &Line| if let Line::View(view) = line { Some(*view) } else { None };
        self.lines.iter().find_map(view).unwrap_or(0)
    }

    /// Writes which stores there are, and the number of this change. Other lines stay.
    ///
    /// # Errors
    /// The file is as it was.
    pub(super) fn write(&mut self, stores: &[Address], view: u64) -> Result<(), PoolFileError> {
        let mut next = self.clone();
        next.lines.retain(|line| match line {
            Line::Other(_) => true,
            Line::View(_) => false,
            Line::Store(address) => stores.contains(address),
        });
        let known = next.stores();
        let new = stores.iter().filter(|address| !known.contains(address));
        next.lines.extend(new.cloned().map(Line::Store));
        next.lines.insert(0, Line::View(view));
        next.replace().map_err(|source| PoolFileError::Io { path: self.path.clone(), source })?;
        *self = next;
        Ok(())
    }

    fn replace(&self) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let temporary = self.path.with_file_name(name);
        // An earlier write may have been interrupted.
        let _ = fs::remove_file(&temporary);
        let mode = fs::metadata(&self.path)?.permissions().mode() & 0o7777;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        let written = file
            .write_all(self.text().as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &self.path));
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        // The file has the change by now, so a failure is no reason to undo it.
        let synced = File::open(directory.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        if let Err(e) = synced {
            log::warn!("{}: a crash of this machine may undo the last change: {e}", self.path.display());
        }
        Ok(())
    }

    fn text(&self) -> String {
        let line = |line: &Line| match line {
            Line::Other(text) => format!("{text}\n"),
            Line::View(view) => format!("{VIEW}{view}\n"),
            Line::Store(address) => format!("{address}\n"),
        };
        self.lines.iter().map(line).collect()
    }
}

/// Returns the lines of a text, or the number of the wrong one and the reason.
fn parse(text: &str) -> Result<Vec<Line>, (usize, String)> {
    let mut lines: Vec<Line> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = line.trim();
        let parsed = if content.is_empty() || content.starts_with('#') {
            Line::Other(line.to_owned())
        } else if let Some(view) = content.strip_prefix(VIEW) {
            let wrong = || (number, format!("{:?} is no number of a view", view.trim()));
            if lines.iter().any(|line| matches!(line, Line::View(_))) {
                return Err((number, "a second line with a view: remove one".into()));
            }
            Line::View(view.trim().parse().map_err(|_| wrong())?)
        } else {
            let address: Address = content.parse().map_err(|error| (number, format!("{error}")))?;
            if lines.contains(&Line::Store(address.clone())) {
                return Err((number, format!("{address} is there twice: remove one line")));
            }
            Line::Store(address)
        };
        lines.push(parsed);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = dir.path().join("pool");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("a mode");
        path
    }

    fn address(text: &str) -> Address {
        text.parse().expect("an address")
    }

    #[test]
    fn comments_and_order_survive_changes() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = file(&dir, "# ours\ntcp:a:1\n\n  tcp:b:2  \n", 0o640);
        let mut pool = PoolFile::read(&path).expect("a pool");
        assert_eq!((pool.stores(), pool.view()), (vec![address("tcp:a:1"), address("tcp:b:2")], 0));
        pool.write(&[address("tcp:b:2"), address("tcp:c:3")], 7).expect("written");
        let text = fs::read_to_string(&path).expect("read");
        assert_eq!(text, "view 7\n# ours\n\ntcp:b:2\ntcp:c:3\n");
        let again = PoolFile::read(&path).expect("a pool");
        assert_eq!((again.view(), &again), (7, &pool));
        pool.write(&[], 8).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "view 8\n# ours\n\n");
        let mode = fs::metadata(&path).expect("attributes").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1, "no other file is left");
    }

    #[test]
    fn wrong_files_are_refused_with_the_place() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = |text: &str, mode| {
            let path = file(&dir, text, mode);
            PoolFile::read(&path).expect_err("a wrong file").to_string()
        };
        for (text, words) in [
            ("tcp:a:1\nnonsense\n", "line 2"),
            ("tcp:a:1\n#\ntcp:a:1\n", "line 3: tcp:a:1 is there twice"),
            ("view x\n", "line 1: \"x\" is no number"),
            ("view 1\nview 2\n", "line 2: a second line"),
        ] {
            let error = error(text, 0o600);
            assert!(error.contains(words), "{words}: {error}");
        }
        assert!(error("", 0o666).contains("chmod go-w"));
        let missing = PoolFile::read(&dir.path().join("none")).expect_err("no file");
        assert!(matches!(missing, PoolFileError::Missing(_)), "{missing}");
        let error = PoolFile::read(dir.path()).expect_err("a folder").to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
