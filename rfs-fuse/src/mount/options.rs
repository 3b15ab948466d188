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
    /// Flags that the kernel enforces.
    pub flags: Flags,
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
