//! Snapshots of a file system in use, restored into fresh memory and compared with the visible
//! state at the moment of the snapshot.
//!
//! Requests run at fixed points of the snapshot: between the descriptions of two shards, and
//! before any bytes are copied.

use proptest::prelude::*;
use rfs_proto::FileKind;

use super::*;
use super::{
    reconnect::{attach, back},
    recovery::{Act, BLOCKS, INODES, Object, Seen, View, World, act},
};
use crate::{
    dispatch::transaction::view::ReadView,
    memory_object::{
        log::Log,
        op::{self, Op},
    },
    snapshots::{
        format::{Frames, Header, Kind, ReadError, Reader},
        read::Contents,
        restore::{RestoreError, restore},
        write::{Progress, snapshot},
    },
    space::{bytes::Bytes, nonzero_bitmap::NonzeroBitmap},
};

/// The number of descriptions before a snapshot's moment.
const DESCRIPTIONS: usize = SHARDS;

fn header() -> Header {
    Header { arena: BLOCKS * B, inodes: INODES as u32, identity: 7, number: 1, time: 0 }
}

/// Makes a server with a log, as with files, or without.
fn world(logged: bool) -> World {
    let fixture = match logged {
        true => Object::new().start(1, true).unwrap(),
        false => fixture(BLOCKS, INODES),
    };
    let Fixture { dispatcher, arena, table, clock } = fixture;
    World::new(Fixture { dispatcher: dispatcher.with_snapshots(), arena, table, clock })
}

fn take(world: &World) -> Vec<u8> {
    interleaved(world, || {})
}

/// Takes a snapshot, and calls `others` each time when its thread lets requests run.
fn interleaved(world: &World, mut others: impl FnMut()) -> Vec<u8> {
    let go_on = |_: Progress| {
        others();
        Ok(())
    };
    snapshot(&world.fixture.dispatcher, &header(), Vec::new(), go_on).unwrap()
}

/// Restores a snapshot into memory of this size.
fn restored(file: &[u8], blocks: u64, inodes: usize, logged: bool) -> Result<World, RestoreError> {
    restored_at(1_000_000, file, (blocks, inodes), logged)
}

/// Restores a snapshot at the time `now`.
fn restored_at(
    now: i64,
    file: &[u8],
    (blocks, inodes): (u64, usize),
    logged: bool,
) -> Result<World, RestoreError> {
    let memory = |len: usize| Arc::new(Memory::private(len).unwrap());
    let (arena, table) = (memory((blocks * B) as usize), memory(inodes * record::LEN));
    let dirt = || NonzeroBitmap::new(memory(4096), 0);
    let dirt = logged.then(dirt);
    let contents = Contents::read(file).unwrap();
    let state = restore(contents, file, (&Arc::clone(&arena).into(), &table), dirt.as_ref())?;
    let log = logged.then(|| Log::new(memory(1 << 19), 0, 1 << 18));
    let kept = RecoveredState { log, state: Some(state), dirt, starts: 1, clean: true };
    let clock = Arc::new(ManualClock::new(now));
    let memory = (Arc::clone(&arena), Arc::clone(&table));
    let dispatcher =
        Dispatcher::kept(memory, Zeroing::Inline, ROOT, Arc::clone(&clock) as Arc<dyn Clock>, kept);
    Ok(World::new(Fixture { dispatcher: dispatcher.unwrap(), arena, table, clock }))
}

/// Returns the state that clients do not change by writes.
fn unwritten(seen: &Seen) -> Seen {
    let mut seen = seen.clone();
    if seen.attr.kind == FileKind::Regular {
        (seen.attr.size, seen.attr.mtime, seen.attr.ctime) = (0, 0, 0);
        seen.data.clear();
    }
    // A read changes the access time without a recall.
    seen.attr.atime = 0;
    seen
}

fn without_data(view: &View) -> View {
    view.iter().map(|(path, seen)| (path.clone(), unwritten(seen))).collect()
}

fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    proptest::collection::vec(act(), 0..most)
}

