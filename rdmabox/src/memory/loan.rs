//! Loans of a caller's memory to requests.
//!
//! A [`Loan`] is a caller's slice without its lifetime, so that one queue can hold requests of
//! several threads. For a blocking call, [`scope`] makes this sound: it does not return, not even
//! by unwinding, before every loan made in it is dropped. For a request that outlives the call, the
//! caller moves its buffer into a [`Lent`]. The `Lent` returns the buffer only after every loan of
//! it is dropped. Requests drop their loans only after the device has stopped using the memory.

use std::{cell::RefCell, marker::PhantomData, mem::MaybeUninit, sync::Arc};

use super::{PreMrBuf, RecvBuf, SendBuf};
use crate::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        thread_local, yield_now,
    },
    verbs::{Access, MrHandle, ProtectionDomain, Sge, VerbsError},
};

/// A slice on loan. At most one request writes to an exclusive loan, because it comes from a
/// `&mut` slice.
#[derive(Debug)]
pub(crate) struct Loan {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    count: LoanCount,
}

// SAFETY: the scope keeps the memory valid while a Loan exists, and a Loan has no thread
// affinity.
unsafe impl Send for Loan {}
// SAFETY: shared access only reads, through `bytes` on loans of shared slices.
unsafe impl Sync for Loan {}

impl Loan {
    fn new(count: &LoanCount, ptr: *mut u8, len: usize, writable: bool) -> Loan {
        count.outstanding.fetch_add(1, Ordering::Relaxed);
        Loan { ptr, len, writable, count: Arc::clone(count) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the virtual address of the first byte.
    pub(crate) fn addr(&self) -> u64 {
        self.ptr as u64
    }

    /// Returns the bytes of a shared loan, `None` for an exclusive loan.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: a shared loan is valid and unchanged while it exists.
        (!self.writable).then(|| unsafe { std::slice::from_raw_parts(self.ptr, self.len) })
    }

    /// Returns the bytes of an exclusive loan, `None` for a shared loan.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: while an exclusive loan exists, no other code accesses the slice.
        self.writable.then(|| unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) })
    }

    /// Copies the bytes to a preMR.
    pub(crate) fn stage(&self, buf: &PreMrBuf, at: usize) {
        if let Some(bytes) = self.bytes() {
            buf.write(at, bytes);
        }
    }

    /// Copies bytes from a preMR into an exclusive loan.
    pub(crate) fn unstage(&mut self, buf: &PreMrBuf, at: usize) {
        if let Some(out) = self.bytes_mut() {
            buf.read(at, out);
        }
    }

    /// Registers the memory for one request (dynMR).
    pub(crate) fn register(&self, pd: &dyn ProtectionDomain) -> Result<MrHandle, VerbsError> {
        let access = if self.writable { Access::LOCAL_WRITE } else { Access::empty() };
        // SAFETY: the scope keeps the memory valid while this loan exists, and a request drops its
        // registration before its loan. An exclusive loan has one request.
        unsafe { pd.register_borrowed(self.ptr as u64, self.len as u64, access) }
    }

    /// Returns the scatter/gather element of the loan under its own registration.
    pub(crate) fn sge(&self, lkey: u32) -> Sge {
        Sge { addr: self.ptr as u64, length: self.len as u32, lkey }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.count.outstanding.fetch_sub(1, Ordering::Release);
    }
}

/// Creates loans of memory that lives for `'env`, which outlives the scope.
#[derive(Debug)]
pub(crate) struct Scope<'env> {
    count: LoanCount,
    _env: PhantomData<fn(&'env ()) -> &'env ()>,
}

impl<'env> Scope<'env> {
    /// Lends bytes that a request sends.
    pub(crate) fn lend(&self, bytes: &'env [u8]) -> Loan {
        self.loan(bytes.as_ptr().cast_mut(), bytes.len(), false)
    }

