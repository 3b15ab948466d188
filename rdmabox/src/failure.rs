//! Failures of threads that a process cannot do without.
//!
//! A thread that dies leaves other threads waiting for work that it never does. [`watch`] installs a
//! handler that learns of every panic, except of panics inside [`contain`], whose caller goes on
//! without a result. A thread that ends by an error calls [`report`].
//!
//! # Concurrency
//! Any thread. The handler runs on the failing thread, and must not wait for another thread.

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
    /// True while this thread runs code that may panic without harm to the process.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `handler` with a description of each failure from now on. The first call of a process counts.
///
/// Without a handler, a failure is an error in the log, and the process goes on without the thread.
pub fn watch(handler: impl Fn(&str) + Send + Sync + 'static) {
    if HANDLER.set(Box::new(handler)).is_err() {
        return;
    }
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        print(info);
        // A thread that ends has no mark any more, and contains nothing.
        if !CONTAINED.try_with(Cell::get).unwrap_or(false) {
            report(&describe(info));
        }
    }));
}

/// Reports that a part of the process has failed for good.
pub fn report(failure: &str) {
    match HANDLER.get() {
        Some(handler) => handler(failure),
        None => log::error!("{failure}"),
    }
}

/// Runs code whose panic ends no more than this call.
///
/// The caller guarantees that the state that `run` shares with others stays usable.
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

    /// The handler is one for the process, so that one test has it.
    #[test]
    fn failures_are_reported_and_contained_panics_are_not() {
        let (send, failures) = mpsc::channel();
        watch(move |failure| {
            // Other tests of this process panic, too.
            if failure.contains("on purpose") {
                send.send(failure.to_owned()).unwrap();
            }
        });
        watch(|_| unreachable!("the first handler counts"));
        assert_eq!(contain(|| 7), Ok(7));
        assert_eq!(contain(|| panic!("on purpose, {}", 1)), Err::<(), _>("on purpose, 1".into()));
        // The mark of an outer call stays.
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
        assert!(failure.starts_with("thread worker panicked at rdmabox/src/failure.rs"), "{failure}");
        assert!(failure.ends_with(": on purpose, 3"), "{failure}");
        assert!(failures.try_recv().is_err());
    }
}
