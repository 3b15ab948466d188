//! Options of a mount. No I/O, no locks, no clock.

use rustix::mount::MountFlags;

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// First column of the mount table.
    pub source: String,
    /// The type in the mount table: `fuse.` and a name.
    pub fs_type: String,
    /// True if all users may use the mount.
    pub allow_other: bool,
    /// SELinux labels by the kernel's names of the options.
    pub labels: Vec<(&'static str, String)>,
    /// Flags that the kernel enforces.
    pub flags: Flags,
}

impl MountOptions {
    /// Returns the labels as a part of the kernel's list of options. A kernel without SELinux does
    /// not know them, so mount(8) leaves them out there, too.
    pub(super) fn label_options(&self, has_selinux: bool) -> String {
        let option = |(name, label): &(&str, String)| format!(",{name}=\"{label}\"");
        if has_selinux { self.labels.iter().map(option).collect() } else { String::new() }
    }
}

/// Flags of a mount, as in mount(8). Device nodes and set-user-ID programs take effect only with
/// `dev` and `suid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, clippy::struct_excessive_bools, reason = "they are mount(8)'s")]
pub struct Flags {
    pub read_only: bool,
    pub noexec: bool,
    pub suid: bool,
    pub dev: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    pub strictatime: bool,
}

impl Flags {
    /// Returns the set flags: the bit of mount(2), and the name for fusermount3.
    pub(super) fn set(self) -> impl Iterator<Item = (MountFlags, &'static str)> {
        [
            (!self.suid, MountFlags::NOSUID, "nosuid"),
            (!self.dev, MountFlags::NODEV, "nodev"),
            (self.read_only, MountFlags::RDONLY, "ro"),
            (self.noexec, MountFlags::NOEXEC, "noexec"),
            (self.sync, MountFlags::SYNCHRONOUS, "sync"),
            (self.dirsync, MountFlags::DIRSYNC, "dirsync"),
            (self.noatime, MountFlags::NOATIME, "noatime"),
            (self.nodiratime, MountFlags::NODIRATIME, "nodiratime"),
            (self.strictatime, MountFlags::STRICTATIME, "strictatime"),
        ]
        .into_iter()
        .filter(|(is_set, ..)| *is_set)
        .map(|(_, bit, name)| (bit, name))
    }

    /// Returns the flags of mount(2).
    pub(super) fn bits(self) -> MountFlags {
        self.set().fold(MountFlags::empty(), |all, (bit, _)| all | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_for_kernels_with_selinux() {
        let labels = vec![("context", "u:r:t:s0:c1,c2".to_owned()), ("rootcontext", "u:r:t:s0".to_owned())];
        let flags = Flags::default();
        let options = MountOptions {
            source: "h:1".into(),
            fs_type: "fuse.rfs".into(),
            allow_other: false,
            labels,
            flags,
        };
        let expected = ",context=\"u:r:t:s0:c1,c2\",rootcontext=\"u:r:t:s0\"";
        assert_eq!(options.label_options(true), expected);
        assert_eq!(options.label_options(false), "");
    }
}
