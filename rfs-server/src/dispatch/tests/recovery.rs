//! Servers that are killed: random requests on a memory object, which is copied as it is at some moment, and what the next server
//! makes of the copy. All that is visible is compared with what was visible when the last request had been answered.

use std::{cell::Cell, collections::BTreeMap};

use parking_lot::Mutex;
use proptest::prelude::*;
use rfs_proto::{FallocateFlags, FileKind, SetTime, Value, XattrSet};

use super::{
    model::{Path, Step, path, perform, step, walk},
    *,
};
use crate::durable::{Dirt, Log, replay::State};

pub(super) const BLOCKS: u64 = 64;
pub(super) const INODES: usize = 200;
/// Bytes of a segment of the log, unless a test says another number.
const SEGMENT: usize = 1 << 18;
/// Where the log begins.
const LOG: usize = 64;

/// What outlives a server.
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

    /// Starts the `starts`th server on it.
    pub(super) fn start(&self, starts: u64, clean: bool) -> Result<Fixture, Damage> {
        let clock = Arc::new(ManualClock::new(1000 * starts as i64));
        let (log, state) = if starts == 1 {
            (Log::new(Arc::clone(&self.state), LOG, self.segment), None)
        } else {
            let mut state = State::default();
            let log = Log::open(Arc::clone(&self.state), LOG, self.segment, |op| state.apply(op)).unwrap();
            (log, Some(state))
        };
        let kept =
            Kept { log: Some(log), state, dirt: Some(Dirt::new(Arc::clone(&self.state), 0)), starts, clean };
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
    /// Another session opens it, and keeps it open.
    Hold(Path),
    /// The other session ends.
    LetGo,
    /// The log is written anew.
    Anew,
    /// It begins to be written anew, which is not finished.
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
    /// The file whose bytes it changes: if it is not answered, they may have been changed in part.
    fn bytes_of(&self) -> Option<&Path> {
        match self {
            Act::Write(path, ..) | Act::Truncate(path, _) | Act::Space(path, ..) => Some(path),
            _ => None,
        }
    }
}

