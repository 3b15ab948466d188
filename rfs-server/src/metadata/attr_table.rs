//! The table: publishes each inode's record in memory that clients read one-sidedly.
//!
//! The table decides nothing about attributes. It reads back only the fields that clients write:
//! the size and the time of the last write.
//!
//! # Concurrency
//! Any thread; the holder of an inode's shard lock is the only one to publish its record. Stores
//! are whole 8-byte words. Readers detect a mixture of old and new words by the version and the
//! checksum of `rfs_proto::record`. The free slots have their own lock, and no other is taken under
//! it.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::Mutex;
use rdmabox::Memory;
use rfs_proto::{
    Attr, FileKind, MAX_FILE_SIZE,
    record::{self, Space},
};
use seeded_faults::seeded;

/// Upper bound of concurrent transactions; each takes at most one slot.
const UNDER_WAY: u32 = 1024;

/// The size and time that clients had written to a file's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFields {
    /// The inode.
    pub ino: u64,
    /// Its size.
    pub size: u64,
    /// The time of the last write, in ns; 0 for no write since the server has set mtime.
    pub time: i64,
}

/// The record is open, and belongs or belonged to this inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeInProgress(pub ClientFields);

/// Attribute records in shared memory, and the free slots among them.
#[derive(Debug)]
pub struct Table {
    memory: Arc<Memory>,
    slots: u32,
    free: Mutex<Free>,
}

/// Slots that are not in use.
#[derive(Debug, Default)]
struct Free {
    /// Slots below this number have been used.
    fresh: u32,
    freed: Vec<u32>,
}

impl Table {
    /// Returns a table over all of `memory`, which is zero.
    pub fn new(memory: Arc<Memory>) -> Table {
        let slots = u32::try_from(memory.len() / record::LEN).unwrap_or(u32::MAX);
        Table { memory, slots, free: Mutex::default() }
    }

    /// Returns a table over memory with records. Slots that are not `in_use` are cleared, because a
    /// previous server may have left half-made records there. Only transactions that were in flight
    /// then can have used slots from `slots` on.
    pub fn kept(memory: Arc<Memory>, slots: u32, in_use: impl Fn(u32) -> bool) -> Table {
        let table = Table::new(memory);
        let end = slots.saturating_add(UNDER_WAY).min(table.slots);
        let freed: Vec<u32> = (0..end).rev().filter(|&slot| !in_use(slot)).collect();
        freed.iter().filter(|&&slot| table.load(slot, record::INO) != 0).for_each(|&slot| table.clear(slot));
        *table.free.lock() = Free { fresh: end, freed };
        table
    }

    /// Returns the inode of a record, or its last inode; `None` if there is no such slot.
    pub fn owner(&self, slot: u32) -> Option<u64> {
        (slot < self.slots).then(|| self.load(slot, record::INO))
    }

    /// Returns the attributes that the server last published for an inode, without clients'
    /// changes; `None` if the publication was not finished.
    pub fn published(&self, ino: u64, slot: u32) -> Option<Attr> {
        let mut raw = [0; record::LEN];
        self.memory.read(place(slot, 0), &mut raw);
        raw[record::WRITE_TIME..record::WRITE_TIME + 8].fill(0);
        let version = self.load(slot, record::VERSION);
        // The checksum may be that of the previous version, if the record was opened and not
        // changed. It may be that of the next version, if only the version is missing.
        let versions = [version & !1, (version | 1).wrapping_add(1)];
        versions.into_iter().find_map(|version| {
            raw[record::VERSION..record::VERSION + 8].copy_from_slice(&version.to_le_bytes());
            record::decode(&raw, ino, slot)
        })
    }

    /// Returns true if a server has opened the record and not published it yet.
    pub fn is_being_changed(&self, slot: u32) -> bool {
        self.load(slot, record::VERSION) % 2 == 1
    }

    /// Publishes the record of an inode of a previous server. Keeps the fields that clients wrote,
    /// except for appends of sessions that have ended.
    pub fn take_over(&self, attr: &Attr, space: &Space, may_append: impl Fn(u64) -> bool) {
        self.change(attr.slot, attr.ino, |table, version| {
            if attr.kind != FileKind::Regular {
                table.store(attr.slot, record::SIZE, attr.size);
            }
            if let Some(appender) = table.appends(attr.slot).filter(|&session| !may_append(session)) {
                table.end_append(attr.slot, appender);
            }
            table.store_server_part(attr, space, version);
        });
    }

