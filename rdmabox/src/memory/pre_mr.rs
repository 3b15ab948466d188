//! The pool of preMRs: buffers from one memory that is registered once.
//!
//! [`PreMrPool`] is a buddy allocator over blocks of at least 4 KiB. It allocates its tables when
//! it is created, so acquiring and releasing a buffer allocate nothing. A few released blocks of
//! each size stay as they are, so that the next buffer of that size need not split a larger one.
//! They join their buddies as soon as a size runs out. The pool does not register the
//! memory and knows no keys: the code that registers the memory uses the addresses of the
//! buffers. If the pool is exhausted, `acquire` returns `None` and never waits.
//!
//! # Concurrency
//! Any thread may acquire and release buffers. Both hold one lock briefly.

use std::sync::Arc;

use crate::mapping::Memory;
use crate::sync::Mutex;

/// Smallest block in bytes.
const MIN_BLOCK: usize = 4096;

/// Number of spare blocks of the smallest size. A size has half as many as the next smaller one,
/// but at least one.
const MAX_SPARE: usize = 16;

/// Marks the absence of a block.
const NONE: u32 = u32::MAX;

/// A pool of buffers.
#[derive(Debug)]
pub(crate) struct PreMrPool {
    memory: Arc<Memory>,
    buddies: Mutex<Buddies>,
    max_block: usize,
}

impl PreMrPool {
    /// Creates a pool over `memory`, with blocks of powers of two from 4 KiB to `max_block`, which
    /// is rounded up to a power of two. An incomplete 4 KiB block at the end is not used.
    pub(crate) fn new(memory: Arc<Memory>, max_block: usize) -> Arc<PreMrPool> {
        let max_block = max_block.clamp(MIN_BLOCK, 1 << 30).next_power_of_two();
        let blocks = u32::try_from(memory.len() / MIN_BLOCK).unwrap_or(NONE - 1);
        let buddies = Mutex::new(Buddies::new(blocks, order_of(max_block)));
        Arc::new(PreMrPool { memory, buddies, max_block })
    }

    /// Returns a buffer of at least `len` bytes, which still holds the bytes of its last user.
    /// Returns `None` if no block of that size is free, or if `len` exceeds `max_block`.
    pub(crate) fn acquire(self: &Arc<Self>, len: usize) -> Option<PreMrBuf> {
        if len > self.max_block {
            return None;
        }
        let order = order_of(len);
        let block = self.buddies.lock().acquire(order)?;
        Some(PreMrBuf { pool: self.clone(), block, order, len })
    }

    /// Returns true if the range lies in the pool's memory.
    pub(crate) fn contains(&self, addr: u64, len: usize) -> bool {
        let start = addr.wrapping_sub(self.memory.addr());
        start.checked_add(len as u64).is_some_and(|end| end <= self.memory.len() as u64)
    }

    /// Returns the memory that contains the buffers.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the size of the largest buffer in bytes.
    pub(crate) fn max_block(&self) -> usize {
        self.max_block
    }

    /// Returns the number of bytes in free blocks of all sizes.
    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.buddies.lock().free_blocks as usize * MIN_BLOCK
    }
}

/// A buffer of the pool. The drop returns it to the pool, which must not happen before the
/// request that uses it has completed.
#[derive(Debug)]
pub(crate) struct PreMrBuf {
    pool: Arc<PreMrPool>,
    block: u32,
    order: u8,
    len: usize,
}

impl PreMrBuf {
    /// Returns the size of the block in bytes.
    pub(crate) fn capacity(&self) -> usize {
        MIN_BLOCK << self.order
    }

    /// Returns the offset of the first byte in the pool's memory.
    pub(crate) fn offset(&self) -> usize {
        self.block as usize * MIN_BLOCK
    }

