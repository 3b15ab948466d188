//! Examples of every message, with values that need varints of one byte and of several bytes.

use rfs_proto::{
    Attached, Attr, BadBlock, Copied, DirEntry, DirPage, Errno, ExpectedOwner, Extent, FallocateFlags,
    FileKind, Granted, Growth, HeldLock, Identity, InUse, Layout, LockClass, LockKind, LockRange, Locked,
    Marks, Opened, Owner, Recall, Recalls, RegionRef, RenameFlags, Reply, Request, ServerStats, SetAttr,
    SetTime, StatFs, StoreAccess, Value, Verified, XattrSet,
};

/// Returns attributes that use every field.
pub(crate) fn attr() -> Attr {
    Attr {
        ino: 300,
        kind: FileKind::Symlink,
        perm: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 0,
        rdev: 0,
        size: 5,
        blocks: 8,
        atime: -1,
        mtime: 1,
        ctime: 64,
        layout_generation: 2,
        slot: 7,
        marks: Marks::XATTRS,
    }
}

/// Returns a layout of one extent.
pub(crate) fn layout() -> Layout {
    Layout { generation: 2, extents: vec![Extent { file: 0, arena: 4096, len: 8192 }], complete: true }
}

/// Returns an identity that uses every byte.
pub(crate) fn identity() -> Identity {
    Identity([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255])
}

/// Returns every request with its bytes in hexadecimal, as the protocol document shows them.
pub(crate) fn requests() -> Vec<(&'static str, Request<'static>)> {
    let parts = [attachment_requests(), name_requests(), file_requests(), session_requests()];
    parts.into_iter().flatten().collect()
}

/// Returns requests that attach, look up, and read or set attributes.
fn attachment_requests() -> Vec<(&'static str, Request<'static>)> {
    let changes = SetAttr {
        perm: Some(0o600),
        uid: None,
        gid: Some(5),
        size: Some(4096),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(-2)),
        drop_privileges: true,
        ctime: Some(-1),
        only_if: Some(ExpectedOwner { uid: 300, gid: Some(5) }),
    };
    vec![
        (
            "00 01 01 63 01 65 01 00 00",
            Request::Attach { version: 1, client: "c", export: "e", keeps: true, alone: false, mount: None },
        ),
        (
            "00 0f 00 00 00 01 01 000102030405060708090a0b0c0d0eff",
            Request::Attach {
                version: 15,
                client: "",
                export: "",
                keeps: false,
                alone: true,
                mount: Some(identity()),
            },
        ),
        ("01 01 02 68 69", Request::Lookup { parent: 1, name: b"hi" }),
        ("02 ac02", Request::GetAttr { ino: 300 }),
        (
            "03 02 01 8003 00 01 05 01 8020 01 00 01 01 03 01 01 01 01 ac02 01 05",
            Request::SetAttr { ino: 2, changes },
        ),
        ("03 02 00 00 00 00 00 00 00 00 00", Request::SetAttr { ino: 2, changes: SetAttr::default() }),
    ]
}

