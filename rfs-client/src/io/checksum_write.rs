//! Writes that the server carries out: if the export has checksums, or the session may only read
//! memory.
//!
//! A long write goes in parts, several in flight at a time. All but the last leave the size
//! unchanged. The last one follows the replies to the others, so the size rises after the bytes,
//! as in one-sided writes. Each part has a checksum of its data, which the server compares with
//! the data that arrived.
//!
//! # Concurrency
//! Session threads that hold the inode's `io` shared. Takes `layout_calls` to request space.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rfs_proto::{
    BLOCK, Errno, Growth, MAX_FILE_SIZE, Reply, Request, WRITE_PART, checksum, decode_reply, encode_request,
};

use crate::{
    error::ClientError,
    inode::Inode,
    remote::{Remote, address::Epoch, records::Glimpse},
    requests::{
        TRIES,
        calls::{Calls, wrong_kind},
        layouts::Layouts,
        record_reader::RecordReader,
    },
};

/// Attempts to send a part that arrives damaged.
const DAMAGED_TRIES: usize = 3;
/// Pause while another session appends. It doubles up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSE: Duration = Duration::from_millis(1);
/// Parts in flight at once.
const PARTS_IN_FLIGHT: usize = 4;

/// Splits a write into parts that end at block boundaries.
fn parts(offset: u64, mut data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let room = WRITE_PART - (at % BLOCK) as usize;
        let (part, rest) = data.split_at(room.min(data.len()));
        let begin = at;
        (at, data) = (at + part.len() as u64, rest);
        (!part.is_empty()).then_some((begin, part))
    })
}

fn request(ino: u64, (offset, data): (u64, &[u8]), growth: Growth) -> Request<'_> {
    Request::Write { ino, offset, check: checksum::check_data(data), growth, data }
}

/// Has the server write.
#[derive(Debug)]
pub(crate) struct ServerWrites {
    remote: Arc<dyn Remote>,
    calls: Arc<Calls>,
    records: Arc<RecordReader>,
    layouts: Arc<Layouts>,
    /// Limit of a wait for another client.
    wait_limit: Duration,
}

impl ServerWrites {
    pub(crate) fn new(layouts: &Arc<Layouts>, wait_limit: Duration) -> ServerWrites {
        let (calls, records) = (Arc::clone(&layouts.calls), Arc::clone(&layouts.records));
        let remote = Arc::clone(&calls.remote);
        ServerWrites { remote, calls, records, layouts: Arc::clone(layouts), wait_limit }
    }

