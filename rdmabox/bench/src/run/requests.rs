//! Submission of requests: one trait, and an implementation for each way of submission.
//!
//! Constructors allocate all lists. Submissions reuse them with new addresses and do not allocate.

use std::{collections::VecDeque, sync::Arc};

use rdmabox::{Op, RecvBuf, RemoteAddr, RequestError, SendBuf, Session};

use super::{clock::Stamp, pending::Pending, record::Record};
use crate::{load::Submit, servers::protocol};

/// A session with a peer and the memory of the peer.
#[derive(Clone, Debug)]
pub struct Target {
    /// The session.
    pub session: Arc<Session>,
    /// Address of the peer's memory.
    pub base: RemoteAddr,
}

impl Target {
    /// Returns the address at an offset in bytes.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        self.base.at(offset)
    }
}

/// Submits the requests of one thread.
pub trait Requests {
    /// Returns the maximum number of requests per submission.
    fn takes(&self) -> usize;

    /// Makes room for a request at peer number `peer`. Returns the slot that it will take, a number
    /// below the depth. The default is for implementations whose [`submit`](Self::submit) blocks:
    /// requests take the slots from 0 on.
    fn free_slot(&mut self, peer: usize, record: &mut Record) -> Result<u64, RequestError> {
        let _ = (peer, record);
        Ok(0)
    }

    /// Submits a request for each of `offsets` at peer number `peer`. Returns when more requests
    /// may be submitted, possibly before these complete. Records the requests that have completed.
    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError>;

    /// Blocks until all requests have completed. The default does nothing, for implementations
    /// whose [`submit`](Self::submit) blocks.
    fn finish(&mut self, record: &mut Record) -> Result<(), RequestError> {
        let _ = record;
        Ok(())
    }
}

/// Placeholder for an address that is set before use.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0, rkey: 0 };

/// A buffer for blocking requests. A mutable borrow is for READs, a shared borrow for WRITEs.
pub trait Borrowed: Sized {
    /// Executes one request.
    fn one(session: &Session, remote: RemoteAddr, buffer: &mut Self) -> Result<(), RequestError>;

    /// Executes all requests in one call.
    fn all(session: &Session, parts: &mut [(RemoteAddr, Self)]) -> Result<(), RequestError>;
}

impl Borrowed for &mut [u8] {
    fn one(session: &Session, remote: RemoteAddr, buffer: &mut Self) -> Result<(), RequestError> {
        session.read(remote, buffer)
    }

    fn all(session: &Session, parts: &mut [(RemoteAddr, Self)]) -> Result<(), RequestError> {
        session.read_vectored(parts)
    }
}

impl Borrowed for &[u8] {
    fn one(session: &Session, remote: RemoteAddr, buffer: &mut Self) -> Result<(), RequestError> {
        session.write(remote, buffer)
    }

    fn all(session: &Session, parts: &mut [(RemoteAddr, Self)]) -> Result<(), RequestError> {
        session.write_vectored(parts)
    }
}

/// READs or WRITEs, by one blocking call for several or for one.
#[derive(Debug)]
pub struct Blocking<'a, B> {
    targets: &'a [Target],
    parts: Vec<(RemoteAddr, B)>,
}

impl<'a, B: Borrowed> Blocking<'a, B> {
    /// Takes one buffer per outstanding request.
    pub fn new(targets: &'a [Target], buffers: impl Iterator<Item = B>) -> Self {
        Blocking { targets, parts: buffers.map(|buffer| (NOWHERE, buffer)).collect() }
    }
}

impl<B: Borrowed> Requests for Blocking<'_, B> {
    fn takes(&self) -> usize {
        self.parts.len()
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let target = &self.targets[peer];
        let parts = &mut self.parts[..offsets.len()];
        let began = record.now();
        if let ([(_, buffer)], [offset]) = (&mut *parts, offsets) {
            B::one(&target.session, target.at(*offset), buffer)?;
        } else {
            for (part, offset) in parts.iter_mut().zip(offsets) {
                part.0 = target.at(*offset);
            }
            B::all(&target.session, parts)?;
        }
        record.completed(offsets.len() as u64, began, record.now());
        Ok(())
    }
}

/// Compare-and-swaps that increment a word unless it has changed meanwhile. Several form an ordered
/// list.
#[derive(Debug)]
pub struct Swaps<'a> {
    targets: &'a [Target],
    ops: Vec<Op<'a>>,
    /// Last observed value of each word of each peer.
    seen: Vec<Vec<u64>>,
    stride: u64,
}

impl<'a> Swaps<'a> {
    /// Takes one slot for an old value per outstanding request. Each peer has `words` words,
    /// `stride` bytes apart.
    pub fn new(targets: &'a [Target], olds: &'a mut [u64], words: u64, stride: u64) -> Self {
        let ops = olds
            .iter_mut()
            .map(|old| Op::CompareSwap { remote: NOWHERE, compare: 0, swap: 0, old })
            .collect();
        Swaps { targets, ops, seen: vec![vec![0; words as usize]; targets.len()], stride }
    }
}

