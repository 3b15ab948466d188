//! Runs loom models.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

pub(crate) use loom::thread::JoinHandle;

/// Runs a model with every interleaving of at most `preemptions` preemptions, or with all
/// interleavings for `None`. `LOOM_MAX_PREEMPTIONS` overrides the bound. A switch at a blocked
/// thread is not a preemption. Prints the number of executions.
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

/// Starts a thread of a model. It may share values that are not `Sync`, such as a cell that only
/// the model checker protects.
#[track_caller]
pub(crate) fn go<T: 'static>(run: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    loom::thread::spawn(run)
}
