//! Stores secrets in memory that core dumps and, if the system allows, swap exclude.
//!
//! [`Hidden`] holds a fixed number of bytes in a mapping that the kernel leaves out of core
//! dumps. Short secrets occupy slots of shared chunks; longer secrets have their own mapping. The
//! drop erases the bytes.
//!
//! # Concurrency
//! Any thread may use it. Creating and dropping a short secret locks the list of free slots.

use std::fmt;

use parking_lot::Mutex;

use super::memory::Memory;

/// Size of a slot in bytes: the longest secret of a key.
const SLOT: usize = 64;
/// Size of a chunk of slots in bytes.
const CHUNK: usize = 64 << 10;

/// Free slots. Chunks are never unmapped, so only the holder of a slot owns it.
static FREE: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Slot {
    chunk: &'static Memory,
    offset: usize,
}

enum Place {
    Slot(Slot),
    Own(Memory),
}

/// Bytes outside of core dumps.
pub(crate) struct Hidden {
    place: Place,
    len: usize,
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

impl Hidden {
    /// Returns `len` zeros. Aborts the process if memory is exhausted, as any allocation does.
    pub(crate) fn zeros(len: usize) -> Hidden {
        let place = if len <= SLOT { Place::Slot(take_slot()) } else { Place::Own(mapping(len)) };
        Hidden { place, len }
    }

    /// Returns a copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> Hidden {
        let mut hidden = Hidden::zeros(bytes.len());
        hidden.as_mut_slice().copy_from_slice(bytes);
        hidden
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped while `self` exists, and only `self` accesses it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }

    fn start(&self) -> *mut u8 {
        match &self.place {
            Place::Slot(slot) => slot.chunk.ptr(slot.offset),
            Place::Own(memory) => memory.ptr(0),
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        match &self.place {
            Place::Slot(slot) => {
                slot.chunk.zero(slot.offset, SLOT);
                FREE.lock().push(*slot);
            }
            Place::Own(memory) => memory.zero(0, memory.len()),
        }
    }
}

fn take_slot() -> Slot {
    let mut free = FREE.lock();
    if let Some(slot) = free.pop() {
        return slot;
    }
    let chunk: &'static Memory = Box::leak(Box::new(mapping(CHUNK)));
    free.extend((SLOT..CHUNK).step_by(SLOT).map(|offset| Slot { chunk, offset }));
    Slot { chunk, offset: 0 }
}

fn mapping(len: usize) -> Memory {
    let memory = Memory::private_or_abort(len);
    let len = memory.len();
    // SAFETY: the range is the mapping. A limit (RLIMIT_MEMLOCK) leaves it unlocked, which harms
    // nothing else.
    unsafe { libc::mlock(memory.ptr(0).cast(), len) };
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_overlap_and_are_erased() {
        let pieces: Vec<Hidden> = (0..2500u32).map(|i| Hidden::copy_of(&[i as u8; SLOT])).collect();
        assert!(pieces.iter().enumerate().all(|(i, piece)| piece.as_slice() == [i as u8; SLOT]));
        let Place::Slot(slot) = pieces[7].place else { panic!("not in a slot") };
        drop(pieces);
        // The lock prevents other tests from taking the slot.
        let free = FREE.lock();
        assert!(free.iter().any(|other| other.chunk.ptr(other.offset) == slot.chunk.ptr(slot.offset)));
        let mut bytes = [1; SLOT];
        slot.chunk.read(slot.offset, &mut bytes);
        assert_eq!(bytes, [0; SLOT]);
        drop(free);
        let long = Hidden::copy_of(&[9; 5000]);
        assert_eq!(long.as_slice(), [9; 5000]);
        assert_eq!(Hidden::zeros(0).as_slice(), []);
    }
}
