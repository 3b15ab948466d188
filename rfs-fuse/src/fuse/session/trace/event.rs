//! Records as events of Chrome's trace format.
//!
//! Steps of a thread are complete events (`X`), which nest. A request of the kernel, its wait in
//! the merge queue, and a work request cross threads: they are asynchronous events (`b`, `e`). A
//! flow (`s`, `t`, `f`) leads from a request's handler to its work requests and to its reply. No
//! I/O, no locks, no clock.
//!
//! The times of a thread never go back from one event to the next: the time of a complete event is
//! its end.

use std::{fmt::Write, time::Instant};

use rdmabox::verbs::WcStatus;

use super::record::{Record, Step};

/// Turns records into events.
#[derive(Debug)]
pub(super) struct EventText {
    process: u32,
    /// Time zero of the file.
    start: Instant,
}

/// A thread at a time, which an event names.
struct Moment<'a> {
    text: &'a EventText,
    thread: u32,
    at: Instant,
}

/// Category and number of an asynchronous event or a flow.
type Id = (&'static str, u64);

/// Returns the requests of a work request for `args`, without parts that belong to no request.
fn list(requests: &[u64]) -> String {
    let mut known: Vec<u64> = requests.iter().copied().filter(|request| *request != 0).collect();
    known.dedup();
    format!("{known:?}")
}

impl EventText {
    pub(super) fn new(start: Instant) -> EventText {
        EventText { process: std::process::id(), start }
    }

    /// Adds an event that names the process or a thread. `kind` is `process_name` or `thread_name`.
    pub(super) fn name(&self, out: &mut String, kind: &str, thread: u32, name: &str) {
        let EventText { process, .. } = self;
        let name = serde_json::Value::from(name);
        // Writing to a string cannot fail, here and below.
        writeln!(
            out,
            r#"{{"name":"{kind}","ph":"M","pid":{process},"tid":{thread},"args":{{"name":{name}}}}},"#
        )
        .ok();
    }

    /// Adds the events of a record.
    pub(super) fn add(&self, out: &mut String, record: &Record) {
        let moment = Moment { text: self, thread: record.thread, at: record.at };
        match &record.step {
            Step::Arrived { request, name, details } => {
                let mut args = format!(r#""request":{request},"caller":{}"#, details.caller);
                if details.bytes > 0 {
                    write!(args, r#","bytes":{}"#, details.bytes).ok();
                }
                if let Some((inode, offset)) = details.place {
                    write!(args, r#","inode":{inode},"offset":{offset}"#).ok();
                }
                moment.asynchronous(out, 'b', ("request", *request), name, &args);
            }
            Step::Ended { request, name } => moment.asynchronous(out, 'e', ("request", *request), name, ""),
            Step::Handled { request, name, began } => {
                moment.span(out, "handler", name, *began, &format!(r#""request":{request}"#));
                moment.flow(out, 's', *request, *began);
            }
            Step::Replied { request, began } => {
                moment.span(out, "reply", "reply", *began, &format!(r#""request":{request}"#));
                moment.flow(out, 'f', *request, *began);
            }
            Step::Queued { request, kind, bytes } => {
                let args = format!(r#""request":{request},"kind":"{kind}","bytes":{bytes}"#);
                moment.asynchronous(out, 'b', ("queue", *request), "queue", &args);
            }
            Step::Planned { .. } | Step::Posted { .. } | Step::Completed { .. } | Step::Delivered { .. } => {
                moment.work_request(out, &record.step);
            }
            Step::Executed { request, kind, bytes, began } => {
                let args = format!(
                    r#""request":{request},"kind":"{kind}","bytes":{bytes},"memory":"copied on the spot""#
                );
                moment.span(out, "copy", "copy", *began, &args);
            }
            Step::Span { request, category, name, began } => {
                moment.span(out, category, name, *began, &format!(r#""request":{request}"#));
            }
        }
    }

    /// Returns a time in microseconds since the start.
    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_nanos() as f64 / 1000.0
    }
}

impl Moment<'_> {
    /// Adds the events of a step of a work request.
    fn work_request(&self, out: &mut String, step: &Step) {
        match step {
            Step::Planned { work_request, kind, bytes, requests, memory, began } => {
                for request in requests.iter().filter(|request| **request != 0) {
                    self.asynchronous(out, 'e', ("queue", *request), "queue", "");
                    self.flow(out, 't', *request, *began);
                }
                let args = format!(
                    r#""work_request":{work_request},"kind":"{kind}","bytes":{bytes},"requests":{},"merged":{},"memory":"{memory}""#,
                    list(requests),
                    requests.len(),
                );
                self.span(out, "merge", "merge", *began, &args);
                self.asynchronous(out, 'b', ("work request", *work_request), kind.name(), &args);
            }
            Step::Posted { work_requests, lane, accepted, began } => {
                let args = format!(
                    r#""work_requests":{:?},"chained":{},"lane":{lane},"accepted":{accepted}"#,
                    work_requests.as_slice(),
                    work_requests.len(),
                );
                self.span(out, "post", "post", *began, &args);
            }
            Step::Completed { work_request, requests, kind, status } => {
                let status = match status {
                    WcStatus::Success => "success".to_owned(),
                    failed => failed.to_string(),
                };
                let args = format!(r#""status":{}"#, serde_json::Value::from(status));
                self.asynchronous(out, 'e', ("work request", *work_request), kind.name(), &args);
                for request in requests.iter().filter(|request| **request != 0) {
                    self.flow(out, 't', *request, self.at);
                }
            }
            Step::Delivered { work_request, began } => {
                let args = format!(r#""work_request":{work_request}"#);
                self.span(out, "completion", "completion", *began, &args);
            }
            _ => {}
        }
    }

    /// Adds the common members of an event, from the comma before them on.
    fn place(&self, at: Instant) -> String {
        let EventText { process, .. } = self.text;
        format!(r#""ts":{:.3},"pid":{process},"tid":{}"#, self.text.micros(at), self.thread)
    }

    /// Adds a span of this thread that ends now.
    fn span(&self, out: &mut String, category: &str, name: &str, began: Instant, args: &str) {
        let place = self.place(began);
        // The difference of the rounded times, so that spans nest in the file as they did in time.
        let micros = |at| (self.text.micros(at) * 1000.0).round();
        let nanos = micros(self.at) - micros(began);
        writeln!(
            out,
            r#"{{"name":"{name}","cat":"{category}","ph":"X",{place},"dur":{:.3},"args":{{{args}}}}},"#,
            nanos / 1000.0
        )
        .ok();
    }

    /// Adds the begin (`b`) or the end (`e`) of an asynchronous event.
    fn asynchronous(&self, out: &mut String, phase: char, (category, id): Id, name: &str, args: &str) {
        let place = self.place(self.at);
        writeln!(
            out,
            r#"{{"name":"{name}","cat":"{category}","ph":"{phase}","id":"{id:#x}",{place},"args":{{{args}}}}},"#
        )
        .ok();
    }

    /// Adds a step of a flow: its start (`s`), a step (`t`), or its end (`f`).
    fn flow(&self, out: &mut String, phase: char, request: u64, at: Instant) {
        let place = self.place(at);
        writeln!(
            out,
            r#"{{"name":"request","cat":"flow","ph":"{phase}","id":"{request:#x}","bp":"e",{place}}},"#
        )
        .ok();
    }
}
