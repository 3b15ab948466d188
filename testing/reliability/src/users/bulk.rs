//! Files that are written once and then stay unchanged, to detect corruption while everything
//! around them changes.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use super::content;
use crate::error::{Error, Result};

/// Length of a file in bytes; the last file may be shorter.
const FILE: u64 = 16 << 20;
/// Number of bytes that are written or checked at a time.
const PIECE: u64 = 1 << 20;
/// Bit of the stream numbers of these files. No user has streams with this bit.
const STREAM: u64 = 1 << 60;

/// The unchanging files of a mount.
#[derive(Debug)]
pub(crate) struct Bulk {
    bytes: u64,
}

/// Returns the file of a piece, its stream, and the offset in the file.
fn place(mount: &Path, piece: u64) -> (PathBuf, u64, u64) {
    let at = piece * PIECE;
    let number = at / FILE;
    (mount.join(format!("bulk/file{number}")), STREAM | number, at % FILE)
}

impl Bulk {
    /// Writes files of `bytes` in total, rounded down to whole pieces.
    pub(crate) fn write(mount: &Path, bytes: u64) -> Result<Bulk> {
        let bulk = Bulk { bytes: bytes / PIECE * PIECE };
        fs::create_dir(mount.join("bulk")).map_err(Error::io("mkdir"))?;
        let mut data = vec![0; PIECE as usize];
        for piece in 0..bulk.pieces() {
            let (path, stream, at) = place(mount, piece);
            content::fill(stream, at, &mut data);
            let file = File::options().write(true).create(true).truncate(false).open(path);
            file.and_then(|file| file.write_all_at(&data, at)).map_err(Error::io("write"))?;
        }
        Ok(bulk)
    }

    /// Returns the total number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn pieces(&self) -> u64 {
        self.bytes / PIECE
    }

    /// Checks one random piece.
    pub(crate) fn check_one(&self, mount: &Path, random: &mut fastrand::Rng) -> Result<()> {
        match self.pieces() {
            0 => Ok(()),
            pieces => check(mount, random.u64(..pieces)),
        }
    }

    /// Checks all pieces.
    pub(crate) fn check_all(&self, mount: &Path) -> Result<()> {
        (0..self.pieces()).try_for_each(|piece| check(mount, piece))
    }
}

fn check(mount: &Path, piece: u64) -> Result<()> {
    let (path, stream, at) = place(mount, piece);
    let mut data = vec![0; PIECE as usize];
    let file = File::open(&path).map_err(Error::io("open"))?;
    file.read_exact_at(&mut data, at).map_err(Error::io("read"))?;
    match content::first_wrong(stream, at, &data) {
        None => Ok(()),
        Some(wrong) => Err(Error::Wrong(format!("{}: byte {wrong} is wrong", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_or_length_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::new();
        let bulk = Bulk::write(dir.path(), FILE + 2 * PIECE + 5).unwrap();
        assert_eq!(bulk.bytes(), FILE + 2 * PIECE);
        assert_eq!(fs::metadata(dir.path().join("bulk/file1")).unwrap().len(), 2 * PIECE);
        bulk.check_all(dir.path()).unwrap();
        bulk.check_one(dir.path(), &mut random).unwrap();
        let last = File::options().write(true).open(dir.path().join("bulk/file1")).unwrap();
        last.write_all_at(&[0], 2 * PIECE - 1).unwrap();
        let error = bulk.check_all(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("bulk/file1: byte 2097151 is wrong"), "{error}");
        last.set_len(PIECE).unwrap();
        assert!(matches!(bulk.check_all(dir.path()), Err(Error::Io { .. })));
        Bulk::write(&dir.path().join("bulk"), 5).unwrap().check_one(dir.path(), &mut random).unwrap();
    }
}
