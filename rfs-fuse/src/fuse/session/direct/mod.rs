//! Requests over `/dev/fuse` after INIT: a loop that continues a session of the kernel.
//!
//! fuser's session begins with INIT, which the kernel sends once per mount. This loop begins after
//! it, so a process can continue the mount of a dead one. [`resent`] has the kernel send again
//! what the dead process had taken. Requests and answers are those of the ring (`decode`, `slot`).
//!
//! Devices are clones that another process has open, too. The kernel ends the requests of a device
//! when its last descriptor is closed, so they survive this process. Answers go to the device of
//! their request.
//!
//! # Concurrency
//! One thread per device. Any thread answers. No locks.

mod buffer;
mod request;
mod resent;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread,
};

use rfs_client::{KeptState, RequestScope, announce_receive_buffer};
use rustix::io::Errno;

pub use self::resent::Resent;
use self::{
    buffer::ReceiveBuffer,
    request::{Arrived, Parsed},
};
use super::{
    Filesystem, Request, RequestKind, Trace,
    channel::Channel,
    ring::{decode, slot::Slot},
    thread_end,
    trace::Details,
};
use crate::fuse::affinity::{Placement, RequestLog};

/// A session of the kernel after INIT.
#[derive(Debug)]
pub struct DirectSession {
    /// Devices, one per thread.
    pub devices: Vec<Arc<OwnedFd>>,
    /// The kept state of the mount.
    pub kept: Arc<KeptState>,
    /// Longest write of the kernel in bytes.
    pub max_write: usize,
    /// Requests that were read from the first device already.
    pub resent: Vec<Resent>,
    /// Gets the requests reported.
    pub trace: Arc<Trace>,
}

/// One thread of the session.
struct Worker<F> {
    filesystem: Arc<F>,
    device: Arc<OwnedFd>,
    kept: Arc<KeptState>,
    log: RequestLog,
    trace: Arc<Trace>,
}

impl DirectSession {
    /// Starts the session threads.
    ///
    /// # Errors
    /// A thread cannot start, or there is no memory for its buffer.
    pub fn start<F: Filesystem>(
        self,
        filesystem: &Arc<F>,
        placement: &Placement,
    ) -> io::Result<DirectServing> {
        let DirectSession { devices, kept, max_write, mut resent, trace } = self;
        let (done, ended) = mpsc::channel();
        for (number, device) in devices.into_iter().enumerate() {
            let worker = Worker {
                filesystem: Arc::clone(filesystem),
                log: placement.request_log(&device),
                device,
                kept: Arc::clone(&kept),
                trace: Arc::clone(&trace),
            };
            let mut buffer = ReceiveBuffer::new(max_write)?;
            // Answers go to the device that the requests were read from, which is the first one.
            let first = std::mem::take(&mut resent);
            let done = done.clone();
            thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
                for request in first {
                    worker.serve(request.bytes(), None);
                }
                done.send(worker.run(&mut buffer)).ok();
            })?;
        }
        Ok(DirectServing(ended))
    }
}

/// The session threads.
#[derive(Debug)]
pub struct DirectServing(mpsc::Receiver<io::Result<()>>);

impl DirectServing {
    /// Waits until the kernel ends the connection.
    ///
    /// # Errors
    /// A device cannot be read.
    pub fn wait(self) -> io::Result<()> {
        self.0.into_iter().fold(Ok(()), io::Result::and)
    }
}

impl<F: Filesystem> Worker<F> {
    fn run(&self, buffer: &mut ReceiveBuffer) -> io::Result<()> {
        thread_end::watch(&self.device);
        loop {
            let len = match rustix::io::read(&self.device, buffer.bytes_mut()) {
                Ok(len) => len,
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                // The mount has ended.
                Err(Errno::NODEV) => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            let room = buffer.len();
            self.serve(&buffer.bytes_mut()[..len], Some(room));
        }
    }

    /// Serves one request. `room` is the length of the receive buffer that it begins in.
    fn serve(&self, bytes: &[u8], room: Option<usize>) {
        let Some(Parsed { header, unique, is_repeated, arrived }) = request::parse(bytes) else {
            return log::error!("a request of the kernel of {} bytes is malformed", bytes.len());
        };
        let caller = Request { uid: header.uid, gid: header.gid, pid: header.pid, unique: header.unique };
        let _turn = self.filesystem.threads().map(|threads| threads.begin(true));
        match arrived {
            Arrived::Forget(list) => {
                for (ino, count) in list {
                    if let Some(counts) = self.filesystem.counts() {
                        counts.count(const { RequestKind::named("forget") });
                    }
                    self.filesystem.forget(&caller, ino, count);
                }
            }
            // The kernel sends no further ones after this answer.
            Arrived::Interrupt => {
                Channel::plain(&self.device).send(unique, Errno::NOSYS.raw_os_error(), &[]);
            }
            Arrived::Operation { op, payload, moved, offset } => {
                if let (true, Some(room)) = (header.opcode == decode::opcode::WRITE, room) {
                    let start = payload.as_ptr();
                    let len = room - (start.addr() - bytes.as_ptr().addr());
                    // SAFETY: the buffer of the thread is mapped until its loop ends.
                    unsafe { announce_receive_buffer(start.cast_mut(), len) };
                }
                let unanswered = self.log.record(header.pid, moved);
                let scope = RequestScope::begin(&self.kept, header.unique, is_repeated);
                let _serving = scope.enter();
                let traced = match self.trace.is_on() {
                    true => {
                        let name = RequestKind::of_opcode(header.opcode).name();
                        let place = offset.map(|offset| (header.nodeid, offset));
                        let details = Details { caller: header.pid, bytes: moved as u64, place };
                        self.trace.arrive(header.unique, name, details)
                    }
                    false => None,
                };
                let _handled = traced.as_ref().map(|traced| traced.handle());
                let channel = Channel::new(&self.device, unanswered, scope);
                let slot = Slot::of_device(channel, unique).traced_as(traced);
                decode::dispatch(&*self.filesystem, &decode::Incoming { header, op: &op, payload }, slot);
            }
        }
    }
}
