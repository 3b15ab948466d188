//! The user of a mount.
//!
//! No locks. [`Credentials::of_process`] asks the kernel.

use std::fs;

/// Umask of a process that hides its own.
const DEFAULT_UMASK: u32 = 0o022;

/// The user of a mount: owner of new files, and subject of permission checks.
///
/// User 0 has all rights. Capabilities of the process do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Primary group, which new files get unless their directory is set-group-ID.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get, unless their directory has a default ACL.
    pub umask: u32,
}

impl Credentials {
    /// Returns a user with one group and umask 022.
    pub fn new(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, groups: Vec::new(), umask: DEFAULT_UMASK }
    }

    /// Returns the effective user of this process, its groups and its umask. The umask is 022 if
    /// `/proc` does not show it.
    pub fn of_process() -> Credentials {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).collect(),
            // umask(2) can only be read by a change, which other threads would see.
            umask: fs::read_to_string("/proc/self/status")
                .ok()
                .and_then(|status| umask_in(&status))
                .unwrap_or(DEFAULT_UMASK),
        }
    }

    /// Returns true for user 0.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns true if the user is in a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Returns the umask in the text of `/proc/self/status`.
fn umask_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umask_is_octal() {
        assert_eq!(umask_in("Name:\tx\nUmask:\t0027\nState:\tR\n"), Some(0o027));
        assert_eq!(umask_in("Name:\tx\n"), None);
        assert_eq!(umask_in("Umask:\tx\n"), None);
    }

    #[test]
    fn the_process_is_in_its_own_groups() {
        let me = Credentials::of_process();
        assert!(me.in_group(me.gid));
        assert!(me.groups.iter().all(|group| me.in_group(*group)));
        assert!(!Credentials::new(1, 2).in_group(3));
    }
}
