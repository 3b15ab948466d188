//! Files with keys. A file is read only if no other user can read or change it.
//!
//! # Concurrency
//! No locks. A file is read at once and not cached.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

use super::key::{Key, KeyError};
use crate::mapping::Hidden;

/// Maximum length of a key file, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Error of a key file. Its text contains no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The system reported an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the key file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users may read or change the file.
    #[error("{}: other users can use this file, its mode is {:o}: chmod 600", path.display(), mode & 0o7777)]
    Mode {
        /// Path of the key file.
        path: PathBuf,
        /// Permission bits that it has.
        mode: u32,
    },
    /// Another user owns the file and may change it at any time.
    #[error("{}: belongs to user {uid}, and must belong to this user or root", path.display())]
    Owner {
        /// Path of the key file.
        path: PathBuf,
        /// Number of the user that owns it.
        uid: u32,
    },
    /// The file is not text, or is too long.
    #[error("{}: not a file with keys", path.display())]
    Form {
        /// Path of the key file.
        path: PathBuf,
    },
    /// A line is not a valid key.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// Path of the key file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// The file contains no key.
    #[error("{}: there is no key in it", path.display())]
    Empty {
        /// Path of the key file.
        path: PathBuf,
    },
}

/// The text of a key file. Only its owner, this user or root, can have read or changed it. A line
/// is a name and a secret in hexadecimal digits, separated by a space: `laptop f3b0...51`.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    text: Hidden,
}

impl KeyFile {
    /// Reads a file whose mode grants nothing to group and others.
    ///
    /// # Errors
    /// [`KeyFileError`] names the file. A retry is safe.
    pub fn read(path: &Path) -> Result<KeyFile, KeyFileError> {
        let path = path.to_owned();
        let io = |source| KeyFileError::Io { path: path.clone(), source };
        // A link owned by this user or root may lead anywhere, for example to a mounted secret of a
        // container. A link of another user leads to a file of that user's choice.
        let link = std::fs::symlink_metadata(&path).map_err(io)?;
        if link.is_symlink() && link.uid() != 0 && link.uid() != geteuid().as_raw() {
            return Err(KeyFileError::Owner { path, uid: link.uid() });
        }
        let mut file = File::open(&path).map_err(io)?;
        // Checks the opened file, because the name may point elsewhere by now.
        let meta = file.metadata().map_err(io)?;
        let (mode, uid) = (meta.mode(), meta.uid());
        if !meta.is_file() || meta.len() > MAX_LEN {
            return Err(KeyFileError::Form { path });
        }
        if mode & 0o077 != 0 {
            return Err(KeyFileError::Mode { path, mode });
        }
        if uid != 0 && uid != geteuid().as_raw() {
            return Err(KeyFileError::Owner { path, uid });
        }
        // The length is limited above. Reading without a buffered reader avoids further copies.
        let mut text = Hidden::zeros(meta.len() as usize);
        match file.read_exact(text.as_mut_slice()) {
            Ok(()) if str::from_utf8(text.as_slice()).is_ok() => Ok(KeyFile { path, text }),
            Ok(()) => Err(KeyFileError::Form { path }),
            Err(source) => Err(KeyFileError::Io { path, source }),
        }
    }

    /// Returns the whole text.
    pub(crate) fn text(&self) -> &str {
        // `read` has checked the encoding.
        str::from_utf8(self.text.as_slice()).unwrap_or_default()
    }

    /// Returns the lines with content and their line numbers, from 1. Skips empty lines and lines
    /// that begin with `#`.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.text().lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    }

    /// Returns the error for a line.
    pub fn wrong(&self, line: usize, why: impl Into<String>) -> KeyFileError {
        KeyFileError::Line { path: self.path.clone(), line, why: why.into() }
    }
}

impl Key {
    /// Loads a client's key: the first two words of the first line with content.
    ///
    /// # Errors
    /// [`KeyFileError`] names the file, and the line if there is one. A retry is safe.
    pub fn load(path: &Path) -> Result<Key, KeyFileError> {
        let file = KeyFile::read(path)?;
        let Some((number, line)) = file.lines().next() else {
            return Err(KeyFileError::Empty { path: path.to_owned() });
        };
        Key::from_words(&mut line.split_whitespace())
            .map_err(|why: KeyError| file.wrong(number, why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    use super::*;

    const SECRET: &str = "00112233445566778899aabbccddeeff";

    fn load(bytes: &[u8], mode: u32) -> Result<Key, KeyFileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Key::load(&path)
    }

    #[test]
    fn the_first_line_with_content_is_the_key() {
        let text = format!("# a client's\n\n  k {SECRET} rfs rw\nother line\n");
        for mode in [0o600, 0o400] {
            let key = load(text.as_bytes(), mode).unwrap();
            assert_eq!((key.id.to_string().as_str(), &**key.secret.to_hex()), ("k", SECRET));
        }
    }

    #[test]
    fn insecure_and_malformed_key_files_are_refused() {
        let text = format!("k {SECRET}\n");
        for mode in [0o640, 0o604, 0o620, 0o610, 0o666] {
            let error = load(text.as_bytes(), mode).unwrap_err().to_string();
            assert!(error.ends_with(&format!("its mode is {mode:o}: chmod 600")), "{error}");
        }
        let error = |bytes: &[u8]| load(bytes, 0o600).unwrap_err().to_string();
        assert!(error(b"\xff").ends_with(": not a file with keys"));
        assert!(error(b"# nothing\n").ends_with(": there is no key in it"));
        assert!(
            error(b"\nk 12\n").ends_with(", line 2: a secret is written as 32 to 128 hexadecimal digits")
        );
        assert!(!error(format!("k {SECRET}7\n").as_bytes()).contains(SECRET));
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Key::load(dir.path()), Err(KeyFileError::Form { .. } | KeyFileError::Mode { .. })));
        let missing = Key::load(&dir.path().join("none")).unwrap_err();
        assert!(matches!(missing, KeyFileError::Io { .. }));
    }
}
