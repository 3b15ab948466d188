//! Parser of the kernel's mount table, `/proc/self/mountinfo`.
//!
//! # Concurrency
//! Any thread. Takes no locks.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// One mount of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Device number, `major:minor`.
    pub device: String,
    /// Directory of the mount.
    pub path: PathBuf,
    /// Type, such as `fuse.rfs-fuse`.
    pub fs_type: String,
    /// The user that mounted, for a FUSE file system.
    pub user: Option<u32>,
    /// Options of the file system, separated by commas.
    pub options: String,
}

impl Entry {
    /// Returns true if the file system has an option, such as `default_permissions`.
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

/// Returns the topmost mount on `path`, if `path` is a mount point.
pub fn topmost(path: &Path) -> Option<Entry> {
    all().into_iter().rfind(|entry| entry.path == path)
}

/// Returns all mounts, in the order of the table. Asks no file system.
pub fn all() -> Vec<Entry> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    parse(&table).collect()
}

fn parse(table: &[u8]) -> impl Iterator<Item = Entry> {
    table.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
        let path = unescape(fields.nth(1)?);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let fs_type = String::from_utf8_lossy(rest.next()?).into_owned();
        let options = rest.nth(1).map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        Some(Entry { device, path, fs_type, user: user_of(&options), options })
    })
}

/// Returns the user of the options of a FUSE file system.
fn user_of(options: &str) -> Option<u32> {
    options.split(',').find_map(|option| option.strip_prefix("user_id=")).and_then(|user| user.parse().ok())
}

/// Decodes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::ffi::OsStr::from_bytes(digits).to_str()?, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let table = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            80 22 0:45 / /tmp/a\\040b rw,nosuid shared:2 master:1 - fuse.rfs-fuse tcp:h:1 rw,user_id=0\n\nrubbish\n";
        let entries: Vec<Entry> = parse(table).collect();
        assert_eq!((entries.len(), entries[0].user), (2, None));
        assert_eq!(
            entries[1],
            Entry {
                device: "0:45".into(),
                path: "/tmp/a b".into(),
                fs_type: "fuse.rfs-fuse".into(),
                user: Some(0),
                options: "rw,user_id=0".into()
            }
        );
        assert!(entries[1].has_option("rw") && !entries[1].has_option("user_id"));
    }

    #[test]
    fn a_lone_backslash_is_kept() {
        assert_eq!(unescape(b"a\\12"), PathBuf::from("a\\12"));
        assert_eq!(unescape(b"a\\134b"), PathBuf::from("a\\b"));
    }

    #[test]
    fn proc_is_found() {
        assert_eq!(topmost(Path::new("/proc")).expect("/proc is mounted").fs_type, "proc");
        assert_eq!(topmost(Path::new("/proc/self")), None);
    }
}
