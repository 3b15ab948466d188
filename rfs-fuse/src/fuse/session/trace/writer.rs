//! The thread that writes a trace.
//!
//! # Concurrency
//! One thread for each recording. It ends when the queue is closed, or closes it itself: at the
//! limit of the file, after an error, or at the deadline.

use std::{
    collections::HashSet,
    fs, io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use rdmabox::trace::Tracer;

use super::{
    event::EventText,
    file::{Added, TraceFile},
    record::Record,
    recorder::Recorder,
};

/// Time for which events are collected for one write.
const COLLECT: Duration = Duration::from_millis(20);
/// Bytes of events for one write.
const BATCH: usize = 64 << 10;
/// Time between two looks at the deadline.
const DEADLINE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The content of the last event of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Recording,
    Ended,
    LimitReached,
    Failed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Recording => "recording",
            State::Ended => "ended",
            State::LimitReached => "limit reached",
            State::Failed => "writing failed",
        }
    }
}

/// Returns the last event of a file.
pub(super) fn last_event(state: &str, at: f64, dropped: u64) -> String {
    let process = std::process::id();
    format!(
        r#"{{"name":"trace","cat":"trace","ph":"i","s":"g","ts":{at:.3},"pid":{process},"tid":{process},"args":{{"state":"{state}","dropped":{dropped}}}}}"#
    )
}

/// Writes the records of a recording to its file.
#[derive(Debug)]
pub(super) struct Writer {
    tracer: Arc<Tracer>,
    recorder: Arc<Recorder>,
    file: TraceFile,
    path: PathBuf,
    start: Instant,
    text: EventText,
    /// Threads that have a name in the file.
    named: HashSet<u32>,
}

impl Writer {
    /// Creates a writer whose times begin at `start`.
    pub(super) fn new(
        (tracer, recorder): (Arc<Tracer>, Arc<Recorder>),
        file: TraceFile,
        path: PathBuf,
        start: Instant,
    ) -> Writer {
        let (text, named) = (EventText::new(start), HashSet::new());
        Writer { tracer, recorder, file, path, start, text, named }
    }

    /// Writes until the queue is closed, or the recording has to end.
    pub(super) fn run(mut self, records: &Receiver<Record>, deadline: Option<Instant>) {
        let mut events = String::new();
        self.text.name(&mut events, "process_name", std::process::id(), "rfs-fuse");
        loop {
            let is_open = self.collect(records, &mut events);
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if is_over {
                self.close();
            }
            let state = if is_open && !is_over { State::Recording } else { State::Ended };
            if events.is_empty() && state == State::Recording {
                continue;
            }
            let failed = self.write(&events, state);
            events.clear();
            if let Some(state) = failed {
                self.close();
                return self.end(state);
            }
            // Records that came before the queue was closed are still written.
            if !is_open {
                return self.end(State::Ended);
            }
        }
    }

    /// Adds the events of waiting records. Returns false if the queue is closed and empty.
    fn collect(&mut self, records: &Receiver<Record>, events: &mut String) -> bool {
        let mut until = Instant::now() + DEADLINE_CHECK_INTERVAL;
        let mut is_first = true;
        while events.len() < BATCH {
            match records.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(record) => {
                    self.recorder.taken();
                    if std::mem::take(&mut is_first) {
                        until = Instant::now() + COLLECT;
                    }
                    self.name_thread(record.thread, events);
                    self.text.add(events, &record);
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    fn name_thread(&mut self, thread: u32, events: &mut String) {
        if self.named.insert(thread)
            && let Ok(name) = fs::read_to_string(format!("/proc/self/task/{thread}/comm"))
        {
            self.text.name(events, "thread_name", thread, name.trim_end());
        }
    }

    /// Writes events. Returns the state in which the recording has to end, if it has to.
    fn write(&mut self, events: &str, state: State) -> Option<State> {
        let last = self.last(state);
        match self.file.add(events, &last) {
            Ok(Added::All) => None,
            Ok(Added::LimitReached) => {
                log::info!("the trace {} has reached --trace-limit: it ends here", self.path.display());
                Some(State::LimitReached)
            }
            Err(e) => {
                log::warn!("the trace {} ends, the mount goes on: cannot write: {e}", self.path.display());
                Some(State::Failed)
            }
        }
    }

    /// Lets no further record into the queue.
    fn close(&self) {
        self.tracer.set_on(false);
        self.recorder.close();
    }

    fn end(&self, state: State) {
        let ended: io::Result<()> = self.file.end(&self.last(state));
        if let Err(e) = ended {
            log::warn!("the trace {} has no end: {e}", self.path.display());
        }
    }

    fn last(&self, state: State) -> String {
        last_event(state.name(), self.start.elapsed().as_secs_f64() * 1e6, self.recorder.dropped())
    }
}
