//! The allocator of the arena together with its bytes. It guarantees that allocated space is zero.
//!
//! Released space first stays in quarantine while a session or a snapshot can reach it. It is then
//! dirty until it is zeroed. The releasing thread zeroes small amounts; a background thread, or an
//! allocation that finds too little clean space, zeroes large amounts. Space is zeroed in place and
//! keeps its pages, because the next file would only fault them in again.
//!
//! # Concurrency
//! Any thread. One lock over the allocator, taken after the metadata locks and never held while
//! space is zeroed. `size` has another one, which is taken before it. Two atomics answer without
//! the lock whether any space is dirty or quarantined: every request asks, and mostly none is.

mod size;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Condvar, Mutex};
use rfs_proto::{BLOCK, DataPlace, Recall};
use seeded_faults::seeded;

use super::{
    alloc::{Arena, Short, StoreUsage, Totals, Want, range::Range},
    bytes::Bytes,
    lent_memory::{LentMemory, StoreFailure, Unusable},
    nonzero_bitmap::NonzeroBitmap,
    quarantine::{ABANDONED_SESSIONS, QuarantinedRange, SNAPSHOT, in_doubt, unreachable},
};

pub use size::TooSmall;

/// Most bytes that a thread zeroes before it takes the lock again.
const CHUNK: u64 = 4 << 20;

/// Up to this many dirty bytes, the releasing thread zeroes; beyond, the background thread does.
const INLINE: u64 = 1 << 20;

/// Thread that zeroes released space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zeroing {
    /// Small amounts on the releasing thread, large ones on a background thread.
    #[default]
    Background,
    /// Everything on the releasing thread, which is deterministic.
    Inline,
}

/// Space that is quarantined for a snapshot.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The snapshot has copied all bytes before this one.
    pub(super) from: u64,
    /// Ranges that files released behind `from`: end and first byte of each, and its inode.
    pub(super) waits: BTreeMap<(u64, u64), u64>,
}

#[derive(Debug)]
pub(super) struct Account {
    pub(super) arena: Arena,
    pub(super) stop: bool,
    /// Sessions of previous servers may reach space that files release.
    has_previous_sessions: bool,
    /// Space that a snapshot has still to copy.
    pub(super) held: Option<Held>,
    /// The bitmap of nonzero blocks, if the next server needs it.
    dirt: Option<NonzeroBitmap>,
    /// The stores where requests of clients may arrive late, and how many fences each waits for.
    pub(super) in_doubt: BTreeMap<u16, usize>,
}

impl Account {
    fn new(arena: Arena, has_previous_sessions: bool, dirt: Option<NonzeroBitmap>) -> Account {
        Account { arena, stop: false, has_previous_sessions, held: None, dirt, in_doubt: BTreeMap::new() }
    }
}

/// The arena: the allocator under its lock, and the bytes.
#[derive(Debug)]
pub struct Space {
    pub(super) account: Mutex<Account>,
    /// Held while the size changes, and while memory is populated.
    resizing: Mutex<()>,
    /// Dirty bytes that no thread zeroes yet: a copy of the allocator's count.
    waiting_dirty: AtomicU64,
    /// Quarantined bytes: a copy of the allocator's count.
    quarantined: AtomicU64,
    /// Signals that space became dirty, or that the zeroing thread shall stop.
    pub(super) dirt: Condvar,
    /// Signals that space became clean.
    clean: Condvar,
    bytes: Bytes,
    /// Memory of stores, if there are any.
    pub(super) lent: Option<Arc<dyn LentMemory>>,
    pub(super) mode: Zeroing,
}

impl Space {
    /// Returns an arena over all of `bytes`, which are zero.
    pub fn new(bytes: impl Into<Bytes>, mode: Zeroing) -> Space {
        let bytes = bytes.into();
        let arena = Arena::new(bytes.len());
        Space::over(bytes, mode, Account::new(arena, false, None))
    }

    /// Returns an arena over memory that a previous server used, or that was restored.
    ///
    /// `used` is the space of files, in order. `given_up` is quarantined for reconnecting sessions.
    /// If `dirt` is `None`, all other space is zero. `has_previous_sessions` quarantines all
    /// unzeroed and released space for previous sessions until [`Space::end_previous_sessions`].
    pub fn kept(
        bytes: Bytes,
        mode: Zeroing,
        used: Vec<Range>,
        given_up: Vec<QuarantinedRange>,
        dirt: Option<NonzeroBitmap>,
        has_previous_sessions: bool,
    ) -> Space {
        let len = bytes.len();
        let mut arena = Arena::taken(len);
        let holders: &[u64] = if has_previous_sessions { &[ABANDONED_SESSIONS] } else { &[] };
        let mut taken = used;
        for QuarantinedRange { range, ino, holders: mut all } in given_up {
            all.extend(has_previous_sessions.then_some(ABANDONED_SESSIONS));
            arena.quarantine((ino, 0), range, &all);
            taken.push(range);
        }
        taken.sort_unstable();
        let mut at = 0;
        for range in taken.into_iter().chain([Range { start: len, len: 0 }]) {
            let free = Range { start: at, len: range.start - at };
            for (piece, may_hold) in
                dirt.as_ref().map_or_else(|| vec![(free, false)], |dirt| dirt.pieces(free))
            {
                match may_hold {
                    true => arena.quarantine((0, 0), piece, holders),
                    false => arena.add_clean(piece),
                }
            }
            at = range.end();
        }
        let space = Space::over(bytes, mode, Account::new(arena, has_previous_sessions, dirt));
        space.change(|_| {});
        space
    }