impl Requests for Swaps<'_> {
    fn takes(&self) -> usize {
        self.ops.len()
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let (target, seen) = (&self.targets[peer], &mut self.seen[peer]);
        let word = |offset: u64| (offset / self.stride) as usize;
        let ops = &mut self.ops[..offsets.len()];
        for (op, offset) in ops.iter_mut().zip(offsets) {
            if let Op::CompareSwap { remote, compare, swap, .. } = op {
                *remote = target.at(*offset);
                *compare = seen[word(*offset)];
                *swap = compare.wrapping_add(1);
            }
        }
        let began = record.now();
        target.session.execute(ops)?;
        record.completed(offsets.len() as u64, began, record.now());
        for (op, offset) in ops.iter().zip(offsets) {
            if let Op::CompareSwap { compare, swap, old, .. } = op {
                let won = **old == *compare;
                record.swapped += u64::from(won);
                seen[word(*offset)] = if won { *swap } else { **old };
            }
        }
        Ok(())
    }
}

/// Calls, one at a time.
#[derive(Debug)]
pub struct Calls<'a> {
    targets: &'a [Target],
    request: Vec<u8>,
    reply: Vec<u8>,
    expected: usize,
}

impl<'a> Calls<'a> {
    /// Returns calls of `size` bytes with replies of `reply` bytes.
    pub fn new(targets: &'a [Target], size: u64, reply: u64) -> Self {
        let mut request = vec![0x5a; size as usize];
        protocol::make_echo(&mut request, reply as u32);
        Calls { targets, request, reply: Vec::with_capacity(reply as usize), expected: reply as usize }
    }
}

impl Requests for Calls<'_> {
    fn takes(&self) -> usize {
        1
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        for _ in offsets {
            let began = record.now();
            self.targets[peer].session.call(&self.request, &mut self.reply)?;
            record.completed(1, began, record.now());
            if self.reply.len() != self.expected {
                let text = format!("a reply of {} bytes instead of {}", self.reply.len(), self.expected);
                return Err(RequestError::Invalid(text));
            }
        }
        Ok(())
    }
}

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// READ.
    Read,
    /// WRITE.
    Write,
}

/// READs or WRITEs that are started separately.
///
/// When all buffers are in use, it waits for the oldest request and then collects all other
/// completed requests. A latency ends when this thread sees the completion, because the data is
/// usable only then.
#[derive(Debug)]
pub struct Started<'a, B: Send + 'static> {
    targets: &'a [Target],
    direction: Direction,
    /// Whether callbacks report the ends.
    submit: Submit,
    /// Free buffers and their slots, per peer or shared by all peers.
    free: Vec<Vec<(u64, B)>>,
    under_way: VecDeque<UnderWay<B>>,
    /// Maximum number of outstanding requests.
    depth: usize,
}

#[derive(Debug)]
struct UnderWay<B: Send + 'static> {
    request: Pending<B>,
    pool: usize,
    slot: u64,
    began: Stamp,
}

impl<'a, B: SendBuf + RecvBuf> Started<'a, B> {
    /// Takes the buffers, as a list per peer or one list for all peers. The number of buffers per
    /// peer limits the outstanding requests.
    pub fn new(targets: &'a [Target], direction: Direction, buffers: Vec<Vec<B>>, submit: Submit) -> Self {
        let depth = buffers.iter().map(Vec::len).min().unwrap_or(0);
        let free = buffers.into_iter().map(|buffers| (0..).zip(buffers).collect()).collect();
        Started { targets, direction, submit, free, under_way: VecDeque::with_capacity(depth), depth }
    }

    /// Waits for the oldest request, then collects it and all other completed requests.
    fn collect(&mut self, record: &mut Record) -> Result<(), RequestError> {
        if let Some(oldest) = self.under_way.pop_front() {
            self.take(oldest, None, record)?;
        }
        let now = record.now();
        // One pass over the queue keeps the order of the remaining requests.
        for _ in 0..self.under_way.len() {
            match self.under_way.pop_front() {
                Some(done) if done.request.is_done() => self.take(done, Some(now), record)?,
                Some(other) => self.under_way.push_back(other),
                None => break,
            }
        }
        Ok(())
    }

    /// Collects a request that completed at `seen`. Without `seen`, waits for its completion.
    fn take(
        &mut self,
        UnderWay { request, pool, slot, began }: UnderWay<B>,
        seen: Option<Stamp>,
        record: &mut Record,
    ) -> Result<(), RequestError> {
        // A failure ends the run, so its buffer is of no use.
        self.free[pool].push((slot, request.wait()?));
        let seen = seen.unwrap_or_else(|| record.now());
        record.completed(1, began, seen);
        Ok(())
    }
}

impl<B: SendBuf + RecvBuf> Requests for Started<'_, B> {
    fn takes(&self) -> usize {
        1
    }

    fn free_slot(&mut self, peer: usize, record: &mut Record) -> Result<u64, RequestError> {
        let pool = peer % self.free.len();
        loop {
            match self.free[pool].last() {
                Some((slot, _)) if self.under_way.len() < self.depth => return Ok(*slot),
                _ => self.collect(record)?,
            }
        }
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let (target, pool) = (&self.targets[peer], peer % self.free.len());
        for offset in offsets {
            self.free_slot(peer, record)?;
            let Some((slot, buffer)) = self.free[pool].pop() else { continue };
            let (remote, began) = (target.at(*offset), record.now());
            let request = Pending::start(&target.session, self.direction, remote, buffer, self.submit);
            self.under_way.push_back(UnderWay { request, pool, slot, began });
        }
        Ok(())
    }

    fn finish(&mut self, record: &mut Record) -> Result<(), RequestError> {
        while !self.under_way.is_empty() {
            self.collect(record)?;
        }
        Ok(())
    }
}
