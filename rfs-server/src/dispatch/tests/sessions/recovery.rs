//! Killed servers: random requests run on a memory object, which is copied at some moment, and
//! the next server starts on the copy.
//!
//! All visible state is compared with the visible state after the last answered request.

use std::{cell::Cell, collections::BTreeMap};

use parking_lot::Mutex;
use proptest::prelude::*;
use rfs_proto::{FallocateFlags, FileKind, SetTime, Value, XattrSet};

use super::*;
use crate::{
    dispatch::{
        tests::model::{Path, Step, path, perform, step, walk},
        transaction::view::ReadView,
    },
    memory_object::{log::Log, replay::State},
    space::nonzero_bitmap::NonzeroBitmap,
};

pub(super) const BLOCKS: u64 = 64;
pub(super) const INODES: usize = 200;
/// Bytes of a segment of the log, unless a test sets another size.
const SEGMENT: usize = 1 << 18;
/// The offset of the log.
const LOG: usize = 64;

/// The memory that outlives a server.
pub(super) struct Object {
    arena: Arc<Memory>,
    table: Arc<Memory>,
    state: Arc<Memory>,
    segment: usize,
}

fn memory(len: usize) -> Arc<Memory> {
    Arc::new(Memory::private(len).unwrap())
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

impl Object {
    pub(super) fn new() -> Object {
        Object::with_segment(SEGMENT)
    }

    pub(super) fn with_segment(segment: usize) -> Object {
        Object {
            segment,
            arena: memory((BLOCKS * B) as usize),
            table: memory(INODES * record::LEN),
            state: memory(LOG + 2 * segment),
        }
    }

    pub(super) fn copy(&self) -> Object {
        let copy = |from: &Memory| {
            let to = memory(from.len());
            to.write(0, &bytes(from));
            to
        };
        Object {
            arena: copy(&self.arena),
            table: copy(&self.table),
            state: copy(&self.state),
            segment: self.segment,
        }
    }

    /// Starts a server on the object; `starts` counts the servers.
    pub(super) fn start(&self, starts: u64, clean: bool) -> Result<Fixture, Damage> {
        let clock = Arc::new(ManualClock::new(1000 * starts as i64));
        let (log, state) = if starts == 1 {
            (Log::new(Arc::clone(&self.state), LOG, self.segment), None)
        } else {
            let mut state = State::default();
            let log = Log::open(Arc::clone(&self.state), LOG, self.segment, |op| state.apply(op)).unwrap();
            (log, Some(state))
        };
        let kept = RecoveredState {
            log: Some(log),
            state,
            dirt: Some(NonzeroBitmap::new(Arc::clone(&self.state), 0)),
            starts,
            clean,
        };
        let (arena, table) = (Arc::clone(&self.arena), Arc::clone(&self.table));
        let memory = (Arc::clone(&arena), Arc::clone(&table));
        let dispatcher =
            Dispatcher::kept(memory, Zeroing::Inline, ROOT, Arc::clone(&clock) as Arc<dyn Clock>, kept)?;
        Ok(Fixture { dispatcher, arena, table, clock })
    }
}

#[derive(Clone, Debug)]
pub(super) enum Act {
    Names(Step),
    Write(Path, u64, u64),
    Truncate(Path, u64),
    Space(Path, u64, u64, FallocateFlags),
    Chmod(Path, u32),
    Times(Path, i64),
    Accessed(Path, i64),
    SetXattr(Path, &'static str, usize),
    RemoveXattr(Path, &'static str),
    /// Another session opens the file, and keeps it open.
    Hold(Path),
    /// The other session ends.
    LetGo,
    /// The log is rewritten.
    Anew,
    /// A rewrite of the log begins, and does not end.
    Begin,
}

const ACL: &str = "system.posix_acl_default";

pub(super) fn act() -> impl Strategy<Value = Act> {
    let name = || prop_oneof![Just("user.a"), Just("security.capability"), Just("user.b"), Just(ACL)];
    let flags = prop_oneof![
        Just(FallocateFlags::empty()),
        Just(FallocateFlags::KEEP_SIZE),
        Just(FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE),
        Just(FallocateFlags::ZERO_RANGE),
    ];
    let at = || 0..6 * B;
    prop_oneof![
        12 => step().prop_map(Act::Names),
        6 => (path(), at(), 1..2 * B).prop_map(|(path, at, len)| Act::Write(path, at, len)),
        3 => (path(), at()).prop_map(|(path, size)| Act::Truncate(path, size)),
        3 => (path(), at(), 1..2 * B, flags).prop_map(|(path, at, len, flags)| Act::Space(path, at, len, flags)),
        1 => (path(), 0..0o10000u32).prop_map(|(path, perm)| Act::Chmod(path, perm)),
        1 => (path(), any::<i32>()).prop_map(|(path, time)| Act::Times(path, time.into())),
        1 => (path(), any::<i32>()).prop_map(|(path, time)| Act::Accessed(path, time.into())),
        2 => (path(), name(), 0..300usize).prop_map(|(path, name, len)| Act::SetXattr(path, name, len)),
        1 => (path(), name()).prop_map(|(path, name)| Act::RemoveXattr(path, name)),
        2 => path().prop_map(Act::Hold),
        1 => Just(Act::LetGo),
        1 => Just(Act::Anew),
        1 => Just(Act::Begin),
    ]
}

impl Act {
    /// Returns the file whose bytes the act changes. If the act is not answered, they may have
    /// changed in part.
    fn bytes_of(&self) -> Option<&Path> {
        match self {
            Act::Write(path, ..) | Act::Truncate(path, _) | Act::Space(path, ..) => Some(path),
            _ => None,
        }
    }
}

/// A server with two sessions: session 1 opens and closes, and session 2 holds files open.
pub(super) struct World {
    pub(super) fixture: Fixture,
    writes: Cell<u8>,
    /// Whether each file contains only its own number as bytes.
    pub(super) tagged: bool,
}

impl World {
    pub(super) fn client(&self) -> Client<'_> {
        Client { fixture: &self.fixture, id: 1 }
    }

    pub(super) fn new(fixture: Fixture) -> World {
        for id in [1, 2] {
            fixture.client(id);
        }
        World { fixture, writes: Cell::new(0), tagged: false }
    }

    pub(super) fn act(&self, act: &Act) {
        let writes = self.writes.get().wrapping_add(1).max(1);
        self.writes.set(writes);
        match act {
            Act::Names(step) => drop(perform(&self.client(), step)),
            Act::LetGo => {
                self.fixture.dispatcher.attachments().ended(2);
                self.fixture.client(2);
            }
            Act::Anew => self.fixture.dispatcher.log_upkeep().write_log_anew().unwrap(),
            Act::Begin => {
                if let Some(journal) = &self.fixture.dispatcher.store.journal {
                    journal.log().exchange();
                }
            }
            Act::Write(path, ..)
            | Act::Truncate(path, _)
            | Act::Space(path, ..)
            | Act::Chmod(path, _)
            | Act::Times(path, _)
            | Act::Accessed(path, _)
            | Act::SetXattr(path, ..)
            | Act::RemoveXattr(path, _)
            | Act::Hold(path) => {
                if let Ok(ino) = walk(&self.client(), path) {
                    self.act_on(ino, act, writes);
                }
            }
        }
    }

    /// Acts on an inode; `writes` is the byte to write.
    fn act_on(&self, ino: u64, act: &Act, writes: u8) {
        let client = self.client();
        let set = |changes| drop(client.ask(Request::SetAttr { ino, changes }));
        match *act {
            Act::Write(_, at, len) => self.write(ino, at, len, writes),
            Act::Truncate(_, size) => set(SetAttr { size: Some(size), ..SetAttr::default() }),
            Act::Space(_, offset, len, flags) => {
                if let Reply::Opened(_) = client.ask(Request::Open { ino, write: true }) {
                    client.ask(Request::Fallocate { ino, offset, len, flags });
                    client.close(ino);
                }
            }
            Act::Chmod(_, perm) => set(SetAttr { perm: Some(perm), uid: Some(perm), ..SetAttr::default() }),
            Act::Times(_, time) => {
                let at = Some(SetTime::At(time));
                set(SetAttr { atime: at, mtime: at, ..SetAttr::default() });
            }
            Act::Accessed(_, at) => drop(client.ask(Request::Accessed { ino, at })),
            Act::SetXattr(_, name, len) => self.set_xattr(ino, name, &vec![writes; len]),
            Act::RemoveXattr(_, name) => {
                client.ask(Request::RemoveXattr { ino, name: name.as_bytes(), only_if: None });
            }
            Act::Hold(_) => {
                let holder = Client { fixture: &self.fixture, id: 2 };
                holder.ask(Request::Open { ino, write: true });
                holder.ask(Request::Allocate { ino, offset: 0, len: 3 * B });
            }
            Act::Names(_) | Act::LetGo | Act::Anew | Act::Begin => panic!("{act:?} has no inode"),
        }
    }

    fn write(&self, ino: u64, at: u64, len: u64, byte: u8) {
        let client = self.client();
        let Reply::Opened(opened) = client.ask(Request::Open { ino, write: true }) else { return };
        if let Reply::Layout(_) = client.ask(Request::Allocate { ino, offset: at, len }) {
            let layout = client.layout(Request::Layout { ino, offset: 0 });
            let byte = if self.tagged { ino as u8 } else { byte };
            let data = vec![byte; len as usize];
            client.write(&opened.attr, &layout, at, &data, self.fixture.clock.now());
        }
        client.close(ino);
    }

    /// Sets an extended attribute. An ACL has a valid value in place of `value`.
    fn set_xattr(&self, ino: u64, name: &str, value: &[u8]) {
        let full = [(1u16, 7u16), (4, 5), (0x10, 5), (0x20, 1)];
        let entry =
            |(tag, perm): (u16, u16)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &[0xff; 4]].concat();
        let acl = [vec![2, 0, 0, 0], full.map(entry).concat()].concat();
        self.client().ask(Request::SetXattr {
            ino,
            name: name.as_bytes(),
            value: if name == ACL { &acl } else { value },
            how: XattrSet::Any,
            continued: false,
            drop_sgid: false,
            only_if: None,
        });
    }

    /// Returns all visible state, by path.
    pub(super) fn view(&self) -> View {
        let client = self.client();
        let mut view = View::new();
        let mut queue: Vec<(Vec<u8>, u64)> = vec![(Vec::new(), ROOT_INO)];
        while let Some((path, ino)) = queue.pop() {
            let page = match client.stat(ino).kind {
                FileKind::Directory => client.page(ino, 0, 1000).entries,
                _ => Vec::new(),
            };
            let mut names = Vec::new();
            for entry in page {
                queue.push(([&path[..], b"/", &entry.name].concat(), entry.attr.ino));
                names.push((entry.cookie, entry.name, entry.attr.ino));
            }
            view.insert(path, self.seen(ino, names));
        }
        view
    }

    fn seen(&self, ino: u64, names: Vec<(u64, Vec<u8>, u64)>) -> Seen {
        let client = self.client();
        let value = |request| match client.ask(request) {
            Reply::Value(Value { version, bytes, .. }) => (version, bytes),
            other => panic!("{other:?}"),
        };
        let mut attr = without_mark(client.stat(ino));
        (attr.layout_generation, attr.blocks) = (0, 0);
        let list = value(Request::ListXattr { ino, offset: 0 });
        let each = list.1.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let xattrs = each.map(|name| value(Request::GetXattr { ino, name, offset: 0 })).collect();
        let target = match client.ask(Request::Readlink { ino }) {
            Reply::Target(target) => target,
            _ => Vec::new(),
        };
        let data = match attr.kind {
            FileKind::Regular => client.read(&self.layout(ino), 0, attr.size),
            _ => Vec::new(),
        };
        let Reply::Birth(birth) = client.ask(Request::Birth { ino }) else { panic!("no birth") };
        Seen { attr, birth, names, xattrs, list, target, data }
    }

    fn layout(&self, ino: u64) -> Layout {
        let mut extents = Vec::new();
        self.fixture.dispatcher.store.transact(Plan::new(&[ino]), None, |look: &mut ReadView<'_>| {
            extents.extend(look.file(ino).unwrap().extents());
        });
        Layout { generation: 0, extents, complete: true }
    }

    /// Checks, after `before_is_over`, that all inodes and space without a name are free and zero,
    /// also the space that files get next.
    pub(super) fn check_free_space(&self, view: &View) {
        self.fixture.dispatcher.log_upkeep().before_is_over();
        let inos: BTreeMap<u64, &Seen> = view.values().map(|seen| (seen.attr.ino, seen)).collect();
        assert_eq!(self.fixture.free_inodes(), (INODES - inos.len()) as u64);
        let files = || inos.iter().filter(|(_, seen)| seen.attr.kind == FileKind::Regular);
        let layouts: Vec<Layout> = files().map(|(&ino, _)| self.layout(ino)).collect();
        let used: u64 = layouts.iter().flat_map(|layout| &layout.extents).map(|extent| extent.len).sum();
        assert_eq!(self.fixture.free_blocks(), BLOCKS - used / B);
        self.fixture.assert_free_space_is_zero(&layouts.iter().collect::<Vec<_>>());
        let client = self.client();
        for (&ino, seen) in files() {
            client.truncate(ino, seen.attr.size + 3 * B);
            let beyond = client.read(&self.layout(ino), seen.attr.size, 3 * B);
            assert!(beyond.iter().all(|&byte| byte == 0), "old bytes behind the end of {ino}");
        }
    }
}

