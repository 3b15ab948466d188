//! Taking memory from the system before it is needed.
//!
//! Memory that was never touched costs its first writer a page fault and the zeroing of a page, every 4 KiB. Threading:
//! in the background one thread of the lowest priority does it, in steps, and ends with its handle. Clients may be
//! writing there at the same time: a page that is present is left alone.
//!
//! Low priority does not make it harmless. Whoever is woken looks for an idle processor, and one that clears pages is not idle, whatever its
//! priority: on two processors, files were made at half the speed until the memory was there (11,500 a second instead of 23,000). So it
//! works a twentieth of the time while there are many calls about names. Who writes large files needs memory fast, but few such calls; who makes files
//! needs many, and little memory: at 23,000 files a second of 4 KiB the twentieth just keeps ahead.

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

/// Bytes at a time; also how much is still done after the end was asked for. About a millisecond.
const STEP: usize = 2 << 20;

/// More calls than one in this time are many: a fifth of what two processors can do, and more than anybody makes who writes data.
const MANY: Duration = Duration::from_micros(250);

/// While there are many calls: how much longer than a step the pause after it is, for each export.
const RESTRAINT: u32 = 19;

/// The longest pause.
const LONGEST: Duration = Duration::from_millis(200);

/// When memory is taken from the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Prefault {
    /// When it is first written.
    Never,
    /// From the start on, while clients work; slowly while they make many calls about names.
    #[default]
    Background,
    /// All of it, before clients can connect.
    First,
}

/// The work in the background, if any.
#[derive(Debug)]
pub(crate) struct Prefaulter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prefaulter {
    /// Begins, or does it all.
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
                    // Of this thread alone; where that is not to be had it goes on at the usual one.
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

/// What else the server does.
pub(crate) trait Load {
    /// Calls about names and attributes so far, of all clients.
    fn calls(&self) -> u64;

    /// Exports of the server, each of which takes its memory.
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

/// A memory, part by part: beginning and length.
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

/// What this thread has had of a processor.
fn own_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// How long to wait after a step that took `took` of a processor, where there were so many calls in `passed`, the pause before it included.
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

    /// A server that is called so often between two looks, and begins to end after so many.
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
    fn memory_is_taken_when_asked_and_keeps_its_bytes() {
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
    fn the_background_gets_there() {
        let memory = Arc::new(Memory::shared("test", 1 << 20).unwrap());
        let prefaulter = Prefaulter::start(&memory, Prefault::Background, called(0, 0)).unwrap();
        while present(&memory) < 1 << 20 {
            std::thread::yield_now();
        }
        drop(prefaulter);
    }

    #[test]
    fn it_ends_after_the_step_that_it_is_at() {
        let memory = Memory::shared("test", 3 * STEP).unwrap();
        // One look before the first step, and one after each.
        let server = called(0, 3);
        populate(&memory, &server.stop, &server, |_| panic!("nobody calls"));
        assert_eq!(present(&memory), 2 * STEP as u64);
    }

    #[test]
    fn it_waits_after_each_step_while_there_are_many_calls_and_takes_all_the_same() {
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
    fn how_long_it_waits() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(1), 1, ms(1), 4), Duration::ZERO);
        assert_eq!(pause(ms(1), 1, ms(1), 5), ms(19));
        assert_eq!(pause(ms(1), 3, ms(1), 5), ms(57));
        // As many in a longer time are few.
        assert_eq!(pause(ms(1), 1, ms(20), 80), Duration::ZERO);
        assert_eq!(pause(ms(1), 1, ms(20), 81), ms(19));
        assert_eq!(pause(ms(11), 1, ms(11), u64::MAX), ms(200));
        assert_eq!(pause(ms(1), u32::MAX, ms(1), u64::MAX), ms(200));
        assert_eq!(pause(Duration::ZERO, 1, Duration::ZERO, 0), Duration::ZERO);
    }
}
