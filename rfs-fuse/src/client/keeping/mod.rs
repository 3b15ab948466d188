//! What this client, and the kernel that it tells, may keep until it is recalled.
//!
//! Whoever asks the server for something to keep notes the moment before ([`Client::since`]). What came is kept only if nothing that
//! concerns it was recalled since; and while the kernel is told, no recall is noted ([`Client::telling`]). So the kernel is told
//! first and loses it then, in this order, and never keeps what it should have lost.
//!
//! Lock order: the recalls, then an inode's lease, then any one of the others, which are held for moments.

mod afterwards;
mod ahead;
mod changes;
mod directories;
mod interest;
mod lease;
mod listing;
mod pages;
mod recalled;

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rdmabox::{Cancel, RequestError};
use rfs_proto::{Attr, Marks, Recall, Recalls, Reply, Request, decode_reply, encode_request};

use super::{
    Client, ClientError,
    inode::{Inode, InodeTable},
};
use afterwards::Afterwards;
use ahead::Ahead;
pub(crate) use changes::Effect;
pub use changes::{Changes, UnderWay};
use directories::Directories;
pub(crate) use directories::{ListingId, Mark};
pub(crate) use interest::Interest;
pub(crate) use lease::Lease;
pub(crate) use listing::Listing;
pub use listing::Opened;
pub(crate) use pages::PageState;
pub(crate) use recalled::{Moment, Recalled};

/// Whoever keeps what the client told him, and so has to hear of what is recalled.
pub trait Keeper: Send + Sync {
    /// Drops this. On return nothing of it is kept any more, but for what a [change](Changes) that is under way may be holding.
    fn drop_all(&self, recalls: &[Recall]);

    /// Has a directory's names, of which only recalls are heard, dropped and [returned](Client::return_names). Waits for nothing.
    fn return_names(&self, _dir: u64) {}
}

/// Drops all names, which nobody can list. Waits for nobody.
type DropNames = Box<dyn Fn() + Send + Sync>;

/// The moment before something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    recalled: Moment,
    /// Among this client's own changes.
    changed: Moment,
}

/// What is kept, and what was recalled.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    /// False if nothing may be kept: not agreed with the server, or the session is over.
    on: AtomicBool,
    recalled: RwLock<Recalled>,
    /// Inodes that this client has changed, in the shape of recalls of their attributes.
    changed: Mutex<Recalled>,
    pub(crate) directories: Mutex<Directories>,
    pub(crate) ahead: Mutex<Ahead>,
    afterwards: Mutex<Afterwards>,
    changes: Changes,
    names: Names,
}

/// Whoever keeps names.
#[derive(Default)]
struct Names(OnceLock<DropNames>);

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

impl Keeping {
    pub(crate) fn new(on: bool) -> Keeping {
        Keeping { on: AtomicBool::new(on), ..Keeping::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Nothing that was known is known any more.
    pub(crate) fn begin_anew(&self, inodes: &InodeTable) {
        let mut recalled = self.recalled.write();
        recalled.note_all();
        self.directories.lock().forget_all();
        self.ahead.lock().forget_all();
        self.afterwards.lock().removed();
        for inode in inodes.numbers().into_iter().filter_map(|ino| inodes.get(ino)) {
            inode.lease.lock().recalled(Instant::now());
            inode.pages.recalled();
            inode.hold.recalled(inodes.sharing());
            inode.size.lock().distrust();
            inode.listing.lock().recalled();
        }
        // Before anybody hears how an operation of before has ended, and looks for what came of it.
        if let Some(drop_names) = self.names.0.get() {
            drop_names();
        }
    }
}

/// While this exists, no recall is noted.
#[derive(Debug)]
pub struct Telling<'c> {
    client: &'c Client,
    recalled: RwLockReadGuard<'c, Recalled>,
}

impl Telling<'_> {
    /// This moment.
    pub(crate) fn now(&self) -> Since {
        Since { recalled: self.recalled.now(), changed: self.client.keeping.changed.lock().now() }
    }

    /// What was asked for since then about a name, also that there is none, may be kept.
    pub fn keeps_name(&self, since: Since, parent: u64, name: &[u8]) -> bool {
        self.client.keeping.is_on() && !self.recalled.name(since.recalled, parent, name)
    }

