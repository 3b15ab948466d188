//! Atomic appends: the clients of a file append one after the other.
//!
//! A client takes the append lock of a file by a compare-and-swap of a word in its record. One
//! list then places the bytes, raises the size and releases the lock: two round trips over a
//! network, and no server code. The server releases the lock of a dead client with its session.
//! If the export has checksums, bytes and size go to the server in calls, and the lock is
//! released separately.
//!
//! # Concurrency
//! Session threads. Takes the inode's locks in the order `io` (shared), `append`, `layout_users`
//! (shared), `layout_calls`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rfs_proto::{Errno, MAX_FILE_SIZE, record};

use crate::{
    error::ClientError,
    inode::{Inode, size::LayoutId, table::InodeTable},
    io::{checksum_write::ServerWrites, write::Writes},
    remote::kept_state::current,
    remote::{
        Remote, RemoteExt,
        address::Epoch,
        operation::{LIST, Op, Ops},
        records::{Glimpse, RawRecord},
    },
    requests::{
        TRIES,
        file_times::FileTimes,
        layouts::{Layouts, WriteParts},
        record_reader::RecordReader,
    },
};

/// Attempts to take the append lock without a pause. Appends of other clients are short.
const SPINS: u32 = 64;
/// Pause after that. It doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// Number of the next lock of this session. A release that arrives late cannot release a later
/// lock.
static NEXT_LOCK: AtomicU16 = AtomicU16::new(0);

/// The outcome of placing bytes at an offset where the file ended.
enum Placed {
    /// The bytes are at the end of the file. The record was read after them.
    AtEnd(Glimpse),
    /// A plain write has grown the file to this size since the lock was taken. A reader may already
    /// see the bytes at the offset. They stay there, because a second offset would store them
    /// twice. The record was read after them.
    InGrownFile(u64, Glimpse),
    /// The file was truncated.
    InShorterFile,
}

/// How a session appends.
#[derive(Clone, Debug)]
pub(crate) enum AppendMode {
    /// It places the bytes itself, while it holds the append lock.
    OneSided,
    /// The server writes, while the session holds the append lock.
    LockedByServer(Arc<ServerWrites>),
    /// The server writes. The session cannot write the append lock.
    Confined(Arc<ServerWrites>),
}

impl AppendMode {
    /// Returns the mode of a session. `by_server` is set if the server carries out writes.
    pub(crate) fn of(confined: bool, by_server: Option<&Arc<ServerWrites>>) -> AppendMode {
        match by_server {
            None => AppendMode::OneSided,
            Some(server) if confined => AppendMode::Confined(Arc::clone(server)),
            Some(server) => AppendMode::LockedByServer(Arc::clone(server)),
        }
    }
}

/// Appends to open files.
#[derive(Debug)]
pub struct Appends {
    remote: Arc<dyn Remote>,
    inodes: Arc<InodeTable>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
    times: Arc<FileTimes>,
    writes: Arc<Writes>,
    mode: AppendMode,
    /// Number of the session at the server.
    session: Arc<AtomicU64>,
    /// Limit of a wait for the append lock.
    wait_limit: Duration,
}

impl Appends {
    pub(crate) fn new(
        layouts: &Arc<Layouts>,
        times: &Arc<FileTimes>,
        writes: &Arc<Writes>,
        mode: AppendMode,
        session: &Arc<AtomicU64>,
        wait_limit: Duration,
    ) -> Appends {
        let calls = &layouts.calls;
        Appends {
            remote: Arc::clone(&calls.remote),
            inodes: Arc::clone(&calls.caching.inodes),
            records: Arc::clone(&layouts.records),
            layouts: Arc::clone(layouts),
            times: Arc::clone(times),
            writes: Arc::clone(writes),
            mode,
            session: Arc::clone(session),
            wait_limit,
        }
    }

    /// Appends `data` to an open file in one piece, and returns its offset. Other clients may
    /// append at the same time.
    ///
    /// Writes elsewhere in the file may be in flight. If a write grows the file between taking the
    /// lock and placing the bytes, the append keeps the offset where the file ended.
    pub fn append(&self, ino: u64, data: &[u8]) -> Result<u64, ClientError> {
        let issued_epoch = self.remote.epochs().in_use;
        let inode = self.inodes.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        if data.is_empty() {
            return Ok(self.records.look(&inode)?.size);
        }
        let previous = current().and_then(|request| request.previous_append());
        if previous.is_none() {
            self.await_previous_appends();
        }
        // The word in the record tells sessions apart, not threads, so this session appends once at
        // a time.
        let _turn = inode.append.lock();
        if let AppendMode::Confined(server) = &self.mode {
            let offset = server.append(&inode, issued_epoch, data)?;
            inode.pages.recalled();
            self.times.was_written(&inode);
            return Ok(offset);
        }
        if let Some((offset, hold)) = previous {
            return self.finish_append(&inode, issued_epoch, (offset, hold), data);
        }
        for _ in 0..TRIES {
            let hold = record::appender(
                self.session.load(Ordering::Acquire),
                NEXT_LOCK.fetch_add(1, Ordering::Relaxed),
            );
            let appended = self
                .layouts
                .retry_in_new_epoch(&inode, issued_epoch, || self.take_append_lock(&inode, hold))
                .and_then(|now| self.append_at(&inode, issued_epoch, hold, now, data));
            match appended {
                Ok(Some(offset)) => {
                    inode.pages.recalled();
                    self.times.stamp(&inode)?;
                    return Ok(offset);
                }
                Ok(None) => {
                    // A next process would take the append without its lock for whole.
                    if let Some(request) = current() {
                        request.give_append_up();
                    }
                    self.release_append_lock(&inode, hold)?;
                }
                Err(e) => {
                    // The first error is the one to report. If the release fails, the end of the
                    // session releases the lock.
                    self.release_append_lock(&inode, hold).ok();
                    return Err(e);
                }
            }
        }
        Err(ClientError::Unstable)
    }

