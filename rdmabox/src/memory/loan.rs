//! Memory that a caller lends to requests for the length of a blocking call.
//!
//! A [`Loan`] is a caller's slice without its lifetime, so that requests of several threads can sit in one queue.
//! [`scope`] makes that sound: it does not return, not even by unwinding, before every loan made in it is dropped,
//! and requests drop their loans only when the device has let go of the memory.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::PreMrBuf;
use crate::verbs::{Access, MrHandle, ProtectionDomain, Sge, VerbsError};

/// A slice on loan. Exclusive loans are written by at most one request at a time: they come from `&mut` slices.
#[derive(Debug)]
pub(crate) struct Loan {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    count: Arc<AtomicUsize>,
}

// SAFETY: the scope keeps the memory valid while a Loan exists, and a Loan has no thread affinity.
unsafe impl Send for Loan {}
// SAFETY: shared access only reads, through `bytes` on loans of shared slices.
unsafe impl Sync for Loan {}

impl Loan {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of a loan of a shared slice; `None` for an exclusive one.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: a loan of a shared slice: valid and unchanged while the loan exists.
        (!self.writable).then(|| unsafe { std::slice::from_raw_parts(self.ptr, self.len) })
    }

    /// Copies the bytes to a pre-registered buffer.
    pub(crate) fn stage(&self, buf: &PreMrBuf, at: usize) {
        if let Some(bytes) = self.bytes() {
            buf.write(at, bytes);
        }
    }

    /// Copies bytes from a pre-registered buffer into an exclusive loan.
    pub(crate) fn unstage(&mut self, buf: &PreMrBuf, at: usize) {
        if self.writable {
            // SAFETY: an exclusive loan: nobody else reads or writes the slice while it exists.
            let out = unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) };
            buf.read(at, out);
        }
    }

    /// Registers the memory for one request (dynMR).
    pub(crate) fn register(&self, pd: &dyn ProtectionDomain) -> Result<MrHandle, VerbsError> {
        let access = if self.writable { Access::LOCAL_WRITE } else { Access::empty() };
        // SAFETY: the scope keeps the memory valid while this loan exists, and a request drops its registration
        // before its loan; exclusive loans have one request.
        unsafe { pd.register_borrowed(self.ptr as u64, self.len as u64, access) }
    }

    /// The element that describes it under a registration of its own.
    pub(crate) fn sge(&self, lkey: u32) -> Sge {
        Sge { addr: self.ptr as u64, length: self.len as u32, lkey }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Release);
    }
}

/// Makes loans. `'env` outlives the scope.
#[derive(Debug)]
pub(crate) struct Scope<'env> {
    count: Arc<AtomicUsize>,
    _env: PhantomData<fn(&'env ()) -> &'env ()>,
}

impl<'env> Scope<'env> {
    /// Lends bytes to be sent.
    pub(crate) fn lend(&self, bytes: &'env [u8]) -> Loan {
        self.loan(bytes.as_ptr().cast_mut(), bytes.len(), false)
    }

    /// Lends memory to be filled.
    pub(crate) fn lend_mut(&self, bytes: &'env mut [u8]) -> Loan {
        self.loan(bytes.as_mut_ptr(), bytes.len(), true)
    }

    fn loan(&self, ptr: *mut u8, len: usize, writable: bool) -> Loan {
        self.count.fetch_add(1, Ordering::Relaxed);
        Loan { ptr, len, writable, count: Arc::clone(&self.count) }
    }
}

/// Waits for the last loan, also while unwinding.
struct Settle<'a>(&'a AtomicUsize);

impl Drop for Settle<'_> {
    fn drop(&mut self) {
        // The loans are dropped before a request is reported done, so that this is almost never waited for.
        while self.0.load(Ordering::Acquire) != 0 {
            std::thread::yield_now();
        }
    }
}

/// Runs `f`, which may make loans of slices that outlive the call.
pub(crate) fn scope<'env, R>(f: impl FnOnce(&Scope<'env>) -> R) -> R {
    let scope = Scope { count: Arc::new(AtomicUsize::new(0)), _env: PhantomData };
    let _settle = Settle(&scope.count);
    f(&scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_only_when_the_last_loan_is_back() {
        let data = vec![7u8; 64];
        let (send, receive) = std::sync::mpsc::channel::<Loan>();
        let returned = Arc::new(AtomicUsize::new(0));
        let other = std::thread::spawn({
            let returned = Arc::clone(&returned);
            move || {
                let loan = receive.recv().unwrap();
                assert_eq!(loan.bytes(), Some(&[7u8; 64][..]));
                for _ in 0..1000 {
                    std::thread::yield_now();
                }
                returned.store(1, Ordering::SeqCst);
                drop(loan);
            }
        });
        scope(|s| send.send(s.lend(&data)).unwrap());
        assert_eq!(returned.load(Ordering::SeqCst), 1);
        other.join().unwrap();
    }
}
