//! The key of a pool that lasts for one measurement or trial.
//!
//! # Concurrency
//! No locks. Writes a file.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Writes a new key into a new file, which only this user can read.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn write(path: &Path) -> io::Result<()> {
    let secret = fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace(['-', '\n'], "");
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "pool {secret}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Catches a key that stores refuse, because others may read it or because it is no key.
    #[test]
    fn a_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let secret = text.strip_prefix("pool ").unwrap().trim();
        assert!(secret.len() == 32 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    }
}