/// Makes a file that gets all free space, and fills it with its number.
fn take_all(world: &World) {
    let client = world.client();
    let Reply::Opened(Opened { attr, .. }) = client.ask(create(ROOT_INO, "all", true)) else { return };
    let ask = |at| client.ask(Request::Allocate { ino: attr.ino, offset: at * B, len: B });
    // Until there is no space left.
    let _taken = (0..BLOCKS).take_while(|&at| matches!(ask(at), Reply::Layout(_))).count();
    for extent in client.layout(Request::Layout { ino: attr.ino, offset: 0 }).extents {
        world.fixture.arena.write(extent.arena as usize, &vec![attr.ino as u8; extent.len as usize]);
    }
    client.close(attr.ino);
}

/// `docs/design/server/persistence.md` says how a log gets into this state. A snapshot still has
/// everything, and can be restored into other memory.
#[test]
fn a_log_without_room_for_a_rewrite_is_readable_and_can_be_snapshotted() {
    let object = Object::with_segment(1 << 14);
    let first = object.start(1, true).unwrap();
    let client = attach(&first, 7, false);
    let journal = first.dispatcher.store.journal.as_ref().unwrap();
    // As much as may be added: more than half of a segment.
    let mut count = 0;
    while !journal.log().is_nearly_full() {
        client.mkdir(ROOT_INO, &format!("{count:0>200}"));
        first.dispatcher.log_upkeep().write_log_anew().unwrap();
        count += 1;
    }
    journal.log().exchange();
    for at in 0..SHARDS {
        let describe = |look: &mut ReadView<'_>| {
            let shard = look.namespace.inodes_mut().only();
            journal.describe(shard.inodes.iter().map(|(&ino, inode)| (ino, inode)))
        };
        first.dispatcher.store.transact(Plan::shard(at), None, describe).0.unwrap();
    }
    // The server is killed when everything is described but the description is not marked as
    // complete.
    let second = object.copy().start(2, false).unwrap();
    assert!(second.dispatcher.store.journal.as_ref().unwrap().log().is_incomplete());
    let there = back(&second, 7);
    assert_eq!(there.page(ROOT_INO, 0, 1000).entries.len(), count);
    until_eio(&there);
    let attach = |mount: Option<Identity>| {
        second.dispatcher.attachments().began(8, regions());
        let attach =
            Request::Attach { version: VERSION, client: "", export: "", keeps: false, alone: false, mount };
        Client { fixture: &second, id: 8 }.ask(attach)
    };
    assert_eq!(attach(Some(Identity([8; 16]))), Reply::Error(Errno::ENOSPC));
    let Fixture { dispatcher, .. } = second;
    let file = snapshot(&dispatcher.with_snapshots(), &header(), Vec::new(), |_| Ok(())).unwrap();
    let world = restored(&file, BLOCKS, INODES, true).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(world.client().page(ROOT_INO, 0, 1000).entries.len(), count);
    world.client().mkdir(ROOT_INO, "more");
}

/// Sends changes until the log has no room for them.
fn until_eio(client: &Client<'_>) {
    let changes = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    for _ in 0..1000 {
        if let Reply::Error(errno) = client.ask(Request::SetAttr { ino: ROOT_INO, changes }) {
            return assert_eq!(errno, Errno::EIO);
        }
    }
    panic!("no change was refused");
}

/// A file is removed at the moment of the snapshot, and another file asks for its space before it
/// has been copied.
#[test]
fn space_that_is_given_up_is_not_reused_until_it_has_been_copied() {
    for logged in [false, true] {
        let world = world(logged);
        let client = world.client();
        let old = client.create("old").attr;
        let data = vec![1; 40 * B as usize];
        client.write(&old, &client.allocate(old.ino, 0, 40 * B), 0, &data, 5);
        client.close(old.ino);
        let (mut turn, mut new) = (0, 0);
        let file = interleaved(&world, || {
            if turn == DESCRIPTIONS {
                client.unlink("old");
                new = client.create("new").attr.ino;
                let want = |len| Request::Allocate { ino: new, offset: 0, len };
                assert_eq!(client.error(want(40 * B)), Errno::ENOSPC);
                client.layout(want(20 * B));
            }
            turn += 1;
        });
        client.allocate(new, 0, 40 * B);
        let view = restored(&file, BLOCKS, INODES, logged).unwrap().view();
        let paths: Vec<&[u8]> = view.keys().map(Vec::as_slice).collect();
        assert_eq!(paths, [&b""[..], b"/old"]);
        assert_eq!(view[&b"/old"[..]].data, data);
    }
}