    /// That there is no such name, which was asked for since then, may be kept, and is known to be from now on.
    pub fn keeps_absence(&self, since: Since, parent: u64, name: &[u8]) -> bool {
        self.keeps_name(since, parent, name) && self.client.inodes.absent(parent, name)
    }

    /// Returns true if the caller may keep the inode that a name stands for, too: nothing of the
    /// inode was recalled since, so the caller goes by the right owner. The inode is known by this
    /// name from now on, kept or not: the caller is told of the name and may remember it.
    pub fn keeps_what_is_named(&self, since: Since, parent: u64, name: &[u8], attr: &Attr) -> bool {
        // These two are looked up for who has a handle, and are nothing that is walked over.
        if !matches!(name, b"." | b"..") {
            self.client.inodes.named(attr.ino, parent, name);
        }
        self.keeps_name(since, parent, name) && !self.recalled.attr(since.recalled, attr.ino)
    }

    /// Attributes of an inode that were given since then to be kept may be. A change of this client's own meanwhile is like one of another's:
    /// the kernel may hear of it before it hears of them.
    pub(crate) fn keeps_attr(&self, since: Since, ino: u64) -> bool {
        self.client.keeping.is_on()
            && !self.client.keeping.changed.lock().attr(since.changed, ino)
            && !self.recalled.attr(since.recalled, ino)
            && self.client.inodes.get(ino).is_some_and(|inode| inode.lease.lock().is_kept())
    }

    /// These attributes, which were asked for since then, may be kept. That the inode's may be is not enough: they may have been read
    /// before that was so.
    pub fn keeps(&self, since: Since, attr: &Attr) -> bool {
        attr.marks.contains(Marks::KEEP) && self.keeps_attr(since, attr.ino)
    }

    /// Takes a reference to an inode whose attributes were asked for since then.
    pub fn reference(&self, since: Since, attr: &Attr) {
        self.answered(since, &self.client.acquire(attr), attr);
    }

    /// Attributes came from the server, to be kept or not.
    fn answered(&self, since: Since, inode: &Inode, attr: &Attr) {
        if self.client.keeping.is_on() {
            let kept = attr.marks.contains(Marks::KEEP) && !self.recalled.attr(since.recalled, inode.ino);
            inode.lease.lock().answered(kept, Instant::now());
            if !kept {
                inode.pages.recalled();
            }
            self.learn(since, inode, attr.marks);
        }
    }

    /// What attributes were marked with that were asked for since then.
    pub(crate) fn learn(&self, since: Since, inode: &Inode, marks: Marks) {
        // Held, so that a change that ends meanwhile takes it back.
        let mut lease = inode.lease.lock();
        if !self.client.keeping.changed.lock().attr(since.changed, inode.ino)
            && !self.recalled.attr(since.recalled, inode.ino)
        {
            lease.learn(marks);
        }
    }

    /// Returns true if pages of a file with these attributes, which is open, may be kept although
    /// others may write to it later: the server recalls them.
    pub fn holds_pages(&self, attr: &Attr) -> bool {
        let Some(inode) = self.client.inodes.get(attr.ino) else { return false };
        self.client.keeping.is_on() && (attr.marks.contains(Marks::KEEP) || inode.lease.lock().is_kept())
    }

    /// Returns true if nothing is recalled from this client.
    pub fn keeps_nothing(&self) -> bool {
        !self.client.keeping.is_on()
    }

    /// Pages of an inode may have been recalled since.
    pub(crate) fn loses_pages(&self, since: Since, ino: u64) -> bool {
        self.recalled.pages(since.recalled, ino)
    }

    /// A file that was asked for since then is opened as `handle`, through the pages of the caller,
    /// and `attr` came with that. Returns true if those that the caller has are good. If not, it
    /// drops them.
    pub fn opens_pages(&self, since: Since, attr: &Attr, handle: u64) -> bool {
        let ino = attr.ino;
        let Some(inode) = self.client.inodes.get(ino) else { return false };
        let kept = self.client.keeping.is_on()
            && !self.recalled.attr(since.recalled, ino)
            && inode.lease.lock().is_kept();
        if kept {
            inode.hold.hold(self.client.inodes.sharing());
        } else if self.holds_pages(attr) {
            inode.hold.hold_later(self.client.inodes.sharing());
        }
        inode.pages.opened(handle, kept)
    }

