//! The request of the program that a thread works for.
//!
//! # Concurrency
//! Each thread has its own.

use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
    sync::Arc,
};

use super::Tracer;

thread_local! {
    /// Number of the request; 0 for none. Apart from the tracer, so that a thread without a
    /// request reads one word.
    static REQUEST: Cell<u64> = const { Cell::new(0) };
    static TRACER: RefCell<Option<Arc<Tracer>>> = const { RefCell::new(None) };
}

/// Returns the number of this thread's request, 0 for none.
#[inline(always)]
pub(crate) fn current_request() -> u64 {
    REQUEST.get()
}

/// Returns this thread's request, if it has one. To go on with it on another thread, enter it
/// there.
#[inline]
pub fn current() -> Option<TracedRequest> {
    match current_request() {
        0 => None,
        request => traced(request),
    }
}

#[cold]
fn traced(request: u64) -> Option<TracedRequest> {
    // Without the thread's storage the thread is about to end.
    let tracer = TRACER.try_with(|tracer| tracer.try_borrow().ok()?.clone()).ok().flatten()?;
    Some(TracedRequest { tracer, request })
}

/// A request of the program, and the tracer that it is reported to.
#[derive(Clone, Debug)]
pub struct TracedRequest {
    tracer: Arc<Tracer>,
    request: u64,
}

impl TracedRequest {
    pub(super) fn new(tracer: Arc<Tracer>, request: u64) -> TracedRequest {
        TracedRequest { tracer, request }
    }

    /// Returns the number of the request.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// Returns the tracer.
    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// Makes it the request of this thread until the scope is dropped.
    #[must_use = "the scope ends when it is dropped"]
    pub fn enter(&self) -> RequestScope {
        let tracer = TRACER.try_with(|slot| slot.replace(Some(Arc::clone(&self.tracer)))).ok().flatten();
        RequestScope { outer: (REQUEST.replace(self.request), tracer), of_thread: PhantomData }
    }
}

/// Makes a thread work for a request of the program. The thread's request before it returns when
/// this is dropped: scopes of a thread are dropped in the reverse order.
#[derive(Debug)]
pub struct RequestScope {
    outer: (u64, Option<Arc<Tracer>>),
    /// A scope stays on its thread.
    of_thread: PhantomData<*const ()>,
}

impl Drop for RequestScope {
    fn drop(&mut self) {
        let (request, tracer) = std::mem::take(&mut self.outer);
        REQUEST.set(request);
        // Fails only while the thread ends.
        TRACER.try_with(|slot| slot.replace(tracer)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{TraceEvent, TraceSink};

    #[derive(Debug)]
    struct Nothing;

    impl TraceSink for Nothing {
        fn record(&self, _: &TraceEvent<'_>) {}
    }

    #[test]
    fn the_outer_request_returns() {
        assert!(current().is_none());
        let tracer = Tracer::new(Nothing);
        let outer = tracer.enter(1);
        {
            let _inner = tracer.enter(2);
            assert_eq!(current().unwrap().request(), 2);
        }
        let carried = current().unwrap();
        assert_eq!(carried.request(), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(current().is_none());
                let _here = carried.enter();
                assert_eq!(current().unwrap().request(), 1);
            });
        });
        drop(outer);
        assert!(current().is_none() && current_request() == 0);
    }
}
