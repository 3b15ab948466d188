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

use rdmabox::Memory;
use rustix::time::{ClockId, clock_gettime};

use crate::dispatch::Dispatcher;

/// Bytes per step, about a millisecond. A stop waits for the current step.
const STEP: usize = 2 << 20;

/// Mean interval of requests below which they count as many: a fifth of the rate of two processors,
/// and more than data transfers cause.
const MANY: Duration = Duration::from_micros(250);

/// Pause after a step, in multiples of the step's time and per export, while there are many
/// requests.
const RESTRAINT: u32 = 19;

/// Maximum pause.
const LONGEST: Duration = Duration::from_millis(200);

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
        memory: &Arc<Memory>,
        when: Prefault,
        server: impl Load + Send + 'static,
    ) -> io::Result<Prefaulter> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = match when {
            Prefault::Never => None,
            Prefault::First => {
                steps(memory).for_each(|(start, len)| memory.populate(start, len));
                None
            }
            Prefault::Background => {
                let (memory, stop) = (Arc::clone(memory), Arc::clone(&stop));
                let work = move || {
                    // For this thread alone. Without the permission, the thread keeps the usual
                    // priority.
                    if let Err(e) = rustix::process::setpriority_process(None, 19) {
                        log::debug!("priority: {e}");
                    }
                    populate(&memory, &stop, &server, thread::park_timeout);
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

/// Splits a memory into steps: start and length.
fn steps(memory: &Memory) -> impl Iterator<Item = (usize, usize)> {
    let len = memory.len();
    (0..len).step_by(STEP).map(move |start| (start, STEP.min(len - start)))
}

fn populate(memory: &Memory, stop: &AtomicBool, server: &impl Load, wait: impl Fn(Duration)) {
    let (mut since, mut before) = (Instant::now(), server.calls());
    for (start, len) in steps(memory) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let begin = own_time();
        memory.populate(start, len);
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
    if many { took.saturating_mul(restraint).min(LONGEST) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use std::{
        os::{fd::AsFd, unix::fs::MetadataExt},
        sync::atomic::AtomicU64,
    };

    use super::*;

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
        const LEN: usize = 20 << 20;
        for (when, expected) in [(Prefault::Never, 4096), (Prefault::First, LEN as u64)] {
            let memory = Arc::new(Memory::shared("test", LEN).unwrap());
            memory.write(5, b"kept");
            let _prefaulter = Prefaulter::start(&memory, when, called(0, 0)).unwrap();
            assert_eq!(present(&memory), expected);
            let mut bytes = [0; 4];
            memory.read(5, &mut bytes);
            assert_eq!(&bytes, b"kept");
        }
    }

    #[test]
    fn the_background_thread_allocates_everything() {
        let memory = Arc::new(Memory::shared("test", 1 << 20).unwrap());
        let prefaulter = Prefaulter::start(&memory, Prefault::Background, called(0, 0)).unwrap();
        while present(&memory) < 1 << 20 {
            std::thread::yield_now();
        }
        drop(prefaulter);
    }

    #[test]
    fn a_stop_waits_for_the_current_step() {
        let memory = Memory::shared("test", 3 * STEP).unwrap();
        // One reading before the first step, and one after each.
        let server = called(0, 3);
        populate(&memory, &server.stop, &server, |_| panic!("no request came"));
        assert_eq!(present(&memory), 2 * STEP as u64);
    }

    #[test]
    fn it_pauses_after_each_step_while_there_are_many_requests() {
        let memory = Memory::shared("test", 3 * STEP - 4096).unwrap();
        let server = called(1 << 40, 0);
        let waits = AtomicU64::new(0);
        populate(&memory, &server.stop, &server, |pause| {
            assert!(!pause.is_zero() && pause <= LONGEST);
            waits.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!((present(&memory), waits.into_inner()), (3 * STEP as u64 - 4096, 3));
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
