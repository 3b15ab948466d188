//! The kept state of a mount.
//!
//! # Concurrency
//! Any thread. `free` is held to allocate, `replies` to look up, both briefly and never nested.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::fd::BorrowedFd,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rfs_proto::{Identity, LockClass, SLOTS};

use super::{
    area::Area,
    counter::Counter,
    layout::{
        APPEND_LOCK, APPEND_OFFSET, CALL_HEADER, CALL_LEN, CALLS, EFFECT_LEN, FORMAT, INODE_COUNT, LEN,
        LOCK_COUNT, LOCK_LEN, LOCKS, MAGIC, MAX_EFFECTS, MAX_ENVELOPE, REQUEST_COUNT, REQUEST_HEADER,
        REQUEST_LEN, REQUESTS, SLOT, VOID, WORDS, header, row_at,
    },
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

/// The owner of the slots of calls.
pub(crate) trait KeptCalls: Send + Sync {
    /// Frees the slots of calls whose request is answered.
    fn end_calls(&self, slots: &[(u32, u64)]);
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

/// A call in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptCall {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// The kernel's number of the request, or 0.
    pub(crate) unique: u64,
    /// Ordinal of the call in the request.
    pub(crate) ordinal: u32,
    /// The envelope; empty if it was too long.
    pub(crate) envelope: Vec<u8>,
}

/// A lock that may be held, or, with a ticket, waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeptLock {
    pub(crate) ino: u64,
    pub(crate) handle: u64,
    pub(crate) owner: u64,
    pub(crate) class: LockClass,
    /// Ticket of the request, if it waits.
    pub(crate) ticket: Option<u64>,
}

/// Places that are free: those given back, and those that were never in use.
#[derive(Debug)]
struct Free {
    returned: Vec<usize>,
    count: usize,
    /// Offset of the word with the number of places that were in use.
    used: usize,
}

impl Free {
    fn new(count: usize, used: usize) -> Free {
        Free { returned: Vec::new(), count, used }
    }

    fn take(&mut self, area: &Area) -> Option<usize> {
        self.returned.pop().or_else(|| {
            let used = area.word(self.used);
            let next = used.load(Ordering::Relaxed) as usize;
            (next < self.count).then(|| {
                used.store(next as u64 + 1, Ordering::Release);
                next
            })
        })
    }

    /// Returns the number of places that were in use.
    fn used(&self, area: &Area) -> usize {
        (area.word(self.used).load(Ordering::Acquire) as usize).min(self.count)
    }
}

#[derive(Debug)]
struct Places {
    rows: Free,
    requests: Free,
    locks: Free,
    lock_places: HashMap<KeptLock, usize>,
}

impl Places {
    fn new() -> Places {
        Places {
            rows: Free::new(INODE_COUNT, header::ROWS_USED),
            requests: Free::new(REQUEST_COUNT, header::REQUESTS_USED),
            locks: Free::new(LOCK_COUNT, header::LOCKS_USED),
            lock_places: HashMap::new(),
        }
    }
}

/// A call of the previous process, which the server has answered.
#[derive(Debug)]
pub(crate) struct KeptReply {
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    /// First byte of the request, which tells its kind.
    pub(crate) kind: Option<u8>,
    /// The reply. `None` if the call was too long to be kept: it is repeated with its number.
    pub(crate) reply: Option<Vec<u8>>,
}

/// An append that the previous process had begun.
#[derive(Debug)]
struct BegunAppend {
    /// Place of the request. Its notes stay until the request is answered.
    entry: usize,
    offset: Option<u64>,
    /// Number of the append lock. 0: the append was given up, to begin anew.
    hold: u64,
}

/// State of a mount that outlives its process.
#[derive(Debug)]
pub struct KeptState {
    area: Area,
    is_taken_over: bool,
    free: Mutex<Places>,
    /// Replies to the calls of repeated requests, by request and ordinal.
    replies: Mutex<HashMap<(u64, u32), KeptReply>>,
    reply_count: AtomicUsize,
    /// Appends of repeated requests.
    appends: Mutex<HashMap<u64, BegunAppend>>,
    owner: OnceLock<Weak<dyn KeptCalls>>,
}

impl std::fmt::Debug for dyn KeptCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeptCalls")
    }
}

fn call_at(slot: u32) -> usize {
    CALLS + CALL_LEN * slot as usize
}

