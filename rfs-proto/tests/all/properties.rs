//! Tests that values survive encoding and decoding, and that no bytes make a decoder panic.

#[path = "../../fuzz/entry.rs"]
mod entry;

use proptest::{collection::vec, prelude::*};
use rfs_proto::{
    Attached, Attr, BadBlock, Copied, DataPlace, DirEntry, DirPage, Errno, ExpectedOwner, Extent,
    FallocateFlags, FileKind, Granted, Growth, HeldLock, Identity, InUse, Layout, LockClass, LockKind,
    LockRange, Locked, MAX_MESSAGE, Marks, Opened, Owner, Recall, Recalls, RegionRef, RenameFlags, Reply,
    Request, ServerStats, SetAttr, SetTime, StatFs, StoreAccess, Value, Verified, XattrSet, decode_reply,
    decode_request, encode_reply, encode_request, record,
};

/// Generates numbers of all lengths.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(n, shift)| n >> shift)
}

fn small() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0..32u32).prop_map(|(n, shift)| n >> shift)
}

fn kind() -> impl Strategy<Value = FileKind> {
    use FileKind::*;
    prop::sample::select(vec![Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice])
}

fn attr() -> impl Strategy<Value = Attr> {
    let owner = (small(), small(), small(), small(), 0..0o10000u32);
    let numbers = (number(), number(), number(), number(), small());
    (kind(), owner, numbers, any::<[i64; 3]>()).prop_map(|(kind, owner, numbers, times)| Attr {
        ino: numbers.0,
        kind,
        perm: owner.4,
        nlink: owner.0,
        uid: owner.1,
        gid: owner.2,
        rdev: owner.3,
        size: numbers.1,
        blocks: numbers.2,
        atime: times[0],
        mtime: times[1],
        ctime: times[2],
        layout_generation: numbers.3,
        slot: numbers.4,
        marks: Marks::from_bits_retain(owner.1),
    })
}

fn layout() -> impl Strategy<Value = Layout> {
    let extent = (number(), number(), number()).prop_map(|(file, arena, len)| Extent { file, arena, len });
    (number(), vec(extent, 0..20), any::<bool>()).prop_map(|(generation, extents, complete)| Layout {
        generation,
        extents,
        complete,
    })
}

fn attached() -> impl Strategy<Value = Attached> {
    let region = || (number(), number(), small()).prop_map(|(addr, len, rkey)| RegionRef { addr, len, rkey });
    let regions = (region(), region(), prop::option::of(region()));
    let flags = any::<[bool; 3]>();
    (regions, any::<i64>(), number(), identity(), number(), flags).prop_map(
        |((arena, table, sums), now, session, memory, starts, [read_only, resumed, confined])| Attached {
            arena,
            table,
            sums,
            now,
            session,
            read_only,
            memory,
            starts,
            resumed,
            confined,
        },
    )
}

fn dir_page() -> impl Strategy<Value = DirPage> {
    let name = vec(any::<u8>(), 0..256);
    let entry = (number(), name, attr()).prop_map(|(cookie, name, attr)| DirEntry { cookie, name, attr });
    (vec(entry, 0..10), number(), any::<bool>()).prop_map(|(entries, parent, end)| DirPage {
        entries,
        parent,
        end,
    })
}

/// Generates replies about the server and its sessions.
fn server_reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        attached().prop_map(Reply::Attached),
        (number(), number(), number(), number()).prop_map(|(blocks, blocks_free, inodes, inodes_free)| {
            Reply::StatFs(StatFs { blocks, blocks_free, inodes, inodes_free })
        }),
        (vec((".{0,20}", number()), 0..10), number(), number()).prop_map(|(calls, sessions, uptime_secs)| {
            Reply::Stats(ServerStats { calls, sessions, uptime_secs })
        }),
        (number(), vec(recall(), 0..10))
            .prop_map(|(number, recalls)| Reply::Recalls(Recalls { number, recalls })),
        (number(), any::<bool>()).prop_map(|(sessions, alone)| Reply::InUse(InUse { sessions, alone })),
        Just(Reply::Ending),
        (number(), prop::option::of((number(), number())), vec(bad_block(), 0..5))
            .prop_map(|(blocks, next, bad)| Reply::Verified(Verified { blocks, next, bad })),
    ]
}

