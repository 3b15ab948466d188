//! POSIX access control lists: encoding as extended attributes, and relation to permission bits.
//!
//! The rules are those of POSIX.1e draft 17 as implemented by Linux (acl(5)). No I/O, no locks, no
//! clock.

use crate::Errno;

/// Version of the encoding: a header of four bytes, then eight for each entry, little-endian.
const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The id of entries without a named user or group.
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A complete access control list, in order: owner, named users, group, named groups, mask, others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Box<[Entry]>);

impl Acl {
    /// Decodes a value. Returns `None` if it has no entries, which means no list.
    ///
    /// # Errors
    /// EINVAL if the list is not valid.
    pub fn decode(value: &[u8]) -> Result<Option<Acl>, Errno> {
        let (header, rest) = value.split_at_checked(HEADER).ok_or(Errno::EINVAL)?;
        if le32(header) != VERSION || !rest.len().is_multiple_of(ENTRY) {
            return Err(Errno::EINVAL);
        }
        let entries: Box<[Entry]> = rest
            .chunks_exact(ENTRY)
            .map(|raw| Entry { tag: le16(&raw[0..]), perm: le16(&raw[2..]), id: le32(&raw[4..]) })
            .map(|entry| if matches!(entry.tag, USER | GROUP) { entry } else { Entry { id: NO_ID, ..entry } })
            .collect();
        match &entries[..] {
            [] => Ok(None),
            all if is_valid(all) => Ok(Some(Acl(entries))),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the encoded list.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEADER + ENTRY * self.0.len());
        value.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend(entry.tag.to_le_bytes());
            value.extend(entry.perm.to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Returns true if permission bits can express the list.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the permission bits of a file with this list: the mask stands for the group.
    pub fn permissions(&self) -> u32 {
        let perm = |tag| self.0.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.perm));
        let class = |tag| perm(tag).unwrap_or(0);
        let group = perm(MASK).unwrap_or_else(|| class(GROUP_OBJ));
        class(USER_OBJ) << 6 | group << 3 | class(OTHER)
    }