/// A server with the sessions that act: 1 opens and closes, 2 holds.
pub(super) struct World {
    pub(super) fixture: Fixture,
    writes: Cell<u8>,
    /// Files get their own number as bytes, and nothing else.
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
        let client = self.client();
        let find = |path: &Path| walk(&client, path).ok();
        match act {
            Act::Names(step) => drop(perform(&client, step)),
            Act::Write(path, at, len) => {
                let Some(ino) = find(path) else { return };
                let Reply::Opened(opened) = client.ask(Request::Open { ino, write: true }) else { return };
                if let Reply::Layout(_) = client.ask(Request::Allocate { ino, offset: *at, len: *len }) {
                    let layout = client.layout(Request::Layout { ino, offset: 0 });
                    let byte = if self.tagged { ino as u8 } else { writes };
                    let data = vec![byte; *len as usize];
                    client.write(&opened.attr, &layout, *at, &data, self.fixture.clock.now());
                }
                client.close(ino);
            }
            Act::Truncate(path, size) => {
                if let Some(ino) = find(path) {
                    let changes = SetAttr { size: Some(*size), ..SetAttr::default() };
                    client.ask(Request::SetAttr { ino, changes });
                }
            }
            Act::Space(path, offset, len, flags) => {
                let Some(ino) = find(path) else { return };
                if let Reply::Opened(_) = client.ask(Request::Open { ino, write: true }) {
                    client.ask(Request::Fallocate { ino, offset: *offset, len: *len, flags: *flags });
                    client.close(ino);
                }
            }
            Act::Chmod(path, perm) => {
                if let Some(ino) = find(path) {
                    let changes = SetAttr { perm: Some(*perm), uid: Some(*perm), ..SetAttr::default() };
                    client.ask(Request::SetAttr { ino, changes });
                }
            }
            Act::Times(path, time) => {
                if let Some(ino) = find(path) {
                    let at = Some(SetTime::At(*time));
                    let changes = SetAttr { atime: at, mtime: at, ..SetAttr::default() };
                    client.ask(Request::SetAttr { ino, changes });
                }
            }
            Act::Accessed(path, at) => {
                if let Some(ino) = find(path) {
                    client.ask(Request::Accessed { ino, at: *at });
                }
            }
            Act::SetXattr(path, name, len) => {
                if let Some(ino) = find(path) {
                    let full = [(1u16, 7u16), (4, 5), (0x10, 5), (0x20, 1)];
                    let entry = |(tag, perm): (u16, u16)| {
                        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &[0xff; 4]].concat()
                    };
                    let acl = [vec![2, 0, 0, 0], full.map(entry).concat()].concat();
                    let value = if *name == ACL { acl } else { vec![writes; *len] };
                    client.ask(Request::SetXattr {
                        ino,
                        name: name.as_bytes(),
                        value: &value,
                        how: XattrSet::Any,
                        continued: false,
                        drop_sgid: false,
                        only_if: None,
                    });
                }
            }
            Act::RemoveXattr(path, name) => {
                if let Some(ino) = find(path) {
                    client.ask(Request::RemoveXattr { ino, name: name.as_bytes(), only_if: None });
                }
            }
            Act::Hold(path) => {
                if let Some(ino) = find(path) {
                    let holder = Client { fixture: &self.fixture, id: 2 };
                    holder.ask(Request::Open { ino, write: true });
                    holder.ask(Request::Allocate { ino, offset: 0, len: 3 * B });
                }
            }
            Act::LetGo => {
                self.fixture.dispatcher.session_ended(2);
                self.fixture.client(2);
            }
            Act::Anew => self.fixture.dispatcher.write_log_anew().unwrap(),
            Act::Begin => {
                if let Some(journal) = &self.fixture.dispatcher.store.journal {
                    journal.log().exchange();
                }
            }
        }
    }

    /// All that can be seen, by path.
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
        Seen { attr, names, xattrs, list, target, data }
    }

    fn layout(&self, ino: u64) -> Layout {
        let mut extents = Vec::new();
        self.fixture.dispatcher.store.once(Plan::new(&[ino]), None, |look: &mut meta::Look<'_>| {
            extents.extend(look.file(ino).unwrap().extents());
        });
        Layout { generation: 0, extents, complete: true }
    }

    /// When those of before are over, everything that no name leads to is free, and free space is zero. Whatever files get next
    /// is zero, too.
    pub(super) fn check_what_is_free(&self, view: &View) {
        self.fixture.dispatcher.before_is_over();
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

/// What can be seen of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) attr: Attr,
    pub(super) names: Vec<(u64, Vec<u8>, u64)>,
    pub(super) list: (u64, Vec<u8>),
    pub(super) xattrs: Vec<(u64, Vec<u8>)>,
    pub(super) target: Vec<u8>,
    pub(super) data: Vec<u8>,
}

/// The same without the bytes, size and times of one inode.
fn without_bytes(view: &View, ino: Option<u64>) -> View {
    let mut view = view.clone();
    for seen in view.values_mut().filter(|seen| Some(seen.attr.ino) == ino) {
        seen.data.clear();
        (seen.attr.size, seen.attr.mtime, seen.attr.ctime) = (0, 0, 0);
    }
    view
}

/// The same without times.
fn without_times(view: &View) -> View {
    let mut view = view.clone();
    for seen in view.values_mut() {
        (seen.attr.atime, seen.attr.mtime, seen.attr.ctime) = (0, 0, 0);
    }
    view
}

/// Has a copy made of the object at each moment of a step at which it may be torn.
pub(super) fn watch(object: &Arc<Object>, fixture: &Fixture) -> Arc<Mutex<Vec<Object>>> {
    let copies = Arc::new(Mutex::new(Vec::new()));
    let (kept, object) = (Arc::clone(&copies), Arc::clone(object));
    let look = move || kept.lock().push(object.copy());
    *fixture.dispatcher.store.journal.as_ref().unwrap().witness.0.lock() = Some(Box::new(look));
    copies
}

/// The object between two copies, before and after a transaction was logged: that is written in part. How many bytes were to come at last.
pub(super) fn torn(old: &Object, new: &Object, cut: &prop::sample::Index) -> (Object, usize) {
    let torn = old.copy();
    let (old, new) = (bytes(&old.state), bytes(&new.state));
    let changed: Vec<usize> = (0..old.len()).filter(|&at| old[at] != new[at]).collect();
    // The first word comes last.
    let late = changed.first().map_or(0, |first| first / 8 * 8 + 8);
    let (last, first): (Vec<usize>, Vec<usize>) = changed.into_iter().partition(|&at| at < late);
    for &at in first.iter().take(cut.index(first.len() + 1)) {
        torn.state.write(at, &new[at..=at]);
    }
    (torn, last.len())
}

