//! Permission bits, and the rights that they lend. No I/O, no locks, no clock.

/// Set-user-ID.
pub const SUID: u32 = 0o4000;
/// Set-group-ID.
pub const SGID: u32 = 0o2000;
/// The sticky bit: only owners remove names of a directory.
pub const STICKY: u32 = 0o1000;
/// Permission of the group to execute.
pub const GROUP_EXEC: u32 = 0o0010;

/// Permission to read, of one class of users.
pub const READ: u32 = 4;
/// Permission to write, of one class of users.
pub const WRITE: u32 = 2;
/// Permission to search a directory, or to execute, of one class of users.
pub const SEARCH: u32 = 1;

/// Returns true if permission bits lend a program the rights of the file's group.
pub fn lends_group(perm: u32) -> bool {
    perm & (SGID | GROUP_EXEC) == SGID | GROUP_EXEC
}

/// Returns true if permission bits lend a program the rights of the file's owner or group. A
/// write, or a change of owner, clears them.
pub fn lends_rights(perm: u32) -> bool {
    perm & SUID != 0 || lends_group(perm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_group_id_lends_only_what_the_group_may_execute() {
        for (perm, of_group, of_any) in [
            (0o755, false, false),
            (0o4644, false, true),
            (0o2745, false, false),
            (0o2755, true, true),
            (0o2710, true, true),
        ] {
            assert_eq!((lends_group(perm), lends_rights(perm)), (of_group, of_any), "{perm:o}");
        }
    }
}
