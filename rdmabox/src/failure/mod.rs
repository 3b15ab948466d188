//! Failures of threads that the process needs.
//!
//! A thread that dies leaves other threads waiting for work that it never does. [`watch`]
//! installs a handler that receives every panic, except panics inside [`contain`], whose caller
//! continues without a result. A thread that ends with an error calls [`report`].
//!
//! # Concurrency
//! Any thread may call it. The handler runs on the failing thread and must not wait for another
//! thread.

pub(crate) mod seeded;

use std::{
    any::Any,
    cell::Cell,
    panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind},
    sync::OnceLock,
    thread,
};

type Handler = Box<dyn Fn(&str) + Send + Sync>;

static HANDLER: OnceLock<Handler> = OnceLock::new();

thread_local! {
    /// True while this thread runs code whose panic does not harm the process.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `handler` with a description of each later failure. Only the first call of a process has
/// an effect.
///
/// Without a handler, a failure is logged as an error, and the process continues without the
/// thread.
pub fn watch(handler: impl Fn(&str) + Send + Sync + 'static) {
    if HANDLER.set(Box::new(handler)).is_err() {
        return;
    }
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        // The flag of an ending thread is gone; such a thread contains no panic.
        if !CONTAINED.try_with(Cell::get).unwrap_or(false) {
            report(&describe(info));
        }
    }));
}

/// Reports that a part of the process has failed permanently.
pub fn report(failure: &str) {
    match HANDLER.get() {
        Some(handler) => handler(failure),
        None => log::error!("{failure}"),
    }
}

/// Runs code whose panic ends only this call.
///
/// The caller guarantees that the state that `run` shares with other code stays usable.
///
/// # Errors
/// The message of the panic.
pub fn contain<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    let outer = CONTAINED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    CONTAINED.set(outer);
    outcome.map_err(|payload| message(&*payload))
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let place = info.location().map(|at| format!(" at {at}")).unwrap_or_default();
    let name = thread.name().unwrap_or("without a name");
    format!("thread {name} panicked{place}: {}", message(info.payload()))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The process has only one handler, so a single test covers all cases.
    #[test]
    fn failures_are_reported_and_contained_panics_are_not() {
        let (send, failures) = mpsc::channel();
        watch(move |failure| {
            // Other tests of this process also panic.
            if failure.contains("on purpose") {
                send.send(failure.to_owned()).unwrap();
            }
        });
        watch(|_| unreachable!("the first handler counts"));
        assert_eq!(contain(|| 7), Ok(7));
        assert_eq!(contain(|| panic!("on purpose, {}", 1)), Err::<(), _>("on purpose, 1".into()));
        // The flag of an outer call is restored.
        let nested = contain(|| {
            contain(|| panic!("on purpose")).unwrap_err();
            panic!("on purpose, 2")
        });
        assert_eq!(nested, Err::<(), _>("on purpose, 2".into()));
        report("stopped on purpose");
        let builder = thread::Builder::new().name("worker".into());
        builder.spawn(|| panic!("on purpose, {}", 3)).unwrap().join().unwrap_err();
        assert_eq!(failures.recv().unwrap(), "stopped on purpose");
        let failure = failures.recv().unwrap();
        assert!(failure.starts_with("thread worker panicked at rdmabox/src/failure/"), "{failure}");
        assert!(failure.ends_with(": on purpose, 3"), "{failure}");
        assert!(failures.try_recv().is_err());
    }
}
