//! READs and WRITEs that are started, and collected when they have completed.

use std::collections::VecDeque;

use rdmabox::{RecvBuf, RequestError, SendBuf};

use super::{Requests, Target};
use crate::{
    load::Submit,
    run::{clock::Stamp, pending_transfer::PendingTransfer, record::Record},
};

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
pub struct Transfers<'a, B: Send + 'static> {
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
    request: PendingTransfer<B>,
    pool: usize,
    slot: u64,
    began: Stamp,
}

impl<'a, B: SendBuf + RecvBuf> Transfers<'a, B> {
    /// Takes the buffers, as a list per peer or one list for all peers. The number of buffers per
    /// peer limits the outstanding requests.
    pub fn new(targets: &'a [Target], direction: Direction, buffers: Vec<Vec<B>>, submit: Submit) -> Self {
        let depth = buffers.iter().map(Vec::len).min().unwrap_or(0);
        let free = buffers.into_iter().map(|buffers| (0..).zip(buffers).collect()).collect();
        Transfers { targets, direction, submit, free, under_way: VecDeque::with_capacity(depth), depth }
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

impl<B: SendBuf + RecvBuf> Requests for Transfers<'_, B> {
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
            let request =
                PendingTransfer::start(&target.session, self.direction, remote, buffer, self.submit);
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
