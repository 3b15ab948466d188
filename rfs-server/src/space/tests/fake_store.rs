//! A store in this process, for tests.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rfs_proto::StoreAccess;

use crate::space::lent_memory::{LentMemory, StoreFailure};

/// A store in this process that can be made unreachable.
#[derive(Debug)]
pub(crate) struct FakeStore {
    pub(crate) bytes: Mutex<Vec<u8>>,
    is_up: AtomicBool,
    /// Sessions whose access is to end.
    doubts: Mutex<Vec<u64>>,
}

impl FakeStore {
    /// Returns a store of zeroes that is up.
    pub(crate) fn new(len: u64) -> FakeStore {
        let bytes = Mutex::new(vec![0; len as usize]);
        FakeStore { bytes, is_up: AtomicBool::new(true), doubts: Mutex::default() }
    }

    /// Has every access fail, or succeed again.
    pub(crate) fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Relaxed);
    }

    fn part<T>(&self, offset: u64, len: u64, act: impl FnOnce(&mut [u8]) -> T) -> Result<T, StoreFailure> {
        match self.is_up.load(Ordering::Relaxed) {
            true => Ok(act(&mut self.bytes.lock()[offset as usize..(offset + len) as usize])),
            false => Err(StoreFailure(1)),
        }
    }
}

impl LentMemory for FakeStore {
    fn zero(&self, _: u16, offset: u64, len: u64) -> Result<(), StoreFailure> {
        self.part(offset, len, |bytes| bytes.fill(0))
    }

    fn read(&self, _: u16, offset: u64, out: &mut [u8]) -> Result<(), StoreFailure> {
        self.part(offset, out.len() as u64, |bytes| out.copy_from_slice(bytes))
    }

    fn write(&self, _: u16, offset: u64, data: &[u8]) -> Result<(), StoreFailure> {
        self.part(offset, data.len() as u64, |bytes| bytes.copy_from_slice(data))
    }

    fn admit(&self, _: u16, _: u64, _: bool) -> Option<StoreAccess> {
        None
    }

    fn is_admitted(&self, _: u64) -> bool {
        false
    }

    fn fence(&self, _: u64) -> bool {
        true
    }

    fn writable(&self, _: u64) -> Vec<u16> {
        vec![1]
    }

    fn doubt(&self, store: u16, session: u64) -> bool {
        let mut doubts = self.doubts.lock();
        let is_new = store == 1 && !doubts.contains(&session);
        doubts.extend(is_new.then_some(session));
        is_new
    }

    fn end_doubts(&self, ended: &mut dyn FnMut(u16)) {
        if self.is_up.load(Ordering::Relaxed) {
            self.doubts.lock().drain(..).for_each(|_| ended(1));
        }
    }
}
