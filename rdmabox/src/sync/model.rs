//! How models are run.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

pub(crate) use loom::thread::JoinHandle;

/// Runs a model with every interleaving that `preemptions` allow; with all if there is no bound. `LOOM_MAX_PREEMPTIONS`
/// overrides it. A switch where a thread has to wait is none. Says how many there were.
pub(crate) fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.max_branches = 20_000;
    let executions = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let thread = std::thread::current();
    println!("{}: {} executions", thread.name().unwrap_or_default(), executions.load(Ordering::Relaxed));
}

/// Starts a thread of a model. It may share what is not `Sync`, such as a cell that only the model checker protects.
#[track_caller]
pub(crate) fn go<T: 'static>(run: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    loom::thread::spawn(run)
}