    /// Lends memory that a request fills.
    pub(crate) fn lend_mut(&self, bytes: &'env mut [u8]) -> Loan {
        self.loan(bytes.as_mut_ptr(), bytes.len(), true)
    }

    /// Lends a word that a request fills.
    pub(crate) fn lend_word(&self, word: &'env mut u64) -> Loan {
        self.loan(std::ptr::from_mut(word).cast(), size_of::<u64>(), true)
    }

    fn loan(&self, ptr: *mut u8, len: usize, writable: bool) -> Loan {
        Loan::new(&self.count, ptr, len, writable)
    }
}

/// Waits on drop until no loan is left, also during unwinding.
struct Settle<'a>(&'a Loans);

impl Drop for Settle<'_> {
    fn drop(&mut self) {
        // Requests drop their loans before they report completion, so this loop rarely runs.
        while self.0.outstanding() != 0 {
            yield_now();
        }
    }
}

thread_local! {
    /// Counter of this thread's previous scope, for reuse by the next scope.
    static COUNT: RefCell<Option<LoanCount>> = const { RefCell::new(None) };
}

/// Runs `f`, which may lend slices that outlive this call. Blocks until every loan is dropped.
pub(crate) fn scope<'env, R>(f: impl FnOnce(&Scope<'env>) -> R) -> R {
    let kept = COUNT.try_with(|count| count.try_borrow_mut().ok()?.take()).ok().flatten();
    let scope = Scope { count: kept.unwrap_or_default(), _env: PhantomData };
    let settle = Settle(&scope.count);
    let result = f(&scope);
    drop(settle);
    // All loans are dropped, so the counter is free again. A nested scope or an ending thread finds
    // no counter and creates a new one.
    let _ = COUNT.try_with(|count| count.try_borrow_mut().map(|mut place| *place = Some(scope.count)));
    result
}

/// The count of outstanding loans, shared with the loans.
pub(crate) type LoanCount = Arc<Loans>;

/// The count of outstanding loans.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    outstanding: AtomicUsize,
    /// Memory for the word that a started atomic or load fills. Not a type of the model checker:
    /// only the request and then the owner access it, in an order that `outstanding` gives.
    word: std::sync::atomic::AtomicU64,
}

impl Loans {
    fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Acquire)
    }
}

/// A buffer whose requests may outlive the call that issued them.
pub(crate) struct Lent<B> {
    /// `None` after the buffer was taken back, and for a word; initialized otherwise. The buffer
    /// may have a `Box`, and loans hold the address of its bytes. The union keeps a move of this
    /// value from asserting that the `Box` has unique access.
    buf: Option<MaybeUninit<B>>,
    /// Makes the buffer of a word, which the request stores in `count`.
    from_word: Option<fn(u64) -> B>,
    count: LoanCount,
}

impl<B> std::fmt::Debug for Lent<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Lends parts of a buffer that a [`Lent`] owns.
pub(super) struct LoanIssuer<'a>(&'a LoanCount);

impl LoanIssuer<'_> {
    /// Lends bytes that a request sends.
    pub(super) fn lend(&self, bytes: &[u8]) -> Loan {
        Loan::new(self.0, bytes.as_ptr().cast_mut(), bytes.len(), false)
    }

    /// Lends memory that a request fills.
    pub(super) fn lend_mut(&self, bytes: &mut [u8]) -> Loan {
        Loan::new(self.0, bytes.as_mut_ptr(), bytes.len(), true)
    }

    /// Lends a word that a request fills.
    pub(super) fn lend_word(&self, word: &mut u64) -> Loan {
        Loan::new(self.0, std::ptr::from_mut(word).cast(), size_of::<u64>(), true)
    }
}

impl Lent<u64> {
    /// Owns the word that a request fills. `count` must be zero.
    pub(crate) fn word(count: LoanCount) -> Lent<u64> {
        debug_assert_eq!(count.outstanding(), 0);
        Lent { buf: None, from_word: Some(|word| word), count }
    }

