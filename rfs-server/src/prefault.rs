//! Taking memory from the system before it is needed.
//!
//! Memory that was never touched costs its first writer a page fault and the zeroing of a page, every 4 KiB. Threading:
//! in the background one thread of the lowest priority does it, in steps, and ends with its handle. Clients may be
//! writing there at the same time: a page that is present is left alone.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use rdmabox::Memory;

/// Bytes at a time; also how much is still done after the end was asked for.
const STEP: usize = 16 << 20;

/// When memory is taken from the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Prefault {
    /// When it is first written.
    Never,
    /// From the start on, while clients work.
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
    pub(crate) fn start(memory: &Arc<Memory>, when: Prefault) -> io::Result<Prefaulter> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = match when {
            Prefault::Never => None,
            Prefault::First => {
                populate(memory, &stop);
                None
            }
            Prefault::Background => {
                let (memory, stop) = (Arc::clone(memory), Arc::clone(&stop));
                let work = move || {
                    // Of this thread alone; where that is not to be had it goes on at the usual one.
                    if let Err(e) = rustix::process::setpriority_process(None, 19) {
                        log::debug!("priority: {e}");
                    }
                    populate(&memory, &stop);
                };
                Some(std::thread::Builder::new().name("rfs-prefault".into()).spawn(work)?)
            }
        };
        Ok(Prefaulter { stop, thread })
    }
}

impl Drop for Prefaulter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn populate(memory: &Memory, stop: &AtomicBool) {
    for start in (0..memory.len()).step_by(STEP) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        memory.populate(start, STEP.min(memory.len() - start));
    }
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::fs::MetadataExt};

    use super::*;

    fn present(memory: &Memory) -> u64 {
        let file = std::fs::File::from(memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap());
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn memory_is_taken_when_asked_and_keeps_its_bytes() {
        const LEN: usize = 20 << 20;
        for (when, expected) in [(Prefault::Never, 4096), (Prefault::First, LEN as u64)] {
            let memory = Arc::new(Memory::shared("test", LEN).unwrap());
            memory.write(5, b"kept");
            let _prefaulter = Prefaulter::start(&memory, when).unwrap();
            assert_eq!(present(&memory), expected);
            let mut bytes = [0; 4];
            memory.read(5, &mut bytes);
            assert_eq!(&bytes, b"kept");
        }
    }

    #[test]
    fn the_background_gets_there_and_can_be_stopped() {
        let memory = Arc::new(Memory::shared("test", 1 << 20).unwrap());
        let prefaulter = Prefaulter::start(&memory, Prefault::Background).unwrap();
        while present(&memory) < 1 << 20 {
            std::thread::yield_now();
        }
        drop(prefaulter);
    }
}
