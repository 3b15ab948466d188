//! The memory that a node lends: control block, index part and data table.
//!
//! The owner writes entries of its data table directly, before a slot refers to them. Index words
//! are changed through sessions only, those of this node too, so that all changes of a word come
//! from one kind of device.
//!
//! # Concurrency
//! Any thread may call it. The allocator has a lock, which is held for no I/O.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use parking_lot::Mutex;
use rdmabox::{Memory, MemoryError};

use super::control::{CONDEMNED_AT, CONTROL_LEN, Header, INCARNATION_AT};
use crate::{
    logic::{
        allocator::{Allocator, Shortage},
        entry::{self, Entry, TAIL},
        verb::Stored,
        word::EntryRef,
    },
    node::options::NodeOptions,
};

/// Where the parts of a node's memory are, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) slots: u32,
    pub(crate) stride: usize,
}

impl Layout {
    pub(crate) fn new(options: &NodeOptions) -> Layout {
        Layout { slots: options.slots(), stride: options.stride() }
    }

    pub(crate) fn slot(self, number: u32) -> usize {
        CONTROL_LEN + number as usize * 8
    }

    fn data(self) -> usize {
        (CONTROL_LEN + self.slots as usize * 8).next_multiple_of(4096)
    }

    pub(crate) fn entry(self, offset: u32) -> usize {
        self.data() + (offset as usize - 1) * self.stride
    }

    /// Returns the bytes of a node with this number of entries.
    pub(crate) fn len(self, entries: u32) -> usize {
        self.data() + entries as usize * self.stride
    }
}

/// The memory of this node.
pub(crate) struct OwnTable {
    pub(crate) memory: Arc<Memory>,
    pub(crate) header: Header,
    layout: Layout,
    node: u16,
    entries: u32,
    begun: Instant,
    allocator: Mutex<Allocator>,
}

impl OwnTable {
    /// Allocates the memory. Peers accept it when [`Self::open`] was called.
    ///
    /// # Errors
    /// [`MemoryError`] if the machine does not have the memory.
    pub(crate) fn new(options: &NodeOptions, incarnation: u64) -> Result<OwnTable, MemoryError> {
        let layout = Layout::new(options);
        let memory = Memory::shared("nessie", layout.len(options.entries()))?;
        memory.reserve()?;
        Ok(OwnTable {
            memory: Arc::new(memory),
            header: Header::new(options, incarnation),
            layout,
            node: options.id,
            entries: options.entries(),
            begun: Instant::now(),
            allocator: Mutex::new(Allocator::new(options.entries(), options.reuse_delay.as_nanos() as u64)),
        })
    }

    /// Writes the control block, the number of the process last.
    pub(crate) fn open(&self) {
        for (at, word) in self.header.words().iter().enumerate() {
            if at * 8 != INCARNATION_AT {
                self.store(at * 8, *word);
            }
        }
        self.store(INCARNATION_AT, self.header.incarnation());
    }

    fn store(&self, at: usize, word: u64) {
        self.memory.atomic_u64(at).store(word, Ordering::Release);
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn head(&self, offset: u32) -> u64 {
        self.memory.load_u64(self.layout.entry(offset))
    }

    /// Returns the bits of nodes that are given up.
    pub(crate) fn condemned(&self) -> u64 {
        self.memory.load_u64(CONDEMNED_AT)
    }

    /// Stores an entry, not valid. The caller holds it until [`Self::end_hold`].
    ///
    /// # Errors
    /// [`Shortage`] if no entry is unused.
    pub(crate) fn put(&self, entry: &Entry) -> Result<Stored, Shortage> {
        let offset = self.allocator.lock().take(self.now(), |offset| self.head(offset))?;
        let at = self.layout.entry(offset);
        let life = entry::split_head(self.head(offset)).0 + 1;
        self.store(at, entry::head(life, false));
        self.store(at + self.layout.stride - TAIL, entry::tail(false));
        self.memory.write(at + 8, entry.body());
        Ok(Stored { entry: EntryRef { table: self.node, offset }, life })
    }

    pub(crate) fn validate(&self, offset: u32) {
        self.store(self.layout.entry(offset) + self.layout.stride - TAIL, entry::tail(true));
    }

    /// Copies the bytes of an entry. Returns false if there is no such entry.
    pub(crate) fn read(&self, offset: u32, out: &mut [u8]) -> bool {
        let exists = (1..=self.entries).contains(&offset);
        if exists {
            self.memory.read(self.layout.entry(offset), out);
        }
        exists
    }

    pub(crate) fn release(&self, offset: u32) {
        let now = self.now();
        self.allocator.lock().release(offset, now);
    }

    pub(crate) fn end_hold(&self, offsets: &[u32]) {
        if !offsets.is_empty() {
            let now = self.now();
            let mut allocator = self.allocator.lock();
            offsets.iter().for_each(|offset| allocator.end_hold(*offset, now));
        }
    }

    /// Returns the entries to which slots may refer and that no operation holds, with their lives.
    pub(crate) fn used(&self) -> Vec<(u32, u64)> {
        let allocator = self.allocator.lock();
        allocator.used().map(|offset| (offset, entry::split_head(self.head(offset)).0)).collect()
    }

    /// Releases an entry if it is still in this life. Returns whether it is.
    pub(crate) fn release_life(&self, offset: u32, life: u64) -> bool {
        let now = self.now();
        let mut allocator = self.allocator.lock();
        let is_same = entry::split_head(self.head(offset)).0 == life;
        if is_same {
            allocator.release(offset, now);
        }
        is_same
    }

    /// Returns the numbers of unused entries, of entries that wait, and of all.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        self.allocator.lock().counts()
    }

    /// Returns why [`put`](Self::put) has found no unused entry, or `None` if there is one now.
    /// `Until` becomes the time that remains, in nanoseconds.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        let now = self.now();
        match self.allocator.lock().shortage(now) {
            Some(Shortage::Until(ready)) => Some(Shortage::Until(ready.saturating_sub(now))),
            other => other,
        }
    }
}