    /// Returns true if a user that is not the owner has all of the `wanted` permissions of an inode
    /// of group `gid`. `is_member` tells whether the user is in a group.
    pub fn permits(&self, uid: u32, is_member: impl Fn(u32) -> bool, gid: u32, wanted: u32) -> bool {
        let named = |entry: &&Entry| entry.tag == USER && entry.id == uid;
        if let Some(entry) = self.0.iter().find(named) {
            return self.masked(entry) & wanted == wanted;
        }
        let group = |entry: &&Entry| match entry.tag {
            GROUP_OBJ => is_member(gid),
            GROUP => is_member(entry.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(group).peekable();
        match groups.peek() {
            Some(_) => groups.any(|entry| self.masked(entry) & wanted == wanted),
            None => self.of_others() & wanted == wanted,
        }
    }

    /// Returns true if some user that is neither root nor in root's group has these permissions of
    /// an inode of root with group `gid`.
    pub fn permits_some_user(&self, gid: u32, wanted: u32) -> bool {
        let entry = |entry: &Entry| match entry.tag {
            USER | GROUP => entry.id != 0,
            GROUP_OBJ => gid != 0,
            _ => false,
        };
        let mut entries = self.0.iter().filter(|one| entry(one));
        entries.any(|one| self.masked(one) & wanted == wanted) || self.of_others() & wanted == wanted
    }

    /// Returns the permissions of an entry that the mask leaves.
    fn masked(&self, entry: &Entry) -> u32 {
        let mask = self.0.iter().find(|entry| entry.tag == MASK).map_or(7, |mask| mask.perm);
        u32::from(entry.perm & mask)
    }

    fn of_others(&self) -> u32 {
        self.0.iter().find(|entry| entry.tag == OTHER).map_or(0, |entry| u32::from(entry.perm))
    }

    /// Adjusts the list to new permission bits.
    pub fn change_mode(&mut self, perm: u32) {
        self.fit(|_, class| class, perm);
    }

    /// Returns the access list of a new inode in a directory with this default list. It has the
    /// permissions that the list and `perm` both allow.
    pub fn inherit(&self, perm: u32) -> Acl {
        let mut access = self.clone();
        access.fit(|entry, class| entry & class, perm);
        access
    }

    fn fit(&mut self, rule: impl Fn(u16, u16) -> u16, perm: u32) {
        let class = |shift: u32| (perm >> shift & 7) as u16;
        let group = if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { GROUP_OBJ };
        for entry in &mut self.0 {
            entry.perm = match entry.tag {
                USER_OBJ => rule(entry.perm, class(6)),
                OTHER => rule(entry.perm, class(0)),
                tag if tag == group => rule(entry.perm, class(3)),
                _ => entry.perm,
            };
        }
    }
}

/// Returns true for a valid list: one entry each for owner, group and others, a mask if there are
/// named entries, all in order.
fn is_valid(entries: &[Entry]) -> bool {
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let named = count(USER) + count(GROUP);
    let known = entries.iter().all(|entry| {
        matches!(entry.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && entry.perm <= 7
    });
    let sorted = entries.windows(2).all(|pair| pair[0].tag <= pair[1].tag);
    let ids = entries.iter().all(|entry| !matches!(entry.tag, USER | GROUP) || entry.id != NO_ID);
    known
        && sorted
        && ids
        && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&tag| count(tag) == 1)
        && (named == 0 || count(MASK) == 1)
}

fn le16(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect();
        Acl(entries).encode()
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::decode(&value(entries)).unwrap().unwrap()
    }

    const FULL: [(u16, u16, u32); 6] = [
        (USER_OBJ, 7, NO_ID),
        (USER, 6, 1000),
        (GROUP_OBJ, 5, NO_ID),
        (GROUP, 7, 20),
        (MASK, 4, NO_ID),
        (OTHER, 1, NO_ID),
    ];

    #[test]
    fn the_bytes_of_linux() {
        // From setfacl -m u:1000:rw on a file of mode 640.
        let bytes = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255,
            255, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
        ];
        let acl = Acl::decode(&bytes).unwrap().unwrap();
        assert_eq!((acl.encode(), acl.permissions()), (bytes.to_vec(), 0o660));
        assert!(!acl.is_minimal());
        assert_eq!(Acl::decode(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn invalid_lists_are_rejected() {
        let short = &FULL[..3];
        let twice = [(USER_OBJ, 7, NO_ID), (USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)];
        let no_mask = [(USER_OBJ, 7, NO_ID), (USER, 1, 5), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)];
        let disorder = [(GROUP_OBJ, 5, NO_ID), (USER_OBJ, 7, NO_ID), (OTHER, 1, NO_ID)];
        let nobody = [
            (USER_OBJ, 7, NO_ID),
            (USER, 1, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (MASK, 1, NO_ID),
            (OTHER, 1, NO_ID),
        ];
        let wide = [(USER_OBJ, 8, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)];
        let unknown = [(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID), (0x40, 1, NO_ID)];
        let all: [&[(u16, u16, u32)]; 7] = [short, &twice, &no_mask, &disorder, &nobody, &wide, &unknown];
        for entries in all {
            assert_eq!(Acl::decode(&value(entries)), Err(Errno::EINVAL), "{entries:?}");
        }
        let good = value(&FULL);
        for bytes in [&good[..3], &good[..good.len() - 1], &[1, 0, 0, 0], &[]] {
            assert_eq!(Acl::decode(bytes), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn the_first_kind_of_entry_that_matches_decides() {
        let acl = acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 5),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 2, 9),
            (MASK, 6, NO_ID),
            (OTHER, 1, NO_ID),
        ]);
        let permits = |uid, groups: &[u32], wanted| acl.permits(uid, |gid| groups.contains(&gid), 3, wanted);
        assert!(permits(5, &[1], 6), "the named user");
        assert!(!permits(5, &[1], 1), "not behind the mask");
        assert!(permits(6, &[3], 4), "the group");
        assert!(!permits(6, &[3], 2));
        assert!(permits(6, &[9], 2), "the named group");
        assert!(!permits(6, &[9], 1), "members get nothing as others");
        assert!(permits(6, &[8], 1), "others, without the mask");
        assert!(permits(6, &[3, 9], 4) && permits(6, &[3, 9], 2) && !permits(6, &[3, 9], 6));
    }

    #[test]
    fn modes_and_lists_follow_each_other() {
        let mut full = acl(&FULL);
        assert_eq!(full.permissions(), 0o741);
        full.change_mode(0o4613);
        assert_eq!(full.permissions(), 0o613);
        // The mask was changed, not the group.
        assert_eq!(full.0[2].perm, 5);
        let mut minimal = acl(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)]);
        minimal.change_mode(0o123);
        assert_eq!((minimal.permissions(), minimal.is_minimal()), (0o123, true));
    }

    #[test]
    fn an_inherited_list_permits_what_both_permit() {
        let access = acl(&FULL).inherit(0o666);
        assert_eq!(access.permissions(), 0o640);
        assert_eq!((access.0[1].perm, access.0[2].perm, access.0[3].perm), (6, 5, 7));
    }

    proptest! {
        #[test]
        fn any_bytes_are_fine(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(acl)) = Acl::decode(&bytes) {
                prop_assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl)));
            }
        }

        #[test]
        fn a_changed_mode_is_the_mode(perms in any::<[u8; 6]>(), named in any::<bool>(), mode in 0u32..0o1000) {
            let entries: Vec<_> = FULL.iter().zip(perms).map(|(&(tag, _, id), perm)| (tag, u16::from(perm % 8), id))
                .filter(|&(tag, ..)| named || matches!(tag, USER_OBJ | GROUP_OBJ | OTHER)).collect();
            let list = acl(&entries);
            let mut changed = list.clone();
            changed.change_mode(mode);
            prop_assert_eq!(changed.permissions(), mode);
            prop_assert_eq!(list.inherit(mode).permissions(), mode & list.permissions());
        }
    }
}