    /// Returns the end of the slots that were ever in use.
    pub fn used_slots(&self) -> u32 {
        self.free.lock().fresh
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the number of free slots.
    pub fn free_slots(&self) -> u32 {
        let free = self.free.lock();
        self.slots - free.fresh + free.freed.len() as u32 // No more than `slots` were ever freed.
    }

    /// Takes a slot; `None` if there is none left. Its record is free until it is published.
    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(slot) = free.freed.pop() {
            return Some(slot);
        }
        let slot = free.fresh;
        (slot < self.slots).then(|| {
            free.fresh += 1;
            slot
        })
    }

    /// Gives a slot back. No session may have the inode open, so that none writes to the record any
    /// more.
    pub fn release(&self, slot: u32) {
        self.clear(slot);
        seeded!(SlotLeaked, (), self.free.lock().freed.push(slot));
    }

    fn clear(&self, slot: u32) {
        self.change(slot, 0, |table, _| {
            table.store(slot, record::SIZE, 0);
            table.store(slot, record::WRITE_TIME, 0);
            table.store(slot, record::APPENDER, 0);
        });
    }

    /// Publishes the server's fields. The size and the time of the last write are unchanged.
    pub fn publish(&self, attr: &Attr, space: &Space) {
        self.change(attr.slot, attr.ino, |table, version| table.store_server_part(attr, space, version));
    }

    /// Publishes all fields including the size, and resets the time of the last write.
    pub fn publish_all(&self, attr: &Attr, space: &Space) {
        self.change(attr.slot, attr.ino, |table, version| {
            table.store(attr.slot, record::SIZE, attr.size);
            table.store(attr.slot, record::WRITE_TIME, 0);
            table.store(attr.slot, record::APPENDER, 0);
            table.store_server_part(attr, space, version);
        });
    }

    /// Publishes the server's fields with an mtime that the server set, and resets the time of the
    /// last write.
    pub fn publish_times(&self, attr: &Attr, space: &Space) {
        self.change(attr.slot, attr.ino, |table, version| table.store_times(attr, space, version));
    }

    /// Stores the fields of [`Table::publish_times`] but leaves the record open until its next
    /// publication.
    pub fn begin_times(&self, attr: &Attr, space: &Space) {
        self.begin(attr.slot);
        let version = self.load(attr.slot, record::VERSION).wrapping_add(1);
        self.store_times(attr, space, version);
    }

    /// Returns the size, which clients may have raised, up to the size limit of files.
    pub fn size(&self, slot: u32) -> u64 {
        self.load(slot, record::SIZE).min(MAX_FILE_SIZE)
    }

    /// Sets the size while clients may raise it, and returns the previous size. The version stays
    /// odd until the next publication, so a client that just wrote cannot accept the old record.
    pub fn set_size(&self, slot: u32, size: u64) -> u64 {
        self.begin(slot);
        let word = self.memory.atomic_u64(place(slot, record::SIZE));
        u64::from_le(word.swap(size.to_le(), Ordering::SeqCst))
    }