/// Generates replies about locks.
fn lock_reply() -> impl Strategy<Value = Reply> {
    let held = (any::<bool>(), number(), number(), small()).prop_map(|(exclusive, first, last, pid)| {
        HeldLock { exclusive, range: LockRange { first, last }, pid }
    });
    prop_oneof![
        (number(), any::<bool>()).prop_map(|(visits, alone)| Reply::Locked(Locked { visits, alone })),
        prop::option::of(held).prop_map(Reply::Conflict),
        Just(Reply::Waits),
        vec(granted(), 0..10).prop_map(Reply::Grants),
        Just(Reply::AskAgain),
    ]
}

/// Generates all kinds of replies with about the same weight.
fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        7 => server_reply(),
        5 => lock_reply(),
        1 => any::<u16>().prop_map(|n| Reply::Error(Errno(n))),
        1 => Just(Reply::Done),
        1 => attr().prop_map(Reply::Attr),
        1 => (attr(), layout()).prop_map(|(attr, layout)| Reply::Opened(Opened { attr, layout })),
        1 => layout().prop_map(Reply::Layout),
        1 => vec(any::<u8>(), 0..5000).prop_map(Reply::Target),
        1 => dir_page().prop_map(Reply::Dir),
        1 => (number(), small(), vec(any::<u8>(), 0..5000))
            .prop_map(|(version, len, bytes)| Reply::Value(Value { version, len, bytes })),
        1 => (number(), attr()).prop_map(|(bytes, attr)| Reply::Copied(Copied { bytes, attr })),
        1 => number().prop_map(Reply::Unlinked),
        1 => (".{0,20}", small(), number(), ".{0,20}", vec(any::<u8>(), 0..64)).prop_map(
            |(address, chunk, client, ticket, secret)| {
                Reply::Store(StoreAccess { address, chunk, client, ticket, secret })
            }
        ),
    ]
}

fn bad_block() -> impl Strategy<Value = BadBlock> {
    (number(), number(), number(), small(), small(), vec(any::<u8>(), 0..100)).prop_map(
        |(ino, offset, arena, expected, found, path)| BadBlock { ino, offset, arena, expected, found, path },
    )
}

fn identity() -> impl Strategy<Value = Identity> {
    any::<[u8; 16]>().prop_map(Identity)
}

fn granted() -> impl Strategy<Value = Granted> {
    (
        number(),
        prop_oneof![
            (number(), any::<bool>()).prop_map(|(visits, alone)| Ok(Locked { visits, alone })),
            any::<u16>().prop_map(|number| Err(Errno(number))),
        ],
    )
        .prop_map(|(ticket, outcome)| Granted { ticket, outcome })
}

fn recall() -> impl Strategy<Value = Recall> {
    prop_oneof![
        (number(), vec(any::<u8>(), 0..256)).prop_map(|(parent, name)| Recall::Name { parent, name }),
        number().prop_map(|ino| Recall::Names { ino }),
        number().prop_map(|ino| Recall::Attr { ino }),
        number().prop_map(|ino| Recall::Pages { ino }),
        number().prop_map(|ino| Recall::Owner { ino }),
        number().prop_map(|ino| Recall::Locks { ino }),
        number().prop_map(|ino| Recall::Unlinked { ino }),
        number().prop_map(|ino| Recall::Written { ino }),
        (number(), number()).prop_map(|(ino, generation)| Recall::Layout { ino, generation }),
        Just(Recall::All),
    ]
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    use prop::option::of;
    let time = || of(prop_oneof![Just(SetTime::Now), any::<i64>().prop_map(SetTime::At)]);
    let belongs = (small(), of(small())).prop_map(|(uid, gid)| ExpectedOwner { uid, gid });
    let ids = (of(small()), of(small()), of(small()));
    (ids, of(number()), time(), time(), any::<bool>(), of(any::<i64>()), of(belongs)).prop_map(
        |((perm, uid, gid), size, atime, mtime, drop_privileges, ctime, only_if)| SetAttr {
            perm,
            uid,
            gid,
            size,
            atime,
            mtime,
            drop_privileges,
            ctime,
            only_if,
        },
    )
}

