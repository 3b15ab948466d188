//! Parts of a program, as events.
//!
//! # Concurrency
//! A span belongs to its thread.

use std::{borrow::Cow, time::Instant};

use super::{
    TraceEvent, TracedRequest,
    scope::{current, current_request},
};

/// Begins a part of this thread's request, which ends when the span is dropped. Does nothing on a
/// thread without a request.
#[inline(always)]
#[must_use = "the span ends when it is dropped"]
pub fn span(category: &'static str, name: &'static str) -> Span {
    Span::begin(category, || name.into())
}

/// A part of a request. It is reported when it is dropped.
#[derive(Debug)]
pub struct Span {
    /// Reports the part when it is dropped.
    _open: Option<Box<OpenSpan>>,
}

#[derive(Debug)]
struct OpenSpan {
    of: TracedRequest,
    category: &'static str,
    name: Cow<'static, str>,
    began: Instant,
}

impl Span {
    /// Begins a part as [`span`]. Calls `name` only on a thread with a request.
    #[inline(always)]
    #[must_use = "the span ends when it is dropped"]
    pub fn begin(category: &'static str, name: impl FnOnce() -> Cow<'static, str>) -> Span {
        match current_request() {
            0 => Span { _open: None },
            _ => Span::open(category, name()),
        }
    }

    #[cold]
    fn open(category: &'static str, name: Cow<'static, str>) -> Span {
        let of = current().filter(|of| of.tracer().is_on());
        Span { _open: of.map(|of| Box::new(OpenSpan { of, category, name, began: Instant::now() })) }
    }
}

impl Drop for OpenSpan {
    #[cold]
    fn drop(&mut self) {
        let OpenSpan { of, category, name, began } = self;
        let (request, category, name, began) = (of.request(), *category, &**name, *began);
        of.tracer().record(&TraceEvent::Span { request, category, name, began });
    }
}