pub(super) type View = BTreeMap<Vec<u8>, Seen>;

/// The visible state of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) attr: Attr,
    pub(super) birth: Option<i64>,
    pub(super) names: Vec<(u64, Vec<u8>, u64)>,
    pub(super) list: (u64, Vec<u8>),
    pub(super) xattrs: Vec<(u64, Vec<u8>)>,
    pub(super) target: Vec<u8>,
    pub(super) data: Vec<u8>,
}

/// Returns the view without the bytes, size and times of one inode.
fn without_bytes(view: &View, ino: Option<u64>) -> View {
    let mut view = view.clone();
    for seen in view.values_mut().filter(|seen| Some(seen.attr.ino) == ino) {
        seen.data.clear();
        (seen.attr.size, seen.attr.mtime, seen.attr.ctime) = (0, 0, 0);
    }
    view
}

/// Returns the view without times.
fn without_times(view: &View) -> View {
    let mut view = view.clone();
    for seen in view.values_mut() {
        (seen.attr.atime, seen.attr.mtime, seen.attr.ctime) = (0, 0, 0);
    }
    view
}

/// Copies the object at each moment of a transaction at which it may be torn.
pub(super) fn watch(object: &Arc<Object>, fixture: &Fixture) -> Arc<Mutex<Vec<Object>>> {
    let copies = Arc::new(Mutex::new(Vec::new()));
    let (kept, object) = (Arc::clone(&copies), Arc::clone(object));
    let look = move || kept.lock().push(object.copy());
    *fixture.dispatcher.store.journal.as_ref().unwrap().witness.0.lock() = Some(Box::new(look));
    copies
}