/// Clients write to the table, too, and may leave a record open forever.
#[test]
fn a_record_that_a_client_leaves_open_does_not_block_a_snapshot() {
    let world = world(false);
    let attr = world.client().create("f").attr;
    let table = &world.fixture.table;
    let word = |slot: u32, field: usize| slot as usize * record::LEN + field;
    let version = table.load_u64(word(attr.slot, record::VERSION));
    table.write(word(attr.slot, record::VERSION), &(version | 1).to_le_bytes());
    // And a record without an inode.
    table.write(word(attr.slot + 1, record::INO), &99_u64.to_le_bytes());
    table.write(word(attr.slot + 1, record::VERSION), &1_u64.to_le_bytes());
    let file = take(&world);
    assert!(restored(&file, BLOCKS, INODES, false).unwrap().view().contains_key(&b"/f"[..]));
}

/// Numbers that were given out after the snapshot are not given out again, by any number of
/// servers that restore it.
#[test]
fn an_inode_number_is_not_reused_after_a_restore() {
    let gap = 1 << 32;
    for logged in [false, true] {
        let world = world(logged);
        let kept = world.client().create("kept").attr.ino;
        let file = take(&world);
        let lost = world.client().create("lost").attr.ino;
        assert_eq!(lost, kept + 1);
        let year = 365 * 24 * 3600 * 1_000_000_000;
        let starts = [1_000_000, 50 * year, 50 * year + 1_000_000];
        let given = starts.map(|now| {
            let world = restored_at(now, &file, (BLOCKS, INODES), logged).unwrap();
            let client = world.client();
            assert_eq!(client.error(Request::GetAttr { ino: lost }), Errno::ESTALE);
            assert_eq!(client.attr(lookup(ROOT_INO, "kept")).ino, kept);
            let first = client.create("first").attr.ino;
            assert_eq!(client.create("second").attr.ino, first + 1);
            first
        });
        assert_eq!(given[0], kept + gap + 1);
        assert!(starts.iter().zip(&given).all(|(now, first)| *first > *now as u64), "{given:?}");
        assert!(given[1] - given[0] > gap && given[2] - given[1] >= 1_000_000, "{given:?}");
    }
}

/// The first log of a restored memory has to be complete: there is no other copy of the state.
#[test]
fn a_restore_writes_a_complete_log_or_fails() {
    let world = world(false);
    (0..150).for_each(|at| world.client().close(world.client().create(&format!("file-{at}")).attr.ino));
    let file = take(&world);
    let start = |segment: usize| {
        let memory = |len: usize| Arc::new(Memory::private(len).unwrap());
        let (arena, table) = (memory((BLOCKS * B) as usize), memory(INODES * record::LEN));
        let contents = Contents::read(&file[..]).unwrap();
        let bytes = Bytes::from(Arc::clone(&arena));
        let state = restore(contents, &file[..], (&bytes, &table), None).unwrap();
        let log = Some(Log::new(memory(2 * segment), 0, segment));
        let kept = RecoveredState { log, state: Some(state), dirt: None, starts: 1, clean: true };
        let clock = Arc::new(ManualClock::new(1));
        Dispatcher::kept((arena, table), Zeroing::Inline, ROOT, clock, kept).map(drop)
    };
    assert_eq!(start(1 << 18), Ok(()));
    assert!(matches!(start(1 << 12), Err(Damage::Full(_))));
}

/// The checksums are right, but two directories contain each other.
#[test]
fn a_snapshot_whose_directories_make_no_tree_is_rejected() {
    let world = world(false);
    let client = world.client();
    let (one, other) = (client.mkdir(ROOT_INO, "one").ino, client.mkdir(ROOT_INO, "other").ino);
    client.mkdir(other, "below");
    let file = take(&world);
    Contents::read(&file[..]).unwrap();
    let mut reader = Reader::begin(&file[..]).unwrap();
    let mut frames = Frames::begin(Vec::new(), &header()).unwrap();
    while let Some((kind, body)) = reader.frame().unwrap() {
        frames.frame(kind, &[body]).unwrap();
    }
    let mut ops = Vec::new();
    for (directory, name, entry) in [
        (ROOT_INO, "one", None),
        (ROOT_INO, "other", None),
        (one, "a", Some((other, 9))),
        (other, "b", Some((one, 9))),
    ] {
        op::encode(&Op::Name(directory, name.as_bytes(), entry), &mut ops);
    }
    frames.frame(Kind::Ops, &[&ops]).unwrap();
    let torn = frames.end().unwrap();
    assert!(matches!(Contents::read(&torn[..]), Err(ReadError::Nonsense)));
}