    /// Returns the virtual address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.pool.memory.addr() + self.offset() as u64
    }

    /// Copies `data` to `at`.
    ///
    /// # Panics
    /// If the range lies outside the buffer.
    pub(crate) fn write(&self, at: usize, data: &[u8]) {
        self.check(at, data.len());
        self.pool.memory.write(self.offset() + at, data);
    }

    /// Copies bytes from `at` into `out`.
    ///
    /// # Panics
    /// If the range lies outside the buffer.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        self.check(at, out.len());
        self.pool.memory.read(self.offset() + at, out);
    }

    /// Returns the requested bytes.
    ///
    /// Only for pools whose memory peers cannot access, such as the pool of a session. There only
    /// the owner of this buffer accesses its block.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the block lies in the pool's memory, which stays mapped while `self` exists, and
        // belongs to this buffer. A request that fills the buffer holds an exclusive loan of it.
        unsafe { std::slice::from_raw_parts(self.pool.memory.ptr(self.offset()), self.len) }
    }

    /// Returns the requested bytes; see [`as_slice`](Self::as_slice).
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pool.memory.ptr(self.offset()), self.len) }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.capacity()),
            "range {at}+{len} outside a buffer of {} bytes",
            self.capacity()
        );
    }
}

impl Drop for PreMrBuf {
    fn drop(&mut self) {
        self.pool.buddies.lock().release(self.block, self.order);
    }
}

/// Returns the order of the smallest block that holds `len` bytes. A block of order N has
/// `MIN_BLOCK << N` bytes.
fn order_of(len: usize) -> u8 {
    (len.max(1).div_ceil(MIN_BLOCK).next_power_of_two().trailing_zeros()) as u8
}

/// Returns the number of spare blocks of an order.
fn most_spare(order: u8) -> usize {
    (MAX_SPARE >> order).max(1)
}

/// State of a smallest block within the larger blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Inside a larger block, unused, or the first of a spare block.
    Inner,
    /// First of a free block of this order.
    Free(u8),
    /// First of an acquired block of this order.
    Taken(u8),
}

/// The allocator, in units of the smallest block. Free blocks of one order form a doubly linked
/// list through tables that are indexed by block. Spare blocks are free, but in no list.
#[derive(Debug)]
struct Buddies {
    state: Vec<State>,
    next: Vec<u32>,
    prev: Vec<u32>,
    heads: Vec<u32>,
    /// Spare blocks of each order, allocated for the most that it may have.
    spare: Vec<Vec<u32>>,
    /// Number of smallest blocks that are free, spare ones included.
    free_blocks: u32,
}

impl Buddies {
    fn new(blocks: u32, max_order: u8) -> Buddies {
        let mut buddies = Buddies {
            state: vec![State::Inner; blocks as usize],
            next: vec![NONE; blocks as usize],
            prev: vec![NONE; blocks as usize],
            heads: vec![NONE; usize::from(max_order) + 1],
            spare: (0..=max_order).map(|order| Vec::with_capacity(most_spare(order))).collect(),
            free_blocks: blocks,
        };
        // Adds the largest aligned blocks from the end, so that the list starts with the lowest
        // address.
        let mut end = blocks;
        while end > 0 {
            let order = max_order.min(end.trailing_zeros() as u8);
            end -= 1 << order;
            buddies.push(end, order);
        }
        buddies
    }

    fn acquire(&mut self, order: u8) -> Option<u32> {
        let block = match self.spare[usize::from(order)].pop().or_else(|| self.split(order)) {
            Some(block) => block,
            None => {
                self.join_spares();
                self.split(order)?
            }
        };
        self.state[block as usize] = State::Taken(order);
        self.free_blocks -= 1 << order;
        Some(block)
    }

    fn release(&mut self, block: u32, order: u8) {
        debug_assert_eq!(self.state[block as usize], State::Taken(order));
        self.state[block as usize] = State::Inner;
        self.free_blocks += 1 << order;
        let spare = &mut self.spare[usize::from(order)];
        if spare.len() < most_spare(order) { spare.push(block) } else { self.join(block, order) }
    }

