//! The buffer into which a thread receives requests: registered once, not for each large write.
//!
//! The thread announces its buffer, which another library owns. The first large write from there
//! registers a part of it with the session. Later writes of the thread use that registration. A
//! session after a reconnect, or a longer write, registers it again.
//!
//! # Concurrency
//! Values of the calling thread.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

use rdmabox::{CallerMr, ProviderKind, Session};

/// Length in bytes from which on a write uses the registration. Shorter ones are mostly
/// asynchronous, and copied for that.
const MIN_LEN: usize = 32 << 10;

/// Maximum number of registrations of a thread. A thread of a ring has several buffers while
/// requests wait for locks.
const MAX_REGISTRATIONS: usize = 4;

/// A thread's receive buffer.
#[derive(Clone, Copy, Debug)]
struct ReceiveBuffer {
    start: *mut u8,
    len: usize,
}

thread_local! {
    static OWN: Cell<Option<ReceiveBuffer>> = const { Cell::new(None) };
    static REGISTRATIONS: RefCell<VecDeque<CallerMr>> = const { RefCell::new(VecDeque::new()) };
}

impl ReceiveBuffer {
    /// Returns true if the bytes begin at the start of the buffer and are inside.
    fn holds(&self, bytes: &[u8]) -> bool {
        std::ptr::eq(bytes.as_ptr(), self.start) && bytes.len() <= self.len
    }

    /// Registers the beginning of the buffer, at least `len` bytes.
    fn register(&self, session: &Session, len: usize) -> Option<CallerMr> {
        let len = len.next_power_of_two().min(self.len);
        // SAFETY: the announcement promises that the buffer is this memory whenever the thread
        // writes from there, and only then the registration is used.
        let registered = unsafe { session.register(self.start, len) };
        registered.inspect_err(|e| log::debug!("cannot register a receive buffer: {e}")).ok()
    }
}

/// Announces the memory in which the payloads of large requests of the calling thread begin.
///
/// # Safety
/// Whenever this thread writes bytes that begin at `start`, `len` bytes there must be mapped,
/// readable and writable, and the same memory.
pub unsafe fn announce_receive_buffer(start: *mut u8, len: usize) {
    OWN.set(Some(ReceiveBuffer { start, len }));
}

/// Runs `work`, which writes `data` over the session. If `data` is in the thread's receive buffer,
/// it is neither copied nor registered again.
pub(super) fn with_registration<R>(session: &Session, data: &[u8], work: impl FnOnce() -> R) -> R {
    let own = OWN.get().filter(|own| data.len() >= MIN_LEN && own.holds(data));
    // Mapped memory needs no registration.
    let Some(buffer) = own.filter(|_| session.provider() != ProviderKind::Shm) else { return work() };
    let own = REGISTRATIONS.with_borrow_mut(|all| {
        let found = all.iter().position(|mr| session.has_registered(mr, data));
        found.and_then(|at| all.remove(at))
    });
    // Meanwhile it is not in the list, so a nested call registers for itself.
    let Some(mr) = own.or_else(|| buffer.register(session, data.len())) else { return work() };
    let result = session.with_registration(&mr, data, work);
    REGISTRATIONS.with_borrow_mut(|all| {
        all.truncate(MAX_REGISTRATIONS - 1);
        all.push_front(mr);
    });
    result
}
