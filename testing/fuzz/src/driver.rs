//! Runs one target in this process until the input limit, the time limit or the first failure.
//!
//! [`drive`] gives the target the inputs of a [`Mutator`]. It reports a panic, growth of memory,
//! and leftover threads or descriptors. A panic hook records the messages of panics while a target
//! runs.
//!
//! # Concurrency
//! Inputs run on the thread that calls [`drive`]. A watch thread detects an input that hangs. The
//! panic hook locks `ELSEWHERE` for panics of other threads.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{Target, mutate::Mutator, usage::Usage};

/// Time after which an input counts as hung.
const HANG_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of inputs before the first measurement of usage. Lazy initialization is over by then.
const WARM_UP_INPUTS: u64 = 200;
/// Allowed growth of memory after the warm-up, in bytes.
pub const MAX_GROWTH: u64 = 64 << 20;
/// Time for threads and descriptors to be released after the last input.
const GRACE: Duration = Duration::from_secs(10);

/// Limits of a run. The run ends at the first limit that it reaches.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Number of inputs.
    pub inputs: u64,
    /// Time limit. It applies only after the target has been given all seeds.
    pub time: Duration,
}

/// The result of a run without failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Number of inputs.
    pub inputs: u64,
    /// Duration of the run.
    pub took: Duration,
    /// Growth of memory in use since the warm-up, in bytes.
    pub growth: u64,
}

/// A failure of a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An input made the target panic.
    #[error("input {number} panics: {message}")]
    Panic {
        /// The number of the input.
        number: u64,
        /// The panic message.
        message: String,
    },
    /// Memory in use grew by this number of bytes, more than `MAX_GROWTH`.
    #[error("{0} bytes of memory more are in use than after the first inputs")]
    Memory(u64),
    /// Descriptors or threads were not released.
    #[error("{0}")]
    Left(String),
    /// Usage could not be read from `/proc`.
    #[error("/proc: {0}")]
    Proc(String),
}

thread_local! {
    /// Message and place of the latest panic of this thread during an input.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    /// True while a target runs on this thread.
    static HAS_INPUT: Cell<bool> = const { Cell::new(false) };
}

/// Message and place of the latest panic of a thread that a target started.
static ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

fn elsewhere() -> MutexGuard<'static, Option<String>> {
    // A panic cannot leave the text half written: it is replaced as a whole.
    ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of inputs that targets process now, in all threads.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Installs a panic hook that records messages while a target runs. Other panics are printed as
/// usual.
fn record_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if HAS_INPUT.get() {
                PANIC.set(Some(panic.to_string()));
            } else if RUNNING.load(Ordering::SeqCst) > 0 {
                *elsewhere() = Some(panic.to_string());
            } else {
                print(panic);
            }
        }));
    });
}

/// Runs `target` on one input.
///
/// # Errors
/// Returns the message and place of a panic of the target or of its threads.
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    record_panics();
    RUNNING.fetch_add(1, Ordering::SeqCst);
    HAS_INPUT.set(true);
    // The target keeps no state that a panic could leave inconsistent, and gets no inputs after a
    // panic.
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    HAS_INPUT.set(false);
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    match (outcome, elsewhere().take()) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(message)) => Err(message),
        (Err(_), _) => Err(PANIC.take().unwrap_or_default()),
    }
}

/// Runs `target` on the inputs of run `run`, beginning with number `from`.
///
/// If an input takes too long, the watch thread calls `hung` with the number of the input.
///
/// # Errors
/// Returns the first failure.
pub fn drive(
    target: &Target,
    run: u64,
    from: u64,
    extent: Extent,
    hung: impl FnOnce(u64) + Send + 'static,
) -> Result<Done, Failure> {
    let seeds = (target.seeds)();
    let least = seeds.len() as u64;
    let mutator = Mutator::new(seeds, run);
    let at = Arc::new(AtomicU64::new(from));
    let (end, ended) = mpsc::channel::<()>();
    let watched = Arc::clone(&at);
    let watch = thread::Builder::new().name("watch".into()).spawn(move || {
        let mut before = None;
        while ended.recv_timeout(HANG_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            let now = watched.load(Ordering::Relaxed);
            if before.replace(now) == Some(now) {
                return hung(now);
            }
        }
    });
    let watch = watch.map_err(|e| Failure::Proc(e.to_string()))?;
    let outcome = run_inputs(target, &mutator, &at, (from, least), extent);
    drop(end);
    let _ = watch.join();
    outcome
}

fn run_inputs(
    target: &Target,
    mutator: &Mutator,
    at: &AtomicU64,
    (from, least): (u64, u64),
    extent: Extent,
) -> Result<Done, Failure> {
    let usage = || Usage::now().map_err(|e| Failure::Proc(e.to_string()));
    let begun = Instant::now();
    let (mut input, mut number, mut warm) = (Vec::new(), from, usage()?);
    loop {
        let done = number - from;
        // Reading the clock costs as much as the fastest targets, so it is read every 16 inputs.
        let check_time = done >= least && done.is_multiple_of(16);
        if done >= extent.inputs || (check_time && begun.elapsed() >= extent.time) {
            break;
        }
        at.store(number, Ordering::Relaxed);
        mutator.input(number, &mut input);
        attempt(target, &input).map_err(|message| Failure::Panic { number, message })?;
        number += 1;
        if number - from == WARM_UP_INPUTS {
            warm = usage()?;
        }
    }
    let (inputs, took) = (number - from, begun.elapsed());
    let growth = settled(warm, inputs >= WARM_UP_INPUTS)?;
    Ok(Done { inputs, took, growth })
}

/// Waits until usage is back to `warm`, and returns the growth of memory. Fails after `GRACE`.
fn settled(warm: Usage, is_warm: bool) -> Result<u64, Failure> {
    let give_up = Instant::now() + GRACE;
    loop {
        let now = Usage::now().map_err(|e| Failure::Proc(e.to_string()))?;
        let growth = now.memory.saturating_sub(warm.memory);
        let gone = now.descriptors <= warm.descriptors && now.threads <= warm.threads;
        if !is_warm || (gone && growth <= MAX_GROWTH) {
            return Ok(growth);
        }
        if Instant::now() >= give_up {
            return Err(match gone {
                true => Failure::Memory(growth),
                false => Failure::Left(format!(
                    "{} descriptors and {} threads, {} and {} after the first inputs",
                    now.descriptors, now.threads, warm.descriptors, warm.threads
                )),
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
}