/// Returns requests that make, remove and read names.
fn name_requests() -> Vec<(&'static str, Request<'static>)> {
    vec![
        (
            "04 01 01 6e a440 12 00 e807 00",
            Request::Mknod {
                parent: 1,
                name: b"n",
                mode: 0o020044,
                umask: 0o022,
                rdev: 0,
                uid: 1000,
                gid: 0,
            },
        ),
        (
            "05 01 01 66 a403 12 00 00 01",
            Request::Create {
                parent: 1,
                name: b"f",
                perm: 0o644,
                umask: 0o022,
                uid: 0,
                gid: 0,
                exclusive: true,
            },
        ),
        (
            "06 01 01 64 ed03 00 00 00",
            Request::Mkdir { parent: 1, name: b"d", perm: 0o755, umask: 0, uid: 0, gid: 0 },
        ),
        (
            "07 01 01 6c 03 2f7fff 00 00",
            Request::Symlink { parent: 1, name: b"l", target: b"/\x7f\xff", uid: 0, gid: 0 },
        ),
        ("08 05", Request::Readlink { ino: 5 }),
        ("09 05 01 01 61", Request::Link { ino: 5, parent: 1, name: b"a" }),
        ("0a 01 01 61", Request::Unlink { parent: 1, name: b"a" }),
        ("0b 01 01 61", Request::Rmdir { parent: 1, name: b"a" }),
        (
            "0c 01 01 61 02 01 62 02 00 00 01 05",
            Request::Rename {
                parent: 1,
                name: b"a",
                new_parent: 2,
                new_name: b"b",
                flags: RenameFlags::EXCHANGE,
                whiteout: None,
                moved: None,
                replaced: Some(5),
            },
        ),
        (
            "0c 01 01 61 01 01 62 01 01 e807 05 01 09 00",
            Request::Rename {
                parent: 1,
                name: b"a",
                new_parent: 1,
                new_name: b"b",
                flags: RenameFlags::NOREPLACE,
                whiteout: Some(Owner { uid: 1000, gid: 5 }),
                moved: Some(9),
                replaced: None,
            },
        ),
    ]
}

/// Returns requests about open files, space and extended attributes.
fn file_requests() -> Vec<(&'static str, Request<'static>)> {
    vec![
        ("0d 05 01", Request::Open { ino: 5, write: true }),
        ("0e 05", Request::Close { ino: 5 }),
        ("0f 05 00", Request::Layout { ino: 5, offset: 0 }),
        ("10 05 8020 ffffffffffffffffff01", Request::Allocate { ino: 5, offset: 4096, len: u64::MAX }),
        ("11 01 00 ffffffff0f", Request::ReadDir { ino: 1, cookie: 0, max_entries: u32::MAX }),
        ("12", Request::StatFs),
        ("13", Request::Stats),
        ("14 05 06 757365722e61 00", Request::GetXattr { ino: 5, name: b"user.a", offset: 0 }),
        (
            "15 05 06 757365722e61 02 7600 01 00 01 01 05 00",
            Request::SetXattr {
                ino: 5,
                name: b"user.a",
                value: b"v\0",
                how: XattrSet::Create,
                continued: false,
                drop_sgid: true,
                only_if: Some(ExpectedOwner { uid: 5, gid: None }),
            },
        ),
        ("16 02 7600", Request::XattrPart { value: b"v\0" }),
        ("17 05 808003", Request::ListXattr { ino: 5, offset: 0xc000 }),
        ("18 05 06 757365722e61 00", Request::RemoveXattr { ino: 5, name: b"user.a", only_if: None }),
        (
            "19 05 8020 01 03",
            Request::Fallocate {
                ino: 5,
                offset: 4096,
                len: 1,
                flags: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            },
        ),
        ("1a 05 00 06 8020 07", Request::Copy { from: 5, from_offset: 0, to: 6, to_offset: 4096, len: 7 }),
    ]
}