/// A client writes without the server, so that only the record has the size. The record is gone
/// or reused when the snapshot reads it.
#[test]
fn a_file_that_is_cut_or_removed_has_its_size_of_the_moment() {
    let world = world(true);
    let client = world.client();
    let made = |name| {
        let attr = client.create(name).attr;
        let layout = client.allocate(attr.ino, 0, 4 * B);
        client.write(&attr, &layout, 0, &[1; 10], 5);
        (attr, layout)
    };
    let files = ["removed", "cut", "replaced"].map(made);
    let mut turn = 0;
    let file = interleaved(&world, || {
        turn += 1;
        if turn == DESCRIPTIONS {
            files.iter().for_each(|(attr, layout)| client.write(attr, layout, 0, &[2; 9000], 6));
        }
        if turn == DESCRIPTIONS + 1 {
            for (attr, _) in &files {
                client.close(attr.ino);
            }
            client.unlink("removed");
            // The first value counts.
            client.truncate(files[1].0.ino, 7);
            client.truncate(files[1].0.ino, 100);
            client.truncate(files[1].0.ino, 3);
            client.create("new");
            client.done(rename((ROOT_INO, "new"), (ROOT_INO, "replaced"), RenameFlags::empty()));
        }
    });
    let view = restored(&file, BLOCKS, INODES, false).unwrap().view();
    for name in [&b"/removed"[..], b"/cut", b"/replaced"] {
        let seen = &view[name];
        assert_eq!((seen.attr.size, seen.attr.mtime), (9000, 6), "{name:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No request runs during the snapshot.
    #[test]
    fn a_snapshot_restores_everything(
        before in acts(60),
        after in acts(20),
        (logged, again) in any::<(bool, bool)>(),
    ) {
        let world = world(logged);
        before.iter().for_each(|act| world.act(act));
        let (file, expected) = (take(&world), world.view());
        after.iter().for_each(|act| world.act(act));
        let world = restored(&file, BLOCKS, INODES, again).unwrap();
        prop_assert_eq!(&world.view(), &expected);
        world.check_free_space(&expected);
        // The server goes on, also with larger memory.
        let bigger = restored(&file, BLOCKS + 300, INODES + 9, again).unwrap();
        prop_assert_eq!(bigger.view(), expected);
        after.iter().for_each(|act| world.act(act));
    }

    /// Requests run during the snapshot. Names and other state of the server are as of one moment.
    /// Files contain only their own bytes, up to their size at that moment or later.
    #[test]
    fn concurrent_requests_do_not_disturb_a_snapshot(
        before in acts(40),
        during in proptest::collection::vec((0..DESCRIPTIONS, act()), 0..30),
        after in acts(40),
        logged in any::<bool>(),
    ) {
        let mut world = world(logged);
        world.tagged = true;
        before.iter().for_each(|act| world.act(act));
        let (mut turn, mut expected) = (0, View::new());
        let file = interleaved(&world, || {
            match turn {
                0..DESCRIPTIONS => {
                    during.iter().filter(|(at, _)| *at == turn).for_each(|(_, act)| world.act(act));
                    if turn == DESCRIPTIONS - 1 {
                        expected = world.view();
                    }
                }
                // The moment of the snapshot, before any bytes are copied.
                DESCRIPTIONS => {
                    after.iter().for_each(|act| world.act(act));
                    take_all(&world);
                }
                _ => {}
            }
            turn += 1;
        });
        prop_assert!(turn > DESCRIPTIONS);
        let world = restored(&file, BLOCKS, INODES, false).unwrap();
        let view = world.view();
        prop_assert_eq!(without_data(&view), without_data(&expected));
        for (path, seen) in &view {
            // Independent of later changes.
            prop_assert!(seen.attr.size >= expected[path].attr.size, "{path:?} {seen:?} {:?}", expected[path]);
            let own = seen.attr.ino as u8;
            prop_assert!(seen.data.iter().all(|&byte| byte == own || byte == 0), "a byte of another file");
        }
        world.check_free_space(&view);
    }
}
