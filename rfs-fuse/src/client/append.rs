//! Appending: one after the other, on all clients, so that nobody's bytes end up where somebody else's are.
//!
//! Whoever appends takes the end of the file by a compare-and-swap of a word in its record, and gives it back in the list that
//! places the bytes and raises the size: over a network these are two round trips. Nobody else's server code runs. The hold of a
//! client that dies is ended by the server, with its session. Where memory has checksums the bytes and the size go to the server
//! in between, and the end is given back by itself.

use std::{
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use rdmabox::Op;
use rfs_proto::{Errno, MAX_FILE_SIZE, record};

use super::{
    Client, ClientError,
    data::{LIST, Ops, guarded_since},
    inode::Inode,
    record::{Glimpse, RawRecord, Seen},
    space::TRIES,
};

/// So often the end is asked for without a pause: appends of others are short.
const SPINS: u32 = 64;
/// Pauses after that.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Numbers the holds of a session, so that what is left of one that timed out cannot end a later one.
static TURNS: AtomicU16 = AtomicU16::new(0);

impl Client {
    /// Appends `data` to an open file in one piece, also beside other appends. Returns where it begins.
    ///
    /// Writes elsewhere in the file may be under way. If one of them grows the file between the moment
    /// that takes the end and the moment that places the bytes, the append stays where the end was.
    pub fn append(&self, ino: u64, data: &[u8]) -> Result<u64, ClientError> {
        let since = self.remote.era_in_use();
        let inode = self.opened(ino)?;
        let _shared = inode.io.read();
        if !inode.open.load(Ordering::Acquire) {
            return Err(Errno::EBADF.into());
        }
        if data.is_empty() {
            return Ok(self.look(&inode)?.size);
        }
        // One of this session at a time: the word in the record tells sessions apart, not threads.
        let _turn = inode.append.lock();
        if self.confined {
            let offset = self.append_confined(&inode, since, data)?;
            inode.pages.recalled();
            self.was_written(&inode);
            return Ok(offset);
        }
        for _ in 0..TRIES {
            let hold =
                record::appender(self.session.load(Ordering::Acquire), TURNS.fetch_add(1, Ordering::Relaxed));
            let appended = self
                .in_its_era(&inode, since, || self.take_end(&inode, hold))
                .and_then(|now| self.append_at(&inode, since, hold, now, data));
            match appended {
                Ok(Some(offset)) => {
                    inode.pages.recalled();
                    self.stamp(&inode)?;
                    return Ok(offset);
                }
                Ok(None) => self.give_back(&inode, hold)?,
                Err(e) => {
                    // What matters is why it failed. If this fails, too, the end of the session gives it back.
                    self.give_back(&inode, hold).ok();
                    return Err(e);
                }
            }
        }
        Err(ClientError::Unstable)
    }

    /// Waits for the end of the file. What the record says then.
    fn take_end(&self, inode: &Inode, hold: u64) -> Result<Glimpse, ClientError> {
        let (slot, record_addr) = self.record_of(inode)?;
        let remote = self.field_of(inode, record::APPENDER)?;
        let give_up = Instant::now() + self.patience;
        let (mut free, mut tries, mut pause) = (0, 0, FIRST_PAUSE);
        loop {
            let start = self.before_look();
            let mut raw: RawRecord = [0; record::LEN];
            let mut old = 0;
            let mut ops = Ops::new();
            ops.push(Op::CompareSwap { remote, compare: free, swap: hold, old: &mut old });
            if !self.records.is_mapped() {
                ops.push(Op::Read { remote: record_addr, out: &mut raw });
            }
            self.remote.execute(&mut ops)?;
            drop(ops);
            if old == free {
                let seen = if self.records.is_mapped() { None } else { Seen::decode(&raw, inode.ino, slot) };
                let Some(seen) = seen else { return self.look(inode) };
                inode.saw(start, seen.attr.layout_generation, seen.attr.size);
                return Ok(seen.glimpse());
            }
            // What an append of ours left, of which nobody knows how it ended, is free.
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
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Ends a hold, if it has not ended.
    fn give_back(&self, inode: &Inode, hold: u64) -> Result<(), ClientError> {
        let remote = self.field_of(inode, record::APPENDER)?;
        let mut old = 0;
        Ok(self.remote.execute(&mut [Op::CompareSwap { remote, compare: hold, swap: 0, old: &mut old }])?)
    }

    /// Appends at the end that was taken, and gives it back. Returns `None` to begin anew if the file
    /// was truncated.
    fn append_at(
        &self,
        inode: &Inode,
        since: u32,
        hold: u64,
        now: Glimpse,
        data: &[u8],
    ) -> Result<Option<u64>, ClientError> {
        let Glimpse { size: offset, generation, .. } = now;
        let len = data.len() as u64;
        let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::EFBIG)?;
        if self.sums.is_some() {
            let appended = self.append_by_server(inode, since, now, end, data)?;
            // What is left of a hold is free for this session, and for others when it ends.
            self.give_back(inode, hold).ok();
            return Ok(appended.then_some(offset));
        }
        self.follow_generation(inode, generation)?;
        let (places, (parts, of)) = loop {
            let places = inode.places.read();
            match self.targets(inode, offset, data)? {
                Some(found) => break (places, found),
                None => drop(places),
            }
            self.allocate(inode, offset, len)?;
        };
        if of.generation != generation {
            return Ok(None);
        }
        guarded_since(inode, since)?;
        let (slot, record_addr) = self.record_of(inode)?;
        let mapped = self.records.is_mapped();
        let size_word = self.field_of(inode, record::SIZE)?;
        let appender = self.field_of(inode, record::APPENDER)?;
        let mut raw: RawRecord = [0; record::LEN];
        let (mut old_size, mut old_hold) = (0, 0);
        let mut ops = Ops::new();
        if parts.len() + 3 > LIST {
            self.remote.write_vectored(&parts)?;
        } else {
            ops.extend(parts.iter().map(|(remote, data)| Op::Write { remote: *remote, data }));
        }
        ops.push(Op::CompareSwap { remote: size_word, compare: offset, swap: end, old: &mut old_size });
        ops.push(Op::CompareSwap { remote: appender, compare: hold, swap: 0, old: &mut old_hold });
        if !mapped {
            ops.push(Op::Read { remote: record_addr, out: &mut raw });
        }
        let (start, repeats) = (self.before_look(), self.remote.repeats());
        self.remote.execute(&mut ops)?;
        drop(ops);
        // If the session was lost on the way, all of the list may have been carried out before, or the size been raised only. Nobody else
        // appends while the end is held.
        let before = self.remote.repeats() != repeats && (old_hold != hold || old_size == end);
        if old_size > offset && !before {
            // A write that is no append has grown the file since the end was taken. The bytes may be
            // seen at `offset` by now: they stay there, and a second place would leave them twice.
            drop(places);
            self.write_open(inode, since, (offset, end), data)?;
            return Ok(Some(offset));
        }
        if old_size != offset && !before {
            return Ok(None);
        }
        let seen = if mapped { None } else { Seen::decode(&raw, inode.ino, slot) };
        let now = seen.map_or_else(|| self.look(inode), |seen| Ok(seen.glimpse()))?;
        inode.saw(start, now.generation, now.size);
        drop(places);
        // A truncation. If the file is shorter now, it came after this append. If not, it may have come before, and the file
        // been grown to the very size again: then the bytes went to space that the file had.
        if now.generation != generation {
            self.follow_generation(inode, now.generation)?;
            if now.size >= end {
                self.write_open(inode, since, (offset, end), data)?;
            }
        }
        Ok(Some(offset))
    }
}