/// Returns requests about locks, caches of sessions, and data.
fn session_requests() -> Vec<(&'static str, Request<'static>)> {
    vec![
        (
            "1b 05 8020 01 01 05 ffffffffffffffffff01 07 01 ac02",
            Request::Lock {
                ino: 5,
                owner: 4096,
                class: LockClass::Flock,
                kind: LockKind::Exclusive,
                range: LockRange { first: 5, last: u64::MAX },
                pid: 7,
                ticket: Some(300),
            },
        ),
        ("1c ac02", Request::StopWaiting { ticket: 300 }),
        (
            "1d 05 8020 00 01 05 09",
            Request::TestLock {
                ino: 5,
                owner: 4096,
                class: LockClass::Record,
                exclusive: true,
                range: LockRange { first: 5, last: 9 },
            },
        ),
        ("1e 01 02 68 69 8001", Request::LookupAhead { parent: 1, name: b"hi", max_entries: 128 }),
        ("1f ac02", Request::Recalls { done: 300 }),
        ("20 05 03", Request::Accessed { ino: 5, at: -2 }),
        ("21", Request::Grants),
        ("22 ac02", Request::Insist { ticket: 300 }),
        ("23 07 ac02 03 0a0000", Request::Once { slot: 7, sequence: 300, request: &[10, 0, 0] }),
        ("24", Request::Detach),
        (
            "25 05 8020 e7e4dfbf02 00 02 7600",
            Request::Write { ino: 5, offset: 4096, check: 0x27f7_f267, growth: Growth::Stay, data: b"v\0" },
        ),
        (
            "25 05 00 01 01 02 7600",
            Request::Write { ino: 5, offset: 0, check: 1, growth: Growth::Reach, data: b"v\0" },
        ),
        (
            "25 05 8020 01 02 8020 02 7600",
            Request::Write { ino: 5, offset: 4096, check: 1, growth: Growth::From(4096), data: b"v\0" },
        ),
        ("26 05 8020", Request::Verify { ino: 5, offset: 4096 }),
        ("27 ac02", Request::ReturnNames { ino: 300 }),
        ("28 05", Request::ConfirmLocks { ino: 5 }),
        (
            "29 10 0500000000000000 2c01000000000000",
            Request::Forget { inos: &[5, 0, 0, 0, 0, 0, 0, 0, 44, 1, 0, 0, 0, 0, 0, 0] },
        ),
        ("2a ac02", Request::HoldPages { ino: 300 }),
        ("2b 05", Request::DropPages { ino: 5 }),
        ("2c 03", Request::ReachStore { store: 3 }),
        (
            "2d 05 a403 12 e807 00",
            Request::Tmpfile { parent: 5, perm: 0o644, umask: 0o22, uid: 1000, gid: 0 },
        ),
        ("2e ac02", Request::Birth { ino: 300 }),
        ("2f 03", Request::FenceStore { store: 3 }),
    ]
}

/// Returns every reply with its bytes in hexadecimal, as the protocol document shows them.
pub(crate) fn replies() -> Vec<(&'static str, Reply)> {
    let births = vec![("17 00", Reply::Birth(None)), ("17 01 03", Reply::Birth(Some(-2)))];
    let parts = [file_replies(), session_replies(), vec![store_reply()], births];
    parts.into_iter().flatten().collect()
}

/// Returns replies of attaching, names and files.
fn file_replies() -> Vec<(&'static str, Reply)> {
    let region = |addr, rkey| RegionRef { addr, len: 4096, rkey };
    vec![
        ("00 1c", Reply::Error(Errno::ENOSPC)),
        ("00 8f01", Reply::Error(Errno(143))),
        ("01", Reply::Done),
        (
            "02 8010 8020 01 8020 8020 ffffffff0f 01 8040 8020 07 8080d0e2c6bfce972f ac02 01 000102030405060708090a0b0c0d0eff 03 01 01",
            Reply::Attached(Attached {
                arena: region(2048, 1),
                table: region(4096, u32::MAX),
                sums: Some(region(8192, 7)),
                now: 1_700_000_000_000_000_000,
                session: 300,
                read_only: true,
                memory: identity(),
                starts: 3,
                resumed: true,
                confined: true,
            }),
        ),
        ("03 ac02 02 a403 01 e807 00 00 05 08 01 02 8001 02 07 01", Reply::Attr(attr())),
        (
            "04 ac02 02 a403 01 e807 00 00 05 08 01 02 8001 02 07 01 02 01 00 8020 8040 01",
            Reply::Opened(Opened { attr: attr(), layout: layout() }),
        ),
        ("05 02 01 00 8020 8040 01", Reply::Layout(layout())),
        ("05 00 00 00", Reply::Layout(Layout::default())),
        ("06 03 2f61ff", Reply::Target(b"/a\xff".to_vec())),
        (
            "07 01 09 01 61 ac02 02 a403 01 e807 00 00 05 08 01 02 8001 02 07 01 01 00",
            Reply::Dir(DirPage {
                entries: vec![DirEntry { cookie: 9, name: b"a".to_vec(), attr: attr() }],
                parent: 1,
                end: false,
            }),
        ),
        (
            "08 8008 7f 0a 09",
            Reply::StatFs(StatFs { blocks: 1024, blocks_free: 127, inodes: 10, inodes_free: 9 }),
        ),
        (
            "09 01 04 6f70656e 03 02 3c",
            Reply::Stats(ServerStats { calls: vec![("open".into(), 3)], sessions: 2, uptime_secs: 60 }),
        ),
        ("0a 07 8002 02 7600", Reply::Value(Value { version: 7, len: 256, bytes: b"v\0".to_vec() })),
        (
            "0b 8020 ac02 02 a403 01 e807 00 00 05 08 01 02 8001 02 07 01",
            Reply::Copied(Copied { bytes: 4096, attr: attr() }),
        ),
    ]
}