    /// Raises the size, as a writing client does.
    pub fn raise_size(&self, slot: u32, size: u64) {
        let word = self.memory.atomic_u64(place(slot, record::SIZE));
        let higher = |old| (u64::from_le(old) < size).then_some(size.to_le());
        // An error means that the size is already as large.
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, higher).ok();
    }

    /// Opens a record until its next publication, for a change that clients must not miss.
    pub fn begin(&self, slot: u32) {
        let version = self.load(slot, record::VERSION);
        self.store(slot, record::VERSION, version | 1);
    }

    /// Returns the time of a client's last write; 0 if there was none since the server set mtime.
    pub fn write_time(&self, slot: u32) -> i64 {
        self.load(slot, record::WRITE_TIME) as i64
    }

    /// Returns the inode of a record with the fields that clients write; `None` for a free record.
    ///
    /// # Errors
    /// [`ChangeInProgress`] if the record is open; its fields may then be of two moments.
    pub fn written(&self, slot: u32) -> Result<Option<ClientFields>, ChangeInProgress> {
        let version = self.load(slot, record::VERSION);
        let ino = self.load(slot, record::INO);
        let written = ClientFields { ino, size: self.size(slot), time: self.write_time(slot) };
        let whole = version.is_multiple_of(2) && version == self.load(slot, record::VERSION);
        match ino {
            // A new file has no client data yet, and a removed file needs none.
            0 => Ok(None),
            _ if whole => Ok(Some(written)),
            _ => Err(ChangeInProgress(written)),
        }
    }

    /// Returns the session that is appending.
    pub fn appends(&self, slot: u32) -> Option<u64> {
        Some(record::appender_session(self.load(slot, record::APPENDER))).filter(|&session| session != 0)
    }

    /// Takes the append lock of a file for a session. Returns false if a session holds it.
    pub fn take_end(&self, slot: u32, session: u64) -> bool {
        let word = self.memory.atomic_u64(place(slot, record::APPENDER));
        let taken = record::appender(session, 0).to_le();
        word.compare_exchange(0, taken, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Releases the append lock of a session that cannot append any more.
    pub fn end_append(&self, slot: u32, session: u64) {
        let word = self.memory.atomic_u64(place(slot, record::APPENDER));
        seeded!(AppenderKept => return);
        let its = |word: u64| (record::appender_session(u64::from_le(word)) == session).then_some(0);
        // An error means that another session holds it.
        word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, its).ok();
    }

    fn change(&self, slot: u32, ino: u64, fill: impl FnOnce(&Table, u64)) {
        let version = (self.load(slot, record::VERSION) | 1).wrapping_add(1);
        seeded!(RecordTorn, (), self.store(slot, record::VERSION, version.wrapping_sub(1)));
        self.store(slot, record::INO, ino);
        fill(self, version);
        self.store(slot, record::VERSION, version);
    }

    fn store_server_part(&self, attr: &Attr, space: &Space, version: u64) {
        let part = record::encode_server_part(attr, space, version);
        for (word, bytes) in part.chunks_exact(8).enumerate() {
            let mut le = [0; 8];
            le.copy_from_slice(bytes);
            self.store(attr.slot, record::MTIME + 8 * word, u64::from_le_bytes(le));
        }
    }

    /// Stores the server's fields with an mtime that the server set.
    fn store_times(&self, attr: &Attr, space: &Space, version: u64) {
        // In this order: a reader of half-stored fields still has the time of the last write.
        self.store_server_part(attr, space, version);
        self.store(attr.slot, record::WRITE_TIME, 0);
    }

    fn store(&self, slot: u32, field: usize, value: u64) {
        // Little-endian on every machine. Sequentially consistent: records are rarely written, and
        // no store may be visible before the odd version or after the even one.
        self.memory.atomic_u64(place(slot, field)).store(value.to_le(), Ordering::SeqCst);
    }

    fn load(&self, slot: u32, field: usize) -> u64 {
        u64::from_le(self.memory.atomic_u64(place(slot, field)).load(Ordering::SeqCst))
    }
}

