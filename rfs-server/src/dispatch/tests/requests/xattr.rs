//! Extended attributes and ACLs: the replies, and the effects on modes, records and limits.

use rfs_proto::{ExpectedOwner, MAX_XATTR_VALUE, Marks, Value, XATTR_PART, XattrSet};

use super::*;

fn set<'a>(ino: u64, name: &'a str, value: &'a [u8], how: XattrSet) -> Request<'a> {
    Request::SetXattr {
        ino,
        name: name.as_bytes(),
        value,
        how,
        continued: false,
        drop_sgid: false,
        only_if: None,
    }
}

impl Client<'_> {
    fn value(&self, request: Request<'_>) -> Value {
        match self.ask(request) {
            Reply::Value(value) => value,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn xattr(&self, ino: u64, name: &str) -> Result<Vec<u8>, Errno> {
        match self.ask(Request::GetXattr { ino, name: name.as_bytes(), offset: 0 }) {
            Reply::Value(value) => Ok(value.bytes),
            Reply::Error(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    }
}

/// Encodes an ACL: owner, user 1000, group, mask, others.
fn acl(perms: [u16; 5]) -> Vec<u8> {
    let tags = [(1u16, u32::MAX), (2, 1000), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
    let mut value = 2u32.to_le_bytes().to_vec();
    for ((tag, id), perm) in tags.into_iter().zip(perms) {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

#[test]
fn set_list_remove() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let file = client.create("f").attr;
    assert_eq!(file.marks, Marks::empty());
    assert_eq!(client.xattr(file.ino, "user.a"), Err(Errno::ENODATA));
    fixture.clock.set(5000);
    client.done(set(file.ino, "user.a", b"one", XattrSet::Create));
    let attr = client.stat(file.ino);
    assert_eq!((attr.marks, attr.ctime, attr.mtime), (Marks::XATTRS, 5000, file.mtime));
    assert_eq!(client.error(set(file.ino, "user.a", b"", XattrSet::Create)), Errno::EEXIST);
    assert_eq!(client.error(set(file.ino, "user.b", b"", XattrSet::Replace)), Errno::ENODATA);
    client.done(set(file.ino, "trusted.b", b"", XattrSet::Any));
    let names = client.value(Request::ListXattr { ino: file.ino, offset: 0 });
    assert_eq!((names.bytes, names.len), (b"trusted.b\0user.a\0".to_vec(), 17));
    assert_eq!(client.xattr(file.ino, "user.a"), Ok(b"one".to_vec()));
    for name in ["user.a", "trusted.b"] {
        client.done(Request::RemoveXattr { ino: file.ino, name: name.as_bytes(), only_if: None });
        assert_eq!(
            client.error(Request::RemoveXattr { ino: file.ino, name: name.as_bytes(), only_if: None }),
            Errno::ENODATA
        );
    }
    assert_eq!(client.stat(file.ino).marks, Marks::empty());
    assert_eq!(client.error(set(file.ino, "system.x", b"", XattrSet::Any)), Errno::EOPNOTSUPP);
    assert_eq!(client.error(set(999, "user.a", b"", XattrSet::Any)), Errno::ESTALE);
}

#[test]
fn the_longest_value_is_written_and_read_in_parts() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    let long: Vec<u8> = (0..MAX_XATTR_VALUE).map(|i| (i % 251) as u8).collect();
    client.done(Request::XattrPart { value: &long[..XATTR_PART] });
    client.done(rest(ino, b"user.long", &long[XATTR_PART..]));
    let get = |offset| client.value(Request::GetXattr { ino, name: b"user.long", offset });
    let (first, second) = (get(0), get(XATTR_PART as u32));
    assert_eq!((first.len, first.version), (MAX_XATTR_VALUE as u32, second.version));
    assert_eq!([first.bytes, second.bytes].concat(), long);
    assert_eq!(get(u32::MAX).bytes, b"");
    // One more byte is too much. A stored part is used only once.
    client.done(Request::XattrPart { value: &long[..XATTR_PART] });
    let longer = [&long[XATTR_PART..], b"x"].concat();
    assert_eq!(client.error(rest(ino, b"user.long", &longer)), Errno::E2BIG);
    client.done(rest(ino, b"user.long", b"short"));
    assert_eq!(client.xattr(ino, "user.long"), Ok(b"short".to_vec()));
    assert!(client.value(Request::GetXattr { ino, name: b"user.long", offset: 0 }).version > second.version);
    assert_eq!(client.error(Request::XattrPart { value: &long[..XATTR_PART + 1] }), Errno::E2BIG);
}

#[test]
fn the_total_size_is_bounded_and_freed_space_is_reused() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    let value = vec![1; XATTR_PART];
    let mut kept = 0;
    let full = loop {
        match client.ask(set(ino, &format!("user.{kept}"), &value, XattrSet::Any)) {
            Reply::Done => kept += 1,
            Reply::Error(errno) => break errno,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((full, kept), (Errno::ENOSPC, (1 << 20) / XATTR_PART));
    let other = client.create("g").attr.ino;
    assert_eq!(client.error(set(other, "user.a", &value, XattrSet::Any)), Errno::ENOSPC);
    client.close(ino);
    client.unlink("f");
    client.done(set(other, "user.a", &value, XattrSet::Any));
    client.done(Request::RemoveXattr { ino: other, name: b"user.a", only_if: None });
    assert_eq!(fixture.dispatcher.store.xattrs.used(), 0);
}

#[test]
fn modes_and_acls_are_one() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    let list = acl([6, 7, 4, 6, 0]);
    client.done(set(ino, ACCESS, &list, XattrSet::Any));
    assert_eq!((client.stat(ino).perm, client.xattr(ino, ACCESS)), (0o660, Ok(list)));
    // chmod changes the mask.
    let changes = SetAttr { perm: Some(0o741), ..SetAttr::default() };
    client.attr(Request::SetAttr { ino, changes });
    assert_eq!(client.xattr(ino, ACCESS), Ok(acl([7, 7, 4, 4, 1])));
    client.done(Request::RemoveXattr { ino, name: ACCESS.as_bytes(), only_if: None });
    assert_eq!((client.stat(ino).perm, client.stat(ino).marks), (0o741, Marks::empty()));
    assert_eq!(client.error(set(ino, ACCESS, b"nonsense", XattrSet::Any)), Errno::EINVAL);
    assert_eq!(client.error(set(ino, DEFAULT, &acl([7; 5]), XattrSet::Any)), Errno::EACCES);
    // An ACL that is equivalent to the mode is not stored.
    let minimal = [
        &2u32.to_le_bytes()[..],
        &acl([6, 0, 0, 0, 0])[4..12],
        &acl([0, 0, 4, 0, 0])[20..28],
        &acl([0, 0, 0, 0, 4])[36..],
    ]
    .concat();
    client.done(set(ino, ACCESS, &minimal, XattrSet::Any));
    assert_eq!((client.stat(ino).perm, client.stat(ino).marks), (0o644, Marks::empty()));
    // Set-group-ID is removed if the caller has no right to it.
    let changes = SetAttr { perm: Some(0o2755), ..SetAttr::default() };
    client.attr(Request::SetAttr { ino, changes });
    let (name, how, value) = (ACCESS.as_bytes(), XattrSet::Any, &acl([7, 7, 5, 7, 5])[..]);
    client.done(Request::SetXattr {
        ino,
        name,
        value,
        how,
        continued: false,
        drop_sgid: true,
        only_if: None,
    });
    assert_eq!(client.stat(ino).perm, 0o775);
}

#[test]
fn new_inodes_inherit_a_default_acl() {
    let fixture = fixture(16, 16);
    let client = fixture.client(1);
    let parent = client.mkdir(ROOT_INO, "d").ino;
    let list = acl([7, 6, 5, 7, 0]);
    client.done(set(parent, DEFAULT, &list, XattrSet::Any));
    assert_eq!(client.stat(parent).perm, 0o755, "a default ACL is no access ACL");
    let (umask, uid, gid) = (0o077, 5, 6);
    // The umask does not count here.
    let file =
        client.opened(Request::Create { parent, name: b"f", perm: 0o666, umask, uid, gid, exclusive: true });
    assert_eq!((file.attr.perm, client.xattr(file.attr.ino, ACCESS)), (0o660, Ok(acl([6, 6, 5, 6, 0]))));
    assert_eq!(client.xattr(file.attr.ino, DEFAULT), Err(Errno::ENODATA));
    let sub = client.attr(Request::Mkdir { parent, name: b"s", perm: 0o755, umask, uid, gid });
    assert_eq!((sub.perm, client.xattr(sub.ino, DEFAULT)), (0o750, Ok(list)));
    let link = client.attr(Request::Symlink { parent, name: b"l", target: b"t", uid, gid });
    assert_eq!((link.perm, link.marks), (0o777, Marks::empty()));
    // In other directories it does.
    let pipe = Request::Mknod { parent: ROOT_INO, name: b"p", mode: 0o010666, umask, rdev: 0, uid, gid };
    assert_eq!(client.attr(pipe).perm, 0o600);
    client.done(Request::RemoveXattr { ino: parent, name: DEFAULT.as_bytes(), only_if: None });
    let file =
        client.opened(Request::Create { parent, name: b"g", perm: 0o666, umask, uid, gid, exclusive: true });
    assert_eq!((file.attr.perm, file.attr.marks), (0o600, Marks::empty()));
}

#[test]
fn privileges_go_with_the_owner_and_on_request() {
    let fixture = fixture(16, 8);
    let client = fixture.client(1);
    let ino = client.create("f").attr.ino;
    let change = |changes| client.attr(Request::SetAttr { ino, changes }).perm;
    let none = SetAttr::default();
    let privileged = |perm| {
        change(SetAttr { perm: Some(perm), ..none });
        client.done(set(ino, "security.capability", b"c", XattrSet::Any));
        assert_eq!(client.stat(ino).marks, Marks::XATTRS | Marks::CAPABILITY);
    };
    let drop = SetAttr { drop_privileges: true, ..none };
    for (changes, before, after) in [
        (drop, 0o6755, 0o0755),
        (drop, 0o2745, 0o2745),
        (SetAttr { size: Some(0), ..drop }, 0o4700, 0o0700),
        (SetAttr { uid: Some(9), ..none }, 0o6711, 0o0711),
        (SetAttr { gid: Some(9), ..none }, 0o4711, 0o0711),
    ] {
        privileged(before);
        assert_eq!(change(changes), after, "{changes:?}");
        assert_eq!(client.xattr(ino, "security.capability"), Err(Errno::ENODATA), "{changes:?}");
    }
    privileged(0o6755);
    assert_eq!(change(SetAttr { size: Some(0), ..none }), 0o6755);
    assert_eq!(change(SetAttr { uid: Some(9), perm: Some(0o4711), ..none }), 0o4711);
    // Set-group-ID of a directory has another meaning.
    let directory = client.mkdir(ROOT_INO, "d").ino;
    client.attr(Request::SetAttr { ino: directory, changes: SetAttr { perm: Some(0o2775), ..none } });
    let changes = SetAttr { uid: Some(9), ..none };
    assert_eq!(client.attr(Request::SetAttr { ino: directory, changes }).perm, 0o2775);
}

#[test]
fn a_conditional_change_needs_the_expected_owner() {
    let fixture = fixture(64, 32);
    let client = fixture.client(1);
    // Owned by user 5 and group 6.
    let ino = client.create("file").attr.ino;
    for (uid, gid, so) in
        [(5, None, true), (5, Some(6), true), (5, Some(5), false), (6, None, false), (6, Some(6), false)]
    {
        let only_if = Some(ExpectedOwner { uid, gid });
        let before = client.attr(Request::GetAttr { ino });
        let chmod = SetAttr { perm: Some(0o600 + u32::from(so)), only_if, ..SetAttr::default() };
        let requests = [
            Request::SetAttr { ino, changes: chmod },
            Request::SetXattr {
                ino,
                name: b"user.a",
                value: b"v",
                how: XattrSet::Any,
                continued: false,
                drop_sgid: false,
                only_if,
            },
            Request::RemoveXattr { ino, name: b"user.a", only_if },
        ];
        for request in requests {
            match client.ask(request) {
                Reply::Error(Errno::EPERM) => assert!(!so, "{request:?}"),
                done => assert!(so && matches!(done, Reply::Attr(_) | Reply::Done), "{request:?}: {done:?}"),
            }
        }
        assert_eq!(client.attr(Request::GetAttr { ino }) == before, !so);
    }
}
