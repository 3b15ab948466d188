//! Requests over `/dev/fuse`, from the end of the negotiation on.
//!
//! The loop begins after INIT, which the kernel sends once per mount. So a process can continue the
//! mount of a dead one: [`resent_requests`] has the kernel send again the requests that the dead
//! process had taken. Requests and answers are those of a ring (`wire`, `slot`). Answers go to the
//! device of their request.
//!
//! A mount that outlives its process has a kept state. Another process has its devices open, too,
//! because the kernel ends the requests of a device when its last descriptor is closed.
//!
//! # Concurrency
//! One thread per device. Any thread answers. No locks.

mod buffer;
mod request;
mod resent_requests;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, mpsc},
    thread,
};

use rfs_client::{KeptState, RequestScope, announce_receive_buffer};
use rustix::io::Errno;

pub use self::resent_requests::ResentRequest;
use self::{
    buffer::ReceiveBuffer,
    request::{Arrived, Parsed, is_refused},
};
use super::{
    Filesystem, Request, RequestKind, Trace,
    channel::Channel,
    reply::Traced,
    slot::Slot,
    thread_end,
    trace::Details,
    wire::{abi::InHeader, decode, opcode},
};
use crate::fuse::affinity::{Placement, RequestLog};

/// A session of the kernel after INIT.
#[derive(Debug)]
pub struct DeviceSession {
    /// Devices, one per thread.
    pub devices: Vec<Arc<OwnedFd>>,
    /// The kept state of a mount that outlives this process.
    pub kept: Option<Arc<KeptState>>,
    /// Longest write of the kernel in bytes.
    pub max_write: usize,
    /// Requests that were read from the first device already.
    pub resent: Vec<ResentRequest>,
    /// The only user, beside root, whose requests are served. `None` if the kernel decides alone.
    pub only_user: Option<u32>,
    /// Gets the requests reported.
    pub trace: Arc<Trace>,
}

/// One thread of the session.
struct Worker<F> {
    filesystem: Arc<F>,
    device: Arc<OwnedFd>,
    kept: Option<Arc<KeptState>>,
    only_user: Option<u32>,
    log: RequestLog,
    trace: Arc<Trace>,
}

impl DeviceSession {
    /// Starts the session threads.
    ///
    /// # Errors
    /// A thread cannot start, or there is no memory for its buffer.
    pub fn start<F: Filesystem>(
        self,
        filesystem: &Arc<F>,
        placement: &Placement,
    ) -> io::Result<DeviceServing> {
        let DeviceSession { devices, kept, max_write, mut resent, only_user, trace } = self;
        let (done, ended) = mpsc::channel();
        for (number, device) in devices.into_iter().enumerate() {
            let worker = Worker {
                filesystem: Arc::clone(filesystem),
                log: placement.request_log(&device),
                device,
                kept: kept.clone(),
                only_user,
                trace: Arc::clone(&trace),
            };
            let mut buffer = ReceiveBuffer::new(max_write, kept.is_some())?;
            // Answers go to the device that the requests were read from, which is the first one.
            let first = std::mem::take(&mut resent);
            let done = done.clone();
            thread::Builder::new().name(format!("fuse-{number}")).spawn(move || {
                for request in first {
                    worker.serve(request.bytes(), None);
                }
                let outcome = worker.run(&mut buffer);
                // The last thread drops the file system before the session counts as ended.
                drop(worker);
                done.send(outcome).ok();
            })?;
        }
        Ok(DeviceServing(ended))
    }
}

/// The session threads.
#[derive(Debug)]
pub struct DeviceServing(mpsc::Receiver<io::Result<()>>);

impl DeviceServing {
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
            log::error!("a request of the kernel of {} bytes is malformed", bytes.len());
            // FORGET and INTERRUPT have no answer, which the kernel would ignore.
            if let Some(unique) = request::number(bytes) {
                Channel::new(&self.device).send(unique, Errno::IO.raw_os_error(), &[]);
            }
            return;
        };
        if header.opcode == opcode::RELEASE {
            self.filesystem.will_release();
        }
        // Requests of a dead process were all taken at once, and begin one after the other.
        let in_batches = self.kept.is_some();
        let _turn = self.filesystem.threads().map(|threads| threads.begin(in_batches));
        match arrived {
            Arrived::Forget(forgets) => {
                self.log.record(header.pid, 0);
                let traced = self.trace(&header, 0, None);
                let _handled = traced.as_ref().map(|traced| traced.handle());
                let caller =
                    Request { uid: header.uid, gid: header.gid, pid: header.pid, unique: header.unique };
                for (ino, count) in forgets {
                    if let Some(counts) = self.filesystem.counts() {
                        counts.count(const { RequestKind::named("forget") });
                    }
                    self.filesystem.forget(&caller, ino, count);
                }
            }
            // EAGAIN would have the kernel send it again, but only if the request was read from
            // this very device. So the file system remembers an interrupt that comes early.
            Arrived::Interrupt(of) => {
                if let Some(counts) = self.filesystem.counts() {
                    counts.count(const { RequestKind::named("interrupt") });
                }
                if !self.filesystem.interrupt(of) {
                    Channel::new(&self.device).send(unique, Errno::NOSYS.raw_os_error(), &[]);
                }
            }
            Arrived::Operation { .. } if is_refused(&header, self.only_user) => {
                Channel::new(&self.device).send(unique, Errno::ACCESS.raw_os_error(), &[]);
            }
            Arrived::Operation { op, payload, moved, offset } => {
                if let (true, Some(room)) = (header.opcode == opcode::WRITE, room) {
                    let start = payload.as_ptr();
                    let len = room - (start.addr() - bytes.as_ptr().addr());
                    // SAFETY: the buffer of the thread is mapped until its loop ends.
                    unsafe { announce_receive_buffer(start.cast_mut(), len) };
                }
                let unanswered = self.log.record(header.pid, moved);
                let scope =
                    self.kept.as_ref().map(|kept| RequestScope::begin(kept, header.unique, is_repeated));
                let _serving = scope.as_ref().map(RequestScope::enter);
                let traced = self.trace(&header, moved, offset);
                let _handled = traced.as_ref().map(|traced| traced.handle());
                let channel = Channel::of_operation(&self.device, unanswered, scope);
                let slot = Slot::of_device(channel, unique).traced_as(traced);
                decode::dispatch(&*self.filesystem, &decode::Incoming { header, op, payload }, slot);
            }
        }
    }

    /// Reports a request to the trace, if it is on.
    fn trace(&self, header: &InHeader, moved: usize, offset: Option<u64>) -> Traced {
        if !self.trace.is_on() {
            return None;
        }
        let name = RequestKind::of_opcode(header.opcode).name();
        let place = offset.map(|offset| (header.nodeid, offset));
        let details = Details { caller: header.pid, bytes: moved as u64, place };
        self.trace.arrive(header.unique, name, details)
    }
}
