//! A request of the kernel, from its arrival to its reply.
//!
//! # Concurrency
//! A request has one owner at a time: the session thread, then the thread that replies.

use std::{sync::Arc, time::Instant};

use rdmabox::trace::{RequestScope, Tracer};

use super::{
    details::Details,
    record::Step,
    recorder::{Admission, Recorder},
};

/// A request of the kernel that a trace reports. It ends when this is dropped.
#[derive(Debug)]
pub struct KernelRequest {
    tracer: Arc<Tracer>,
    recorder: Arc<Recorder>,
    unique: u64,
    name: &'static str,
    /// Begin of sending the reply.
    reply_began: Option<Instant>,
}

impl KernelRequest {
    /// Reports the arrival of request `unique`. Returns `None` if the trace has no room for it.
    #[cold]
    pub(super) fn arrive(
        (tracer, recorder): (&Arc<Tracer>, &Arc<Recorder>),
        unique: u64,
        name: &'static str,
        details: Details,
    ) -> Option<Box<KernelRequest>> {
        let arrived = Step::Arrived { request: unique, name, details };
        recorder.add(Admission::Begin, arrived).then(|| {
            let (tracer, recorder) = (Arc::clone(tracer), Arc::clone(recorder));
            Box::new(KernelRequest { tracer, recorder, unique, name, reply_began: None })
        })
    }

    /// Marks the work of this thread as part of the request, until the handler is dropped.
    #[cold]
    #[must_use = "the handler ends when it is dropped"]
    pub fn handle(&self) -> Box<HandledRequest> {
        Box::new(HandledRequest {
            _scope: self.tracer.enter(self.unique),
            recorder: Arc::clone(&self.recorder),
            unique: self.unique,
            name: self.name,
            began: Instant::now(),
        })
    }

    /// Notes that the reply goes to the kernel now. It is there when the request is dropped.
    pub fn begin_reply(&mut self) {
        self.reply_began = Some(Instant::now());
    }
}

impl Drop for KernelRequest {
    fn drop(&mut self) {
        let KernelRequest { unique: request, name, reply_began, .. } = *self;
        if let Some(began) = reply_began {
            self.recorder.add(Admission::Rest, Step::Replied { request, began });
        }
        self.recorder.add(Admission::Rest, Step::Ended { request, name });
    }
}

/// The part of a session thread in a request. It is reported when it is dropped.
#[derive(Debug)]
pub struct HandledRequest {
    _scope: RequestScope,
    recorder: Arc<Recorder>,
    unique: u64,
    name: &'static str,
    began: Instant,
}

impl Drop for HandledRequest {
    fn drop(&mut self) {
        let HandledRequest { unique: request, name, began, .. } = *self;
        self.recorder.add(Admission::Rest, Step::Handled { request, name, began });
    }
}