/// Returns replies about locks, caches of sessions, and checksums.
fn session_replies() -> Vec<(&'static str, Reply)> {
    vec![
        ("0c 8020 01", Reply::Locked(Locked { visits: 4096, alone: true })),
        ("0d 00", Reply::Conflict(None)),
        (
            "0d 01 01 05 09 07",
            Reply::Conflict(Some(HeldLock {
                exclusive: true,
                range: LockRange { first: 5, last: 9 },
                pid: 7,
            })),
        ),
        (
            "0e ac02 0a 00 01 01 61 01 02 02 05 03 8020 04 05 05 ac02 06 05 07 05 08 ac02 09 05",
            Reply::Recalls(Recalls {
                number: 300,
                recalls: vec![
                    Recall::Name { parent: 1, name: b"a".to_vec() },
                    Recall::Names { ino: 2 },
                    Recall::Attr { ino: 5 },
                    Recall::Pages { ino: 4096 },
                    Recall::All,
                    Recall::Layout { ino: 5, generation: 300 },
                    Recall::Owner { ino: 5 },
                    Recall::Locks { ino: 5 },
                    Recall::Unlinked { ino: 300 },
                    Recall::Written { ino: 5 },
                ],
            }),
        ),
        ("0f ac02 01", Reply::InUse(InUse { sessions: 300, alone: true })),
        ("10", Reply::Waits),
        (
            "11 02 ac02 00 8020 01 07 01 23",
            Reply::Grants(vec![
                Granted { ticket: 300, outcome: Ok(Locked { visits: 4096, alone: true }) },
                Granted { ticket: 7, outcome: Err(Errno::EDEADLK) },
            ]),
        ),
        ("12", Reply::Ending),
        ("13", Reply::AskAgain),
        (
            "14 8002 01 05 8020 00",
            Reply::Verified(Verified { blocks: 256, next: Some((5, 4096)), bad: vec![] }),
        ),
        (
            "14 07 00 01 05 8020 8040 ac02 ffffffff0f 02 2f61",
            Reply::Verified(Verified {
                blocks: 7,
                next: None,
                bad: vec![BadBlock {
                    ino: 5,
                    offset: 4096,
                    arena: 8192,
                    expected: 300,
                    found: u32::MAX,
                    path: b"/a".to_vec(),
                }],
            }),
        ),
        ("15 ac02", Reply::Unlinked(300)),
    ]
}

/// Returns the way to a store.
fn store_reply() -> (&'static str, Reply) {
    let (address, ticket) = ("unix:/s".into(), "t-1-2".into());
    let access = StoreAccess { address, chunk: 7, client: 300, ticket, secret: vec![0, 0xff] };
    ("16 07 756e69783a2f73 07 ac02 05 742d312d32 02 00ff", Reply::Store(access))
}

/// Parses hexadecimal digits with blanks between them.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
