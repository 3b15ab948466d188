//! Allocates memory ahead of its first use.
//!
//! The first write to an untouched page costs a page fault and the zeroing of the page. Concurrent
//! writes of clients are safe: a present page is left alone. A thread that zeroes pages keeps a
//! processor from being idle, even at the lowest priority, and so delays threads that wake up. So
//! the thread runs only one twentieth of the time while clients make many requests about names
//! (docs/design/decisions/server.md). Clients that write large files need memory fast, but make few
//! such requests.
//!
//! # Concurrency
//! In the background mode, one thread of the lowest priority per export works in steps, and ends
//! with its handle.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    dispatch::Dispatcher,
    space::{account::Space, alloc::range::Range},
};

/// Bytes per step, about a millisecond. A stop waits for the current step.
const STEP: u64 = 2 << 20;

/// Mean interval of requests below which they count as many: a fifth of the rate of two processors,
/// and more than data transfers cause.
const MANY: Duration = Duration::from_micros(250);

/// Pause after a step, in multiples of the step's time and per export, while there are many
/// requests.
const RESTRAINT: u32 = 19;

/// Maximum pause.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Time at which the server allocates memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Prefault {
    /// At the first write of each page.
    Never,
    /// In the background from the start on; slowly while clients make many requests about names.
    #[default]
    Background,
    /// All of it, before clients can connect.
    First,
}

/// Handle of the background thread, if there is one.
#[derive(Debug)]
pub(crate) struct Prefaulter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prefaulter {
    /// Starts the thread, or allocates everything at once.
    pub(crate) fn start(
        space: &Arc<Space>,
        when: Prefault,
        server: impl Load + Send + 'static,
    ) -> io::Result<Prefaulter> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = match when {
            Prefault::Never => None,
            Prefault::First => {
                steps(space).for_each(|step| space.populate(step));
                None
            }
            Prefault::Background => {
                let (space, stop) = (Arc::clone(space), Arc::clone(&stop));
                let work = move || {
                    // For this thread alone. Without the permission, the thread keeps the usual
                    // priority.
                    if let Err(e) = rustix::process::setpriority_process(None, 19) {
                        log::debug!("priority: {e}");
                    }
                    populate(&space, &stop, &server, thread::park_timeout);
                };
                Some(thread::Builder::new().name("rfs-prefault".into()).spawn(work)?)
            }
        };
        Ok(Prefaulter { stop, thread })
    }
}

impl Drop for Prefaulter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Load of the server.
pub(crate) trait Load {
    /// Returns the number of requests about names and attributes so far, of all clients.
    fn calls(&self) -> u64;

    /// Returns the number of exports, each of which has a background thread.
    fn exports(&self) -> u32;
}

impl Load for Arc<[Arc<Dispatcher>]> {
    fn calls(&self) -> u64 {
        self.iter().map(|dispatcher| dispatcher.calls_about_names()).sum()
    }

    fn exports(&self) -> u32 {
        self.len().try_into().unwrap_or(u32::MAX)
    }
}

/// Splits the arena into steps.
fn steps(space: &Space) -> impl Iterator<Item = Range> {
    let len = space.bytes().len();
    (0..len).step_by(STEP as usize).map(move |start| Range { start, len: STEP.min(len - start) })
}

fn populate(space: &Space, stop: &AtomicBool, server: &impl Load, wait: impl Fn(Duration)) {
    let (mut since, mut before) = (Instant::now(), server.calls());
    for step in steps(space) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let begin = own_time();
        space.populate(step);
        let took = own_time().saturating_sub(begin);
        let (now, all) = (Instant::now(), server.calls());
        let pause = pause(took, server.exports(), now - since, all.saturating_sub(before));
        (since, before) = (now, all);
        if !pause.is_zero() {
            wait(pause);
        }
    }
}