/// Returns the state between two copies, before and after the append of a transaction that is
/// written in part. Also returns the number of bytes that were written last.
pub(super) fn torn(old: &Object, new: &Object, cut: &prop::sample::Index) -> (Object, usize) {
    let torn = old.copy();
    let (old, new) = (bytes(&old.state), bytes(&new.state));
    let changed: Vec<usize> = (0..old.len()).filter(|&at| old[at] != new[at]).collect();
    // The first word of a transaction is written last.
    let late = changed.first().map_or(0, |first| first / 8 * 8 + 8);
    let (last, first): (Vec<usize>, Vec<usize>) = changed.into_iter().partition(|&at| at < late);
    for &at in first.iter().take(cut.index(first.len() + 1)) {
        torn.state.write(at, &new[at..=at]);
    }
    (torn, last.len())
}

/// Threads change names while the log is rewritten repeatedly. The next server has all names.
#[test]
fn the_log_is_rewritten_while_threads_change_names() {
    for round in 0..4u64 {
        let object = Object::with_segment(1 << 20);
        let world = World::new(object.start(1, true).unwrap());
        let fixture = &world.fixture;
        let directories =
            ["d0", "d1", "d2"].map(|name| fixture.attached(1000, false).mkdir(ROOT_INO, name).ino);
        let work = |id: u64| {
            let client = fixture.client(id);
            for number in 0..300 {
                let of = |at: u64| directories[((at ^ round) % 3) as usize];
                let (name, other) = (format!("{id}-{}", number % 11), format!("{id}-{}", number % 7));
                client.ask(create(of(number), &name, false));
                client.ask(rename((of(number), &name), (of(number / 3), &other), RenameFlags::empty()));
                client.ask(Request::Unlink { parent: of(number / 2), name: other.as_bytes() });
            }
            fixture.dispatcher.attachments().ended(id);
        };
        std::thread::scope(|scope| {
            let workers = [11, 12, 13].map(|id| scope.spawn(move || work(id)));
            while !workers.iter().all(|worker| worker.is_finished()) {
                fixture.dispatcher.log_upkeep().write_log_anew().unwrap();
            }
        });
        let before = world.view();
        let copy = object.copy();
        let world = World::new(copy.start(2, false).unwrap());
        assert_eq!(world.view(), before);
        world.check_free_space(&before);
    }
}