    /// A directory is opened as `handle`, so that whoever is told can keep its listing.
    pub fn opens_listing(&self, ino: u64, handle: u64) -> Opened {
        let kept = self.client.keeping.is_on();
        let Some(inode) = self.client.inodes.get(ino) else { return Opened::Apart };
        inode.interest.used();
        inode.listing.lock().opened(handle, kept)
    }

    /// A directory that is open as `handle` has come to its end. False if whoever keeps its listing has to drop that before he hears so.
    pub fn completes_listing(&self, ino: u64, handle: u64) -> bool {
        self.client.inodes.get(ino).is_some_and(|inode| !inode.listing.lock().is_spoilt(handle))
    }

    /// True if all names of a directory were recalled since.
    pub(crate) fn lost(&self, since: Since, parent: u64, name: Option<&[u8]>) -> bool {
        !self.client.keeping.is_on()
            || match name {
                Some(name) => self.recalled.name(since.recalled, parent, name),
                None => self.recalled.names(since.recalled, parent),
            }
    }

    /// Attributes of an inode that nothing is known of may be kept for later.
    pub(crate) fn is_fresh(&self, since: Since, parent: u64, name: &[u8], attr: &Attr) -> bool {
        attr.marks.contains(Marks::KEEP)
            && !self.recalled.name(since.recalled, parent, name)
            && !self.recalled.attr(since.recalled, attr.ino)
            && self.client.inodes.get(attr.ino).is_none()
    }
}

impl Client {
    /// The moment before something is asked for.
    pub fn since(&self) -> Since {
        let recalled = self.keeping.recalled.read().now();
        Since { recalled, changed: self.keeping.changed.lock().now() }
    }

    /// The same moment for what a change of this client's own brought, once that has ended.
    pub fn since_but_changed(&self, since: Since) -> Since {
        Since { changed: self.keeping.changed.lock().now(), ..since }
    }

    /// Carries out a request that changes something that others keep, and goes on with what is known here. With the reply may come the
    /// attributes of the directory that it changed.
    pub(crate) fn change<R>(
        &self,
        effect: &Effect<'_>,
        ask: impl FnOnce() -> Result<(R, Option<Attr>), ClientError>,
    ) -> Result<R, ClientError> {
        let since = self.since();
        let keeping = &self.keeping;
        let removals = keeping.afterwards.lock().removals();
        for (parent, name, _) in &effect.names {
            keeping.directories.lock().begins(*parent, name);
            keeping.ahead.lock().of_name(*parent, name);
        }
        let outcome = {
            let _under_way = keeping.changes.begin(effect);
            ask()
        };
        let mut changed = keeping.changed.lock();
        let came = outcome.as_ref().ok().and_then(|(_, came)| *came);
        // Of several changes at once nobody knows which one came first.
        let came = came.filter(|attr| !changed.attr(since.changed, attr.ino));
        for ino in effect.inodes() {
            changed.note(Recall::Attr { ino });
        }
        let until_changed = Since { changed: changed.now(), ..since };
        drop(changed);
        for inode in effect.inodes().filter_map(|ino| self.inodes.get(ino)) {
            inode.lease.lock().changed();
        }
        let outcome = outcome.map(|(reply, _)| reply);
        if effect.names.is_empty() {
            return outcome;
        }
        {
            let mut afterwards = keeping.afterwards.lock();
            if effect.may_remove_a_directory {
                afterwards.removed();
            }
            if let Some(attr) = came.filter(|attr| effect.is_of(attr)) {
                afterwards.came(attr, until_changed, removals);
            }
        }
        let telling = self.telling();
        for (parent, name, gone) in &effect.names {
            let gone = *gone && outcome.is_ok() && !telling.lost(since, *parent, Some(name));
            keeping.directories.lock().ended(*parent, name, gone);
            keeping.ahead.lock().of_name(*parent, name);
        }
        outcome
    }

    /// A directory is read here: what came with a change does not know of that.
    pub(crate) fn directory_is_read(&self, ino: u64) {
        self.keeping.afterwards.lock().take(ino);
    }