/// Returns the processor time of this thread.
fn own_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Returns the pause after a step that took `took` of processor time. `calls` requests came in
/// `passed`, which includes the previous pause.
fn pause(took: Duration, exports: u32, passed: Duration, calls: u64) -> Duration {
    let many = u128::from(calls) * MANY.as_nanos() > passed.as_nanos();
    let restraint = RESTRAINT.saturating_mul(exports);
    if many { took.saturating_mul(restraint).min(MAX_PAUSE) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsFd, unix::fs::MetadataExt},
        sync::atomic::AtomicU64,
    };

    use rdmabox::Memory;

    use super::*;
    use crate::space::account::Zeroing;

    fn new(len: u64) -> (Arc<Memory>, Arc<Space>) {
        let memory = Arc::new(Memory::shared("test", len as usize).unwrap());
        (Arc::clone(&memory), Arc::new(Space::new(memory, Zeroing::Inline)))
    }

    fn present(memory: &Memory) -> u64 {
        let file = std::fs::File::from(memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
        file.metadata().unwrap().blocks() * 512
    }

    /// A server that gets `often` requests between two readings, and stops at reading `end`.
    struct Called {
        often: u64,
        looks: AtomicU64,
        end: u64,
        stop: Arc<AtomicBool>,
    }

    impl Load for Called {
        fn calls(&self) -> u64 {
            let look = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
            self.stop.fetch_or(look == self.end, Ordering::Relaxed);
            look * self.often
        }

        fn exports(&self) -> u32 {
            1
        }
    }

    fn called(often: u64, end: u64) -> Called {
        Called { often, looks: AtomicU64::default(), end, stop: Arc::default() }
    }

    #[test]
    fn memory_is_allocated_by_the_mode_and_keeps_its_bytes() {
        const LEN: u64 = 20 << 20;
        for (when, expected) in [(Prefault::Never, 4096), (Prefault::First, LEN)] {
            let (memory, space) = new(LEN);
            memory.write(5, b"kept");
            let _prefaulter = Prefaulter::start(&space, when, called(0, 0)).unwrap();
            assert_eq!(present(&memory), expected);
            let mut bytes = [0; 4];
            memory.read(5, &mut bytes);
            assert_eq!(&bytes, b"kept");
        }
    }

    #[test]
    fn the_background_thread_allocates_everything() {
        let (memory, space) = new(1 << 20);
        let prefaulter = Prefaulter::start(&space, Prefault::Background, called(0, 0)).unwrap();
        while present(&memory) < 1 << 20 {
            std::thread::yield_now();
        }
        drop(prefaulter);
    }

    #[test]
    fn a_stop_waits_for_the_current_step() {
        let (memory, space) = new(3 * STEP);
        // One reading before the first step, and one after each.
        let server = called(0, 3);
        populate(&space, &server.stop, &server, |_| panic!("no request came"));
        assert_eq!(present(&memory), 2 * STEP);
    }

    #[test]
    fn it_pauses_after_each_step_while_there_are_many_requests() {
        let (memory, space) = new(3 * STEP - 4096);
        let server = called(1 << 40, 0);
        let waits = AtomicU64::new(0);
        populate(&space, &server.stop, &server, |pause| {
            assert!(!pause.is_zero() && pause <= MAX_PAUSE);
            waits.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!((present(&memory), waits.into_inner()), (3 * STEP - 4096, 3));
    }

    #[test]
    fn the_pause_depends_on_the_rate_of_requests() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(1), 1, ms(1), 4), Duration::ZERO);
        assert_eq!(pause(ms(1), 1, ms(1), 5), ms(19));
        assert_eq!(pause(ms(1), 3, ms(1), 5), ms(57));
        // The same number over a longer time is not many.
        assert_eq!(pause(ms(1), 1, ms(20), 80), Duration::ZERO);
        assert_eq!(pause(ms(1), 1, ms(20), 81), ms(19));
        assert_eq!(pause(ms(11), 1, ms(11), u64::MAX), ms(200));
        assert_eq!(pause(ms(1), u32::MAX, ms(1), u64::MAX), ms(200));
        assert_eq!(pause(Duration::ZERO, 1, Duration::ZERO, 0), Duration::ZERO);
    }
}
