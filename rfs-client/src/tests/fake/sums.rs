//! Memory with checksums.

use std::sync::Arc;

use rdmabox::Memory;
use rfs_proto::{
    BLOCK,
    checksum::{self, Word},
};

use crate::tests::fake::Fake;

impl Fake {
    /// Creates a server whose memory has checksums.
    pub(crate) fn checked(blocks: u64, mapped: bool) -> Arc<Fake> {
        let mut fake = Arc::into_inner(Fake::new(blocks, mapped)).expect("the only reference");
        let len = checksum::region_len(fake.arena.len() as u64) as usize;
        fake.sums = Some(Arc::new(Memory::private(len).expect("memory")));
        Arc::new(fake)
    }

    /// Writes bytes of the arena, and updates their words.
    pub(crate) fn put(&self, place: u64, data: &[u8]) {
        self.arena.write(place as usize, data);
        let Some(sums) = &self.sums else { return };
        let mut block = [0; BLOCK as usize];
        let first = place / BLOCK * BLOCK;
        for at in (first..place + data.len() as u64).step_by(BLOCK as usize) {
            self.arena.read(at as usize, &mut block);
            let word = self.word(at).opened().closed(checksum::check(&block));
            sums.write(checksum::place(at) as usize, &word.0.to_le_bytes());
        }
    }

    /// Returns bytes of the arena.
    pub(crate) fn bytes(&self, place: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.arena.read(place as usize, &mut bytes);
        bytes
    }

    /// Writes bytes of the arena without their words.
    pub(crate) fn damage(&self, place: u64, data: &[u8]) {
        self.arena.write(place as usize, data);
    }

    /// Returns the word of a block.
    pub(crate) fn word(&self, arena: u64) -> Word {
        let sums = self.sums.as_ref().expect("checksums");
        Word(sums.load_u64(checksum::place(arena) as usize))
    }

    /// Sets the word of a block.
    pub(crate) fn set_word(&self, arena: u64, Word(word): Word) {
        let sums = self.sums.as_ref().expect("checksums");
        sums.write(checksum::place(arena) as usize, &word.to_le_bytes());
    }

    /// Returns the arena offset of a byte of a file.
    pub(crate) fn place(&self, ino: u64, offset: u64) -> u64 {
        let state = self.state.lock();
        let mut extents = state.files[&ino].extents.iter();
        let extent = extents.find(|e| e.file <= offset && offset < e.file_end()).expect("data");
        extent.arena + offset - extent.file
    }
}