/// The values from which requests are built. Requests borrow from them.
#[derive(Clone, Debug)]
struct Parts {
    numbers: (u64, u64, u64),
    smalls: (u32, u32, u32, u32),
    names: (Vec<u8>, Vec<u8>),
    client: String,
    exclusive: bool,
    changes: SetAttr,
}

fn parts() -> impl Strategy<Value = Parts> {
    (
        (number(), number(), number()),
        (small(), small(), small(), small()),
        (vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..5000)),
        ".{0,40}",
        any::<bool>(),
        set_attr(),
    )
        .prop_map(|(numbers, smalls, names, client, exclusive, changes)| Parts {
            numbers,
            smalls,
            names,
            client,
            exclusive,
            changes,
        })
}

fn requests(parts: &Parts) -> Vec<Request<'_>> {
    [session_requests(parts), name_requests(parts), file_requests(parts), lock_requests(parts)].concat()
}

/// Returns requests on the session, on recalls and on the server.
fn session_requests(parts: &Parts) -> Vec<Request<'_>> {
    let (ino, offset, len) = parts.numbers;
    let (slot, client, exclusive) = (parts.smalls.0, &parts.client, parts.exclusive);
    let bytes = parts.names.1.as_slice();
    vec![
        Request::Attach {
            version: slot,
            client,
            export: client,
            keeps: exclusive,
            alone: !exclusive,
            mount: exclusive.then_some(Identity([slot as u8; 16])),
        },
        Request::StatFs,
        Request::Stats,
        Request::Recalls { done: offset },
        Request::Once { slot, sequence: len, request: bytes },
        Request::Detach,
        Request::Verify { ino, offset },
        Request::ReturnNames { ino },
        Request::Forget { inos: bytes },
        Request::HoldPages { ino },
        Request::DropPages { ino },
        Request::ReachStore { store: slot as u16 },
        Request::FenceStore { store: slot as u16 },
    ]
}

/// Returns requests on names.
fn name_requests(parts: &Parts) -> Vec<Request<'_>> {
    let (ino, offset, len) = parts.numbers;
    let (perm, uid, gid, rdev) = parts.smalls;
    let (name, target) = (parts.names.0.as_slice(), parts.names.1.as_slice());
    let (parent, exclusive) = (offset, parts.exclusive);
    let flags = RenameFlags::from_bits_retain(rdev);
    let whiteout = exclusive.then_some(Owner { uid, gid });
    let (moved, replaced) = (exclusive.then_some(ino), (!exclusive).then_some(len));
    vec![
        Request::Lookup { parent, name },
        Request::Mknod { parent, name, mode: perm, umask: gid, rdev, uid, gid },
        Request::Create { parent, name, perm, umask: rdev, uid, gid, exclusive },
        Request::Tmpfile { parent, perm, umask: rdev, uid, gid },
        Request::Birth { ino: parent },
        Request::Mkdir { parent, name, perm, umask: rdev, uid, gid },
        Request::Symlink { parent, name, target, uid, gid },
        Request::Readlink { ino },
        Request::Link { ino, parent, name },
        Request::Unlink { parent, name },
        Request::Rmdir { parent, name },
        Request::Rename { parent, name, new_parent: ino, new_name: target, flags, whiteout, moved, replaced },
        Request::ReadDir { ino, cookie: offset, max_entries: uid },
        Request::LookupAhead { parent, name, max_entries: uid },
    ]
}

