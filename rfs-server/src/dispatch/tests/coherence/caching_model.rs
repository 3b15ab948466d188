//! Random requests of several sessions that cache all they may.
//!
//! Each session has the state that it was told, without the state that was recalled. A session
//! without open recalls has only valid state. While no reply is deferred, that holds for all
//! sessions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rfs_proto::{FallocateFlags, Recall, XattrSet};

use super::*;

/// A number that is reduced to an existing session or inode.
type Any = usize;

#[derive(Clone, Debug)]
enum Step {
    Lookup(Any, &'static str),
    GetAttr(Any),
    ReadDir(Any),
    Create(Any, &'static str),
    Mkdir(Any, &'static str),
    Link(Any, Any, &'static str),
    Remove(Any, &'static str),
    Rename(Any, &'static str, Any, &'static str, u32),
    Open(Any, bool),
    Close(Any),
    Truncate(Any, u64),
    Chmod(Any, u32),
    Chown(Any, u32),
    SetXattr(Any),
    RemoveXattr(Any),
    Fallocate(Any, u64),
    Allocate(Any, u64),
    Copy(Any, Any),
    Write(Any, u64),
    /// Forgets an unlinked inode that the session knows.
    Forget(Any),
    /// Takes the recalls that have come, and asks for more.
    Pump,
    /// Ends the session, and starts another one.
    End,
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let any = || 0..1000usize;
    prop_oneof![
        6 => (any(), name()).prop_map(|(p, n)| Lookup(p, n)),
        1 => any().prop_map(|p| Lookup(p, "..")),
        4 => any().prop_map(GetAttr),
        3 => any().prop_map(ReadDir),
        3 => (any(), name()).prop_map(|(p, n)| Create(p, n)),
        3 => (any(), name()).prop_map(|(p, n)| Mkdir(p, n)),
        2 => (any(), any(), name()).prop_map(|(i, p, n)| Link(i, p, n)),
        3 => (any(), name()).prop_map(|(p, n)| Remove(p, n)),
        6 => (any(), name(), any(), name(), 0..6u32).prop_map(|(p, n, q, m, f)| Rename(p, n, q, m, f)),
        4 => (any(), proptest::bool::ANY).prop_map(|(i, w)| Open(i, w)),
        4 => any().prop_map(Close),
        1 => (any(), 0..20_000u64).prop_map(|(i, s)| Truncate(i, s)),
        1 => (any(), 0..0o777u32).prop_map(|(i, m)| Chmod(i, m)),
        2 => (any(), 0..2u32).prop_map(|(i, u)| Chown(i, u)),
        1 => any().prop_map(SetXattr),
        1 => any().prop_map(RemoveXattr),
        1 => (any(), 1..20_000u64).prop_map(|(i, l)| Fallocate(i, l)),
        2 => (any(), 1..20_000u64).prop_map(|(i, l)| Allocate(i, l)),
        1 => (any(), any()).prop_map(|(i, j)| Copy(i, j)),
        2 => (any(), 1..20_000u64).prop_map(|(i, l)| Write(i, l)),
        4 => any().prop_map(Forget),
        12 => Just(Pump),
        1 => Just(End),
    ]
}

/// The inodes of a step.
#[derive(Clone, Copy, Debug)]
struct Inos {
    first: u64,
    second: u64,
}

/// A request without its reply.
struct PendingRequest {
    reply: mpsc::Receiver<Reply>,
    step: Step,
    inos: Inos,
    /// The recalls that the session had taken, and the requests that it had made.
    at: (u64, u64),
}

/// A session that caches all it may.
struct CachingSession<'a> {
    client: Client<'a>,
    names: BTreeMap<(u64, Vec<u8>), Option<u64>>,
    attrs: BTreeMap<u64, Attr>,
    /// Owners of inodes, also of those whose attributes may not be cached.
    owners: BTreeMap<u64, (u32, u32)>,
    /// Inodes that the session knows and has not forgotten, and those that it knows to be unlinked.
    told: BTreeSet<u64>,
    unlinked: Vec<u64>,
    /// Open inodes: how often, and whether the session may write.
    open: BTreeMap<u64, (u32, bool)>,
    recalls: mpsc::Receiver<Reply>,
    /// A reply with recalls that the session has not taken yet.
    come: Option<Reply>,
    taken: u64,
    requests: u64,
    asked: Vec<PendingRequest>,
}

impl<'a> CachingSession<'a> {
    fn new(fixture: &'a Fixture, id: u64) -> CachingSession<'a> {
        let client = fixture.attached(id, true);
        let recalls = client.start(Request::Recalls { done: 0 });
        CachingSession {
            client,
            names: BTreeMap::new(),
            attrs: BTreeMap::new(),
            owners: BTreeMap::new(),
            told: BTreeSet::new(),
            unlinked: Vec::new(),
            open: BTreeMap::new(),
            recalls,
            come: None,
            taken: 0,
            requests: 0,
            asked: Vec::new(),
        }
    }

    fn keep(&mut self, attr: Attr) {
        self.owners.insert(attr.ino, (attr.uid, attr.gid));
        if attr.marks.contains(Marks::KEEP) {
            self.attrs.insert(attr.ino, without_mark(attr));
        }
    }

    /// Returns whether the session has open recalls.
    fn has_recalls(&mut self) -> bool {
        self.come = self.come.take().or_else(|| self.recalls.try_recv().ok());
        self.come.is_some()
    }

    /// Takes the recalls.
    fn pump(&mut self) {
        if !self.has_recalls() {
            return;
        }
        let reply = self.come.take().unwrap();
        let Reply::Recalls(recalls) = reply else { panic!("{reply:?}") };
        self.taken += 1;
        assert_eq!(recalls.number, self.taken);
        assert!(!recalls.recalls.is_empty());
        for recall in recalls.recalls {
            match recall {
                Recall::Name { parent, name } => {
                    self.names.remove(&(parent, name));
                    self.attrs.remove(&parent);
                }
                Recall::Names { ino } => {
                    self.names.retain(|(parent, _), _| *parent != ino);
                    self.attrs.remove(&ino);
                }
                Recall::Attr { ino } | Recall::Pages { ino } => drop(self.attrs.remove(&ino)),
                Recall::Owner { ino } => {
                    self.attrs.remove(&ino);
                    self.owners.remove(&ino);
                }
                Recall::Layout { .. } | Recall::Locks { .. } | Recall::Written { .. } => {}
                Recall::Unlinked { ino } => self.unlinked.push(ino),
                Recall::All => panic!("only a restarted server recalls everything"),
            }
        }
        self.recalls = self.client.start(Request::Recalls { done: self.taken });
    }

    /// Notes the inodes in a reply, even if their attributes may not be cached.
    fn hear(&mut self, reply: &Reply) {
        match reply {
            Reply::Attr(attr) => self.hold(attr),
            Reply::Opened(opened) => self.hold(&opened.attr),
            Reply::Dir(page) => page.entries.iter().for_each(|entry| self.hold(&entry.attr)),
            Reply::Unlinked(ino) => self.unlinked.push(*ino),
            _ => {}
        }
    }

    fn hold(&mut self, attr: &Attr) {
        if attr.nlink > 0 {
            self.told.insert(attr.ino);
        }
    }

    /// Forgets an unlinked inode, if no reply in progress can contain its number.
    fn forget(&mut self, any: Any) {
        if self.unlinked.is_empty() || !self.asked.is_empty() {
            return;
        }
        let ino = self.unlinked.swap_remove(any % self.unlinked.len());
        assert!(self.told.remove(&ino), "the session learns of {ino} once, and knew it");
        self.client.done(Request::Forget { inos: &ino.to_le_bytes() });
        self.names.retain(|(parent, _), _| *parent != ino);
        self.attrs.remove(&ino);
        self.owners.remove(&ino);
    }

    /// Caches the contents of a reply.
    fn learn(&mut self, step: &Step, Inos { first, second }: Inos, reply: &Reply) {
        let mut told = |parent, name: &[u8], ino| {
            self.names.insert((parent, name.to_vec()), ino);
        };
        match (step, reply) {
            (Step::Lookup(_, name), Reply::Error(Errno::ENOENT)) => told(first, name.as_bytes(), None),
            (Step::Lookup(_, name) | Step::Mkdir(_, name), Reply::Attr(attr)) => {
                told(first, name.as_bytes(), Some(attr.ino));
            }
            (Step::Create(_, name), Reply::Opened(opened)) => {
                told(first, name.as_bytes(), Some(opened.attr.ino));
            }
            (Step::Link(_, _, name), Reply::Attr(attr)) => told(second, name.as_bytes(), Some(attr.ino)),
            (Step::ReadDir(_), Reply::Dir(page)) => {
                page.entries.iter().for_each(|entry| told(first, &entry.name, Some(entry.attr.ino)));
            }
            _ => {}
        }
        match reply {
            Reply::Attr(attr) => self.keep(*attr),
            Reply::Opened(opened) => self.keep(opened.attr),
            Reply::Dir(page) => page.entries.iter().for_each(|entry| self.keep(entry.attr)),
            _ => {}
        }
    }
}

/// Returns the request of a step on an inode that it names by number.
fn inode_request(step: &Step, Inos { first, second }: Inos) -> Request<'static> {
    let set = |changes| Request::SetAttr { ino: first, changes };
    match *step {
        Step::GetAttr(_) => Request::GetAttr { ino: first },
        Step::ReadDir(_) => Request::ReadDir { ino: first, cookie: 0, max_entries: 9 },
        Step::Open(_, write) => Request::Open { ino: first, write },
        Step::Close(_) => Request::Close { ino: first },
        Step::Truncate(_, size) => set(SetAttr { size: Some(size), ..SetAttr::default() }),
        Step::Chmod(_, perm) => set(SetAttr { perm: Some(perm), ..SetAttr::default() }),
        Step::Chown(_, uid) => set(SetAttr { uid: Some(uid), ..SetAttr::default() }),
        Step::SetXattr(_) => Request::SetXattr {
            ino: first,
            name: b"user.x",
            value: b"v",
            how: XattrSet::Any,
            continued: false,
            drop_sgid: false,
            only_if: None,
        },
        Step::RemoveXattr(_) => Request::RemoveXattr { ino: first, name: b"user.x", only_if: None },
        Step::Fallocate(_, len) => {
            Request::Fallocate { ino: first, offset: 0, len, flags: FallocateFlags::empty() }
        }
        Step::Allocate(_, len) => Request::Allocate { ino: first, offset: 0, len },
        Step::Copy(..) => Request::Copy { from: first, from_offset: 0, to: second, to_offset: 0, len: 9000 },
        ref other => panic!("{other:?} is no request on an inode"),
    }
}

struct World<'a> {
    fixture: &'a Fixture,
    holders: Vec<CachingSession<'a>>,
    /// A session that caches nothing, and so knows the truth.
    oracle: Client<'a>,
    inos: Vec<u64>,
    last_session: u64,
    /// Whether a change has happened without waiting for recalls: by the end of a session or a
    /// close.
    unawaited: bool,
}

impl World<'_> {
    fn ino(&self, any: Any) -> u64 {
        self.inos[any % self.inos.len()]
    }

    fn inos(&self, step: &Step) -> Inos {
        use Step::*;
        let (first, second) = match *step {
            Pump | End | Forget(_) => (None, None),
            Link(ino, parent, _) => (Some(ino), Some(parent)),
            Rename(from, _, to, _, _) | Copy(from, to) => (Some(from), Some(to)),
            Lookup(any, _)
            | GetAttr(any)
            | ReadDir(any)
            | Create(any, _)
            | Mkdir(any, _)
            | Remove(any, _)
            | Open(any, _)
            | Close(any)
            | Truncate(any, _)
            | Chmod(any, _)
            | Chown(any, _)
            | SetXattr(any)
            | RemoveXattr(any)
            | Fallocate(any, _)
            | Allocate(any, _)
            | Write(any, _) => (Some(any), None),
        };
        let ino = |any: Option<Any>| any.map_or(0, |any| self.ino(any));
        Inos { first: ino(first), second: ino(second) }
    }

    fn look(&self, parent: u64, name: &str) -> Option<u64> {
        match self.oracle.ask(lookup(parent, name)) {
            Reply::Attr(attr) => Some(attr.ino),
            _ => None,
        }
    }

    fn stat(&self, ino: u64) -> Option<Attr> {
        match self.oracle.ask(Request::GetAttr { ino }) {
            Reply::Attr(attr) => Some(attr),
            _ => None,
        }
    }

    fn perform(&mut self, who: usize, step: &Step) {
        let inos = self.inos(step);
        match *step {
            Step::Pump => {
                self.holders[who].pump();
                self.deliver();
            }
            Step::End => self.end(who),
            Step::Forget(any) => self.holders[who].forget(any),
            Step::Write(_, len) => self.write(who, inos.first, len),
            _ => self.ask(who, step, inos),
        }
    }

    /// Returns the request of a step on names, or `None` if the step is another one.
    fn name_request(&self, step: &Step, Inos { first, second }: Inos) -> Option<Request<'static>> {
        let (perm, umask, uid, gid) = (0o755, 0, 0, 0);
        let request = match *step {
            Step::Lookup(_, name) => lookup(first, name),
            Step::Create(_, name) => create(first, name, false),
            Step::Mkdir(_, name) => {
                Request::Mkdir { parent: first, name: name.as_bytes(), perm, umask, uid, gid }
            }
            Step::Link(_, _, name) => Request::Link { ino: first, parent: second, name: name.as_bytes() },
            Step::Remove(_, name) => {
                let child = self.look(first, name).and_then(|ino| self.stat(ino));
                let (parent, name) = (first, name.as_bytes());
                match child.is_some_and(|attr| attr.kind == FileKind::Directory) {
                    true => Request::Rmdir { parent, name },
                    false => Request::Unlink { parent, name },
                }
            }
            Step::Rename(_, from, _, to, flags) => rename_as((first, from), (second, to), flags),
            _ => return None,
        };
        Some(request)
    }

    /// Returns the inodes that the request itself may change: the session knows their new state.
    fn own_inodes(&self, step: &Step, Inos { first, second }: Inos) -> BTreeSet<u64> {
        let mut own = BTreeSet::from([first, second]);
        if let Step::Remove(_, name) | Step::Rename(_, name, ..) = step {
            own.extend(self.look(first, name));
        }
        if let Step::Rename(_, _, _, name, _) = step {
            own.extend(self.look(second, name));
        }
        own
    }

    /// Sends the request of a step. The change is made, even if the reply is deferred.
    fn ask(&mut self, who: usize, step: &Step, inos: Inos) {
        let request = self.name_request(step, inos).unwrap_or_else(|| inode_request(step, inos));
        let own = self.own_inodes(step, inos);
        let before = self.stat(inos.first);
        let holder = &mut self.holders[who];
        holder.requests += 1;
        let reply = holder.client.start(request);
        holder.asked.push(PendingRequest {
            reply,
            step: step.clone(),
            inos,
            at: (holder.taken, holder.requests),
        });
        // A close does not wait for sessions that cache the attributes of before, with the space
        // ahead of need.
        self.unawaited |= matches!(step, Step::Close(_)) && self.stat(inos.first) != before;
        self.count_opens(who, step, inos.first);
        self.know_own(who, step, inos, &own);
        self.deliver();
    }

    /// Records the inode that a step has made, and the files that the session has open.
    fn count_opens(&mut self, who: usize, step: &Step, first: u64) {
        let made = match *step {
            Step::Create(_, name) | Step::Mkdir(_, name) => self.look(first, name),
            _ => Some(first),
        };
        let is_file = made.and_then(|ino| self.stat(ino)).is_some_and(|attr| attr.kind == FileKind::Regular);
        if let Some(ino) = made.filter(|ino| *ino > 0 && !self.inos.contains(ino)) {
            self.inos.push(ino);
        }
        let opened = match *step {
            Step::Create(..) => made.map(|ino| (ino, true)),
            Step::Open(_, write) => Some((first, write)),
            _ => None,
        };
        let open = &mut self.holders[who].open;
        if let Some((ino, write)) = opened.filter(|_| is_file) {
            let (count, writes) = open.get(&ino).copied().unwrap_or_default();
            open.insert(ino, (count + 1, writes || write));
        }
        if let (Step::Close(_), Some(&(count, writes))) = (step, open.get(&first)) {
            match count {
                1 => open.remove(&first),
                _ => open.insert(first, (count - 1, writes)),
            };
        }
    }

    /// Caches the state that a session knows from its own change.
    fn know_own(&mut self, who: usize, step: &Step, inos: Inos, own: &BTreeSet<u64>) {
        let truth: Vec<(u64, Option<Attr>)> = own.iter().map(|&ino| (ino, self.stat(ino))).collect();
        let keys: Vec<(u64, Vec<u8>)> = self.holders[who].names.keys().cloned().collect();
        let Inos { first, second } = inos;
        let mine = |parent: u64, name: &[u8]| match step {
            Step::Create(_, n) | Step::Mkdir(_, n) | Step::Remove(_, n) => {
                (parent, name) == (first, n.as_bytes())
            }
            Step::Link(_, _, n) => (parent, name) == (second, n.as_bytes()),
            Step::Rename(_, n, _, m, _) => {
                (parent, name) == (first, n.as_bytes())
                    || (parent, name) == (second, m.as_bytes())
                    || name == b".." && own.contains(&parent)
            }
            _ => false,
        };
        for (parent, name) in keys.into_iter().filter(|(parent, name)| mine(*parent, name)) {
            let ino = self.look(parent, std::str::from_utf8(&name).unwrap());
            self.holders[who].names.insert((parent, name), ino);
        }
        for (ino, attr) in truth {
            let holder = &mut self.holders[who];
            match attr {
                None => {
                    holder.attrs.remove(&ino);
                    holder.owners.remove(&ino);
                    holder.names.retain(|(parent, _), _| *parent != ino);
                }
                Some(attr) => {
                    holder.attrs.entry(ino).and_modify(|kept| *kept = attr);
                    holder.owners.entry(ino).and_modify(|owner| *owner = (attr.uid, attr.gid));
                }
            }
        }
    }

    /// Writes as a client does: it raises the size one-sidedly, and no session is told.
    fn write(&mut self, who: usize, ino: u64, len: u64) {
        if let Some(attr) = self.stat(ino)
            && self.holders[who].open.get(&ino).is_some_and(|(_, writes)| *writes)
        {
            self.holders[who].requests += 1;
            let at = attr.slot as usize * record::LEN;
            let now = self.fixture.clock.now();
            self.fixture.table.atomic_u64(at + record::SIZE).fetch_max(len, Ordering::SeqCst);
            self.fixture.table.atomic_u64(at + record::WRITE_TIME).store(now as u64, Ordering::SeqCst);
            self.know_own(who, &Step::Pump, Inos { first: ino, second: 0 }, &BTreeSet::from([ino]));
        }
    }

    fn end(&mut self, who: usize) {
        self.unawaited = true;
        self.fixture.dispatcher.attachments().ended(self.holders[who].client.id);
        self.last_session += 1;
        self.holders[who] = CachingSession::new(self.fixture, self.last_session);
        self.deliver();
    }

    /// Takes the replies that have come.
    fn deliver(&mut self) {
        for holder in &mut self.holders {
            for one in std::mem::take(&mut holder.asked) {
                let reply = one.reply.try_recv();
                reply.iter().for_each(|reply| holder.hear(reply));
                match reply {
                    // The session does not cache a reply if a recall or another change of its own
                    // came in between.
                    Ok(_) if one.at != (holder.taken, holder.requests) => {}
                    Ok(reply) => holder.learn(&one.step, one.inos, &reply),
                    Err(mpsc::TryRecvError::Empty) => holder.asked.push(one),
                    Err(mpsc::TryRecvError::Disconnected) => panic!("given up: {:?}", one.step),
                }
            }
        }
    }

    /// Makes each session forget its unlinked inodes and close its files.
    fn forget_all(&mut self) {
        for holder in &mut self.holders {
            while !holder.unlinked.is_empty() {
                holder.forget(0);
            }
            for (ino, (count, _)) in std::mem::take(&mut holder.open) {
                (0..count).for_each(|_| holder.client.close(ino));
            }
        }
    }

    /// Checks that the caches are valid where they have to be.
    fn check(&mut self) {
        let none_waits = self.holders.iter().all(|holder| holder.asked.is_empty());
        for holder in &self.holders {
            // An inode exists for each session that knows it, even without a name.
            holder.told.iter().for_each(|&ino| assert!(self.stat(ino).is_some(), "inode {ino} is gone"));
        }
        for who in 0..self.holders.len() {
            if self.holders[who].has_recalls() && (self.unawaited || !none_waits) {
                continue;
            }
            // A session may ask for an unlinked inode that it does not know. It does not learn that
            // the inode is gone.
            let exists = |ino: u64| self.stat(ino).is_some();
            for ((parent, name), ino) in
                self.holders[who].names.iter().filter(|((parent, _), _)| exists(*parent))
            {
                let name = std::str::from_utf8(name).unwrap();
                assert_eq!(self.look(*parent, name), *ino, "{name:?} of {parent}");
            }
            for (ino, attr) in &self.holders[who].attrs {
                assert!(self.stat(*ino).is_none_or(|is| is == *attr), "{attr:?}");
            }
            for (ino, owner) in &self.holders[who].owners {
                // A session does not learn that an inode is gone unless it caches more than the
                // owner.
                let is = self.stat(*ino).map(|attr| (attr.uid, attr.gid));
                assert!(is.is_none_or(|is| is == *owner), "inode {ino} belongs to {is:?}, not to {owner:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn cached_state_is_valid(
        steps in proptest::collection::vec((0..3usize, step()), 1..120),
        in_order_only in any::<bool>(),
    ) {
        // Never full: a full server frees unlinked inodes that sessions know.
        let mut fixture = fixture(2048, 400);
        if in_order_only {
            fixture.dispatcher.store.shards.lock_in_order_only();
        }
        let holders = [1, 2, 3].map(|id| CachingSession::new(&fixture, id)).into();
        let oracle = fixture.client(1000);
        let mut world =
            World { fixture: &fixture, holders, oracle, inos: vec![ROOT_INO], last_session: 3, unawaited: false };
        for (who, step) in &steps {
            world.perform(*who, step);
            world.check();
        }
        // In the end no session waits, and all caches are valid.
        while world.holders.iter_mut().any(CachingSession::has_recalls) {
            world.holders.iter_mut().for_each(CachingSession::pump);
        }
        world.deliver();
        prop_assert!(world.holders.iter().all(|holder| holder.asked.is_empty()));
        world.check();
        world.forget_all();
        let store = &world.fixture.dispatcher.store;
        prop_assert_eq!((store.idle.inodes(), store.idle.bytes()), (0, 0));
        for ino in &world.inos {
            prop_assert!(world.stat(*ino).is_none_or(|attr| attr.nlink > 0), "inode {} stays", ino);
        }
    }
}
