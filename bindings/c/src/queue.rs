//! Queues of started reads and writes, and of their completions.
//!
//! A request is staged, and [`rfs_queue_submit`] starts all staged requests together. Each ends
//! with one completion. An event descriptor is readable while there are completions.
//!
//! # Concurrency
//! Any number of threads. Two locks, which are not held over a request: staged requests, and
//! completions.

use std::{
    collections::VecDeque,
    ffi::c_void,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rfs_native::{Error, File};
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    file::rfs_file,
    status::{Failure, answer, answer_done, bytes, handle, store_handle, take},
};

/// A completion of a request.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rfs_completion {
    /// Number of bytes, or a negative error number.
    pub result: i64,
    /// The value that came with the request.
    pub tag: u64,
}

/// A queue of requests and completions.
#[allow(non_camel_case_types)]
pub struct rfs_queue {
    staged: Mutex<Vec<Staged>>,
    done: Arc<Done>,
}

struct Done {
    completions: Mutex<Completions>,
    changed: Condvar,
    event: OwnedFd,
}

#[derive(Default)]
struct Completions {
    ready: VecDeque<rfs_completion>,
    /// Number of started requests without a completion.
    in_flight: usize,
}

enum Staged {
    Read { file: File, out: Destination, offset: u64, tag: u64 },
    Write { file: File, data: Vec<u8>, offset: u64, tag: u64 },
}

/// The caller's buffer of a read.
struct Destination {
    out: *mut u8,
    len: usize,
}

// SAFETY: the caller of `rfs_queue_read` leaves the buffer to the request until it has completed.
unsafe impl Send for Destination {}

impl Destination {
    fn fill(self, bytes: &[u8]) -> i64 {
        let len = bytes.len().min(self.len);
        if len > 0 {
            // SAFETY: the caller of `rfs_queue_read` vouches for `self.len` writable bytes, which
            // no other thread uses until the request has completed.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.out, len) };
        }
        len as i64
    }
}

impl Done {
    fn complete(&self, tag: u64, result: Result<i64, Error>) {
        let result = result.unwrap_or_else(|e| -i64::from(e.errno()));
        let mut completions = self.completions.lock();
        completions.in_flight -= 1;
        completions.ready.push_back(rfs_completion { result, tag });
        if completions.ready.len() == 1 {
            // The counter of the event cannot overflow, so the write does not block.
            rustix::io::write(&self.event, &1_u64.to_ne_bytes()).ok();
        }
        drop(completions);
        self.changed.notify_all();
    }
}

fn start(request: Staged, more: bool, done: Arc<Done>) {
    match request {
        Staged::Read { file, out, offset, tag } => {
            file.start_read_with((offset, out.len), more, move |read| {
                done.complete(tag, read.map(|bytes| out.fill(&bytes)));
            });
        }
        Staged::Write { file, data, offset, tag } => {
            let len = data.len() as i64;
            file.start_write_with(offset, data, more, move |written| {
                done.complete(tag, written.map(|()| len));
            });
        }
    }
}

/// Makes a queue. Stores it in `out`, and rfs_queue_free() frees it.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_new(out: *mut *mut rfs_queue) -> i32 {
    answer_done(|| {
        let failed = |e: rustix::io::Errno| Failure::new(e.raw_os_error(), format!("eventfd: {e}"));
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let done = Done { completions: Mutex::default(), changed: Condvar::new(), event };
        let queue = rfs_queue { staged: Mutex::default(), done: Arc::new(done) };
        // SAFETY: the caller vouches for the pointer.
        unsafe { store_handle(out, queue) }
    })
}

