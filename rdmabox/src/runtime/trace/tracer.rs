//! The switch in front of a sink.
//!
//! # Concurrency
//! Any thread. Atomic words.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::{RequestScope, TraceEvent, TraceSink, TracedRequest};

/// Passes events to a [`TraceSink`] while it is on. Several sessions may share one.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use rdmabox::{MemoryServer, Session, trace::{TraceEvent, TraceSink, Tracer}};
///
/// /// Keeps the program's requests of each work request.
/// #[derive(Debug, Default)]
/// struct Carried(Arc<Mutex<Vec<Vec<u64>>>>);
///
/// impl TraceSink for Carried {
///     fn record(&self, event: &TraceEvent<'_>) {
///         if let TraceEvent::Planned { requests, .. } = event {
///             self.0.lock().unwrap().push(requests.to_vec());
///         }
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 8192)?;
/// let carried = Carried::default();
/// let seen = Arc::clone(&carried.0);
/// let tracer = Tracer::new(carried);
/// let builder = Session::builder().direct(false).trace(tracer.clone());
/// let session = builder.connect(&host.addresses()[0])?;
/// let memory = MemoryServer::locate(&session)?;
/// tracer.set_on(true);
/// let request = tracer.enter(7);
/// session.write(memory.for_write(0, 5)?, b"hello")?;
/// drop(request);
/// assert_eq!(*seen.lock().unwrap(), [[7]]);
/// # Ok(())
/// # }
/// ```
pub struct Tracer {
    on: AtomicBool,
    /// Number of the last work request.
    work_requests: AtomicU64,
    sink: Box<dyn TraceSink>,
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("on", &self.is_on()).field("sink", &self.sink).finish()
    }
}

impl Tracer {
    /// Creates a tracer, which is off.
    pub fn new(sink: impl TraceSink + 'static) -> Arc<Tracer> {
        Arc::new(Tracer {
            on: AtomicBool::new(false),
            work_requests: AtomicU64::new(0),
            sink: Box::new(sink),
        })
    }

    /// Returns true if the sink gets events.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Switches the tracer on or off. Threads that have seen the earlier state may still report a
    /// step, and requests under way report only their later steps.
    pub fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Passes an event to the sink if the tracer is on.
    #[inline]
    pub fn record(&self, event: &TraceEvent<'_>) {
        if self.is_on() {
            self.sink.record(event);
        }
    }

    /// Marks requests that this thread submits, until the scope is dropped, as part of a request of
    /// the program. Zero stands for no request.
    #[must_use = "the scope ends when it is dropped"]
    pub fn enter(self: &Arc<Tracer>, request: u64) -> RequestScope {
        TracedRequest::new(Arc::clone(self), request).enter()
    }

    /// Returns a number for a work request. It is greater than zero.
    pub(crate) fn number_work_request(&self) -> u64 {
        self.work_requests.fetch_add(1, Ordering::Relaxed) + 1
    }
}
