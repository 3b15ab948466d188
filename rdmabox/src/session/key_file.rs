//! Files with keys: read only if they are their owner's alone.
//!
//! Threading: none. A file is read at once and kept nowhere else.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

use super::key::{Key, KeyError};
use crate::memory::Hidden;

/// No file with keys is longer, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Why a file with keys cannot be used. No text of it has a secret in it.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system says no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read or change it.
    #[error("{}: other users can use this file, its mode is {:o}: chmod 600", path.display(), mode & 0o7777)]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Somebody else may change it at any time.
    #[error("{}: belongs to user {uid}, and must belong to this user or root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// Not text, or not of a length that makes sense.
    #[error("{}: not a file with keys", path.display())]
    Form {
        /// The file.
        path: PathBuf,
    },
    /// A line that is no key.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// There is no key in it.
    #[error("{}: there is no key in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// A text that nobody but its owner can have read or changed, who is this user or root.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
    text: Hidden,
}

impl KeyFile {
    /// Reads a file whose mode gives nothing to group and others.
    pub fn read(path: &Path) -> Result<KeyFile, KeyFileError> {
        let path = path.to_owned();
        let io = |source| KeyFileError::Io { path: path.clone(), source };
        // A link of this user or root leads where they want (as to a mounted secret of a container); a
        // link of another user leads to a file of that user's choice.
        let link = std::fs::symlink_metadata(&path).map_err(io)?;
        if link.is_symlink() && link.uid() != 0 && link.uid() != geteuid().as_raw() {
            return Err(KeyFileError::Owner { path, uid: link.uid() });
        }
        let mut file = File::open(&path).map_err(io)?;
        // Of what was opened, and not of what has the name a moment later.
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
        // The length is limited above. Past the copies of a buffered reader.
        let mut text = Hidden::zeros(meta.len() as usize);
        match file.read_exact(text.as_mut_slice()) {
            Ok(()) if str::from_utf8(text.as_slice()).is_ok() => Ok(KeyFile { path, text }),
            Ok(()) => Err(KeyFileError::Form { path }),
            Err(source) => Err(KeyFileError::Io { path, source }),
        }
    }

    /// All of it.
    pub(crate) fn text(&self) -> &str {
        // The constructor has checked it.
        str::from_utf8(self.text.as_slice()).unwrap_or_default()
    }

    /// Lines that say something, each with its number counted from 1: those that are not empty and do not begin with `#`.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.text().lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    }

    /// What is wrong with a line.
    pub fn wrong(&self, line: usize, why: impl Into<String>) -> KeyFileError {
        KeyFileError::Line { path: self.path.clone(), line, why: why.into() }
    }
}

impl Key {
    /// The key of a client: the first two words of the first line of a file that is this user's alone.
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
    fn the_first_line_that_says_something_is_the_key() {
        let text = format!("# a client's\n\n  k {SECRET} rfs rw\nother line\n");
        for mode in [0o600, 0o400] {
            let key = load(text.as_bytes(), mode).unwrap();
            assert_eq!((key.id.to_string().as_str(), &**key.secret.to_hex()), ("k", SECRET));
        }
    }

    #[test]
    fn files_of_others_and_other_files_are_refused() {
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
