//! One target, in this process: inputs until their number or the time is over, or something is wrong.
//!
//! Threading: inputs run on the thread that calls [`drive`]; another one looks every now and then whether they go on.

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

/// An input that takes longer hangs.
const HANGS: Duration = Duration::from_secs(20);
/// Inputs before what is taken is looked at for the first time: what is made once is there then.
const WARM: u64 = 200;
/// Memory may grow by so much after that, in bytes.
pub const MOST_GROWTH: u64 = 64 << 20;
/// Time for threads and descriptors to be given back.
const GRACE: Duration = Duration::from_secs(10);

/// How much is to be done: whichever is over first.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Inputs.
    pub inputs: u64,
    /// Time, and as long as there are seeds.
    pub time: Duration,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Inputs.
    pub inputs: u64,
    /// In this time.
    pub took: Duration,
    /// Bytes of memory that are in use, more than after the first inputs.
    pub growth: u64,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// An input made the target panic.
    #[error("input {number} panics: {message}")]
    Panic {
        /// Its number.
        number: u64,
        /// What the target said.
        message: String,
    },
    /// More memory is in use than before.
    #[error("{0} bytes of memory more are in use than after the first inputs")]
    Memory(u64),
    /// Descriptors or threads are left.
    #[error("{0}")]
    Left(String),
    /// What is taken cannot be found out.
    #[error("/proc: {0}")]
    Proc(String),
}

thread_local! {
    /// What this thread's panic said, and where it was; `None` while it has no input.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
    static HAS_INPUT: Cell<bool> = const { Cell::new(false) };
}

/// The same of threads that targets have started.
static ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

fn elsewhere() -> MutexGuard<'static, Option<String>> {
    // A text is there or not.
    ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Inputs that targets work on now, in all threads.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Keeps the messages of panics while a target runs. A panic at any other time is printed, as always.
fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if HAS_INPUT.get() {
                SAID.set(Some(panic.to_string()));
            } else if RUNNING.load(Ordering::SeqCst) > 0 {
                *elsewhere() = Some(panic.to_string());
            } else {
                print(panic);
            }
        }));
    });
}

/// Gives `target` one input.
///
/// # Errors
/// What it said in its panic, or one of its threads, and where.
pub fn attempt(target: &Target, input: &[u8]) -> Result<(), String> {
    listen_to_panics();
    RUNNING.fetch_add(1, Ordering::SeqCst);
    HAS_INPUT.set(true);
    // A target keeps nothing that a panic could leave half done, and after one it gets no more inputs.
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    HAS_INPUT.set(false);
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    match (outcome, elsewhere().take()) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(said)) => Err(said),
        (Err(_), _) => Err(SAID.take().unwrap_or_default()),
    }
}

/// Gives `target` the inputs of run `run` from number `from` on.
///
/// If one takes too long, `hung` is called with its number, on another thread.
///
/// # Errors
/// The first thing that is wrong.
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
        while ended.recv_timeout(HANGS) == Err(RecvTimeoutError::Timeout) {
            let now = watched.load(Ordering::Relaxed);
            if before.replace(now) == Some(now) {
                return hung(now);
            }
        }
    });
    let watch = watch.map_err(|e| Failure::Proc(e.to_string()))?;
    let outcome = inputs(target, &mutator, &at, (from, least), extent);
    drop(end);
    let _ = watch.join();
    outcome
}

fn inputs(
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
        // The clock costs as much as the quickest targets do.
        let look = done >= least && done.is_multiple_of(16);
        if done >= extent.inputs || (look && begun.elapsed() >= extent.time) {
            break;
        }
        at.store(number, Ordering::Relaxed);
        mutator.input(number, &mut input);
        attempt(target, &input).map_err(|message| Failure::Panic { number, message })?;
        number += 1;
        if number - from == WARM {
            warm = usage()?;
        }
    }
    let (inputs, took) = (number - from, begun.elapsed());
    let growth = settled(warm, inputs >= WARM)?;
    Ok(Done { inputs, took, growth })
}

/// Waits until nothing is left that was not there when it was `warm`, and tells how much more memory is in use.
fn settled(warm: Usage, is_warm: bool) -> Result<u64, Failure> {
    let give_up = Instant::now() + GRACE;
    loop {
        let now = Usage::now().map_err(|e| Failure::Proc(e.to_string()))?;
        let growth = now.memory.saturating_sub(warm.memory);
        let gone = now.descriptors <= warm.descriptors && now.threads <= warm.threads;
        if !is_warm || (gone && growth <= MOST_GROWTH) {
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