    /// Lends the word for filling. No other loan may be outstanding.
    pub(crate) fn lend_word(&self) -> Loan {
        assert!(self.is_back(), "the word is already on loan");
        Loan::new(&self.count, self.count.word.as_ptr().cast(), size_of::<u64>(), true)
    }
}

impl<B> Lent<B> {
    /// Wraps `buf`. `count` must be zero; it can be reused after [`take`](Self::take).
    pub(crate) fn new(buf: B, count: LoanCount) -> Lent<B> {
        debug_assert_eq!(count.outstanding(), 0);
        Lent { buf: Some(MaybeUninit::new(buf)), from_word: None, count }
    }

    /// Returns true if no loan is outstanding.
    pub(crate) fn is_back(&self) -> bool {
        self.count.outstanding() == 0
    }

    /// Returns the buffer and the issuer of its loans. No loan may be outstanding. The caller lends
    /// only memory that stays valid and in place until the buffer is dropped, also if the buffer
    /// moves.
    pub(super) fn parts(&mut self) -> (Option<&mut B>, LoanIssuer<'_>) {
        assert!(self.is_back(), "the buffer is already on loan");
        // SAFETY: a buffer that is present is initialized.
        let buf = self.buf.as_mut().map(|buf| unsafe { buf.assume_init_mut() });
        (buf, LoanIssuer(&self.count))
    }

    /// Blocks until every loan is dropped, then returns the buffer and the counter.
    pub(crate) fn take(mut self) -> (Option<B>, LoanCount) {
        drop(Settle(&self.count));
        let word = self.from_word.map(|buf_of| buf_of(self.count.word.load(Ordering::Relaxed)));
        (word.or_else(|| self.take_buf()), Arc::clone(&self.count))
    }

    /// Does the same as [`take`](Self::take) after a request that has ended. The word of a failed
    /// request has no content, so it is not returned.
    pub(crate) fn take_after(self, succeeded: bool) -> (Option<B>, LoanCount) {
        let has_content = succeeded || self.from_word.is_none();
        let (buf, count) = self.take();
        (buf.filter(|_| has_content), count)
    }

    /// Takes the buffer. No loan may be outstanding.
    fn take_buf(&mut self) -> Option<B> {
        // SAFETY: a buffer that is present is initialized.
        self.buf.take().map(|buf| unsafe { buf.assume_init() })
    }

    fn loan(&self, ptr: *mut u8, len: usize, writable: bool) -> Loan {
        Loan::new(&self.count, ptr, len, writable)
    }
}

impl<B: SendBuf> Lent<B> {
    /// Lends the bytes for sending, in pieces of at most `max` bytes. An empty buffer yields one
    /// empty loan.
    pub(crate) fn lend(&self, max: usize) -> impl Iterator<Item = Loan> {
        // SAFETY: a buffer that is present is initialized.
        let bytes = self.buf.as_ref().map_or(&[][..], |buf| unsafe { buf.assume_init_ref() }.bytes());
        let pieces = bytes.chunks(max).chain(bytes.is_empty().then_some(bytes));
        pieces.map(|piece| self.loan(piece.as_ptr().cast_mut(), piece.len(), false))
    }
}

impl<B: RecvBuf> Lent<B> {
    /// Lends the bytes for filling, in pieces of at most `max` bytes. An empty buffer yields one
    /// empty loan. The loans are exclusive, so no other loan may be outstanding.
    pub(crate) fn lend_mut(&mut self, max: usize) -> impl Iterator<Item = Loan> {
        assert!(self.is_back(), "the buffer is already on loan");
        let (ptr, len) = self.buf.as_mut().map_or((std::ptr::null_mut(), 0), |buf| {
            // SAFETY: a buffer that is present is initialized.
            let bytes = unsafe { buf.assume_init_mut() }.bytes_mut();
            (bytes.as_mut_ptr(), bytes.len())
        });
        let starts = (0..len).step_by(max.max(1)).chain((len == 0).then_some(0));
        // In bounds: `at` lies inside the buffer.
        starts.map(move |at| self.loan(ptr.wrapping_add(at), max.min(len - at), true))
    }
}