    /// What a directory is that this client keeps the attributes of, if a change of its own brought that and nothing has changed since.
    pub(crate) fn after_own_change(&self, since: Since, inode: &Inode) -> Option<Attr> {
        let (attr, as_of) = self.keeping.afterwards.lock().take(inode.ino)?;
        let telling = self.telling();
        if !telling.keeps(as_of, &attr) {
            return None;
        }
        telling.learn(since, inode, attr.marks);
        Some(attr)
    }

    /// Holds recalls off while whoever keeps is told. Not for long, and not twice on one thread.
    pub fn telling(&self) -> Telling<'_> {
        Telling { client: self, recalled: self.keeping.recalled.read() }
    }

    /// Takes a reference to an inode whose attributes came.
    pub(crate) fn acquire(&self, attr: &Attr) -> Arc<Inode> {
        let inode = self.inodes.acquire(attr.ino);
        inode.set_slot(attr.slot);
        self.keeping.ahead.lock().of_inode(attr.ino);
        inode
    }

    /// The changes of this client that are under way.
    pub fn changes(&self) -> &Changes {
        &self.keeping.changes
    }

    /// Attributes of a known inode came, which were asked for since then.
    pub(crate) fn answered(&self, since: Since, inode: &Inode, attr: &Attr) {
        if self.keeping.is_on() {
            self.telling().answered(since, inode, attr);
        }
    }

    /// True if the caller has a reference to the inode.
    pub fn knows(&self, ino: u64) -> bool {
        self.inodes.get(ino).is_some()
    }

    /// A file that is open as `handle` was used through it.
    pub fn used(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.pages.used(handle);
        }
    }

    /// A directory that is open as `handle` is read.
    pub fn lists_through(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.listing.lock().used(handle);
        }
    }

    /// A directory that was open as `handle` is closed for good.
    pub fn closed_listing(&self, ino: u64, handle: u64) {
        if let Some(inode) = self.inodes.get(ino) {
            inode.listing.lock().closed(handle);
        }
    }

    /// Returns the names of a directory to the server, if this mount has not used the directory meanwhile. What the caller keeps of
    /// them goes before this, and what it was told in between is recalled.
    ///
    /// # Errors
    /// That of the call. The names stay kept then, and are recalled one by one.
    pub fn return_names(&self, dir: u64) -> Result<(), ClientError> {
        match self.inodes.get(dir) {
            Some(inode) if !inode.interest.is_lost() => Ok(()),
            _ => self.call_done(&Request::ReturnNames { ino: dir }),
        }
    }

    /// All names in a directory that the caller was told to keep, absent ones too. It drops one after the other, and
    /// [says so](Self::dropped_name).
    pub fn names_in(&self, dir: u64) -> Vec<Arc<[u8]>> {
        self.inodes.names_in(dir)
    }

    /// The caller has dropped a name.
    pub fn dropped_name(&self, parent: u64, name: &[u8]) {
        self.inodes.dropped(parent, name);
    }

    /// Directories among these recalls of which it is time to return all names.
    fn unused(&self, recalls: &[Recall]) -> Vec<u64> {
        let is_unused = |recall: &Recall| match recall {
            Recall::Name { parent, .. } => {
                let inode = self.inodes.get(*parent);
                inode.is_none_or(|inode| inode.interest.recalled()).then_some(*parent)
            }
            _ => None,
        };
        let mut unused: Vec<u64> = recalls.iter().filter_map(is_unused).collect();
        unused.dedup();
        unused
    }

    /// Notes what was recalled. From now on none of it is told from memory.
    pub(crate) fn note(&self, recalls: &[Recall]) {
        let mut recalled = self.keeping.recalled.write();
        for recall in recalls {
            recalled.note(recall.clone());
            // Nothing of it is kept.
            if matches!(recall, Recall::Layout { .. } | Recall::Locks { .. }) {
                continue;
            }
            // Everything is forgotten at once.
            let Some(ino) = recall.inode() else { continue };
            let (mut directories, mut ahead) = (self.keeping.directories.lock(), self.keeping.ahead.lock());
            ahead.of_inode(ino);
            // The lease on attributes is not concerned.
            if matches!(recall, Recall::Written { .. }) {
                if let Some(inode) = self.inodes.get(ino) {
                    inode.pages.recalled();
                    inode.hold.recalled(self.inodes.sharing());
                }
                continue;
            }
            // Its attributes and names are recalled apart.
            if matches!(recall, Recall::Unlinked { .. }) {
                continue;
            }
            match recall {
                Recall::Name { parent, name } => {
                    directories.recalled(*parent, name);
                    self.inodes.unnamed(*parent, name);
                    ahead.of_name(*parent, name);
                }
                Recall::Names { ino } => {
                    directories.forget(*ino);
                    ahead.of_directory(*ino);
                }
                Recall::Attr { .. }
                | Recall::Pages { .. }
                | Recall::Owner { .. }
                | Recall::Unlinked { .. }
                | Recall::Written { .. }
                | Recall::Layout { .. }
                | Recall::Locks { .. }
                | Recall::All => {}
            }
            drop((directories, ahead));
            if let Some(inode) = self.inodes.get(ino) {
                inode.lease.lock().recalled(Instant::now());
                inode.pages.recalled();
                if recall.concerns_pages(ino) {
                    inode.hold.recalled(self.inodes.sharing());
                }
                inode.size.lock().distrust();
                if !matches!(recall, Recall::Attr { .. } | Recall::Owner { .. }) {
                    inode.listing.lock().recalled();
                }
            }
        }
    }

    /// Asks for recalls and has them obeyed, until `cancel` or the session ends. On return nothing is kept any more.
    pub fn obey(&self, keeper: &dyn Keeper, cancel: &Cancel) -> Result<(), ClientError> {
        if self.keeping.is_on() {
            // The server has had a queue of recalls for this session since it was attached.
            self.inodes.recalls().begin();
        }
        let outcome = self.forgetting(|| self.obey_on(keeper, cancel));
        self.inodes.recalls().end();
        self.keeping.on.store(false, Ordering::Release);
        // Whatever was kept is not heard of any more.
        let all = self.all_pages();
        self.note(&all);
        if !cancel.is_cancelled() {
            keeper.drop_all(&all);
        }
        outcome
    }

    /// Says who drops all names, when nothing that was known is known any more.
    pub fn drop_names_by(&self, drop_names: impl Fn() + Send + Sync + 'static) {
        // The thread that obeys recalls reports it, once.
        let _ = self.keeping.names.0.set(Box::new(drop_names));
    }

    fn all_pages(&self) -> Vec<Recall> {
        self.inodes.numbers().into_iter().map(|ino| Recall::Pages { ino }).collect()
    }

    fn obey_on(&self, keeper: &dyn Keeper, cancel: &Cancel) -> Result<(), ClientError> {
        let (mut out, mut back, mut done) = (Vec::new(), Vec::new(), 0);
        // What is acknowledged is of this era. If another one begins meanwhile, its recalls are counted anew.
        let mut era = self.remote.era();
        loop {
            encode_request(&Request::Recalls { done }, &mut out);
            match self.remote.call_waiting(era, &out, &mut back, cancel) {
                Err(RequestError::Cancelled) => return Ok(()),
                Err(RequestError::Disconnected) if self.remote.era() != era && self.is_connected() => {
                    era = self.remote.era();
                    // The server knows nothing of what is kept here.
                    keeper.drop_all(&self.all_pages());
                    done = 0;
                    continue;
                }
                asked => asked?,
            }
            match decode_reply(&back)? {
                Reply::Recalls(Recalls { number, recalls }) => {
                    // From this reply on, at the latest, the server has a queue of recalls for this session.
                    self.inodes.recalls().begin();
                    if recalls.contains(&Recall::All) {
                        // The server has been started again. Names first: they are dropped by whoever has them all.
                        self.keeping.begin_anew(&self.inodes);
                        keeper.drop_all(&self.all_pages());
                    } else {
                        self.note(&recalls);
                        keeper.drop_all(&recalls);
                        self.unused(&recalls).into_iter().for_each(|dir| keeper.return_names(dir));
                    }
                    self.give_layouts_back(era, &recalls);
                    for recall in recalls {
                        if let Recall::Unlinked { ino } = recall {
                            self.inodes.unlinked(ino);
                        }
                    }
                    done = number;
                }
                Reply::Error(errno) => return Err(errno.into()),
                _ => return super::names::wrong_kind(),
            }
        }
    }
}