/// Threads change names while the log is written anew, again and again: the next server has what there is.
#[test]
fn the_log_is_written_anew_while_others_change() {
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
            fixture.dispatcher.session_ended(id);
        };
        std::thread::scope(|scope| {
            let workers = [11, 12, 13].map(|id| scope.spawn(move || work(id)));
            while !workers.iter().all(|worker| worker.is_finished()) {
                fixture.dispatcher.write_log_anew().unwrap();
            }
        });
        let before = world.view();
        let copy = object.copy();
        let world = World::new(copy.start(2, false).unwrap());
        assert_eq!(world.view(), before);
        world.check_what_is_free(&before);
    }
}

/// Nothing is lost where the log has no room: what adds something is refused before, then all changes, until there is room again.
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
    // Killed now: the next server has all that was answered.
    let killed = World::new(object.copy().start(2, false).unwrap());
    assert_eq!(without_times(&killed.view()), without_times(&world.view()));
    killed.client().unlink(&name(1));
    // Or it goes on by itself.
    assert!(world.fixture.dispatcher.has_long_log());
    world.fixture.dispatcher.write_log_anew().unwrap();
    client.unlink(&name(1));
    client.create("another");
    client.close(client.attr(lookup(ROOT_INO, "another")).ino);
    let again = World::new(object.copy().start(2, false).unwrap());
    assert_eq!(again.view(), world.view());
}

proptest! {
    /// Killed between two requests, again and again: everything that was answered is there.
    #[test]
    fn what_was_answered_is_there(runs in proptest::collection::vec(proptest::collection::vec(act(), 0..40), 1..4)) {
        let mut object = Object::new();
        let mut starts = 1;
        let mut before = None;
        for acts in &runs {
            let world = World::new(object.start(starts, starts == 1).unwrap());
            if let Some(before) = &before {
                prop_assert_eq!(&world.view(), before);
                world.check_what_is_free(before);
            }
            acts.iter().for_each(|act| world.act(act));
            before = Some(world.view());
            object = object.copy();
            starts += 1;
        }
        let before = before.unwrap();
        let world = World::new(object.start(starts, false).unwrap());
        prop_assert_eq!(&world.view(), &before);
        // Killed before anything is asked for: nothing of that is new.
        let again = object.copy();
        world.check_what_is_free(&before);
        let world = World::new(again.start(starts + 1, false).unwrap());
        prop_assert_eq!(&world.view(), &before);
        world.check_what_is_free(&before);
    }

    /// Killed in the middle of a request, its transaction written in part: all of it is there or nothing, but for bytes.
    #[test]
    fn what_was_not_answered_is_there_or_not(
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
        // Times are published before.
        prop_assert!(which > 0 || without_times(&seen) == lost, "{seen:?} {lost:?} {kept:?}");
        world.check_what_is_free(&view);
        prop_assert!(late <= 8);
        let world = World::new(logged.copy().start(2, false).unwrap());
        let view = world.view();
        let seen = without_bytes(&view, bytes_of);
        prop_assert!(seen == kept || which + 2 < copies.len() , "{seen:?} {kept:?}");
        world.check_what_is_free(&view);
    }

    /// Ended in order: the next server has the same, at once.
    #[test]
    fn who_ends_in_order_leaves_everything(acts in proptest::collection::vec(act(), 0..40)) {
        let object = Object::new();
        let world = World::new(object.start(1, true).unwrap());
        acts.iter().for_each(|act| world.act(act));
        let before = world.view();
        world.fixture.dispatcher.session_ended(1);
        world.fixture.dispatcher.session_ended(2);
        let totals = world.fixture.dispatcher.statfs();
        drop(world);
        let world = World::new(object.start(2, true).unwrap());
        prop_assert_eq!(&world.view(), &before);
        prop_assert_eq!(world.fixture.dispatcher.statfs(), totals);
        world.check_what_is_free(&before);
    }
}
