//! `rfs-server --new-key`: makes a key, and writes or prints its lines for the two key files.
//!
//! # Concurrency
//! The main thread of a program that does nothing else. Adds to the server's file under its lock,
//! so that two such programs do not mix their lines.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rdmabox::{KeyFile, KeyFileError, KeyId, Secret};
use rustix::fs::{FlockOperation, flock};

use crate::service::keys::NewKey;

/// Permission bits of key files.
const MODE: u32 = 0o600;

/// Error of a key that was not made. The key files are as they were.
#[derive(Debug, thiserror::Error)]
pub(super) enum NewKeyError {
    #[error("cannot write the key file {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the key file {} exists: choose another name, or remove it", .0.display())]
    Exists(PathBuf),
    #[error("cannot add to the key file {0}")]
    File(#[from] KeyFileError),
    #[error("{} has a key {id} already: choose another name, or remove its line", path.display())]
    NameTaken { path: PathBuf, id: KeyId },
    #[error("cannot make a key: {0}")]
    Secret(io::Error),
    #[error("cannot print the key: {0}")]
    Print(io::Error),
}

/// The key files on the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyFiles<'a> {
    /// The server's file, to which a line is added.
    pub(super) server: Option<&'a Path>,
    /// The client's file, which must not exist.
    pub(super) client: Option<&'a Path>,
}

/// Makes a key, writes its lines to the files, and prints the lines that have no file.
///
/// # Errors
/// No key was made, and a retry is safe. After [`NewKeyError::Print`] the files have the key.
pub(super) fn make(key: &NewKey, files: KeyFiles<'_>, out: &mut impl Write) -> Result<(), NewKeyError> {
    let [server, client] = key.lines(&Secret::random().map_err(NewKeyError::Secret)?);
    if let Some(path) = files.client {
        create(path, &client)?;
    }
    if let Some(path) = files.server {
        add(path, key, &server).inspect_err(|_| drop(files.client.map(fs::remove_file)))?;
    }
    print(key, files, [&server, &client], out).map_err(NewKeyError::Print)
}

/// Creates the client's file.
fn create(path: &Path, line: &str) -> Result<(), NewKeyError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => NewKeyError::Exists(path.to_owned()),
        _ => NewKeyError::Write { path: path.to_owned(), source },
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path).map_err(failed)?;
    let written = file.write_all(format!("{line}\n").as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|e| {
        fs::remove_file(path).ok();
        failed(e)
    })
}

/// Adds a line to the server's file, which is created if it is missing.
fn add(path: &Path, key: &NewKey, line: &str) -> Result<(), NewKeyError> {
    let failed = |source| NewKeyError::Write { path: path.to_owned(), source };
    let open = OpenOptions::new().read(true).append(true).create(true).mode(MODE).open(path);
    let mut file = open.map_err(failed)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    // Also refuses a file that other users can read.
    let present = KeyFile::read(path)?;
    let is_taken = |line: &str| line.split_whitespace().next() == Some(&key.id.to_string());
    if present.lines().any(|(_, line)| is_taken(line)) {
        return Err(NewKeyError::NameTaken { path: path.to_owned(), id: key.id });
    }
    let before = file.metadata().map_err(failed)?.len();
    let separator = if before == 0 || ends_with_newline(&mut file).map_err(failed)? { "" } else { "\n" };
    let written = file.write_all(format!("{separator}{line}\n").as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|e| {
        file.set_len(before).ok();
        failed(e)
    })
}

fn ends_with_newline(file: &mut File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn print(key: &NewKey, files: KeyFiles<'_>, lines: [&str; 2], out: &mut impl Write) -> io::Result<()> {
    let [server, client] = lines;
    match files.server {
        Some(path) => {
            let path = path.display();
            writeln!(out, "added the key {} to {path}: SIGHUP makes a running server read it", key.id)?;
        }
        None => {
            writeln!(out, "# a line of the server's file, of mode 600: rfs-server --keys FILE\n{server}")?
        }
    }
    match files.client {
        Some(path) => writeln!(out, "wrote the client's file: rfs-fuse --key {}", path.display())?,
        None => writeln!(out, "# the client's file, of mode 600: rfs-fuse --key FILE\n{client}")?,
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rdmabox::Key;

    use super::*;

    fn made(name: &str, server: Option<&Path>, client: Option<&Path>) -> Result<String, NewKeyError> {
        let mut out = Vec::new();
        make(&NewKey::parse(name).unwrap(), KeyFiles { server, client }, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn files_of_mode_600_load_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (keys, laptop, tv) = (path("keys"), path("laptop.key"), path("tv.key"));
        let said = made("laptop", Some(&keys), Some(&laptop)).unwrap();
        // As an editor leaves a file.
        let text = fs::read_to_string(&keys).unwrap();
        fs::write(&keys, text.trim_end()).unwrap();
        made("tv,ro", Some(&keys), Some(&tv)).unwrap();
        let table = crate::service::keys::read(&keys, &["rfs"]).unwrap();
        assert_eq!(table.len(), 2);
        for file in [&keys, &laptop, &tv] {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o7777, MODE);
        }
        let secret = Key::load(&laptop).unwrap().secret.to_hex();
        assert!(text.contains(&**secret) && !said.contains(&**secret), "{said}");
    }

    #[test]
    fn a_refused_key_changes_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (keys, laptop, other) = (path("keys"), path("laptop.key"), path("other.key"));
        made("laptop", Some(&keys), Some(&laptop)).unwrap();
        let before = (fs::read(&keys).unwrap(), fs::read(&laptop).unwrap());
        let refused = |name: &str, server: &Path, client: &Path| {
            let error = made(name, Some(server), Some(client)).unwrap_err();
            assert!(!other.exists());
            assert_eq!((fs::read(&keys).unwrap(), fs::read(&laptop).unwrap()), before);
            error.to_string()
        };
        assert!(refused("laptop", &keys, &other).contains("has a key laptop already"));
        assert!(refused("tv", &keys, &laptop).contains("exists"));
        assert!(refused("tv", &path("none/keys"), &other).contains("none/keys"));
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused("tv", &keys, &other).contains("chmod 600"));
    }

    #[test]
    fn lines_without_a_file_are_printed() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        let said = made("laptop", Some(&keys), None).unwrap();
        let client = said.lines().next_back().unwrap();
        assert_eq!(fs::read_to_string(&keys).unwrap(), format!("{client} rfs rw\n"));
    }
}