    fn over(bytes: Bytes, mode: Zeroing, account: Account) -> Space {
        Space {
            account: Mutex::new(account),
            resizing: Mutex::default(),
            waiting_dirty: AtomicU64::new(0),
            quarantined: AtomicU64::new(0),
            dirt: Condvar::new(),
            clean: Condvar::new(),
            bytes,
            lent: None,
            mode,
        }
    }

    /// Adds memory of stores, which is zero: the number and the length of each. Files are cut at
    /// multiples of `unit`, and the stores take turns.
    ///
    /// Returns `None` if a store has no such places.
    #[must_use]
    pub fn with_stores(
        mut self,
        lent: Arc<dyn LentMemory>,
        stores: impl IntoIterator<Item = (u16, u64)>,
        unit: u64,
    ) -> Option<Space> {
        let arena = &mut self.account.get_mut().arena;
        if !stores.into_iter().all(|(store, len)| arena.add_store(store, len, unit)) {
            return None;
        }
        self.lent = Some(lent);
        Some(self)
    }

    /// Returns the sums of the allocator.
    pub fn totals(&self) -> Totals {
        self.account.lock().arena.totals()
    }

    /// Returns the sums over the arena and the stores whose space is handed out.
    pub fn open_totals(&self) -> Totals {
        self.account.lock().arena.open_totals()
    }

    /// Returns true if space at any of these places is handed out once it is clean.
    pub fn gives(&self, mut places: impl Iterator<Item = u64>) -> bool {
        if self.lent.is_none() {
            return true;
        }
        let account = self.account.lock();
        places.any(|place| account.arena.gives(place))
    }

    /// Returns the use of the server's own arena and of each store.
    pub fn usage(&self) -> Vec<StoreUsage> {
        self.account.lock().arena.usage()
    }

    /// Changes the allocator and updates the copies of its counts. Relaxed: a thread that must see
    /// a count made the change itself, or synchronized through another lock.
    fn change<T>(&self, change: impl FnOnce(&mut Arena) -> T) -> T {
        self.change_account(|account| change(&mut account.arena))
    }

    pub(super) fn change_account<T>(&self, change: impl FnOnce(&mut Account) -> T) -> T {
        let mut account = self.account.lock();
        let result = change(&mut account);
        self.waiting_dirty.store(account.arena.waiting_dirty(), Ordering::Relaxed);
        self.quarantined.store(account.arena.totals().quarantined, Ordering::Relaxed);
        result
    }

    /// Allocates all of `wants` or nothing. The space is zero.
    ///
    /// # Errors
    /// [`Short`] if the clean space does not suffice.
    pub fn allocate(&self, wants: &[Want]) -> Result<Vec<Vec<Range>>, Short> {
        let mut account = self.account.lock();
        let granted = account.arena.allocate(wants)?;
        if let Some(dirt) = &account.dirt {
            granted.iter().flatten().for_each(|&range| dirt.set(range, true));
        }
        Ok(granted)
    }

    /// Returns true if sessions of previous servers may still reach space.
    pub fn has_previous_sessions(&self) -> bool {
        self.account.lock().has_previous_sessions
    }

    /// Ends the quarantine for previous sessions. The caller then calls [`Space::tidy`].
    pub fn end_previous_sessions(&self) {
        self.account.lock().has_previous_sessions = false;
        self.change(|arena| arena.session_ended(ABANDONED_SESSIONS));
    }

