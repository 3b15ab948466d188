//! The switch of a trace, and its recordings.
//!
//! # Concurrency
//! Any thread. `start` and `stop` take `recording`, and below it the lock of the recorder.

use std::{
    fs::File,
    io,
    path::PathBuf,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rdmabox::trace::{TraceEvent, TraceSink, Tracer};

use super::{
    details::Details,
    file::TraceFile,
    kernel_request::KernelRequest,
    record::Step,
    recorder::{Admission, Recorder},
    writer::{Writer, last_event},
};

/// Least limit of a trace in bytes. A smaller file would have hardly a request.
const MIN_LIMIT: u64 = 16 << 10;

/// Parses the limit of a trace.
pub(crate) fn parse_limit(text: &str) -> Result<u64, String> {
    let bytes = byte_size::parse(text).map_err(|e| e.to_string())?;
    if bytes < MIN_LIMIT { Err("it has to be 16K or more".into()) } else { Ok(bytes) }
}

/// A recording cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The mount records already.
    #[error("a trace is being recorded already")]
    Busy,
    /// The file cannot be written.
    #[error("cannot write the trace {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// There is no thread.
    #[error("cannot start the thread that writes a trace: {0}")]
    Thread(io::Error),
}

/// Passes the runtime's events to a recorder.
#[derive(Debug)]
struct Sink(Arc<Recorder>);

impl TraceSink for Sink {
    fn record(&self, event: &TraceEvent<'_>) {
        if let Some(step) = Step::of(event) {
            self.0.add(Admission::Rest, step);
        }
    }
}

/// The trace of a mount. It records nothing until it is started.
#[derive(Debug)]
pub struct Trace {
    tracer: Arc<Tracer>,
    recorder: Arc<Recorder>,
    recording: Mutex<Option<Recording>>,
}

/// A recording, also one that has reached its limit.
#[derive(Debug)]
struct Recording {
    thread: JoinHandle<()>,
    /// True if it was started while the mount ran.
    is_requested: bool,
}

impl Trace {
    /// Creates a trace that does not record.
    pub fn new() -> Arc<Trace> {
        let recorder = Arc::<Recorder>::default();
        let tracer = Tracer::new(Sink(Arc::clone(&recorder)));
        Arc::new(Trace { tracer, recorder, recording: Mutex::default() })
    }

    /// Returns the tracer, for sessions.
    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// Returns true while something is recorded.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.tracer.is_on()
    }

    /// Reports the arrival of a request of the kernel. Returns `None` if the recording has no room
    /// for it, or none is on.
    #[cold]
    pub fn arrive(&self, unique: u64, name: &'static str, details: Details) -> Option<Box<KernelRequest>> {
        KernelRequest::arrive((&self.tracer, &self.recorder), unique, name, details)
    }

    /// Creates or replaces the file at `path`, and records to it until it has `limit` bytes.
    ///
    /// # Errors
    /// The file cannot be written, or the trace records already.
    pub fn start_file(&self, path: PathBuf, limit: u64) -> Result<(), TraceError> {
        let failed = |source| TraceError::File { path: path.clone(), source };
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        self.start(file.map_err(failed)?, path.clone(), limit, None)
    }

    /// Records to an empty file until it has `limit` bytes or `time` has passed.
    /// [`stop_requested`](Self::stop_requested) may end it before.
    ///
    /// # Errors
    /// The file cannot be written, or the trace records already.
    pub fn start_requested(
        &self,
        file: File,
        path: PathBuf,
        limit: u64,
        time: Duration,
    ) -> Result<(), TraceError> {
        self.start(file, path, limit, Some(time))
    }

    fn start(&self, file: File, path: PathBuf, limit: u64, time: Option<Duration>) -> Result<(), TraceError> {
        let mut recording = self.recording.lock();
        if recording.as_ref().is_some_and(|running| !running.thread.is_finished()) {
            return Err(TraceError::Busy);
        }
        let began = Instant::now();
        let file = TraceFile::begin(file, limit, &last_event("recording", 0.0, 0))
            .map_err(|source| TraceError::File { path: path.clone(), source })?;
        let records = self.recorder.open();
        let ends = (Arc::clone(&self.tracer), Arc::clone(&self.recorder));
        let writer = Writer::new(ends, file, path, began);
        let deadline = time.map(|time| began + time);
        let run = move || writer.run(&records, deadline);
        let thread = thread::Builder::new().name("trace".into()).spawn(run);
        let thread = thread.inspect_err(|_| self.recorder.close()).map_err(TraceError::Thread)?;
        *recording = Some(Recording { thread, is_requested: time.is_some() });
        self.tracer.set_on(true);
        Ok(())
    }

    /// Ends the recording, and waits until its file is complete.
    pub fn stop(&self) {
        let mut recording = self.recording.lock();
        self.end(recording.take());
    }

    /// Ends a recording that was [requested](Self::start_requested). Returns false if there is
    /// none.
    pub fn stop_requested(&self) -> bool {
        let mut recording = self.recording.lock();
        let requested = recording.take_if(|running| running.is_requested);
        let any = requested.is_some();
        self.end(requested);
        any
    }

    /// Ends a recording. The caller holds `recording`, so that no other one starts meanwhile.
    fn end(&self, recording: Option<Recording>) {
        let Some(Recording { thread, .. }) = recording else { return };
        self.tracer.set_on(false);
        self.recorder.close();
        if thread.join().is_err() {
            log::error!("the thread that writes the trace has panicked");
        }
    }
}
