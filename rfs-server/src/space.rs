//! The allocator of the arena together with its bytes. It guarantees that allocated space is zero.
//!
//! Released space first stays in quarantine while a session or a snapshot can reach it. It is then
//! dirty until it is zeroed. The releasing thread zeroes small amounts; a background thread, or an
//! allocation that finds too little clean space, zeroes large amounts. Space is zeroed in place and
//! keeps its pages, because the next file would only fault them in again.
//!
//! # Concurrency
//! Any thread. One lock over the allocator, taken after the metadata locks and never held while
//! space is zeroed. Two atomics answer without the lock whether any space is dirty or quarantined:
//! every request asks, and mostly none is.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use parking_lot::{Condvar, Mutex};
use rfs_proto::{BLOCK, Recall};
use seeded_faults::{Fault, seeded};

use crate::{
    alloc::{Arena, Range, Short, Totals, Want},
    bytes::{Bad, Bytes},
    dispatch::BEFORE,
    durable::{NonzeroBitmap, prior_sessions::QuarantinedRange},
};

/// Most bytes that a thread zeroes before it takes the lock again.
const CHUNK: u64 = 4 << 20;

/// Quarantine holder of the snapshot that is being copied. No session has this number.
const SNAPSHOT: u64 = u64::MAX - 1;

/// Quarantine holder that never releases: for a change that is missing in the log. No session has
/// this number.
pub(crate) const UNLOGGED: u64 = u64::MAX - 2;

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
struct Held {
    /// The snapshot has copied all bytes before this one.
    from: u64,
    /// Ranges that files released behind `from`: end and first byte of each, and its inode.
    waits: BTreeMap<(u64, u64), u64>,
}

#[derive(Debug)]
struct Account {
    arena: Arena,
    stop: bool,
    /// Sessions of previous servers may reach space that files release.
    has_prior_sessions: bool,
    /// Space that a snapshot has still to copy.
    held: Option<Held>,
    /// The bitmap of nonzero blocks, if the next server needs it.
    dirt: Option<NonzeroBitmap>,
}

/// The arena.
#[derive(Debug)]
pub struct Space {
    account: Mutex<Account>,
    /// Dirty bytes that no thread zeroes yet: a copy of the allocator's count.
    waiting_dirty: AtomicU64,
    /// Quarantined bytes: a copy of the allocator's count.
    quarantined: AtomicU64,
    /// Signals that space became dirty, or that the zeroing thread shall stop.
    dirt: Condvar,
    /// Signals that space became clean.
    clean: Condvar,
    bytes: Bytes,
    mode: Zeroing,
}

impl Space {
    /// Returns an arena over all of `bytes`, which are zero.
    pub fn new(bytes: impl Into<Bytes>, mode: Zeroing) -> Space {
        let bytes = bytes.into();
        let arena = Arena::new(bytes.len());
        Space::over(
            bytes,
            mode,
            Account { arena, stop: false, has_prior_sessions: false, held: None, dirt: None },
        )
    }

