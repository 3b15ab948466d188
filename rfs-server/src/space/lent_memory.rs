//! Memory of stores, as the space of an export uses it.
//!
//! # Concurrency
//! Any thread. A call waits for the store, for a bounded time.

use std::fmt;

use rfs_proto::{DataPlace, StoreAccess};

use super::{
    account::Space,
    alloc::range::Range,
    bytes::{Bad, Bytes},
    quarantine::{in_doubt, unreachable},
};

/// Most bytes that are fetched at once to see whether they are zero.
const ZERO_CHECK_BYTES: usize = 64 << 10;

/// A store that does not answer. The implementation has logged the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreFailure(pub u16);

/// Memory of stores. Offsets are those in the memory of the store.
pub trait LentMemory: fmt::Debug + Send + Sync {
    /// Zeroes a range.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn zero(&self, store: u16, offset: u64, len: u64) -> Result<(), StoreFailure>;

    /// Reads bytes.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn read(&self, store: u16, offset: u64, out: &mut [u8]) -> Result<(), StoreFailure>;

    /// Writes bytes.
    ///
    /// # Errors
    /// The store cannot be reached.
    fn write(&self, store: u16, offset: u64, data: &[u8]) -> Result<(), StoreFailure>;

    /// Returns how a session reaches a store, and remembers that it may do so from now on. Returns
    /// `None` if there is no such store.
    fn admit(&self, store: u16, session: u64, may_write: bool) -> Option<StoreAccess>;

    /// Returns true if a session may reach stores.
    fn is_admitted(&self, session: u64) -> bool;

    /// Ends the access of a session to all stores. Returns true if it can reach none any more; the
    /// caller tries again otherwise.
    fn fence(&self, session: u64) -> bool;

    /// Returns the stores to which a session has access that may write, and that is not to end.
    fn writable(&self, _session: u64) -> Vec<u16> {
        Vec::new()
    }

    /// Notes that the present access of a session to a store has to end. Returns false if there is
    /// none, or if its end is noted already.
    fn doubt(&self, _store: u16, _session: u64) -> bool {
        false
    }

    /// Ends accesses that [`doubt`](Self::doubt) has noted, at the stores that answer. When an
    /// access has ended, calls `ended` with its store.
    fn end_doubts(&self, _ended: &mut dyn FnMut(u16)) {}
}

/// Bytes that could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// A block does not match its checksum.
    Bad(Bad),
    /// A store cannot be reached.
    Store(StoreFailure),
}

impl From<Bad> for Unusable {
    fn from(bad: Bad) -> Unusable {
        Unusable::Bad(bad)
    }
}

impl From<StoreFailure> for Unusable {
    fn from(failure: StoreFailure) -> Unusable {
        Unusable::Store(failure)
    }
}

