//! Threads with a descriptor table of their own.
//!
//! A thread may wait uninterruptibly in the kernel for a request that its own process serves. If
//! the process is killed, that wait ends only when the device that took the request is closed.
//! The device is closed when no thread has it in its table. So such a thread must not share the
//! table of the session threads.
//!
//! # Concurrency
//! Each function concerns the calling thread. Takes no locks.

use std::{
    fs::File,
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    ioctl::{Setter, ioctl, opcode},
};

use crate::mount::DEVICE;

/// FUSE_DEV_IOC_CLONE.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Returns another device for the same connection. A request belongs to the device that
/// it is read from.
pub(crate) fn clone_of(device: BorrowedFd<'_>) -> io::Result<File> {
    let clone = File::options().read(true).write(true).open(DEVICE)?;
    let number = u32::try_from(device.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call takes a pointer to a descriptor number of 32 bits, and writes nothing.
    unsafe { ioctl(&clone, Setter::<CLONE, u32>::new(number))? };
    Ok(clone)
}

/// Returns true if the kernel holds a request, or a FORGET, that no thread has taken.
pub(in crate::fuse) fn has_request(device: impl AsFd) -> bool {
    let mut device = [PollFd::new(&device, PollFlags::IN)];
    matches!(poll(&mut device, Some(&Timespec::default())), Ok(1)) && device[0].revents() == PollFlags::IN
}

/// Gives the calling thread an empty descriptor table of its own.
pub(in crate::fuse) fn close_all() -> io::Result<()> {
    close(0, RawFd::MAX)
}

/// Closes a range of descriptors for the calling thread only, which has its own table from then
/// on.
fn close(first: RawFd, last: RawFd) -> io::Result<()> {
    // SAFETY: other threads keep their descriptors. The calling thread was started for this, and
    // uses none of the range.
    let done = unsafe {
        libc::close_range(
            first.cast_unsigned(),
            last.cast_unsigned(),
            libc::CLOSE_RANGE_UNSHARE as libc::c_int,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The only descriptor in the calling thread's table.
#[derive(Debug)]
pub(in crate::fuse) struct SoleDescriptor {
    number: RawFd,
    /// Makes the type neither `Send` nor `Sync`.
    _thread: PhantomData<*const ()>,
}

impl SoleDescriptor {
    /// Closes all other descriptors for the calling thread. Before Linux 5.9, the thread keeps
    /// sharing its table. Then other threads must not close the descriptor while this is used.
    pub(in crate::fuse) fn keep(number: RawFd) -> (SoleDescriptor, io::Result<()>) {
        let below = if number > 0 { close(0, number - 1) } else { Ok(()) };
        let done = below.and_then(|()| close(number + 1, RawFd::MAX));
        (SoleDescriptor { number, _thread: PhantomData }, done)
    }
}

impl AsFd for SoleDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is in this thread's own table, where it is never closed. Or it is
        // in a shared table, where other threads do not close it.
        unsafe { BorrowedFd::borrow_raw(self.number) }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, thread};

    use super::*;

    /// Returns the descriptors of the calling thread.
    fn open() -> BTreeSet<RawFd> {
        let listed = fs::read_dir("/proc/thread-self/fd").expect("procfs");
        let numbers: Vec<RawFd> = listed
            .map(|entry| {
                entry.expect("listed").file_name().to_str().expect("a number").parse().expect("a number")
            })
            .collect();
        // The listing itself has a descriptor while it is read.
        numbers
            .into_iter()
            .filter(|number| fs::read_link(format!("/proc/thread-self/fd/{number}")).is_ok())
            .collect()
    }

    #[test]
    fn a_thread_keeps_one_descriptor_and_other_threads_keep_all() {
        let [kept, other] = [0; 2].map(|_| File::open("/dev/null").expect("opened"));
        let (number, there) = (kept.as_raw_fd(), other.as_raw_fd());
        let seen = thread::spawn(move || {
            let (only, done) = SoleDescriptor::keep(number);
            done.expect("a table of its own");
            rustix::io::write(&only, b"x").expect_err("it is open to read");
            rustix::fs::fstat(&only).expect("it is open");
            open()
        });
        assert_eq!(seen.join().expect("joined"), BTreeSet::from([number]));
        assert!(open().is_superset(&BTreeSet::from([0, 1, 2, number, there])));
        let none = thread::spawn(|| {
            close_all().expect("closed");
            open()
        });
        assert_eq!(none.join().expect("joined"), BTreeSet::new());
    }

    #[test]
    fn requests_are_seen_without_being_taken() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        assert!(!has_request(&reader));
        rustix::io::write(&writer, b"x").expect("written");
        assert!(has_request(&reader) && has_request(&reader));
        drop(writer);
        assert!(!has_request(&reader), "the other end is gone");
    }

    #[test]
    fn other_files_than_the_device_have_no_clone() {
        let file = File::open("/dev/null").expect("opened");
        if let Err(e) = clone_of(file.as_fd()) {
            let errno = e.raw_os_error().and_then(|errno| u8::try_from(errno).ok()).expect("the kernel's");
            // Or this machine has no FUSE device.
            assert!([libc::EINVAL, libc::ENOENT, libc::EPERM, libc::EACCES].contains(&errno.into()), "{e}");
        } else {
            panic!("a clone of /dev/null");
        }
    }
}