    /// Takes back space of an inode that `holders` can reach by layouts before this generation. The
    /// caller then calls [`Space::tidy`], without other locks.
    pub fn quarantine(&self, (ino, generation): (u64, u64), ranges: &[Range], holders: &[u64]) {
        if ranges.is_empty() {
            return;
        }
        self.change_account(|account| {
            for &range in ranges {
                let mut all = holders.to_vec();
                all.extend(account.has_previous_sessions.then_some(ABANDONED_SESSIONS));
                let store = DataPlace::from_number(range.start).store();
                all.extend(account.in_doubt.contains_key(&store).then(|| in_doubt(store)));
                if let Some(held) = account.held.as_mut().filter(|held| range.end() > held.from) {
                    all.push(SNAPSHOT);
                    held.waits.insert((range.end(), range.start), ino);
                }
                account.arena.quarantine((ino, generation), range, &all);
            }
        });
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Calls `tell` with each inode in quarantine, its ranges, and the sessions that reach some of
    /// them. Holds the lock meanwhile, so that no range can be released, reallocated and released
    /// again before `tell` has seen it.
    pub fn tell_quarantined<E>(
        &self,
        mut tell: impl FnMut(u64, &[Range], &[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = self.account.lock().arena.quarantined_of();
        for ino in all {
            let account = self.account.lock();
            // A snapshot ends with its server. The next server determines itself which space
            // sessions without reconnection can reach.
            let told = |holder| holder != SNAPSHOT && holder != ABANDONED_SESSIONS;
            let (ranges, holders) = account.arena.quarantined(ino, told);
            if !holders.is_empty() {
                tell(ino, &ranges, &holders)?;
            }
        }
        Ok(())
    }

    /// Returns the inodes whose quarantined space a session can reach, each with the first
    /// generation of its layout without that space.
    pub fn quarantined_for(&self, session: u64) -> Vec<(u64, u64)> {
        self.account.lock().arena.quarantined_for(session)
    }

    /// Returns the holders of quarantined space of a store, each with an inode and the first
    /// generation of its layout without that space.
    pub fn holders_in(&self, store: u16) -> BTreeSet<(u64, u64, u64)> {
        // A drain asks again and again. It finds space that is quarantined meanwhile the next time.
        if self.quarantined.load(Ordering::Relaxed) == 0 {
            return BTreeSet::new();
        }
        self.account.lock().arena.holders_in(store)
    }

    /// Ends the quarantine of an inode's space for a session. The caller then calls
    /// [`Space::tidy`].
    pub fn note_last_close(&self, ino: u64, session: u64) {
        // The caller holds the inode's shard lock, and all quarantine of the inode began under it.
        // So the copy of the count is current for the inode.
        if self.quarantined.load(Ordering::Relaxed) > 0 {
            self.change(|arena| arena.note_last_close(ino, session));
        }
    }

    /// Processes a session's acknowledgement of a recall: it may end a quarantine. The caller then
    /// calls [`Space::tidy`].
    pub fn acknowledged(&self, session: u64, recall: &Recall) {
        match *recall {
            Recall::Layout { ino, generation } => {
                self.change(|arena| arena.layouts_returned(ino, session, generation));
            }
            Recall::All => self.change(|arena| arena.old_layouts_returned(session)),
            Recall::Name { .. }
            | Recall::Names { .. }
            | Recall::Attr { .. }
            | Recall::Pages { .. }
            | Recall::Owner { .. }
            | Recall::Unlinked { .. }
            | Recall::Written { .. }
            | Recall::Locks { .. } => {}
        }
    }

    /// Copies between ranges that are in use, through `buffer`.
    ///
    /// # Errors
    /// A block of either range is bad, or a store cannot be reached.
    pub fn copy(&self, from: Range, to: u64, buffer: &mut Vec<u8>) -> Result<(), Unusable> {
        let start = seeded!(CopyMisplaced, from.start.saturating_sub(BLOCK), from.start);
        self.read(Range { start, ..from }, buffer)?;
        self.write(to, buffer, false)
    }

    /// Zeroes dirty space: on this thread if it is little, else on the background thread.
    pub fn tidy(&self) {
        let waiting = self.waiting_dirty.load(Ordering::Relaxed);
        if waiting == 0 {
        } else if self.mode == Zeroing::Inline || waiting <= INLINE {
            while self.zero_one() {}
        } else {
            self.dirt.notify_one();
        }
    }

    /// Zeroes some dirty space, or waits until another thread has zeroed some. Returns at once if
    /// there is no dirty space.
    pub fn gain_clean(&self) {
        if self.zero_one() {
            return;
        }
        let mut account = self.account.lock();
        if account.arena.totals().dirty > 0 && account.arena.waiting_dirty() == 0 {
            // Other threads zero all of the dirty space; each of them signals `clean` when it is
            // done.
            self.clean.wait(&mut account);
        }
    }

    /// Zeroes up to [`CHUNK`] dirty bytes. Returns false if there were none.
    fn zero_one(&self) -> bool {
        let Some(range) = self.change(|arena| arena.take_dirty(CHUNK)) else { return false };
        if let Err(StoreFailure(store)) = seeded!(FreedNotZeroed, Ok(()), self.zero(range)) {
            self.change_account(|account| account.arena.not_zeroed(range, unreachable(store)));
            self.clean.notify_all();
            return true;
        }
        self.change_account(|account| {
            if let Some(dirt) = &account.dirt {
                dirt.set(range, false);
            }
            account.arena.zeroed(range);
        });
        self.clean.notify_all();
        true
    }

    pub(super) fn zero_until_stopped(&self) {
        loop {
            {
                let mut account = self.account.lock();
                while !account.stop && account.arena.waiting_dirty() == 0 {
                    self.dirt.wait(&mut account);
                }
                if account.stop {
                    return;
                }
            }
            self.zero_one();
        }
    }
}
