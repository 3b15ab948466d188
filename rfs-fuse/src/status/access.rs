//! The access that a mount gives to programs which reach its server without the kernel: the server,
//! and copies of its key and TLS files.
//!
//! The files are read for each answer, as for each connection of the mount. A copy is a sealed file
//! in memory, of mode 600, so the program needs no right to read the file itself.
//!
//! # Concurrency
//! The thread `status`. No locks.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rfs_status::{control::Answer, mounts::access::ServerAccess};
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};

/// The server of a mount, and the files whose copies go with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessOffer {
    pub(crate) access: ServerAccess,
    pub(crate) files: Vec<PathBuf>,
}

impl AccessOffer {
    /// Returns the answer for a program.
    ///
    /// # Errors
    /// The file that cannot be read, and the reason.
    pub(super) fn answer(&self) -> Result<Answer, String> {
        let copy = |path: &PathBuf| copy_of(path).map_err(|e| format!("{}: {e}", path.display()));
        let files = self.files.iter().map(copy).collect::<Result<_, _>>()?;
        let document = serde_json::to_string(&self.access).map_err(|e| e.to_string())?;
        Ok(Answer { document, files })
    }
}

/// Returns a copy of a file that no process can change.
fn copy_of(path: &Path) -> io::Result<OwnedFd> {
    let mut file = File::open(path)?;
    let mut copy =
        File::from(memfd_create("rfs-credential", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    fchmod(&copy, Mode::RUSR | Mode::WUSR)?;
    io::copy(&mut file, &mut copy)?;
    fcntl_add_seals(&copy, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::AsRawFd, unix::fs::PermissionsExt},
    };

    use super::*;

    /// Catches a copy that other users could read, or that the program could change for others.
    #[test]
    fn a_copy_has_the_bytes_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, "laptop 0011").unwrap();
        let copy = copy_of(&path).unwrap();
        let again = format!("/proc/self/fd/{}", copy.as_raw_fd());
        let mut text = String::new();
        File::open(&again).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "laptop 0011");
        assert_eq!(std::fs::metadata(&again).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(File::from(copy).write_all(b"x").is_err());
        assert!(copy_of(&directory.path().join("absent")).is_err());
    }
}