impl<B> Drop for Lent<B> {
    fn drop(&mut self) {
        if self.is_back() {
            drop(self.take_buf());
        } else if self.buf.is_some() {
            // A request may still write to the buffer. Owners wait before they drop it, so this is
            // not reached. The union does not drop its buffer.
            log::error!("buffer leaked: requests still use it");
        }
    }
}

#[cfg(all(loom, test))]
mod model;

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

    #[test]
    fn a_nested_scope_waits_for_its_own_loans_only() {
        let data = [1u8; 8];
        scope(|outer| {
            let kept = outer.lend(&data);
            // This would deadlock if the inner scope waited for the outer loan.
            scope(|inner| drop(inner.lend(&data)));
            drop(kept);
        });
    }

    #[test]
    fn a_lent_buffer_comes_back_when_the_last_loan_is_dropped() {
        let mut lent = Lent::new(vec![0u8; 10], LoanCount::default());
        let mut loans: Vec<Loan> = lent.lend_mut(4).collect();
        assert_eq!(loans.iter().map(Loan::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert!(!lent.is_back());
        for (value, loan) in (1..).zip(&mut loans) {
            loan.bytes_mut().unwrap().fill(value);
        }
        let returned = AtomicUsize::new(0);
        let (buf, count) = std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    std::thread::yield_now();
                }
                returned.store(1, Ordering::SeqCst);
                drop(loans);
            });
            lent.take()
        });
        assert_eq!((returned.load(Ordering::SeqCst), count.outstanding()), (1, 0));
        assert_eq!(buf, Some(vec![1, 1, 1, 1, 2, 2, 2, 2, 3, 3]));
    }

    /// A buffer with a box moves while it is lent, and is dropped once.
    #[test]
    fn a_lent_box_can_move_and_is_dropped_once() {
        struct Counted(Box<[u8]>, Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
        // SAFETY: the bytes are in a box of the value.
        unsafe impl SendBuf for Counted {
            fn bytes(&self) -> &[u8] {
                &self.0
            }
        }
        // SAFETY: as above.
        unsafe impl RecvBuf for Counted {
            fn bytes_mut(&mut self) -> &mut [u8] {
                &mut self.0
            }
        }
        let drops = Arc::new(AtomicUsize::new(0));
        let lent = || Lent::new(Counted(vec![0; 4].into(), Arc::clone(&drops)), LoanCount::default());
        let mut one = lent();
        let mut loans: Vec<Loan> = one.lend_mut(4).collect();
        let moved = Box::new(one);
        loans[0].bytes_mut().unwrap().fill(5);
        drop(loans);
        let (buf, _) = moved.take();
        assert_eq!((&buf.as_ref().unwrap().0[..], drops.load(Ordering::SeqCst)), (&[5; 4][..], 0));
        drop(buf);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        drop(lent());
        assert_eq!(drops.load(Ordering::SeqCst), 2);
        // A buffer that is on loan is leaked, not freed.
        let two = lent();
        let loan = two.lend(4).next().unwrap();
        drop(two);
        assert_eq!((loan.bytes(), drops.load(Ordering::SeqCst)), (Some(&[0; 4][..]), 2));
    }

    #[test]
    fn an_empty_buffer_is_lent_as_one_piece() {
        let mut lent = Lent::new(Vec::new(), LoanCount::default());
        assert_eq!(lent.lend(4).map(|loan| loan.len()).collect::<Vec<_>>(), [0]);
        assert_eq!(lent.lend_mut(4).map(|loan| loan.len()).collect::<Vec<_>>(), [0]);
        let two = Lent::new(vec![5u8; 8], LoanCount::default());
        let loans: Vec<Loan> = two.lend(4).collect();
        assert_eq!(loans.iter().map(|loan| loan.bytes().unwrap()).collect::<Vec<_>>(), [[5; 4], [5; 4]]);
    }
}