    /// Returns an arena over memory that a previous server used, or that was restored.
    ///
    /// `used` is the space of files, in order. `given_up` is quarantined for reconnecting sessions.
    /// If `dirt` is `None`, all other space is zero. `has_prior_sessions` quarantines all unzeroed
    /// and released space for previous sessions until [`Space::end_prior_sessions`].
    pub fn kept(
        bytes: Bytes,
        mode: Zeroing,
        used: Vec<Range>,
        given_up: Vec<QuarantinedRange>,
        dirt: Option<NonzeroBitmap>,
        has_prior_sessions: bool,
    ) -> Space {
        let len = bytes.len();
        let mut arena = Arena::taken(len);
        let holders: &[u64] = if has_prior_sessions { &[BEFORE] } else { &[] };
        let mut taken = used;
        for QuarantinedRange { range, ino, holders: mut all } in given_up {
            all.extend(has_prior_sessions.then_some(BEFORE));
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
        let space =
            Space::over(bytes, mode, Account { arena, stop: false, has_prior_sessions, held: None, dirt });
        space.change(|_| {});
        space
    }

    fn over(bytes: Bytes, mode: Zeroing, account: Account) -> Space {
        Space {
            account: Mutex::new(account),
            waiting_dirty: AtomicU64::new(0),
            quarantined: AtomicU64::new(0),
            dirt: Condvar::new(),
            clean: Condvar::new(),
            bytes,
            mode,
        }
    }

    /// Returns the sums of the allocator.
    pub fn totals(&self) -> Totals {
        self.account.lock().arena.totals()
    }

    /// Changes the allocator and updates the copies of its counts. Relaxed: a thread that must see
    /// a count made the change itself, or synchronized through another lock.
    fn change<T>(&self, change: impl FnOnce(&mut Arena) -> T) -> T {
        self.change_account(|account| change(&mut account.arena))
    }

    fn change_account<T>(&self, change: impl FnOnce(&mut Account) -> T) -> T {
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
    pub fn has_prior_sessions(&self) -> bool {
        self.account.lock().has_prior_sessions
    }

    /// Ends the quarantine for previous sessions. The caller then calls [`Space::tidy`].
    pub fn end_prior_sessions(&self) {
        self.account.lock().has_prior_sessions = false;
        self.change(|arena| arena.session_ended(BEFORE));
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
                all.extend(account.has_prior_sessions.then_some(BEFORE));
                if let Some(held) = account.held.as_mut().filter(|held| range.end() > held.from) {
                    all.push(SNAPSHOT);
                    held.waits.insert((range.end(), range.start), ino);
                }
                account.arena.quarantine((ino, generation), range, &all);
            }
        });
    }

    /// Quarantines all released space from now on, for a snapshot that copies it.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.account.lock().held = Some(Held::default());
        Hold(self)
    }

    /// Returns the parts of a range that are not known to be free and zero, in order.
    pub(crate) fn not_clean(&self, range: Range) -> Vec<Range> {
        self.account.lock().arena.not_clean(range)
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
            // A snapshot ends with its server. The next server determines itself what sessions
            // without reconnection can reach.
            let told = |holder| holder != SNAPSHOT && holder != BEFORE;
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

    /// Ends the quarantine of an inode's space for a session. The caller then calls
    /// [`Space::tidy`].
    pub fn lease_ended(&self, ino: u64, session: u64) {
        // The caller holds the inode's shard lock, and all quarantine of the inode began under it.
        // So the copy of the count is current for the inode.
        if self.quarantined.load(Ordering::Relaxed) > 0 {
            self.change(|arena| arena.lease_ended(ino, session));
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

    /// Zeroes a range that is in use, such as the rest of the last block behind the end of a file.
    pub fn zero(&self, range: Range) {
        self.bytes.zero(range);
    }

    /// Copies between ranges that are in use, through `buffer`.
    ///
    /// # Errors
    /// A block of either range is bad.
    pub fn copy(&self, from: Range, to: u64, buffer: &mut Vec<u8>) -> Result<(), Bad> {
        let start = match seeded(Fault::CopyMisplaced) {
            true => from.start.saturating_sub(BLOCK),
            false => from.start,
        };
        self.bytes.read(Range { start, ..from }, buffer)?;
        self.bytes.write(to, buffer, false)
    }

    /// Writes to a range that is in use; see [`Bytes::write`].
    ///
    /// # Errors
    /// A block is bad.
    pub fn write(&self, place: u64, data: &[u8], is_nothing: bool) -> Result<(), Bad> {
        self.bytes.write(place, data, is_nothing)
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
        if !seeded(Fault::FreedNotZeroed) {
            self.zero(range);
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

    fn zero_until_stopped(&self) {
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

/// Quarantines all released space for a snapshot. Dropping it ends that quarantine.
#[derive(Debug)]
pub(crate) struct Hold<'a>(&'a Space);

impl Hold<'_> {
    /// Ends the quarantine of space before `end`, which has been copied.
    pub(crate) fn copied_to(&self, end: u64) {
        self.0.change_account(|account| {
            let Some(held) = &mut account.held else { return };
            held.from = end;
            // Examines only released ranges: the snapshot calls this for each MiB while requests
            // wait for the lock.
            while let Some(first) = held.waits.first_entry().filter(|first| first.key().0 <= end) {
                let ((_, start), ino) = first.remove_entry();
                account.arena.let_go_at(ino, start, SNAPSHOT);
            }
        });
        self.0.tidy();
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.change_account(|account| {
            for ((_, start), ino) in account.held.take().unwrap_or_default().waits {
                account.arena.let_go_at(ino, start, SNAPSHOT);
            }
        });
        self.0.tidy();
    }
}

/// The background thread. Dropping it stops and joins the thread.
#[derive(Debug)]
pub struct Zeroer {
    space: Arc<Space>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Zeroer {
    /// Starts the thread, unless the mode is [`Zeroing::Inline`].
    pub fn start(space: &Arc<Space>) -> io::Result<Zeroer> {
        let thread = match space.mode {
            Zeroing::Inline => None,
            Zeroing::Background => {
                let space = Arc::clone(space);
                Some(
                    thread::Builder::new()
                        .name("rfs-zero".into())
                        .spawn(move || space.zero_until_stopped())?,
                )
            }
        };
        Ok(Zeroer { space: Arc::clone(space), thread })
    }
}

impl Drop for Zeroer {
    fn drop(&mut self) {
        self.space.account.lock().stop = true;
        self.space.dirt.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the zeroing thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmabox::Memory;

    use super::*;

    fn space(len: usize, mode: Zeroing) -> Arc<Space> {
        Arc::new(Space::new(Arc::new(Memory::private(len).unwrap()), mode))
    }

    fn want(need: u64) -> Want {
        Want { need, ahead: 0, hint: None }
    }

    fn is_zero(space: &Space, range: Range) -> bool {
        let mut bytes = vec![1; range.len as usize];
        space.bytes.memory().read(range.start as usize, &mut bytes);
        bytes.iter().all(|&byte| byte == 0)
    }

    fn use_all(space: &Space, len: u64) -> Range {
        let range = space.allocate(&[want(len)]).unwrap()[0][0];
        space.bytes.memory().write(range.start as usize, &vec![0xa5; len as usize]);
        range
    }

    #[test]
    fn inline_mode_cleans_at_once() {
        let space = space(8 << 20, Zeroing::Inline);
        let range = use_all(&space, 8 << 20);
        space.quarantine((1, 1), &[range], &[]);
        assert_eq!(space.allocate(&[want(1)]), Err(Short::Dirty));
        space.tidy();
        assert_eq!(space.totals().clean, 8 << 20);
        assert!(is_zero(&space, range));
    }

    #[test]
    fn little_dirt_is_cleaned_at_once_in_background_mode_too() {
        let space = space(1 << 20, Zeroing::Background);
        let range = use_all(&space, 1 << 20);
        space.quarantine((1, 1), &[range], &[]);
        space.tidy();
        assert_eq!(space.totals().clean, 1 << 20);
        assert!(is_zero(&space, range));
    }

    #[test]
    fn an_allocation_zeroes_the_space_that_it_needs() {
        let space = space(16 << 20, Zeroing::Background);
        let range = use_all(&space, 16 << 20);
        space.quarantine((1, 1), &[range], &[]);
        // No background thread runs, so the allocation zeroes.
        space.tidy();
        assert_eq!(space.totals().clean, 0);
        let got = loop {
            match space.allocate(&[want(6 << 20)]) {
                Ok(got) => break got,
                Err(short) => {
                    assert_eq!(short, Short::Dirty);
                    space.gain_clean();
                }
            }
        };
        assert!(is_zero(&space, got[0][0]));
        assert_eq!(space.totals().dirty, 8 << 20);
    }

    #[test]
    fn the_background_thread_cleans_and_stops() {
        let space = space(32 << 20, Zeroing::Background);
        let range = use_all(&space, 32 << 20);
        let zeroer = Zeroer::start(&space).unwrap();
        space.quarantine((1, 1), &[range], &[]);
        space.tidy();
        let got = loop {
            match space.allocate(&[want(32 << 20)]) {
                Ok(got) => break got,
                Err(_) => space.gain_clean(),
            }
        };
        assert!(is_zero(&space, got[0][0]));
        drop(zeroer);
        assert_eq!(Arc::strong_count(&space), 1);
    }

    #[test]
    fn released_space_waits_for_the_snapshot_to_copy_it() {
        const M: u64 = 1 << 20;
        let space = space(4 << 20, Zeroing::Inline);
        let whole = use_all(&space, 4 << 20);
        let part = |at: u64| Range { start: whole.start + at * M, len: M };
        let hold = space.hold();
        space.quarantine((1, 1), &[part(0), part(1)], &[]);
        // A session can reach this range, too.
        space.quarantine((1, 1), &[part(2)], &[4]);
        space.tidy();
        assert_eq!((space.totals().clean, space.totals().quarantined), (0, 3 * M));
        assert!(!is_zero(&space, part(0)) && !is_zero(&space, part(1)));
        hold.copied_to(M);
        assert_eq!((space.totals().clean, space.totals().quarantined), (M, 2 * M));
        hold.copied_to(3 * M);
        assert_eq!((space.totals().clean, space.totals().quarantined), (2 * M, M));
        space.lease_ended(1, 4);
        space.tidy();
        assert_eq!((space.totals().clean, space.totals().quarantined), (3 * M, 0));
        space.quarantine((2, 1), &[part(3)], &[]);
        assert_eq!(space.totals().quarantined, M);
        drop(hold);
        assert_eq!((space.totals().clean, space.totals().quarantined), (4 * M, 0));
        assert!(is_zero(&space, whole));
        // Space that was copied before is free at once.
        let whole = use_all(&space, 4 << 20);
        let hold = space.hold();
        hold.copied_to(2 * M);
        space.quarantine((3, 1), &[part(1)], &[]);
        space.tidy();
        assert_eq!((space.totals().clean, space.totals().quarantined), (M, 0));
        space.quarantine((3, 1), &[Range { start: whole.start, len: M }], &[]);
        drop(hold);
        assert_eq!(space.totals().clean, 2 * M);
    }

    #[test]
    fn quarantined_space_comes_back_with_the_lease() {
        let space = space(1 << 20, Zeroing::Inline);
        let range = use_all(&space, 1 << 20);
        space.quarantine((9, 1), &[range], &[4]);
        assert_eq!(space.allocate(&[want(1)]), Err(Short::Full));
        space.lease_ended(9, 4);
        space.tidy();
        assert_eq!(space.totals().clean, 1 << 20);
    }

    /// After the lock is released, the report could be stale and hide a later release of the same
    /// space.
    #[test]
    fn quarantined_space_is_reported_under_the_lock_and_merged() {
        let space = space(1 << 20, Zeroing::Inline);
        let whole = use_all(&space, 1 << 20);
        let part = |at: u64, len: u64| Range { start: whole.start + at * BLOCK, len: len * BLOCK };
        space.quarantine((7, 1), &[part(3, 1)], &[5, 4]);
        space.quarantine((7, 1), &[part(1, 2)], &[6]);
        space.quarantine((8, 1), &[part(9, 1)], &[4]);
        let _hold = space.hold();
        // Only the snapshot reaches these ranges.
        space.quarantine((8, 1), &[part(10, 1)], &[]);
        space.quarantine((9, 1), &[part(20, 1)], &[]);
        let mut told = Vec::new();
        let tell = |ino, ranges: &[Range], holders: &[u64]| {
            assert!(space.account.is_locked());
            told.push((ino, ranges.to_vec(), holders.to_vec()));
            Ok::<(), ()>(())
        };
        space.tell_quarantined(tell).unwrap();
        told.sort_unstable();
        assert_eq!(told, [(7, vec![part(1, 3)], vec![4, 5, 6]), (8, vec![part(9, 1)], vec![4])]);
    }
}