fn place(slot: u32, field: usize) -> usize {
    slot as usize * record::LEN + field
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread};

    use rfs_proto::{FileKind, Marks};

    use super::*;

    const SPACE: Space = Space { allocated: 16, needed_to: 0, end: 8192 };

    fn table(slots: usize) -> Table {
        Table::new(Arc::new(Memory::private(slots * record::LEN).unwrap()))
    }

    fn attr(ino: u64, slot: u32, seed: u32) -> Attr {
        Attr {
            ino,
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: seed,
            uid: seed,
            gid: seed,
            rdev: 0,
            size: 5000,
            blocks: 16,
            atime: i64::from(seed),
            mtime: i64::from(seed),
            ctime: i64::from(seed),
            layout_generation: u64::from(seed),
            slot,
            marks: Marks::from_bits_retain(seed % 4),
        }
    }

    fn raw(table: &Table, slot: u32) -> [u8; record::LEN] {
        let mut raw = [0; record::LEN];
        table.memory.read(place(slot, 0), &mut raw);
        raw
    }

    fn client(table: &Table, slot: u32, field: usize, value: u64) {
        table.store(slot, field, value);
    }

    #[test]
    fn slots_run_out_and_come_back() {
        let table = table(2);
        assert_eq!((table.take(), table.take(), table.take()), (Some(0), Some(1), None));
        assert_eq!(table.free_slots(), 0);
        table.release(0);
        assert_eq!((table.free_slots(), table.take()), (1, Some(0)));
    }

    #[test]
    fn a_record_is_open_while_it_changes() {
        let table = table(1);
        let slot = table.take().unwrap();
        table.publish_all(&attr(9, slot, 3), &SPACE);
        let version = || table.load(slot, record::VERSION);
        let before = version();
        table.change(slot, 9, |_, next| assert_eq!((version(), next), (before + 1, before + 2)));
        assert_eq!((before % 2, version()), (0, before + 2));
    }

    #[test]
    fn client_writes_are_reported_while_a_record_is_open() {
        let table = table(1);
        let slot = table.take().unwrap();
        assert_eq!(table.written(slot), Ok(None));
        table.publish_all(&attr(9, slot, 3), &SPACE);
        client(&table, slot, record::WRITE_TIME, 77);
        let written = ClientFields { ino: 9, size: 5000, time: 77 };
        assert_eq!(table.written(slot), Ok(Some(written)));
        table.begin(slot);
        assert_eq!(table.written(slot), Err(ChangeInProgress(written)));
        table.publish(&attr(9, slot, 4), &SPACE);
        assert_eq!(table.written(slot), Ok(Some(written)));
        table.release(slot);
        assert_eq!(table.written(slot), Ok(None));
    }

    #[test]
    fn a_record_is_no_answer_between_a_new_size_and_its_publication() {
        let table = table(1);
        let slot = table.take().unwrap();
        let attr = attr(9, slot, 3);
        table.publish_all(&attr, &SPACE);
        assert_eq!(table.set_size(slot, 7), 5000);
        assert_eq!(record::decode(&raw(&table, slot), 9, slot), None);
        table.publish(&attr, &SPACE);
        assert_eq!(record::decode(&raw(&table, slot), 9, slot), Some(Attr { size: 7, blocks: 8, ..attr }));
    }

    #[test]
    fn readers_decode_a_published_record() {
        let table = table(2);
        let (_, slot) = (table.take(), table.take().unwrap());
        let mut attr = attr(9, slot, 3);
        table.publish_all(&attr, &SPACE);
        assert_eq!(record::decode(&raw(&table, slot), 9, slot), Some(attr));
        assert_eq!(record::decode(&raw(&table, slot), 8, slot), None);

        client(&table, slot, record::SIZE, 9000);
        client(&table, slot, record::WRITE_TIME, 77);
        client(&table, slot, record::APPENDER, record::appender(4, 7));
        assert_eq!((table.size(slot), table.write_time(slot)), (9000, 77));
        attr.perm = 0o600;
        table.publish(&attr, &Space::contiguous(100));
        assert_eq!(table.load(slot, record::APPENDER), record::appender(4, 7));
        table.end_append(slot, 5);
        assert_eq!(table.load(slot, record::APPENDER), record::appender(4, 7), "another session holds it");
        table.end_append(slot, 4);
        assert_eq!(table.load(slot, record::APPENDER), 0);
        // The client's fields are unchanged; space ahead of the end is not visible.
        let seen = Attr { size: 9000, mtime: 77, ctime: 77, blocks: 24, ..attr };
        assert_eq!(record::decode(&raw(&table, slot), 9, slot), Some(seen));
        table.publish_times(&attr, &Space::contiguous(100));
        let seen = Attr { size: 9000, blocks: 24, ..attr };
        assert_eq!(record::decode(&raw(&table, slot), 9, slot), Some(seen));

        table.release(slot);
        assert_eq!(record::decode(&raw(&table, slot), 9, slot), None);
        assert_eq!((table.size(slot), table.write_time(slot)), (0, 0));
    }

    #[test]
    fn a_size_from_a_client_is_bounded() {
        let table = table(1);
        let slot = table.take().unwrap();
        client(&table, slot, record::SIZE, u64::MAX);
        assert_eq!(table.size(slot), MAX_FILE_SIZE);
    }

    #[test]
    fn readers_never_accept_a_mixture() {
        let table = table(1);
        let slot = table.take().unwrap();
        table.publish_all(&attr(5, slot, 1), &SPACE);
        let stop = AtomicBool::new(false);
        let accepted = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut accepted = 0u64;
                while !stop.load(Ordering::Relaxed) || accepted == 0 {
                    // Word by word from the back: an order that the version alone does not detect.
                    let mut bytes = [0; record::LEN];
                    for word in (0..record::LEN / 8).rev() {
                        let value = table.load(slot, 8 * word);
                        bytes[8 * word..8 * word + 8].copy_from_slice(&value.to_le_bytes());
                    }
                    if let Some(seen) = record::decode(&bytes, 5, slot) {
                        let seed = seen.nlink;
                        assert_eq!(seen, attr(5, slot, seed));
                        accepted += 1;
                    }
                }
                accepted
            });
            for seed in 1..50_000 {
                table.publish(&attr(5, slot, seed), &SPACE);
            }
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap()
        });
        assert!(accepted > 0);
    }
}