fn request_at(entry: usize) -> usize {
    REQUESTS + REQUEST_LEN * entry
}

fn lock_at(place: usize) -> usize {
    LOCKS + LOCK_LEN * place
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
            replies: Mutex::default(),
            reply_count: AtomicUsize::new(0),
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
        self.free.lock().rows.returned.push(index);
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
                free.rows.returned.push(index);
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
        self.free.lock().requests.returned.push(entry);
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
                if self.keeps_append(entry, unique) {
                    continue;
                }
            }
            self.area.word(at).store(0, Ordering::Release);
            free.requests.returned.push(entry);
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
            self.note_append((entry, unique), what, ino);
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

    /// Takes in a note of an append. Notes come from the last one to the first one, and the last
    /// one counts.
    fn note_append(&self, (entry, unique): (usize, u64), what: u8, value: u64) {
        let mut appends = self.appends.lock();
        match what {
            APPEND_LOCK => {
                appends.entry(unique).or_insert(BegunAppend { entry, offset: None, hold: value });
            }
            APPEND_OFFSET => {
                if let Some(append) = appends.get_mut(&unique) {
                    append.offset.get_or_insert(value);
                }
            }
            _ => {}
        }
    }

    /// Returns true if an entry has the notes of an append. Forgets an append that was given up.
    fn keeps_append(&self, entry: usize, unique: u64) -> bool {
        let mut appends = self.appends.lock();
        let Some(append) = appends.get(&unique) else { return false };
        if append.hold == 0 {
            appends.remove(&unique);
            return false;
        }
        append.entry == entry
    }

    /// Returns the offset and the lock of an append that the previous process had begun.
    pub(super) fn previous_append(&self, unique: u64) -> Option<(u64, u64)> {
        self.appends.lock().get(&unique).and_then(|append| Some((append.offset?, append.hold)))
    }

    /// Returns true for a repeated request whose append the previous process had begun. These come
    /// before all others.
    pub fn is_begun_append(&self, unique: u64) -> bool {
        self.appends.lock().contains_key(&unique)
    }

    /// Notes that an append that the previous process had begun is answered.
    pub(super) fn end_append(&self, unique: u64) {
        let ended = self.appends.lock().remove(&unique);
        if let Some(append) = ended {
            self.end_request(append.entry);
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
        (0..SLOTS).map(|slot| self.area.word(call_at(slot)).load(Ordering::Acquire) / 2).collect()
    }

    /// Notes a call before it is sent.
    pub(crate) fn begin_call(
        &self,
        (slot, sequence): (u32, u64),
        (unique, ordinal): (u64, u32),
        envelope: &[u8],
    ) {
        let at = call_at(slot);
        let kept = if envelope.len() > MAX_ENVELOPE { &[][..] } else { envelope };
        self.area.word(at + 8).store(unique, Ordering::Relaxed);
        self.area.half(at + 16).store(ordinal, Ordering::Relaxed);
        self.area.half(at + 20).store(kept.len() as u32, Ordering::Relaxed);
        self.area.store_bytes(at + CALL_HEADER, kept);
        self.area.word(at).store(sequence * 2 + 1, Ordering::Release);
    }

    /// Notes that the reply to a call is not needed any more.
    pub(crate) fn end_call(&self, (slot, sequence): (u32, u64)) {
        self.area.word(call_at(slot)).store(sequence * 2, Ordering::Release);
    }

    /// Returns the calls of the previous process that were in flight.
    pub(crate) fn calls(&self) -> Vec<KeptCall> {
        let of = |slot| {
            let at = call_at(slot);
            let state = self.area.word(at).load(Ordering::Acquire);
            (state % 2 == 1).then(|| KeptCall {
                slot,
                sequence: state / 2,
                unique: self.area.word(at + 8).load(Ordering::Relaxed),
                ordinal: self.area.half(at + 16).load(Ordering::Relaxed),
                envelope: {
                    let len = self.area.half(at + 20).load(Ordering::Relaxed) as usize;
                    self.area.load_bytes(at + CALL_HEADER, len.min(MAX_ENVELOPE))
                },
            })
        };
        (0..SLOTS).filter_map(of).collect()
    }

    /// Sets the owner of the slots.
    pub(crate) fn set_owner(&self, owner: Weak<dyn KeptCalls>) {
        // There is one session.
        let _ = self.owner.set(owner);
    }

    /// Notes the reply to a call of a repeated request.
    pub(crate) fn add_reply(&self, call: &KeptCall, kind: Option<u8>, reply: Option<Vec<u8>>) {
        let &KeptCall { slot, sequence, unique, ordinal, .. } = call;
        let mut replies = self.replies.lock();
        replies.insert((unique, ordinal), KeptReply { slot, sequence, kind, reply });
        self.reply_count.store(replies.len(), Ordering::Release);
    }

    /// Takes the reply to a call of a repeated request.
    pub(crate) fn take_reply(&self, unique: u64, ordinal: u32) -> Option<KeptReply> {
        if self.reply_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut replies = self.replies.lock();
        let reply = replies.remove(&(unique, ordinal));
        self.reply_count.store(replies.len(), Ordering::Release);
        reply
    }

    /// Returns true if there are replies to calls of a repeated request that it has not used.
    pub(super) fn has_replies(&self, unique: u64) -> bool {
        self.reply_count.load(Ordering::Acquire) > 0
            && self.replies.lock().keys().any(|(request, _)| *request == unique)
    }

    /// Drops the replies that a repeated request has not used. Returns their slots.
    pub(super) fn drop_replies(&self, unique: u64) -> Vec<(u32, u64)> {
        if self.reply_count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut replies = self.replies.lock();
        let unused = replies
            .extract_if(|(request, _), _| *request == unique)
            .map(|(_, reply)| (reply.slot, reply.sequence))
            .collect();
        self.reply_count.store(replies.len(), Ordering::Release);
        unused
    }

    pub(super) fn end_unused(&self, slots: &[(u32, u64)]) {
        if let Some(owner) = self.owner.get().and_then(Weak::upgrade) {
            owner.end_calls(slots);
        }
    }

    fn set_lock(&self, place: usize, lock: &KeptLock) {
        let at = lock_at(place);
        let class = u64::from(lock.class == LockClass::Flock);
        let ticket = lock.ticket.map_or(0, |ticket| ticket << 2 | 2);
        self.area.word(at + 8).store(lock.handle, Ordering::Relaxed);
        self.area.word(at + 16).store(lock.owner, Ordering::Relaxed);
        self.area.word(at + 24).store(ticket | class, Ordering::Relaxed);
        self.area.word(at).store(lock.ino, Ordering::Release);
    }

    /// Notes a lock that may be held from now on, or that is waited for.
    pub(crate) fn add_lock(&self, lock: &KeptLock) {
        let mut free = self.free.lock();
        if free.lock_places.contains_key(lock) {
            return;
        }
        let Some(place) = free.locks.take(&self.area) else { return self.give_up("locks") };
        self.set_lock(place, lock);
        free.lock_places.insert(*lock, place);
    }

    /// Notes that a lock is not held, or not waited for.
    pub(crate) fn remove_lock(&self, lock: &KeptLock) {
        self.remove_locks(|other| other == lock);
    }

    /// Notes that these locks are not held, or not waited for.
    pub(crate) fn remove_locks(&self, hit: impl Fn(&KeptLock) -> bool) {
        let mut free = self.free.lock();
        let gone: Vec<usize> =
            free.lock_places.extract_if(|lock, _| hit(lock)).map(|(_, place)| place).collect();
        for place in gone {
            self.area.word(lock_at(place)).store(0, Ordering::Release);
            free.locks.returned.push(place);
        }
    }

    /// Returns the locks of the previous process.
    pub(crate) fn take_locks(&self) -> Vec<KeptLock> {
        let mut free = self.free.lock();
        let mut locks = Vec::new();
        for place in 0..free.locks.used(&self.area) {
            let at = lock_at(place);
            let ino = self.area.word(at).load(Ordering::Acquire);
            if ino == 0 {
                free.locks.returned.push(place);
                continue;
            }
            let word = self.area.word(at + 24).load(Ordering::Relaxed);
            let lock = KeptLock {
                ino,
                handle: self.area.word(at + 8).load(Ordering::Relaxed),
                owner: self.area.word(at + 16).load(Ordering::Relaxed),
                class: if word & 1 == 1 { LockClass::Flock } else { LockClass::Record },
                ticket: (word & 2 == 2).then_some(word >> 2),
            };
            free.lock_places.insert(lock, place);
            locks.push(lock);
        }
        locks
    }
}