    /// Takes a block out of the smallest free block that contains it.
    fn split(&mut self, order: u8) -> Option<u32> {
        let mut from = (order..self.heads.len() as u8).find(|&o| self.heads[usize::from(o)] != NONE)?;
        let block = self.heads[usize::from(from)];
        self.unlink(block, from);
        while from > order {
            from -= 1;
            self.push(block + (1 << from), from);
        }
        Some(block)
    }

    /// Joins a free block with its free buddies, and lists it.
    fn join(&mut self, mut block: u32, mut order: u8) {
        while usize::from(order) + 1 < self.heads.len() {
            let buddy = block ^ (1 << order);
            if self.state.get(buddy as usize) != Some(&State::Free(order)) {
                break;
            }
            self.unlink(buddy, order);
            block = block.min(buddy);
            order += 1;
        }
        self.push(block, order);
    }

    #[cold]
    fn join_spares(&mut self) {
        for order in 0..self.spare.len() as u8 {
            while let Some(block) = self.spare[usize::from(order)].pop() {
                self.join(block, order);
            }
        }
    }

    fn push(&mut self, block: u32, order: u8) {
        let head = &mut self.heads[usize::from(order)];
        self.next[block as usize] = *head;
        self.prev[block as usize] = NONE;
        if *head != NONE {
            self.prev[*head as usize] = block;
        }
        *head = block;
        self.state[block as usize] = State::Free(order);
    }

    fn unlink(&mut self, block: u32, order: u8) {
        let (next, prev) = (self.next[block as usize], self.prev[block as usize]);
        if next != NONE {
            self.prev[next as usize] = prev;
        }
        match prev {
            NONE => self.heads[usize::from(order)] = next,
            _ => self.next[prev as usize] = next,
        }
        self.state[block as usize] = State::Inner;
    }
}