/// Stages a read of up to `len` bytes at an offset. The buffer belongs to the request until its
/// completion, which has `tag`.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid. `out` has `len` bytes until the completion, also if the queue is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_read(
    queue: *const rfs_queue,
    file: *const rfs_file,
    out: *mut c_void,
    len: usize,
    offset: u64,
    tag: u64,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (queue, file) = unsafe { (handle(queue)?, handle(file)?) };
        if out.is_null() && len > 0 {
            return Err(Failure::new(libc::EFAULT, "a buffer is NULL"));
        }
        let (file, out) = (file.0.clone(), Destination { out: out.cast(), len });
        queue.staged.lock().push(Staged::Read { file, out, offset, tag });
        Ok(())
    })
}

/// Stages a write of `len` bytes at an offset. The bytes are copied.
///
/// Returns 0 or a negative error number.
///
/// # Safety
/// The pointers are valid, and `data` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_write(
    queue: *const rfs_queue,
    file: *const rfs_file,
    data: *const c_void,
    len: usize,
    offset: u64,
    tag: u64,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (queue, file, data) = unsafe { (handle(queue)?, handle(file)?, bytes(data.cast(), len)?) };
        let (file, data) = (file.0.clone(), data.to_vec());
        queue.staged.lock().push(Staged::Write { file, data, offset, tag });
        Ok(())
    })
}

/// Starts all staged requests together.
///
/// Returns their number or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_submit(queue: *const rfs_queue) -> i32 {
    let started = answer(|| {
        // SAFETY: the caller vouches for the pointer.
        let queue = unsafe { handle(queue) }?;
        let staged = std::mem::take(&mut *queue.staged.lock());
        let count = staged.len();
        queue.done.completions.lock().in_flight += count;
        for (at, request) in staged.into_iter().enumerate() {
            start(request, at + 1 < count, Arc::clone(&queue.done));
        }
        Ok(count as i64)
    });
    i32::try_from(started).unwrap_or(i32::MAX)
}

/// Returns up to `most` completions in `out`. Waits for at least `least` of them, or until no
/// request is in flight, or for `timeout_ms` milliseconds. A negative timeout has no limit.
///
/// Returns the number of completions or a negative error number.
///
/// # Safety
/// The pointers are valid, and `out` has room for `most` completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_wait(
    queue: *const rfs_queue,
    out: *mut rfs_completion,
    most: usize,
    least: usize,
    timeout_ms: i32,
) -> i32 {
    let found = answer(|| {
        // SAFETY: the caller vouches for the pointer.
        let done = &unsafe { handle(queue) }?.done;
        if out.is_null() && most > 0 {
            return Err(Failure::new(libc::EFAULT, "the list of completions is NULL"));
        }
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut completions = done.completions.lock();
        while completions.ready.len() < least.min(most) && completions.in_flight > 0 {
            let timed_out = match deadline {
                Some(deadline) => done.changed.wait_until(&mut completions, deadline).timed_out(),
                None => {
                    done.changed.wait(&mut completions);
                    false
                }
            };
            if timed_out {
                break;
            }
        }
        let count = completions.ready.len().min(most);
        for (at, completion) in completions.ready.drain(..count).enumerate() {
            // SAFETY: the caller vouches for room for `most` completions.
            unsafe { out.add(at).write(completion) };
        }
        if count > 0 && completions.ready.is_empty() {
            // The event is not readable any more. It was, because there were completions.
            rustix::io::read(&done.event, &mut [0_u8; 8]).ok();
        }
        Ok(count as i64)
    });
    i32::try_from(found).unwrap_or(i32::MAX)
}

/// Returns a descriptor that is readable while there are completions, for poll(2). It belongs to
/// the queue.
///
/// Returns the descriptor or a negative error number.
///
/// # Safety
/// The pointer is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_fd(queue: *const rfs_queue) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    answer(|| Ok(unsafe { handle(queue) }?.done.event.as_raw_fd().into())) as i32
}

/// Frees a queue. NULL is permitted. Staged requests are dropped; started ones end without a
/// completion, and use their buffers until then.
///
/// # Safety
/// The queue is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_queue_free(queue: *mut rfs_queue) {
    // SAFETY: the caller vouches for the pointer.
    drop(unsafe { take(queue) });
}
