//! Hides missing SELinux labels on kernels without SELinux.
//!
//! `ls -l` reads the SELinux label of each file, and the kernel does not cache the answer.
//! Without SELinux, a missing label is answered with EOPNOTSUPP, as by NFS and other file
//! systems. Programs then ask only once.
//!
//! # Concurrency
//! Session threads. Takes no locks.

use std::fs;

/// Attribute of the label.
const LABEL: &[u8] = b"security.selinux";
/// File system type of a kernel with SELinux.
const SELINUX: &str = "selinuxfs";

/// Whether the kernel uses labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels {
    used: bool,
}

impl Labels {
    /// Detects whether this kernel uses labels. Assumes that it does if it does not say.
    pub(super) fn here() -> Labels {
        Labels { used: fs::read_to_string("/proc/filesystems").map_or(true, |kinds| names_selinux(&kinds)) }
    }

    /// Returns true if a missing attribute of this name is answered as unsupported.
    pub(super) fn are_unsupported(self, name: &[u8]) -> bool {
        !self.used && name == LABEL
    }
}

fn names_selinux(filesystems: &str) -> bool {
    filesystems.lines().any(|line| line.split_whitespace().last() == Some(SELINUX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selinux_is_found_among_file_systems() {
        assert!(names_selinux("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"));
        assert!(!names_selinux("nodev\tsysfs\nnodev\tselinuxfs2\n\text4\n"));
    }

    #[test]
    fn only_the_label_is_unsupported_and_only_without_selinux() {
        let of = |used| Labels { used };
        assert!(of(false).are_unsupported(b"security.selinux"));
        assert!(!of(true).are_unsupported(b"security.selinux"));
        assert!(!of(false).are_unsupported(b"security.capability"));
    }
}
