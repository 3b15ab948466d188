//! The kept state of a mount.
//!
//! # Concurrency
//! Any thread. `free`, `locks`, `appends` and the lock of `replies` are held briefly, to allocate
//! or to look up. `take_back` holds `free` while it takes `appends`; no others are nested.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
};

use parking_lot::Mutex;
use rfs_proto::Identity;

use super::{
    appends::BegunAppends,
    area::Area,
    calls::{self, KeptCall, KeptCalls, PreviousReplies},
    counter::Counter,
    free_places::FreePlaces,
    layout::{
        EFFECT_LEN, FORMAT, INODE_COUNT, LEN, MAGIC, MAX_EFFECTS, REQUEST_COUNT, REQUEST_HEADER, REQUEST_LEN,
        REQUESTS, SLOT, VOID, WORDS, header, row_at,
    },
    locks::{KeptLock, KeptLocks},
};

/// The kept state of another process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptStateError {
    /// The system refuses.
    #[error("cannot map the state of the mount: {0}")]
    Os(#[from] io::Error),
    /// The state has another format.
    #[error("the state of the mount has format {found}, this program needs {FORMAT}")]
    Format {
        /// The format of the state.
        found: u64,
    },
    /// Something did not fit.
    #[error("the state of the mount is incomplete: it has more inodes, locks or requests than are kept")]
    Incomplete,
}

/// An inode of the previous process.
#[derive(Debug)]
pub(crate) struct KeptInode {
    pub(crate) ino: u64,
    /// Number of its row.
    pub(super) row: usize,
    counters: [u64; 6],
    /// Slot of its record.
    pub(crate) slot: Option<u32>,
}

impl KeptInode {
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }
}

#[derive(Debug)]
struct Places {
    rows: FreePlaces,
    requests: FreePlaces,
}

impl Places {
    fn new() -> Places {
        Places {
            rows: FreePlaces::new(INODE_COUNT, header::ROWS_USED),
            requests: FreePlaces::new(REQUEST_COUNT, header::REQUESTS_USED),
        }
    }
}

/// State of a mount that outlives its process.
#[derive(Debug)]
pub struct KeptState {
    area: Area,
    is_taken_over: bool,
    free: Mutex<Places>,
    locks: Mutex<KeptLocks>,
    replies: PreviousReplies,
    appends: Mutex<BegunAppends>,
    owner: OnceLock<Weak<dyn KeptCalls>>,
}

fn request_at(entry: usize) -> usize {
    REQUESTS + REQUEST_LEN * entry
}

fn pack(what: u8, amount: i64) -> u64 {
    // Amounts are small: references of one reply.
    (amount as u64) << 8 | u64::from(what)
}

fn unpack(word: u64) -> (u8, i64) {
    (word as u8, (word as i64) >> 8)
}

impl KeptState {
    fn of(area: Area, is_taken_over: bool) -> KeptState {
        KeptState {
            area,
            is_taken_over,
            free: Mutex::new(Places::new()),
            locks: Mutex::new(KeptLocks::new()),
            replies: PreviousReplies::default(),
            appends: Mutex::default(),
            owner: OnceLock::new(),
        }
    }

    /// Creates the state of a new mount.
    ///
    /// # Errors
    /// The system has no memory files.
    pub fn create() -> io::Result<Arc<KeptState>> {
        let area = Area::create(LEN)?;
        area.word(header::FORMAT).store(FORMAT, Ordering::Relaxed);
        area.word(header::MAGIC).store(MAGIC, Ordering::Release);
        Ok(Arc::new(KeptState::of(area, false)))
    }

    /// Opens the state of a mount whose process has ended.
    ///
    /// # Errors
    /// The state is of another format, or incomplete.
    pub fn open(file: File) -> Result<Arc<KeptState>, KeptStateError> {
        let area = Area::map(file, LEN)?;
        let word = |offset| area.word(offset).load(Ordering::Acquire);
        if word(header::MAGIC) != MAGIC {
            return Err(KeptStateError::Format { found: 0 });
        }
        if word(header::FORMAT) != FORMAT {
            return Err(KeptStateError::Format { found: word(header::FORMAT) });
        }
        if word(header::INCOMPLETE) != 0 {
            return Err(KeptStateError::Incomplete);
        }
        area.word(header::TAKEOVERS).fetch_add(1, Ordering::AcqRel);
        Ok(Arc::new(KeptState::of(area, true)))
    }