/// Where a range is.
enum Home<'a> {
    Own(&'a Bytes),
    Lent(&'a dyn LentMemory, u16, u64),
}

impl Space {
    fn home(&self, place: u64) -> Result<Home<'_>, StoreFailure> {
        let place = DataPlace::from_number(place);
        match (place.store(), &self.lent) {
            (0, _) => Ok(Home::Own(self.bytes())),
            (store, Some(lent)) => Ok(Home::Lent(&**lent, store, place.offset())),
            // Not reached: only a space with stores has their places.
            (store, None) => Err(StoreFailure(store)),
        }
    }

    /// Returns the memory of stores, if the space has some.
    pub fn lent(&self) -> Option<&dyn LentMemory> {
        self.lent.as_deref()
    }

    /// Zeroes a range that is in use, such as the rest of the last block behind the end of a file.
    ///
    /// # Errors
    /// The store of the range cannot be reached.
    pub fn zero(&self, range: Range) -> Result<(), StoreFailure> {
        match self.home(range.start)? {
            Home::Own(bytes) => bytes.zero(range),
            Home::Lent(lent, store, offset) => lent.zero(store, offset, range.len)?,
        }
        Ok(())
    }

    /// Reads a range that is in use.
    ///
    /// # Errors
    /// A block is bad, or the store of the range cannot be reached.
    pub fn read(&self, range: Range, out: &mut Vec<u8>) -> Result<(), Unusable> {
        match self.home(range.start)? {
            Home::Own(bytes) => bytes.read(range, out)?,
            Home::Lent(lent, store, offset) => {
                out.resize(range.len as usize, 0);
                lent.read(store, offset, out)?;
            }
        }
        Ok(())
    }

    /// Writes to a range that is in use; see [`Bytes::write`].
    ///
    /// # Errors
    /// A block is bad, or the store of the range cannot be reached.
    pub fn write(&self, place: u64, data: &[u8], is_nothing: bool) -> Result<(), Unusable> {
        match self.home(place)? {
            Home::Own(bytes) => bytes.write(place, data, is_nothing)?,
            Home::Lent(lent, store, offset) => lent.write(store, offset, data)?,
        }
        Ok(())
    }

    /// Returns true if all bytes of a range are zero.
    ///
    /// # Errors
    /// The store of the range cannot be reached.
    pub fn is_zero(&self, range: Range) -> Result<bool, StoreFailure> {
        match self.home(range.start)? {
            Home::Own(bytes) => Ok(bytes.is_zero(range)),
            Home::Lent(lent, store, offset) => {
                let mut buffer = vec![0; (range.len as usize).min(ZERO_CHECK_BYTES)];
                for from in (0..range.len).step_by(ZERO_CHECK_BYTES) {
                    let part = &mut buffer[..(range.len - from).min(ZERO_CHECK_BYTES as u64) as usize];
                    lent.read(store, offset + from, part)?;
                    if part.iter().any(|byte| *byte != 0) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Adds memory of a store, which is zero. Returns false, without a change, if the store has no
    /// such places.
    pub fn add_store(&self, store: u16, len: u64, unit: u64) -> bool {
        self.change_account(|account| account.arena.add_store(store, len, unit))
    }

    /// Hands out no space of a store while its data moves away, or hands it out again.
    pub fn drain_store(&self, store: u16, drains: bool) {
        self.change_account(|account| account.arena.set_drain(store, drains));
    }

    /// Removes a store all of whose space is free and zero. Returns false, without a change, if
    /// some is not.
    pub fn remove_store(&self, store: u16) -> bool {
        self.change_account(|account| account.arena.remove_store(store))
    }

    /// Removes a store whose memory is lost. Files may still have space there.
    pub fn forget_store(&self, store: u16) {
        self.change_account(|account| account.arena.forget_store(store));
    }

    /// Hands out space of a store again, which can be reached.
    pub fn open_store(&self, store: u16) {
        self.change_account(|account| {
            account.arena.set_open(store, true);
            account.arena.session_ended(unreachable(store));
        });
        self.tidy();
    }

    /// Notes that writes of a session may still arrive at a store, or at all stores if the number
    /// is 0. No file gets space that is given up there until the access of the session has ended
    /// ([`Space::end_doubts`]). Returns true if there is an access to end.
    pub fn doubt(&self, store: u16, session: u64) -> bool {
        let Some(lent) = &self.lent else { return false };
        let mut stores = lent.writable(session);
        stores.retain(|&one| store == 0 || one == store);
        let doubted = |store: &u16| {
            // First: the end of the access, which releases the space, may come at once.
            self.hold_store(*store);
            let is_new = lent.doubt(*store, session);
            if !is_new {
                // Another thread has noted it meanwhile.
                self.release_store(*store);
                self.tidy();
            }
            is_new
        };
        stores.iter().filter(|store| doubted(store)).count() > 0
    }

    /// Ends the accesses that are in [doubt](Space::doubt), at the stores that answer. The space of
    /// those stores is free then.
    pub fn end_doubts(&self) {
        let Some(lent) = &self.lent else { return };
        lent.end_doubts(&mut |store| {
            self.release_store(store);
            self.tidy();
        });
    }

    fn hold_store(&self, store: u16) {
        self.change_account(|account| {
            let count = account.in_doubt.entry(store).or_default();
            *count += 1;
            if *count == 1 {
                account.arena.hold_store(store, in_doubt(store));
            }
        });
    }

    fn release_store(&self, store: u16) {
        self.change_account(|account| {
            let Some(count) = account.in_doubt.get_mut(&store) else { return };
            *count -= 1;
            if *count == 0 {
                account.in_doubt.remove(&store);
                account.arena.session_ended(in_doubt(store));
            }
        });
    }

    /// Hands out no space of a store, which cannot be reached.
    pub fn close_store(&self, store: u16) {
        self.change_account(|account| account.arena.set_open(store, false));
    }
}