    /// Returns true if the session places the bytes itself.
    pub(crate) fn are_one_sided(&self) -> bool {
        matches!(self.mode, AppendMode::OneSided)
    }

    /// Blocks until the appends are finished that a previous process of this mount had begun.
    fn await_previous_appends(&self) {
        let Some(kept) = self.inodes.kept() else { return };
        let give_up = Instant::now() + self.wait_limit;
        while kept.has_previous_appends() && Instant::now() < give_up {
            thread::sleep(FIRST_PAUSE);
        }
    }

    /// Finishes an append that a previous process of this mount had begun at `offset`, under the
    /// lock `hold`. The bytes, the size and the release of the lock come in this order. So without
    /// the lock the append is whole, or a truncation has come after it.
    fn finish_append(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        (offset, hold): (u64, u64),
        data: &[u8],
    ) -> Result<u64, ClientError> {
        let place = self.records.field_of(inode, record::APPENDER)?;
        let mut old = 0;
        self.remote.execute(&mut [Op::CompareSwap { place, compare: hold, swap: hold, old: &mut old }])?;
        if old == hold {
            let end = offset.saturating_add(data.len() as u64);
            let placed = self.place_again(inode, issued_epoch, (offset, end), 0, data);
            self.release_append_lock(inode, hold)?;
            placed?;
        }
        inode.pages.recalled();
        self.times.stamp(inode)?;
        Ok(offset)
    }

