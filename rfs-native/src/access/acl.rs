//! POSIX access control lists, as the value of an extended attribute.
//!
//! The check follows acl(5) as Linux implements it. No I/O, no locks, no clock.

use super::credentials::Credentials;

/// Name of the attribute with the access ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// Prefix of the names of both ACLs.
pub(crate) const ANY: &[u8] = b"system.posix_acl_";

const VERSION: u32 = 2;
const HEADER: usize = 4;
const ENTRY: usize = 8;

const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes a value. Returns `None` if it is malformed or has no entries.
    pub(crate) fn decode(value: &[u8]) -> Option<Acl> {
        let (header, rest) = value.split_first_chunk::<HEADER>()?;
        let (entries, odd) = rest.as_chunks::<ENTRY>();
        if u32::from_le_bytes(*header) != VERSION || entries.is_empty() || !odd.is_empty() {
            return None;
        }
        let entry = |raw: &[u8; ENTRY]| Entry {
            tag: u16::from_le_bytes([raw[0], raw[1]]),
            perm: u16::from_le_bytes([raw[2], raw[3]]),
            id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
        };
        Some(Acl(entries.iter().map(entry).collect()))
    }

    /// Returns true if a user that does not own the inode has all of the `wanted` permissions
    /// (4 read, 2 write, 1 execute). `gid` is the group of the inode.
    pub(crate) fn permits(&self, user: &Credentials, gid: u32, wanted: u32) -> bool {
        let has = |perm: u16| u32::from(perm) & wanted == wanted;
        let mask = self.0.iter().find(|entry| entry.tag == MASK).map_or(7, |mask| mask.perm);
        let named = self.0.iter().find(|entry| entry.tag == USER && entry.id == user.uid);
        if let Some(entry) = named {
            return has(entry.perm & mask);
        }
        let is_of_user = |entry: &&Entry| match entry.tag {
            GROUP_OBJ => user.in_group(gid),
            GROUP => user.in_group(entry.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(is_of_user).peekable();
        match groups.peek() {
            Some(_) => groups.any(|entry| has(entry.perm & mask)),
            None => self.0.iter().any(|entry| entry.tag == OTHER && has(entry.perm)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn the_first_kind_of_entry_that_matches_decides() {
        const USER_OBJ: u16 = 0x01;
        let value = encoded(&[
            (USER_OBJ, 7, u32::MAX),
            (USER, 6, 5),
            (GROUP_OBJ, 4, u32::MAX),
            (GROUP, 2, 9),
            (MASK, 6, u32::MAX),
            (OTHER, 1, u32::MAX),
        ]);
        let acl = Acl::decode(&value).expect("a list");
        let user = |uid, gid| Credentials::new(uid, gid);
        assert!(acl.permits(&user(5, 1), 3, 6), "the named user");
        assert!(!acl.permits(&user(5, 1), 3, 1), "not behind the mask");
        assert!(acl.permits(&user(6, 3), 3, 4), "the group");
        assert!(!acl.permits(&user(6, 3), 3, 2));
        assert!(acl.permits(&user(6, 9), 3, 2), "the named group");
        assert!(!acl.permits(&user(6, 9), 3, 1), "members get nothing as others");
        assert!(acl.permits(&user(6, 8), 3, 1), "others, without the mask");
        let both = Credentials { groups: vec![9], ..user(6, 3) };
        assert!(acl.permits(&both, 3, 4) && acl.permits(&both, 3, 2) && !acl.permits(&both, 3, 6));
    }

    proptest! {
        #[test]
        fn no_value_panics(value in prop::collection::vec(any::<u8>(), 0..80), wanted in 0_u32..8) {
            if let Some(acl) = Acl::decode(&value) {
                acl.permits(&Credentials::new(5, 5), 5, wanted);
            }
        }
    }
}
