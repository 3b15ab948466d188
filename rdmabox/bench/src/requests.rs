//! How requests are kept outstanding: one trait, and an implementation for each way of handing requests over.
//!
//! Nothing here allocates once it has been made: lists of parts are made once and get new addresses each time.

use std::{sync::Arc, time::Instant};

use rdmabox::{Op, RemoteAddr, RequestError, Session};

use crate::{protocol, record::Record};

/// The session with a peer and the memory that it lends.
#[derive(Clone, Debug)]
pub struct Target {
    /// The session.
    pub session: Arc<Session>,
    /// Its memory.
    pub base: RemoteAddr,
}

impl Target {
    /// The place so many bytes into the memory.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.base.addr + offset, rkey: self.base.rkey }
    }
}

/// A way of making the requests of one thread.
pub trait Requests {
    /// Most requests that it takes at a time.
    fn takes(&self) -> usize;

    /// Makes a request at each of `offsets` of peer number `peer`. Returns when more may come, which may be before
    /// these have completed; what has completed meanwhile is recorded.
    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError>;

    /// Waits until everything has completed.
    fn finish(&mut self, record: &mut Record) -> Result<(), RequestError>;
}

/// READs or WRITEs in one blocking call, or one at a time.
#[derive(Debug)]
pub struct Reads<'a> {
    targets: &'a [Target],
    parts: Vec<(RemoteAddr, &'a mut [u8])>,
}

/// A place that is filled in before it is used.
const NOWHERE: RemoteAddr = RemoteAddr { addr: 0, rkey: 0 };

impl<'a> Reads<'a> {
    /// One buffer for each request that can be outstanding.
    pub fn new(targets: &'a [Target], buffers: impl Iterator<Item = &'a mut [u8]>) -> Self {
        Reads { targets, parts: buffers.map(|buffer| (NOWHERE, buffer)).collect() }
    }
}

impl Requests for Reads<'_> {
    fn takes(&self) -> usize {
        self.parts.len()
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let target = &self.targets[peer];
        let parts = &mut self.parts[..offsets.len()];
        let began = Instant::now();
        if let ([(_, buffer)], [offset]) = (&mut *parts, offsets) {
            target.session.read(target.at(*offset), buffer)?;
        } else {
            for (part, offset) in parts.iter_mut().zip(offsets) {
                part.0 = target.at(*offset);
            }
            target.session.read_vectored(parts)?;
        }
        record.completed(offsets.len() as u64, began.elapsed());
        Ok(())
    }

    fn finish(&mut self, _: &mut Record) -> Result<(), RequestError> {
        Ok(())
    }
}

/// WRITEs in one blocking call, or one at a time.
#[derive(Debug)]
pub struct Writes<'a> {
    targets: &'a [Target],
    parts: Vec<(RemoteAddr, &'a [u8])>,
}

impl<'a> Writes<'a> {
    /// One buffer for each request that can be outstanding.
    pub fn new(targets: &'a [Target], buffers: impl Iterator<Item = &'a [u8]>) -> Self {
        Writes { targets, parts: buffers.map(|buffer| (NOWHERE, buffer)).collect() }
    }
}

impl Requests for Writes<'_> {
    fn takes(&self) -> usize {
        self.parts.len()
    }

    fn submit(&mut self, peer: usize, offsets: &[u64], record: &mut Record) -> Result<(), RequestError> {
        let target = &self.targets[peer];
        let parts = &mut self.parts[..offsets.len()];
        let began = Instant::now();
        if let ([(_, buffer)], [offset]) = (&*parts, offsets) {
            target.session.write(target.at(*offset), buffer)?;
        } else {
            for (part, offset) in parts.iter_mut().zip(offsets) {
                part.0 = target.at(*offset);
            }
            target.session.write_vectored(parts)?;
        }
        record.completed(offsets.len() as u64, began.elapsed());
        Ok(())
    }

    fn finish(&mut self, _: &mut Record) -> Result<(), RequestError> {
        Ok(())
    }
}

/// Compare-and-swaps, each of which adds one to a word if nobody else did meanwhile; several make an ordered list.
#[derive(Debug)]
pub struct Swaps<'a> {
    targets: &'a [Target],
    ops: Vec<Op<'a>>,
    /// What each word of each peer held when it was last seen.
    seen: Vec<Vec<u64>>,
    stride: u64,
}

impl<'a> Swaps<'a> {
    /// One place for an old value for each request that can be outstanding; `words` per peer, `stride` bytes apart.
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
        let began = Instant::now();
        target.session.execute(ops)?;
        record.completed(offsets.len() as u64, began.elapsed());
        for (op, offset) in ops.iter().zip(offsets) {
            if let Op::CompareSwap { compare, swap, old, .. } = op {
                let won = **old == *compare;
                record.swapped += u64::from(won);
                seen[word(*offset)] = if won { *swap } else { **old };
            }
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Record) -> Result<(), RequestError> {
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
    /// Calls of `size` bytes that get replies of `reply` bytes.
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
            let began = Instant::now();
            self.targets[peer].session.call(&self.request, &mut self.reply)?;
            record.completed(1, began.elapsed());
            if self.reply.len() != self.expected {
                let text = format!("a reply of {} bytes instead of {}", self.reply.len(), self.expected);
                return Err(RequestError::Invalid(text));
            }
        }
        Ok(())
    }

    fn finish(&mut self, _: &mut Record) -> Result<(), RequestError> {
        Ok(())
    }
}