/// A full log loses nothing: it refuses additions first, and then all changes, until there is
/// room again.
#[test]
fn a_full_log_refuses_and_recovers() {
    let object = Object::with_segment(1 << 14);
    let world = World::new(object.start(1, true).unwrap());
    let client = world.client();
    let name = |number: usize| format!("file-{number}");
    let mut made = 0;
    let refused = loop {
        match client.ask(create(ROOT_INO, &name(made), true)) {
            Reply::Opened(opened) => client.close(opened.attr.ino),
            Reply::Error(errno) => break errno,
            other => panic!("{other:?}"),
        }
        made += 1;
    };
    assert_eq!(refused, Errno::ENOSPC);
    assert!(made > 50, "{made}");
    client.unlink(&name(0));
    let changes = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let refused = loop {
        match client.ask(Request::SetAttr { ino: ROOT_INO, changes }) {
            Reply::Attr(_) => {}
            Reply::Error(errno) => break errno,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused, Errno::EIO);
    assert_eq!(client.error(Request::Unlink { parent: ROOT_INO, name: name(1).as_bytes() }), Errno::EIO);
    client.ask(lookup(ROOT_INO, &name(1)));
    // After a kill, the next server has all answered changes.
    let killed = World::new(object.copy().start(2, false).unwrap());
    assert_eq!(without_times(&killed.view()), without_times(&world.view()));
    killed.client().unlink(&name(1));
    // The server itself can also go on.
    assert!(world.fixture.dispatcher.log_upkeep().has_long_log());
    world.fixture.dispatcher.log_upkeep().write_log_anew().unwrap();
    client.unlink(&name(1));
    client.create("another");
    client.close(client.attr(lookup(ROOT_INO, "another")).ino);
    let again = World::new(object.copy().start(2, false).unwrap());
    assert_eq!(again.view(), world.view());
}

proptest! {
    /// The server is killed between two requests, several times: all answered changes are there.
    #[test]
    fn answered_changes_survive_a_kill(runs in proptest::collection::vec(proptest::collection::vec(act(), 0..40), 1..4)) {
        let mut object = Object::new();
        let mut starts = 1;
        let mut before = None;
        for acts in &runs {
            let world = World::new(object.start(starts, starts == 1).unwrap());
            if let Some(before) = &before {
                prop_assert_eq!(&world.view(), before);
                world.check_free_space(before);
            }
            acts.iter().for_each(|act| world.act(act));
            before = Some(world.view());
            object = object.copy();
            starts += 1;
        }
        let before = before.unwrap();
        let world = World::new(object.start(starts, false).unwrap());
        prop_assert_eq!(&world.view(), &before);
        // Killed before the first request: the inodes and space are unchanged.
        let again = object.copy();
        world.check_free_space(&before);
        let world = World::new(again.start(starts + 1, false).unwrap());
        prop_assert_eq!(&world.view(), &before);
        world.check_free_space(&before);
    }

    /// The server is killed during a request, and its transaction is written in part. All of the
    /// change is there or nothing, except for bytes.
    #[test]
    fn an_unanswered_change_survives_a_kill_as_a_whole_or_not_at_all(
        acts in proptest::collection::vec(act(), 0..25),
        last in act(),
        (which, cut) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let object = Arc::new(Object::new());
        let world = World::new(object.start(1, true).unwrap());
        acts.iter().for_each(|act| world.act(act));
        let before = world.view();
        let bytes_of = last.bytes_of().and_then(|path| walk(&world.client(), path).ok());
        let copies = watch(&object, &world.fixture);
        world.act(&last);
        let after = world.view();
        let copies = copies.lock();
        if copies.is_empty() {
            return Ok(());
        }
        let which = which.index(copies.len() / 2) * 2;
        let logged = &copies[which + 1];
        let (torn, late) = torn(&copies[which], logged, &cut);
        let (lost, kept) = (without_bytes(&before, bytes_of), without_bytes(&after, bytes_of));
        let lost = without_times(&lost);
        let world = World::new(torn.start(2, false).unwrap());
        let view = world.view();
        let seen = without_bytes(&view, bytes_of);
        // Times are published earlier.
        prop_assert!(which > 0 || without_times(&seen) == lost, "{seen:?} {lost:?} {kept:?}");
        world.check_free_space(&view);
        prop_assert!(late <= 8);
        let world = World::new(logged.copy().start(2, false).unwrap());
        let view = world.view();
        let seen = without_bytes(&view, bytes_of);
        prop_assert!(seen == kept || which + 2 < copies.len() , "{seen:?} {kept:?}");
        world.check_free_space(&view);
    }

    /// The server ends in order. The next server has the same state at once.
    #[test]
    fn an_orderly_end_keeps_everything(acts in proptest::collection::vec(act(), 0..40)) {
        let object = Object::new();
        let world = World::new(object.start(1, true).unwrap());
        acts.iter().for_each(|act| world.act(act));
        let before = world.view();
        world.fixture.dispatcher.attachments().ended(1);
        world.fixture.dispatcher.attachments().ended(2);
        let totals = world.fixture.dispatcher.statfs();
        drop(world);
        let world = World::new(object.start(2, true).unwrap());
        prop_assert_eq!(&world.view(), &before);
        prop_assert_eq!(world.fixture.dispatcher.statfs(), totals);
        world.check_free_space(&before);
    }
}