/// Returns requests on the attributes and the bytes of a file.
fn file_requests(parts: &Parts) -> Vec<Request<'_>> {
    let (ino, offset, len) = parts.numbers;
    let (check, uid, gid, _) = parts.smalls;
    let (name, data) = (parts.names.0.as_slice(), parts.names.1.as_slice());
    let exclusive = parts.exclusive;
    let growth = [Growth::Stay, Growth::Reach, Growth::From(len)][uid as usize % 3];
    let how = [XattrSet::Any, XattrSet::Create, XattrSet::Replace][uid as usize % 3];
    vec![
        Request::GetAttr { ino },
        Request::SetAttr { ino, changes: parts.changes },
        Request::Accessed { ino, at: offset as i64 },
        Request::Open { ino, write: exclusive },
        Request::Close { ino },
        Request::Layout { ino, offset },
        Request::Allocate { ino, offset, len },
        Request::GetXattr { ino, name, offset: uid },
        Request::SetXattr {
            ino,
            name,
            value: data,
            how,
            continued: exclusive,
            drop_sgid: !exclusive,
            only_if: exclusive.then_some(ExpectedOwner { uid, gid: None }),
        },
        Request::XattrPart { value: data },
        Request::ListXattr { ino, offset: gid },
        Request::RemoveXattr { ino, name, only_if: None },
        Request::Fallocate { ino, offset, len, flags: FallocateFlags::from_bits_retain(uid) },
        Request::Copy { from: ino, from_offset: offset, to: offset, to_offset: len, len: ino },
        Request::Write { ino, offset, check, growth, data },
    ]
}

/// Returns requests on locks.
fn lock_requests(parts: &Parts) -> Vec<Request<'_>> {
    let (ino, owner, len) = parts.numbers;
    let ((_, uid, pid, _), exclusive) = (parts.smalls, parts.exclusive);
    let class = [LockClass::Record, LockClass::Flock][uid as usize % 2];
    let kind = [LockKind::Shared, LockKind::Exclusive, LockKind::Unlock][pid as usize % 3];
    let range = LockRange { first: owner, last: len };
    vec![
        Request::Lock { ino, owner, class, kind, range, pid, ticket: exclusive.then_some(len) },
        Request::StopWaiting { ticket: len },
        Request::TestLock { ino, owner, class, exclusive, range },
        Request::Grants,
        Request::Insist { ticket: len },
        Request::ConfirmLocks { ino },
    ]
}

