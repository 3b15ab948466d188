//! Security labels that nobody reads.
//!
//! `ls -l` asks for the SELinux label of each file, and the kernel keeps no answer. On a kernel without SELinux a file without a
//! label is said to be on a file system without labels, as NFS and others do: then programs ask once.

use std::fs;

/// The label.
const LABEL: &[u8] = b"security.selinux";
/// A file system that the kernel has where SELinux is in use.
const SELINUX: &str = "selinuxfs";

/// Whether the kernel has a use for labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Labels {
    used: bool,
}

impl Labels {
    /// On this kernel. Where it does not say, labels are used.
    pub(super) fn here() -> Labels {
        Labels { used: fs::read_to_string("/proc/filesystems").map_or(true, |kinds| names_selinux(&kinds)) }
    }

    /// True if a file that has no attribute of this name is on a file system without such.
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
    fn only_the_label_is_unsupported_and_only_where_nobody_reads_it() {
        let of = |used| Labels { used };
        assert!(of(false).are_unsupported(b"security.selinux"));
        assert!(!of(true).are_unsupported(b"security.selinux"));
        assert!(!of(false).are_unsupported(b"security.capability"));
    }
}