    /// Takes the append lock, and returns the record as of that moment.
    fn take_append_lock(&self, inode: &Inode, hold: u64) -> Result<Glimpse, ClientError> {
        let (slot, record_place, appender) = self.records.record_and_field(inode, record::APPENDER)?;
        let give_up = Instant::now() + self.wait_limit;
        let (mut free, mut tries, mut pause) = (0, 0, FIRST_PAUSE);
        loop {
            let start = self.records.before_look();
            let mut raw: RawRecord = [0; record::LEN];
            let mut old = 0;
            let mut ops = Ops::new();
            ops.push(Op::CompareSwap { place: appender, compare: free, swap: hold, old: &mut old });
            if !self.records.is_mapped() {
                ops.push(Op::Read { place: record_place, out: &mut raw });
            }
            self.remote.execute(&mut ops)?;
            drop(ops);
            if old == free {
                return self.records.record_behind(inode, slot, &raw, start);
            }
            // A lock of this session is left from an append with an unknown outcome. It counts as
            // free.
            let ours = old != 0 && record::appender_session(old) == record::appender_session(hold);
            free = if ours { old } else { 0 };
            if Instant::now() >= give_up {
                return Err(ClientError::Appending(record::appender_session(old)));
            }
            tries += 1;
            if tries < SPINS {
                thread::yield_now();
            } else {
                thread::sleep(pause);
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }

    /// Releases the append lock, if it is still held.
    fn release_append_lock(&self, inode: &Inode, hold: u64) -> Result<(), ClientError> {
        let place = self.records.field_of(inode, record::APPENDER)?;
        let mut old = 0;
        Ok(self.remote.execute(&mut [Op::CompareSwap { place, compare: hold, swap: 0, old: &mut old }])?)
    }

    /// Appends at the end of the file and releases the lock. Returns `None` to begin anew if the
    /// file was truncated.
    fn append_at(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        hold: u64,
        now: Glimpse,
        data: &[u8],
    ) -> Result<Option<u64>, ClientError> {
        let Glimpse { size: offset, generation, .. } = now;
        let len = data.len() as u64;
        let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
        if let AppendMode::LockedByServer(server) = &self.mode {
            let appended = server.append_at(inode, issued_epoch, now, end, data)?;
            // Without the release this session still takes the lock, and the server releases it
            // with the session.
            self.release_append_lock(inode, hold).ok();
            return Ok(appended.then_some(offset));
        }
        self.layouts.follow_generation(inode, generation)?;
        let (places, (parts, of)) = loop {
            let places = inode.layout_users.read();
            match self.layouts.targets(inode, offset, data)? {
                Some(found) => break (places, found),
                None => drop(places),
            }
            self.layouts.allocate(inode, offset, len)?;
        };
        if of.generation != generation {
            return Ok(None);
        }
        inode.locks.check_guards(issued_epoch)?;
        if let Some(request) = current() {
            request.note_append(offset, hold);
        }
        let floor = match self.place_and_release(inode, hold, (offset, end), &parts)? {
            Placed::AtEnd(now) => (now.generation != generation).then_some(end),
            Placed::InGrownFile(size, now) => self.raise_to(inode, of, (size, end), now, &parts)?,
            Placed::InShorterFile => return Ok(None),
        };
        drop(places);
        if let Some(floor) = floor {
            self.place_again(inode, issued_epoch, (offset, end), floor, data)?;
        }
        Ok(Some(offset))
    }

    /// Raises the size of a file from `size` to the end of an append. The caller holds the inode's
    /// `layout_users`, and has read the record as `now` since the bytes were placed.
    ///
    /// Returns `None` if the append is whole. If the layout has changed meanwhile, returns the
    /// largest size that the file had before.
    fn raise_to(
        &self,
        inode: &Inode,
        layout: LayoutId,
        (mut size, end): (u64, u64),
        mut now: Glimpse,
        parts: &WriteParts<'_>,
    ) -> Result<Option<u64>, ClientError> {
        for _ in 0..TRIES {
            if now.generation != layout.generation {
                return Ok(Some(size));
            }
            if size >= end || self.writes.write_and_raise(inode, layout, (size, end), parts)? {
                return Ok(None);
            }
            now = self.records.look(inode)?;
            if now.generation == layout.generation {
                size = now.size;
            }
        }
        Err(ClientError::Unstable)
    }

    /// Places the bytes of an append whose layout changed meanwhile again, at the same offset.
    ///
    /// If the file is shorter than it was (`floor`), a truncation came after the append and has cut
    /// it. If not, only the layout has changed, or the file has regained its old size. The bytes
    /// may have gone to freed space then.
    fn place_again(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        (offset, end): (u64, u64),
        mut floor: u64,
        data: &[u8],
    ) -> Result<(), ClientError> {
        // Over all attempts, as for a read.
        let mut places = inode.layout_users.read();
        for _ in 0..TRIES {
            let now = self.records.look(inode)?;
            self.layouts.follow_generation(inode, now.generation)?;
            if now.size < floor {
                return Ok(());
            }
            floor = now.size;
            let Some((parts, layout)) = self.layouts.targets(inode, offset, data)? else {
                drop(places);
                self.layouts.allocate(inode, offset, data.len() as u64)?;
                places = inode.layout_users.read();
                continue;
            };
            inode.locks.check_guards(issued_epoch)?;
            let placed = if now.size < end {
                self.writes.write_and_raise(inode, layout, (now.size, end), &parts)?
            } else {
                self.remote.write(&parts)?;
                self.writes.still_there(inode, layout.generation, end)?
            };
            if placed {
                return Ok(());
            }
        }
        Err(ClientError::Unstable)
    }

    /// Places bytes at the end of the file, raises the size, and releases the lock, in one list.
    /// The caller holds the inode's `layout_users`.
    fn place_and_release(
        &self,
        inode: &Inode,
        hold: u64,
        (offset, end): (u64, u64),
        parts: &WriteParts<'_>,
    ) -> Result<Placed, ClientError> {
        let (slot, record_place, size_word) = self.records.record_and_field(inode, record::SIZE)?;
        let appender = self.records.field_of(inode, record::APPENDER)?;
        let mut raw: RawRecord = [0; record::LEN];
        let (mut old_size, mut old_hold) = (0, 0);
        let mut ops = Ops::new();
        if parts.len() + 3 > LIST {
            self.remote.write(parts)?;
        } else {
            ops.extend(parts.iter().map(|(place, data)| Op::Write { place: *place, data }));
        }
        ops.push(Op::CompareSwap { place: size_word, compare: offset, swap: end, old: &mut old_size });
        ops.push(Op::CompareSwap { place: appender, compare: hold, swap: 0, old: &mut old_hold });
        if !self.records.is_mapped() {
            ops.push(Op::Read { place: record_place, out: &mut raw });
        }
        let (start, repeats) = (self.records.before_look(), self.remote.epochs().repeats);
        self.remote.execute(&mut ops)?;
        drop(ops);
        // If the session was lost meanwhile, an earlier attempt may have carried out the list, or
        // only raised the size. No other client appends while the lock is held.
        let before = self.remote.epochs().repeats != repeats && (old_hold != hold || old_size == end);
        if old_size < offset && !before {
            return Ok(Placed::InShorterFile);
        }
        let now = self.records.record_behind(inode, slot, &raw, start)?;
        match old_size == offset || before {
            true => Ok(Placed::AtEnd(now)),
            false => Ok(Placed::InGrownFile(old_size, now)),
        }
    }
}
