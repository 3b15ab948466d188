//! Mailboxes: for each pair of partitions an even and an odd container of messages.
//!
//! In superstep `k` partition `i` reads the containers of `k`'s parity in its column, and writes
//! the containers of the other parity in its row. So no container is read and written in one
//! superstep. A container has the number of its messages, then messages of 12 bytes: target and
//! value. Its size is that of a message for each edge between the two partitions.
//!
//! # Concurrency
//! One thread uses a mailbox. No locks.

use std::ops::Range;

use crate::{
    client::{Mapping, Region},
    error::Error,
};

/// Length of a message in bytes.
const MESSAGE: usize = 12;
/// Length of the number of messages.
const HEAD: usize = 8;

/// Where the containers of all pairs are.
#[derive(Clone, Debug)]
pub(super) struct Places {
    partitions: usize,
    /// First byte of the even container of each pair, row by row, and the end.
    starts: Vec<u64>,
}

impl Places {
    /// Makes the places for these numbers of edges, row by row.
    pub(super) fn new(partitions: usize, edges: &[u64]) -> Places {
        let mut starts = vec![0];
        for edges in edges {
            let last = starts.last().copied().unwrap_or(0);
            starts.push(last + 2 * (HEAD as u64 + edges * MESSAGE as u64));
        }
        Places { partitions, starts }
    }

    /// Returns the length of all containers in bytes.
    pub(super) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn container(&self, from: usize, to: usize, odd: bool) -> Range<u64> {
        let pair = from * self.partitions + to;
        let (start, end) = (self.starts[pair], self.starts[pair + 1]);
        let half = (end - start) / 2;
        if odd { start + half..end } else { start..start + half }
    }
}

/// The mailbox of one partition: its row and its column.
pub(super) struct Mailbox {
    places: Places,
    own: usize,
    /// Both containers to each partition.
    outbox: Vec<[Mapping; 2]>,
    inbox: Vec<[Mapping; 2]>,
}

impl Mailbox {
    /// Maps the row and the column of a partition.
    pub(super) fn new(region: &Region, places: Places, own: usize) -> Result<Mailbox, Error> {
        let both = |from, to| -> Result<[Mapping; 2], Error> {
            let even = region.map(places.container(from, to, false))?;
            Ok([even, region.map(places.container(from, to, true))?])
        };
        let outbox = (0..places.partitions).map(|to| both(own, to)).collect::<Result<_, _>>()?;
        let inbox = (0..places.partitions).map(|from| both(from, own)).collect::<Result<_, _>>()?;
        Ok(Mailbox { places, own, outbox, inbox })
    }

    /// Reads the messages to this partition.
    pub(super) fn receive(&mut self, odd: bool, mut each: impl FnMut(u32, u64)) -> Result<(), Error> {
        for from in 0..self.places.partitions {
            let mapping = &mut self.inbox[from][usize::from(odd)];
            let len = mapping.len();
            let bytes = mapping.read(0..len)?;
            let (head, messages) = bytes.split_at(HEAD);
            let count = super::layout::word(head) as usize;
            // A number from a peer: more messages than there is room for are none.
            for message in messages.as_chunks::<MESSAGE>().0.iter().take(count) {
                let (target, value) = message.split_at(4);
                let target = u32::from_le_bytes([target[0], target[1], target[2], target[3]]);
                each(target, super::layout::word(value));
            }
        }
        Ok(())
    }

    /// Begins to fill the containers of a parity.
    pub(super) fn fill(&mut self, odd: bool) -> Filling<'_> {
        let counts = vec![0; self.places.partitions];
        Filling { mailbox: self, odd, counts }
    }
}

/// Containers that are filled.
pub(super) struct Filling<'a> {
    mailbox: &'a mut Mailbox,
    odd: bool,
    counts: Vec<u64>,
}

impl Filling<'_> {
    /// Adds a message to a partition, in local memory.
    pub(super) fn push(&mut self, to: usize, target: u32, value: u64) {
        let local = self.mailbox.outbox[to][usize::from(self.odd)].local_mut();
        let at = HEAD + self.counts[to] as usize * MESSAGE;
        local[at..at + 4].copy_from_slice(&target.to_le_bytes());
        local[at + 4..at + MESSAGE].copy_from_slice(&value.to_le_bytes());
        self.counts[to] += 1;
    }

    /// Writes all containers.
    pub(super) fn send(self) -> Result<(), Error> {
        for (to, count) in self.counts.into_iter().enumerate() {
            let mapping = &mut self.mailbox.outbox[to][usize::from(self.odd)];
            mapping.local_mut()[..HEAD].copy_from_slice(&count.to_le_bytes());
            let place = self.mailbox.places.container(self.mailbox.own, to, self.odd);
            let used = HEAD as u64 + count * MESSAGE as u64;
            mapping.write(0..used.min(place.end - place.start))?;
        }
        Ok(())
    }
}