#[cfg(all(loom, test))]
mod model;

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn pool(blocks: usize, max_block: usize) -> Arc<PreMrPool> {
        let memory = Memory::private(blocks * MIN_BLOCK).expect("memory for a test");
        PreMrPool::new(Arc::new(memory), max_block)
    }

    #[test]
    fn sizes_are_powers_of_two() {
        let pool = pool(512, 1 << 20);
        for (len, capacity) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (1 << 20, 1 << 20)] {
            let buf = pool.acquire(len).expect("free block");
            assert_eq!((buf.as_slice().len(), buf.capacity()), (len, capacity));
            assert_eq!(buf.offset() % capacity, 0);
            assert_eq!(buf.addr(), pool.memory().addr() + buf.offset() as u64);
        }
        assert!(pool.acquire((1 << 20) + 1).is_none());
        assert!(pool.acquire(usize::MAX).is_none());
        assert_eq!(pool.available(), 512 * MIN_BLOCK);
    }

    #[test]
    fn an_exhausted_pool_recovers_when_buffers_return() {
        let pool = pool(8, 8 * MIN_BLOCK);
        let all: Vec<_> = (0..8).map(|_| pool.acquire(1).expect("free block")).collect();
        assert!(pool.acquire(1).is_none());
        assert_eq!(pool.available(), 0);
        drop(all);
        let whole = pool.acquire(8 * MIN_BLOCK).expect("the blocks joined again");
        drop(whole);
        assert_eq!(pool.available(), 8 * MIN_BLOCK);
    }

    #[test]
    fn an_odd_size_is_used_to_its_end() {
        let pool = pool(11, 4 * MIN_BLOCK);
        let four: Vec<_> = (0..2).map(|_| pool.acquire(4 * MIN_BLOCK).expect("free block")).collect();
        assert!(pool.acquire(4 * MIN_BLOCK).is_none());
        let two = pool.acquire(2 * MIN_BLOCK).expect("free block");
        let one = pool.acquire(MIN_BLOCK).expect("free block");
        assert_eq!((two.offset(), one.offset()), (8 * MIN_BLOCK, 10 * MIN_BLOCK));
        assert_eq!(pool.available(), 0);
        drop((four, two, one));
        assert_eq!(pool.available(), 11 * MIN_BLOCK);
    }

    #[test]
    fn tiny_memory_has_no_buffers() {
        let memory = Memory::private(100).expect("memory for a test");
        assert!(PreMrPool::new(Arc::new(memory), 1 << 20).acquire(1).is_none());
    }

    #[test]
    fn bytes_stay_in_their_buffer() {
        let pool = pool(4, MIN_BLOCK);
        let bufs: Vec<_> = (0..4).map(|_| pool.acquire(4096).expect("free block")).collect();
        for (i, buf) in (0u8..).zip(&bufs) {
            buf.write(0, &[i; 4096]);
        }
        for (i, buf) in (0u8..).zip(&bufs) {
            let mut out = [99; 4000];
            buf.read(96, &mut out);
            assert_eq!(out, [i; 4000]);
        }
    }

    #[test]
    #[should_panic(expected = "outside a buffer")]
    fn a_write_past_the_buffer_panics() {
        pool(4, MIN_BLOCK).acquire(10).expect("free block").write(4095, &[0; 2]);
    }

    #[test]
    fn threads_share_the_pool() {
        let pool = pool(64, 16 * MIN_BLOCK);
        thread::scope(|scope| {
            for seed in 0..4usize {
                let pool = &pool;
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for step in 0..2000usize {
                        let len = (step * 7919 + seed * 104_729) % (16 * MIN_BLOCK) + 1;
                        if let Some(buf) = pool.acquire(len) {
                            buf.write(0, &[seed as u8; 64]);
                            held.push(buf);
                        }
                        if held.len() > 4 || step % 3 == 0 {
                            for buf in held.drain(..) {
                                let mut out = [0; 64];
                                buf.read(0, &mut out);
                                assert_eq!(out, [seed as u8; 64]);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(pool.available(), 64 * MIN_BLOCK);
        assert!((0..4).map(|_| pool.acquire(16 * MIN_BLOCK)).all(|buf| buf.is_some()));
    }

    proptest! {
        #[test]
        fn the_pool_behaves_like_a_map_of_blocks(
            blocks in 1..70usize,
            max_order in 0..6u32,
            actions in prop::collection::vec((any::<bool>(), any::<u32>()), 0..300),
        ) {
            let max_block = MIN_BLOCK << max_order;
            let pool = pool(blocks, max_block);
            // The model: the smallest blocks that are acquired.
            let mut taken = vec![false; blocks];
            let mut held: Vec<PreMrBuf> = Vec::new();
            let range = |buf: &PreMrBuf| {
                let first = buf.offset() / MIN_BLOCK;
                first..first + buf.capacity() / MIN_BLOCK
            };
            for (release, number) in actions {
                if release && !held.is_empty() {
                    let buf = held.swap_remove(number as usize % held.len());
                    taken[range(&buf)].fill(false);
                    drop(buf);
                } else {
                    let size = MIN_BLOCK << (number % (max_order + 1));
                    // A block of that size exists if an aligned range of it is free.
                    let units = size / MIN_BLOCK;
                    let exists = taken.chunks_exact(units).any(|chunk| chunk.iter().all(|&t| !t));
                    let buf = pool.acquire(size - number as usize % (size / 2));
                    prop_assert_eq!(buf.is_some(), exists);
                    if let Some(buf) = buf {
                        prop_assert_eq!(buf.capacity(), size);
                        prop_assert_eq!(buf.offset() % size, 0);
                        prop_assert!(taken[range(&buf)].iter().all(|&t| !t), "handed out twice");
                        taken[range(&buf)].fill(true);
                        held.push(buf);
                    }
                }
                let free = taken.iter().filter(|&&t| !t).count();
                prop_assert_eq!(pool.available(), free * MIN_BLOCK);
            }
            drop(held);
            let whole = blocks / (max_block / MIN_BLOCK);
            let all: Vec<_> = (0..whole).map(|_| pool.acquire(max_block)).collect();
            prop_assert!(all.iter().all(Option::is_some), "everything joined again");
        }
    }
}