    /// Appends to an open file if the session cannot write the append lock. Each part is appended
    /// by itself, so appends of other mounts may lie between the parts. Returns the offset of the
    /// first part.
    pub(crate) fn append(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        mut data: &[u8],
    ) -> Result<u64, ClientError> {
        let (mut first, give_up, mut pause) = (None, Instant::now() + self.wait_limit, FIRST_PAUSE);
        while !data.is_empty() {
            let now = self.layouts.retry_in_new_epoch(inode, issued_epoch, || self.records.look(inode))?;
            let (part, rest) = data.split_at(data.len().min(WRITE_PART - (now.size % BLOCK) as usize));
            let end = now.size.checked_add(part.len() as u64).filter(|end| *end <= MAX_FILE_SIZE);
            let (offset, end) = (now.size, end.ok_or(Errno::EFBIG)?);
            if self.append_at(inode, issued_epoch, now, end, part)? {
                first.get_or_insert(offset);
                data = rest;
            } else if Instant::now() >= give_up {
                return Err(ClientError::Unstable);
            } else {
                // Appends of other sessions are short.
                thread::sleep(pause);
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
        Ok(first.unwrap_or(0))
    }

    /// Writes up to `end`. The caller keeps the file open.
    pub(crate) fn write(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        (offset, end): (u64, u64),
        data: &[u8],
    ) -> Result<(), ClientError> {
        for _ in 0..TRIES {
            let (epoch, generation) = (self.remote.epochs().in_use, inode.layout_generation());
            let start = self.records.before_look();
            inode.locks.check_guards(issued_epoch)?;
            self.send(inode, epoch, (offset, data), Growth::Reach)?;
            inode.saw(start, generation, end);
            if self.is_whole(inode, offset, data, epoch, generation)? {
                return Ok(());
            }
        }
        Err(ClientError::Unstable)
    }

    /// Returns true if all parts of a write are in the file.
    ///
    /// A single part always is, because the server locks the inode for it. A truncation, or a new
    /// epoch, removes parts that lay behind the end of the file before the last part came.
    fn is_whole(
        &self,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        epoch: Epoch,
        generation: u64,
    ) -> Result<bool, ClientError> {
        if parts(offset, data).nth(1).is_none() {
            return Ok(true);
        }
        let now = self.records.look(inode)?.generation;
        if now != generation {
            self.layouts.follow_generation(inode, now)?;
        }
        Ok(now == generation && self.remote.epochs().in_use == epoch)
    }

    /// Appends at the end of the file as `now` has it, while the append lock is held. Returns false
    /// to begin anew if the size has changed.
    pub(crate) fn append_at(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        Glimpse { size: offset, generation, .. }: Glimpse,
        end: u64,
        data: &[u8],
    ) -> Result<bool, ClientError> {
        let (epoch, start) = (self.remote.epochs().in_use, self.records.before_look());
        inode.locks.check_guards(issued_epoch)?;
        match self.send(inode, epoch, (offset, data), Growth::From(offset)) {
            Err(ClientError::Errno(Errno::EAGAIN)) => return Ok(false),
            sent => sent?,
        }
        inode.saw(start, generation, end);
        // If the file is shorter now, it was truncated after this append.
        if !self.is_whole(inode, offset, data, epoch, generation)? && self.records.look(inode)?.size >= end {
            self.write(inode, issued_epoch, (offset, end), data)?;
        }
        Ok(true)
    }

    /// Sends all parts in one epoch. Another epoch may have begun without the locks that guarded
    /// the write.
    fn send(
        &self,
        inode: &Inode,
        epoch: Epoch,
        (offset, data): (u64, &[u8]),
        growth: Growth,
    ) -> Result<(), ClientError> {
        let mut all = parts(offset, data).peekable();
        let Some(mut part) = all.next() else { return Ok(()) };
        if all.peek().is_some() {
            // All space is requested at once, so that it is contiguous, and ENOSPC writes nothing.
            self.layouts.allocate(inode, offset, data.len() as u64)?;
        }
        if !offset.is_multiple_of(BLOCK)
            && let Some(next) = all.next()
        {
            // The rest of the first part's block may be bad, and the write fails then. Parts behind
            // the end of the file would show up when the file grows, so none may be in place yet.
            self.send_one(inode.ino, epoch, part, Growth::Stay)?;
            part = next;
        }
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        while all.peek().is_some() {
            let mut together = Vec::with_capacity(PARTS_IN_FLIGHT);
            while together.len() < PARTS_IN_FLIGHT
                && let Some(next) = all.next()
            {
                together.push(std::mem::replace(&mut part, next));
            }
            requests.resize_with(together.len(), Vec::new);
            for (&part, bytes) in together.iter().zip(&mut requests) {
                encode_request(&request(inode.ino, part, Growth::Stay), bytes);
            }
            self.remote.call_all(epoch, &requests, &mut replies)?;
            for (part, reply) in together.into_iter().zip(&replies) {
                match decode_reply(reply)? {
                    Reply::Done => {}
                    // Sent by itself, the part has its own outcome, and may be waited for.
                    Reply::Error(Errno::EBADMSG | Errno::ENOSPC) => {
                        self.send_one(inode.ino, epoch, part, Growth::Stay)?;
                    }
                    Reply::Error(errno) => return Err(errno.into()),
                    _ => return wrong_kind(),
                }
            }
        }
        self.send_one(inode.ino, epoch, part, growth)
    }

    fn send_one(
        &self,
        ino: u64,
        epoch: Epoch,
        part: (u64, &[u8]),
        growth: Growth,
    ) -> Result<(), ClientError> {
        for _ in 0..DAMAGED_TRIES {
            match self.calls.call_in(epoch, &request(ino, part, growth)) {
                Ok(Reply::Done) => return Ok(()),
                Ok(_) => return wrong_kind(),
                Err(ClientError::Errno(Errno::EBADMSG)) => {
                    log::warn!("inode {ino}: the write at {} arrived damaged", part.0);
                }
                Err(e) => return Err(e),
            }
        }
        Err(Errno::EIO.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_cover_the_data_and_end_at_blocks(offset in 0..1_u64 << 20, len in 1..1_usize << 18) {
            let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let (mut at, mut back) = (offset, Vec::new());
            for (begin, part) in parts(offset, &data) {
                prop_assert_eq!(begin, at);
                prop_assert!(part.len() <= WRITE_PART);
                at += part.len() as u64;
                prop_assert!(at.is_multiple_of(BLOCK) || at == offset + len as u64);
                back.extend_from_slice(part);
            }
            prop_assert!(back == data);
        }
    }
}