    /// Returns the file of the state, for the process that holds it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.area.file()
    }

    /// Returns true if another process has written the state, and this one continues.
    pub fn is_taken_over(&self) -> bool {
        self.is_taken_over
    }

    /// Returns the number of processes that have taken the mount over.
    pub fn takeovers(&self) -> u64 {
        self.area.word(header::TAKEOVERS).load(Ordering::Acquire)
    }

    /// Returns a word of the caller. `index` is below 16.
    pub fn word(&self, index: usize) -> u64 {
        self.area.word(header::WORDS + 8 * index.min(WORDS - 1)).load(Ordering::Acquire)
    }

    /// Sets a word of the caller. `index` is below 16.
    pub fn set_word(&self, index: usize, value: u64) {
        self.area.word(header::WORDS + 8 * index.min(WORDS - 1)).store(value, Ordering::Release);
    }

    pub(super) fn area(&self) -> &Area {
        &self.area
    }

    fn identity(&self, offset: usize) -> Identity {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.area.load_bytes(offset, 16));
        Identity(bytes)
    }

    /// Returns the mount, the server's memory, and the session.
    pub(crate) fn session(&self) -> (Identity, Identity, u64) {
        let session = self.area.word(header::SESSION).load(Ordering::Acquire);
        (self.identity(header::MOUNT), self.identity(header::MEMORY), session)
    }

    /// Notes the mount, the server's memory, and the session.
    pub(crate) fn set_session(&self, mount: Identity, memory: Identity, session: u64) {
        self.area.store_bytes(header::MOUNT, &mount.0);
        self.area.store_bytes(header::MEMORY, &memory.0);
        self.area.word(header::SESSION).store(session, Ordering::Release);
    }

    /// Notes another session, after the server has given up the previous one.
    pub(crate) fn set_session_number(&self, session: u64) {
        self.area.word(header::SESSION).store(session, Ordering::Release);
    }

    /// Notes that the state has no room for something, so that no process takes over.
    fn give_up(&self, what: &str) {
        if self.area.word(header::INCOMPLETE).swap(1, Ordering::AcqRel) == 0 {
            log::warn!("this mount ends with its process from now on: too many {what}");
        }
    }

    /// Adds an inode.
    pub(super) fn add_row(&self, ino: u64) -> Option<usize> {
        let Some(index) = self.free.lock().rows.take(&self.area) else {
            self.give_up("inodes");
            return None;
        };
        self.clear_row(index, ino);
        Some(index)
    }

    pub(super) fn free_row(&self, index: usize) {
        self.area.word(row_at(index)).store(0, Ordering::Release);
        self.free.lock().rows.put_back(index);
    }

    /// Returns the inodes of the previous process.
    pub(crate) fn take_inodes(&self) -> Vec<KeptInode> {
        let mut rows = Vec::new();
        let mut free = self.free.lock();
        for index in 0..free.rows.used(&self.area) {
            let at = row_at(index);
            let ino = self.area.word(at).load(Ordering::Acquire);
            if ino == 0 || !self.is_used(index) {
                self.area.word(at).store(0, Ordering::Release);
                free.rows.put_back(index);
                continue;
            }
            let counters =
                Counter::ALL.map(|counter| self.area.word(at + counter.offset()).load(Ordering::Acquire));
            let slot = self.area.word(at + SLOT).load(Ordering::Acquire);
            let slot = slot.checked_sub(1).and_then(|slot| u32::try_from(slot).ok());
            rows.push(KeptInode { ino, row: index, counters, slot });
        }
        rows
    }

    /// Begins the note of a request. Returns its place.
    pub(super) fn begin_request(&self, unique: u64) -> Option<usize> {
        let Some(entry) = self.free.lock().requests.take(&self.area) else {
            self.give_up("requests");
            return None;
        };
        let at = request_at(entry);
        self.area.word(at + 8).store(0, Ordering::Relaxed);
        self.area.word(at).store(unique, Ordering::Release);
        Some(entry)
    }

    /// Notes effects of a request, all at once. Returns false if there is no room.
    pub(super) fn add_effects(&self, entry: usize, number: usize, effects: &[(u64, u8, i64)]) -> bool {
        if number + effects.len() > MAX_EFFECTS {
            return false;
        }
        let at = request_at(entry);
        for (index, &(value, what, amount)) in effects.iter().enumerate() {
            let effect = at + REQUEST_HEADER + EFFECT_LEN * (number + index);
            self.area.word(effect).store(value, Ordering::Relaxed);
            self.area.word(effect + 8).store(pack(what, amount), Ordering::Relaxed);
        }
        self.area.word(at + 8).store((number + effects.len()) as u64, Ordering::Release);
        true
    }

    /// Adds to a counter of a row.
    pub(super) fn add_to_counter(&self, index: usize, counter: Counter, amount: i64) {
        let word = self.area.word(row_at(index) + counter.offset());
        let add = |now: u64| Some(now.saturating_add_signed(amount));
        // Several threads may count at once. The change never fails.
        word.fetch_update(Ordering::Release, Ordering::Relaxed, add).ok();
    }

    pub(super) fn end_request(&self, entry: usize) {
        self.area.word(request_at(entry)).store(0, Ordering::Release);
        self.free.lock().requests.put_back(entry);
    }

    /// Takes back the effects of requests that the kernel has sent again, by their numbers. All
    /// other requests were answered, or nothing waits for them any more, so their effects stay.
    /// Comes before [`Client::connect_kept`](crate::Client::connect_kept).
    pub fn take_back(&self, repeated: &HashSet<u64>) {
        let mut free = self.free.lock();
        let mut rows = HashMap::new();
        for index in 0..free.rows.used(&self.area) {
            let ino = self.area.word(row_at(index)).load(Ordering::Acquire);
            // An inode that was forgotten and found again may have a second row, without counts.
            if ino != 0 && (self.is_used(index) || !rows.contains_key(&ino)) {
                rows.insert(ino, index);
            }
        }
        for entry in 0..free.requests.used(&self.area) {
            let at = request_at(entry);
            let unique = self.area.word(at).load(Ordering::Acquire);
            if unique != 0 && repeated.contains(&unique) {
                self.take_back_entry((entry, unique), &mut free, &mut rows);
                if self.appends.lock().keeps(entry, unique) {
                    continue;
                }
            }
            self.area.word(at).store(0, Ordering::Release);
            free.requests.put_back(entry);
        }
        // The kernel does not know an inode without references.
        for index in rows.into_values() {
            if !self.is_used(index) {
                self.area.word(row_at(index)).store(0, Ordering::Release);
            }
        }
    }

    /// Takes back the effects of one request. Notes of an append stay.
    fn take_back_entry(
        &self,
        (entry, unique): (usize, u64),
        free: &mut Places,
        rows: &mut HashMap<u64, usize>,
    ) {
        let at = request_at(entry);
        let count = (self.area.word(at + 8).load(Ordering::Acquire) as usize).min(MAX_EFFECTS);
        for number in (0..count).rev() {
            let effect = at + REQUEST_HEADER + EFFECT_LEN * number;
            let ino = self.area.word(effect).load(Ordering::Relaxed);
            let (what, amount) = unpack(self.area.word(effect + 8).load(Ordering::Relaxed));
            self.appends.lock().note((entry, unique), what, ino);
            let Some(counter) = Counter::of(what) else { continue };
            let index = match rows.get(&ino) {
                Some(&index) => index,
                // The request had removed the inode.
                None => {
                    let Some(index) = free.rows.take(&self.area) else { continue };
                    self.clear_row(index, ino);
                    rows.insert(ino, index);
                    index
                }
            };
            let void = || self.area.word(effect + 8).store(pack(VOID, 0), Ordering::Release);
            let back = amount.saturating_neg();
            if counter.changes_before_note(back) {
                self.add_to_counter(index, counter, back);
                void();
            } else {
                void();
                self.add_to_counter(index, counter, back);
            }
        }
    }

    /// Returns true if the kernel knows the inode of a row.
    fn is_used(&self, index: usize) -> bool {
        let count =
            |counter: Counter| self.area.word(row_at(index) + counter.offset()).load(Ordering::Acquire);
        count(Counter::References) > 0 || count(Counter::Opens) > 0
    }

    /// Returns the offset and the lock of an append that the previous process had begun.
    pub(super) fn previous_append(&self, unique: u64) -> Option<(u64, u64)> {
        self.appends.lock().find(unique)
    }

    /// Returns true for a repeated request whose append the previous process had begun. These come
    /// before all others.
    pub fn is_begun_append(&self, unique: u64) -> bool {
        self.appends.lock().contains(unique)
    }

    /// Notes that an append that the previous process had begun is answered.
    pub(super) fn end_append(&self, unique: u64) {
        let ended = self.appends.lock().end(unique);
        if let Some(entry) = ended {
            self.end_request(entry);
        }
    }

    /// Returns true while appends are unfinished that the previous process had begun. Their locks
    /// tell how far they came, so no other append may take them.
    pub(crate) fn has_previous_appends(&self) -> bool {
        self.is_taken_over && !self.appends.lock().is_empty()
    }

    fn clear_row(&self, index: usize, ino: u64) {
        let at = row_at(index);
        for counter in Counter::ALL {
            self.area.word(at + counter.offset()).store(0, Ordering::Relaxed);
        }
        self.area.word(at + SLOT).store(0, Ordering::Relaxed);
        self.area.word(at).store(ino, Ordering::Release);
    }

    /// Returns the last sequence number of each slot.
    pub(crate) fn sequences(&self) -> Vec<u64> {
        calls::sequences(&self.area)
    }

    /// Notes a call before it is sent.
    pub(crate) fn begin_call(&self, slot: (u32, u64), request: (u64, u32), envelope: &[u8]) {
        calls::begin(&self.area, slot, request, envelope);
    }

    /// Notes that the reply to a call is not needed any more.
    pub(crate) fn end_call(&self, slot: (u32, u64)) {
        calls::end(&self.area, slot);
    }

    /// Returns the calls of the previous process that were in flight.
    pub(crate) fn calls(&self) -> Vec<KeptCall> {
        calls::in_flight(&self.area)
    }

    /// Sets the owner of the slots.
    pub(crate) fn set_owner(&self, owner: Weak<dyn KeptCalls>) {
        // There is one session.
        let _ = self.owner.set(owner);
    }

    /// Replies to the calls of repeated requests.
    pub(crate) fn replies(&self) -> &PreviousReplies {
        &self.replies
    }

    pub(super) fn end_unused(&self, slots: &[(u32, u64)]) {
        if let Some(owner) = self.owner.get().and_then(Weak::upgrade) {
            owner.end_calls(slots);
        }
    }

    /// Notes a lock that may be held from now on, or that is waited for.
    pub(crate) fn add_lock(&self, lock: &KeptLock) {
        if !self.locks.lock().add(&self.area, lock) {
            self.give_up("locks");
        }
    }

    /// Notes that a lock is not held, or not waited for.
    pub(crate) fn remove_lock(&self, lock: &KeptLock) {
        self.remove_locks(|other| other == lock);
    }

    /// Notes that these locks are not held, or not waited for.
    pub(crate) fn remove_locks(&self, hit: impl Fn(&KeptLock) -> bool) {
        self.locks.lock().remove(&self.area, hit);
    }

    /// Returns the locks of the previous process.
    pub(crate) fn take_locks(&self) -> Vec<KeptLock> {
        self.locks.lock().take_in(&self.area)
    }
}
