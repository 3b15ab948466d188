//! Inputs of honest sessions. The first created inode has number 2.

use rfs_proto::{
    FallocateFlags, Growth, LockClass, LockKind, LockRange, Owner, ROOT_INO, RenameFlags, Request, SetAttr,
    VERSION, XattrSet, checksum, encode_request,
};

/// User of all new inodes.
const UID: u32 = 0;
/// Group of all new inodes.
const GID: u32 = 0;
/// Mask of their modes.
const UMASK: u32 = 0o022;
/// Directory of most names.
const PARENT: u64 = ROOT_INO;

/// Returns the inputs.
pub(in crate::targets) fn requests_seeds() -> Vec<Vec<u8>> {
    vec![sharing(), extents(), writes(), locks(), names(), xattrs()]
}

/// Encodes a message of an input.
fn step(session: u8, request: Request<'_>) -> Vec<u8> {
    let mut message = Vec::new();
    encode_request(&request, &mut message);
    let len = (message.len() as u16).to_le_bytes();
    [&[session][..], &len, &message].concat()
}

/// Encodes the messages of an input, each with the number of its session.
fn of(requests: &[(u8, Request<'_>)]) -> Vec<u8> {
    requests.iter().flat_map(|(session, request)| step(*session, *request)).collect()
}

fn create(name: &[u8]) -> Request<'_> {
    Request::Create { parent: PARENT, name, perm: 0o644, umask: UMASK, uid: UID, gid: GID, exclusive: true }
}

fn resize(size: u64) -> Request<'static> {
    Request::SetAttr { ino: 2, changes: SetAttr { size: Some(size), ..SetAttr::default() } }
}

fn space(offset: u64, len: u64, flags: FallocateFlags) -> Request<'static> {
    Request::Fallocate { ino: 2, offset, len, flags }
}

/// Flags that make a hole.
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Returns a file of two sessions: allocation, size, layout, recalls and removal.
fn sharing() -> Vec<u8> {
    let allocate = |offset, len| Request::Allocate { ino: 2, offset, len };
    of(&[
        (0, create(b"a")),
        (0, allocate(0, 10_000)),
        (0, resize(9000)),
        (1, Request::Lookup { parent: PARENT, name: b"a" }),
        (1, Request::Open { ino: 2, write: true }),
        (1, Request::Layout { ino: 2, offset: 4096 }),
        (0, Request::Recalls { done: 0 }),
        (0, Request::Recalls { done: 1 }),
        (1, Request::Unlink { parent: PARENT, name: b"a" }),
        (0, Request::Close { ino: 2 }),
        (1, Request::Close { ino: 2 }),
    ])
}

/// Returns requests that change space: fallocate, holes, zeroes and copies.
fn extents() -> Vec<u8> {
    of(&[
        (0, create(b"a")),
        (0, space(0, 300_000, FallocateFlags::empty())),
        (0, space(8192, 50_000, PUNCH)),
        (0, space(0, 4096, FallocateFlags::ZERO_RANGE)),
        (1, create(b"b")),
        (1, Request::Open { ino: 2, write: false }),
        (1, Request::Copy { from: 2, from_offset: 0, to: 3, to_offset: 0, len: 100_000 }),
        (0, resize(5)),
        (0, Request::StatFs),
    ])
}

/// Writes through the server, each with its growth, and checksums.
fn writes() -> Vec<u8> {
    let write = |offset, growth, data| {
        let check = checksum::check_data(data);
        Request::Write { ino: 2, offset, check, growth, data }
    };
    of(&[
        (0, create(b"a")),
        (0, write(4000, Growth::Stay, &[7; 900])),
        (0, write(0, Growth::Reach, &[8; 100])),
        (0, write(100, Growth::From(100), &[9; 400])),
        (0, space(50, 5000, PUNCH)),
        (0, resize(7000)),
        (1, Request::Open { ino: 2, write: true }),
        (1, write(7000, Growth::From(7000), &[1])),
        (0, write(0, Growth::Reach, &[])),
        (1, Request::Verify { ino: 0, offset: 0 }),
        (0, Request::Verify { ino: 2, offset: 4096 }),
    ])
}

/// Returns a lock that waits, insists, and stops waiting.
fn locks() -> Vec<u8> {
    let lock = |kind, ticket| Request::Lock {
        ino: 2,
        owner: 7,
        class: LockClass::Record,
        kind,
        range: LockRange { first: 0, last: 99 },
        pid: 5,
        ticket,
    };
    let (exclusive, unlock) = (LockKind::Exclusive, LockKind::Unlock);
    of(&[
        (0, create(b"a")),
        (1, Request::Open { ino: 2, write: true }),
        (1, Request::Grants),
        (0, lock(exclusive, None)),
        (1, lock(exclusive, Some(3))),
        (1, Request::Insist { ticket: 3 }),
        (1, Request::StopWaiting { ticket: 3 }),
        (0, lock(unlock, None)),
    ])
}

/// Returns requests that change names: links, renames, listings and special files.
fn names() -> Vec<u8> {
    let mkdir = |name| Request::Mkdir { parent: PARENT, name, perm: 0o755, umask: UMASK, uid: UID, gid: GID };
    let rename = |new_name, flags, whiteout| Request::Rename {
        parent: PARENT,
        name: b"a",
        new_parent: 3,
        new_name,
        flags,
        whiteout,
        moved: whiteout.is_none().then_some(2),
        replaced: None,
    };
    of(&[
        (1, create(b"a")),
        (1, mkdir(b"d")),
        (1, Request::Link { ino: 2, parent: 3, name: b"c" }),
        (1, rename(b"b", RenameFlags::NOREPLACE, Some(Owner { uid: UID, gid: GID }))),
        (1, rename(b"c", RenameFlags::EXCHANGE, None)),
        (1, Request::Symlink { parent: 3, name: b"s", target: b"../a", uid: UID, gid: GID }),
        (1, Request::Readlink { ino: 5 }),
        (0, Request::Birth { ino: 5 }),
        (0, Request::ReadDir { ino: 3, cookie: 0, max_entries: 10 }),
        (0, Request::LookupAhead { parent: 3, name: b"c", max_entries: 10 }),
        (1, Request::Rmdir { parent: PARENT, name: b"d" }),
        (
            1,
            Request::Mknod {
                parent: PARENT,
                name: b"p",
                mode: 0o010_644,
                umask: UMASK,
                rdev: 0,
                uid: UID,
                gid: GID,
            },
        ),
    ])
}

/// Returns requests for extended attributes in parts, and a session that attaches again.
fn xattrs() -> Vec<u8> {
    let set = |value| Request::SetXattr {
        ino: 2,
        name: b"user.a",
        value,
        how: XattrSet::Any,
        continued: false,
        drop_sgid: false,
        only_if: None,
    };
    of(&[
        (1, create(b"a")),
        (1, set(b"value")),
        (1, Request::XattrPart { value: &[7; 200] }),
        (1, set(&[9; 100])),
        (0, Request::GetXattr { ino: 2, name: b"user.a", offset: 0 }),
        (0, Request::ListXattr { ino: 2, offset: 0 }),
        (1, Request::RemoveXattr { ino: 2, name: b"user.a", only_if: None }),
        (0, Request::Accessed { ino: 2, at: 5 }),
        (
            2,
            Request::Attach {
                version: VERSION,
                client: "late",
                export: "",
                keeps: false,
                alone: true,
                mount: None,
            },
        ),
        (0, Request::Stats),
    ])
}