proptest! {
    #[test]
    fn requests_round_trip(parts in parts()) {
        let mut bytes = Vec::new();
        for request in requests(&parts) {
            encode_request(&request, &mut bytes);
            prop_assert_eq!(decode_request(&bytes), Ok(request));
        }
    }

    #[test]
    fn replies_round_trip(reply in reply()) {
        let mut bytes = Vec::new();
        encode_reply(&reply, &mut bytes);
        prop_assert!(bytes.len() <= MAX_MESSAGE);
        prop_assert_eq!(decode_reply(&bytes), Ok(reply));
    }

    /// Each number is one place and each place one number. A range that ends inside the numbers of
    /// a store has no number of another store.
    #[test]
    fn places_are_numbers(number in number(), store in any::<u16>(), len in number()) {
        let place = DataPlace::from_number(number);
        prop_assert_eq!(DataPlace::new(place.store(), place.offset()), Some(place));
        prop_assert_eq!(place.number(), number);
        prop_assert_eq!(DataPlace::new(store, number).is_some(), number < DataPlace::STORE_LEN);
        if let Some(other) = DataPlace::new(store, number) {
            prop_assert_eq!((other.store(), other.offset()), (store, number));
        }
        match place.end(len) {
            Some(end) if len > 0 => {
                let last = DataPlace::from_number(number + (len - 1));
                prop_assert_eq!((last.store(), last.offset() + 1), (place.store(), end));
            }
            Some(end) => prop_assert_eq!(end, place.offset()),
            None => prop_assert!(len > DataPlace::STORE_LEN - place.offset()),
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..400)) {
        entry::check(&bytes);
    }

    /// Messages with one changed byte get further into the decoder than random bytes do.
    #[test]
    fn damaged_messages_do_not_panic(parts in parts(), reply in reply(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = Vec::new();
        for request in requests(&parts) {
            encode_request(&request, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = to;
            entry::check(&bytes);
        }
        encode_reply(&reply, &mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = to;
        entry::check(&bytes);
    }

    #[test]
    fn records_round_trip(attr in attr(), space in any::<[u64; 3]>(), version in any::<u64>(), write_time in any::<i64>(), appender in any::<u64>()) {
        let version = version & !1;
        let space = record::Space { allocated: space[0], needed_to: space[1], end: space[2] };
        let mut raw = [0; record::LEN];
        raw[record::INO..][..8].copy_from_slice(&attr.ino.to_le_bytes());
        raw[record::VERSION..][..8].copy_from_slice(&version.to_le_bytes());
        raw[record::SIZE..][..8].copy_from_slice(&attr.size.to_le_bytes());
        raw[record::WRITE_TIME..][..8].copy_from_slice(&write_time.to_le_bytes());
        raw[record::APPENDER..].copy_from_slice(&appender.to_le_bytes());
        raw[record::MTIME..record::APPENDER].copy_from_slice(&record::encode_server_part(&attr, &space, version));
        let (mtime, ctime) = record::effective_times(attr.mtime, attr.ctime, write_time);
        let blocks = space.visible(attr.size);
        prop_assert_eq!(record::decode(&raw, attr.ino, attr.slot), Some(Attr { mtime, ctime, blocks, ..attr }));
        prop_assert_eq!(record::decode(&raw, attr.ino ^ 1, attr.slot), None);
        // A flipped bit of the server's fields makes the record invalid.
        for bit in (0..64).chain(64..128).chain(256..8 * record::APPENDER) {
            let mut wrong = raw;
            wrong[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(record::decode(&wrong, attr.ino, attr.slot), None, "bit {}", bit);
        }
    }
}

/// Runs the entry point of the fuzz target on its seeds and all their prefixes, without cargo-fuzz.
#[test]
fn the_fuzz_target_accepts_its_seeds() {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    seeds.extend(crate::support::requests().iter().map(|(hex, _)| crate::support::unhex(hex)));
    seeds.extend(crate::support::replies().iter().map(|(hex, _)| crate::support::unhex(hex)));
    seeds.push(vec![0xff; MAX_MESSAGE]);
    seeds.push(vec![0; record::LEN]);
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/decode");
    let mut files = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        seeds.push(std::fs::read(file.unwrap().path()).unwrap());
        files += 1;
    }
    assert_eq!(files, crate::support::requests().len() + crate::support::replies().len());
    for seed in seeds {
        for len in 0..=seed.len().min(300) {
            entry::check(&seed[..len]);
        }
        entry::check(&seed);
    }
}

#[test]
fn preallocated_space_beyond_the_end_is_not_reported() {
    let space = record::Space { allocated: 80, needed_to: 3 * 4096, end: 12 * 4096 };
    // Ten blocks and two holes. The requested block always counts. The nine preallocated blocks
    // count up to the end of the file.
    assert_eq!(
        [0, 3 * 4096, 3 * 4096 + 1, 12 * 4096, u64::MAX].map(|size| space.visible(size)),
        [8, 8, 16, 80, 80]
    );
    assert_eq!(
        [0, 1, 4096, 4097, 9000].map(|size| record::Space::contiguous(16).visible(size)),
        [0, 8, 8, 16, 16]
    );
}

#[test]
fn mode_bits_round_trip() {
    for mode in 0..16u32 {
        let kind = FileKind::from_mode(mode << 12 | 0o644);
        assert_eq!(kind.is_some(), [1, 2, 4, 6, 8, 10, 12].contains(&mode), "{mode}");
        assert!(kind.is_none_or(|kind| kind.mode_bits() == mode << 12));
    }
}

#[test]
fn errors_show_name_and_meaning() {
    assert_eq!(Errno::ENOSPC.to_string(), "no space left (ENOSPC)");
    assert_eq!(Errno(9999).to_string(), "error number 9999");
    assert_eq!(format!("{:?} {:?}", Errno::ESTALE, Errno(9999)), "ESTALE errno 9999");
}

#[test]
fn places_of_the_servers_own_arena_are_offsets() {
    for offset in [0, 4096, DataPlace::STORE_LEN - 4096] {
        assert_eq!(DataPlace::new(0, offset).map(DataPlace::number), Some(offset));
    }
    assert_eq!(DataPlace::new(3, 7).map(DataPlace::number), Some(3 << 48 | 7));
}
