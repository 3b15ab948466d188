//! Owned objects of the C library on an open device.
//!
//! Each object keeps its parents alive, so the ownership graph fixes the order of destruction.
//! The drop releases the object.
//!
//! # Concurrency
//! Any thread may use an object. The caller serializes posts to a queue pair.

use std::{
    ffi::c_int,
    io,
    os::fd::{BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys::{
    ibv_async_event, ibv_comp_channel, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
};

use super::{
    api::Context,
    calls::{Calls, RawWc},
};

/// An open device and the functions that create objects on it.
#[derive(Debug)]
pub(crate) struct Opened {
    calls: Calls,
    context: Context,
}

/// Object of an asynchronous event, identified by its address or port number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Cq(usize),
    Qp(usize),
    Port(u8),
    Device,
}

impl Opened {
    pub(crate) fn new(calls: Calls, context: Context) -> Arc<Opened> {
        Arc::new(Opened { calls, context })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the descriptor that is readable while asynchronous events are pending.
    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context and its descriptor stay open while `self` is borrowed. The field is
        // read without a reference to the whole structure.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }

    /// Takes an asynchronous event and calls `look` with its subject before the event is
    /// acknowledged. Until then the object is not destroyed. Returns `None` if no event is pending;
    /// the descriptor must be non-blocking.
    pub(crate) fn next_event<R>(&self, look: impl FnOnce(u32, Subject) -> R) -> Option<R> {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open; `event` is valid for writes.
        if unsafe { (self.calls.get_async_event)(self.context.as_ptr(), &raw mut event) } != 0 {
            return None;
        }
        let kind = event.event_type;
        // SAFETY: the event type determines the active member of the union
        // (ibv_get_async_event(3)). The objects are identified by their addresses and not accessed.
        let subject = unsafe {
            use ibverbs_sys as c;
            match kind {
                c::IBV_EVENT_CQ_ERR => Subject::Cq(event.element.cq.addr()),
                c::IBV_EVENT_QP_FATAL
                | c::IBV_EVENT_QP_REQ_ERR
                | c::IBV_EVENT_QP_ACCESS_ERR
                | c::IBV_EVENT_COMM_EST
                | c::IBV_EVENT_SQ_DRAINED
                | c::IBV_EVENT_PATH_MIG
                | c::IBV_EVENT_PATH_MIG_ERR
                | c::IBV_EVENT_QP_LAST_WQE_REACHED => Subject::Qp(event.element.qp.addr()),
                c::IBV_EVENT_PORT_ACTIVE
                | c::IBV_EVENT_PORT_ERR
                | c::IBV_EVENT_LID_CHANGE
                | c::IBV_EVENT_PKEY_CHANGE
                | c::IBV_EVENT_SM_CHANGE
                | c::IBV_EVENT_CLIENT_REREGISTER
                | c::IBV_EVENT_GID_CHANGE => Subject::Port(u8::try_from(event.element.port_num).unwrap_or(0)),
                _ => Subject::Device,
            }
        };
        let seen = look(kind, subject);
        // SAFETY: the event came from get_async_event and is acknowledged once.
        unsafe { (self.calls.ack_async_event)(&raw mut event) };
        Some(seen)
    }
}

macro_rules! owned_pointer {
    ($name:ident) => {
        // SAFETY: any thread may call verbs concurrently; the pointer is owned and stays valid.
        unsafe impl Send for $name {}
        // SAFETY: as for `Send`.
        unsafe impl Sync for $name {}
    };
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct RawPd {
    ptr: NonNull<ibv_pd>,
    opened: Arc<Opened>,
}

owned_pointer!(RawPd);

impl RawPd {
    pub(crate) fn new(opened: &Arc<Opened>) -> io::Result<RawPd> {
        // SAFETY: the context is open.
        let pd = unsafe { (opened.calls.alloc_pd)(opened.context.as_ptr()) };
        Ok(RawPd { ptr: some(pd)?, opened: Arc::clone(opened) })
    }

    /// Registers `length` bytes at `addr`.
    ///
    /// # Safety
    /// The range stays mapped until the handle is dropped. The caller guarantees that requests on
    /// the range do no harm.
    pub(crate) unsafe fn register(
        self: &Arc<RawPd>,
        addr: u64,
        length: usize,
        access: u32,
    ) -> io::Result<RawMr> {
        let addr = ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: the domain is alive. The kernel refuses an unmapped range, and the caller keeps
        // the range mapped.
        let mr = unsafe { (self.opened.calls.reg_mr)(self.ptr.as_ptr(), addr, length, access as c_int) };
        Ok(RawMr { ptr: some(mr)?, pd: Arc::clone(self), released: false })
    }
}

impl Drop for RawPd {
    fn drop(&mut self) {
        // SAFETY: created by alloc_pd and released once; objects in the domain keep it alive.
        report("ibv_dealloc_pd", unsafe { (self.opened.calls.dealloc_pd)(self.ptr.as_ptr()) });
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct RawMr {
    ptr: NonNull<ibv_mr>,
    pd: Arc<RawPd>,
    released: bool,
}

owned_pointer!(RawMr);

impl RawMr {
    /// Returns the local and the remote key.
    pub(crate) fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is alive, and the library does not change the two fields.
        unsafe { ((*self.ptr.as_ptr()).lkey, (*self.ptr.as_ptr()).rkey) }
    }

    /// Deregisters the region, once. Returns false if the device keeps the memory.
    pub(crate) fn deregister(&mut self) -> bool {
        if std::mem::replace(&mut self.released, true) {
            return true;
        }
        // SAFETY: created by reg_mr and released once.
        let status = unsafe { (self.pd.opened.calls.dereg_mr)(self.ptr.as_ptr()) };
        report("ibv_dereg_mr", status);
        status == 0
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// A completion channel.
#[derive(Debug)]
struct RawChannel {
    ptr: NonNull<ibv_comp_channel>,
    opened: Arc<Opened>,
}

owned_pointer!(RawChannel);

impl RawChannel {
    fn new(opened: &Arc<Opened>) -> io::Result<RawChannel> {
        // SAFETY: the context is open.
        let channel = unsafe { (opened.calls.create_comp_channel)(opened.context.as_ptr()) };
        Ok(RawChannel { ptr: some(channel)?, opened: Arc::clone(opened) })
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the channel is alive, and its descriptor never changes.
        unsafe { (*self.ptr.as_ptr()).fd }
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: created by create_comp_channel and released once, after the completion queue that
        // uses it.
        report("ibv_destroy_comp_channel", unsafe {
            (self.opened.calls.destroy_comp_channel)(self.ptr.as_ptr())
        });
    }
}

/// A completion queue with its own channel.
#[derive(Debug)]
pub(crate) struct RawCq {
    ptr: NonNull<ibv_cq>,
    channel: RawChannel,
}

owned_pointer!(RawCq);

impl RawCq {
    /// Creates a queue for at least `depth` completions.
    pub(crate) fn new(opened: &Arc<Opened>, depth: c_int) -> io::Result<RawCq> {
        let channel = RawChannel::new(opened)?;
        crate::provider::ibverbs::raw::set_nonblocking(channel.fd())?;
        // SAFETY: the context and the channel are alive; the queue context is null; vector 0 exists
        // on every device.
        let cq = unsafe {
            (opened.calls.create_cq)(opened.context.as_ptr(), depth, ptr::null_mut(), channel.ptr.as_ptr(), 0)
        };
        Ok(RawCq { ptr: some(cq)?, channel })
    }

    /// Returns the address that identifies the queue in asynchronous events.
    pub(crate) fn addr(&self) -> usize {
        self.ptr.as_ptr().addr()
    }

    /// Returns the number of completions that the queue can hold.
    pub(crate) fn depth(&self) -> usize {
        // SAFETY: the queue is alive, and its size never changes.
        usize::try_from(unsafe { (*self.ptr.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Returns the channel's descriptor, which is readable while an event is pending.
    pub(crate) fn channel_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }

    /// Takes up to `out.len()` completions.
    pub(crate) fn poll(&self, out: &mut [RawWc]) -> io::Result<usize> {
        let count = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        let cq = self.ptr.as_ptr();
        // SAFETY: the queue and its context are alive. The driver writes at most `count` structures
        // of the layout that `calls` has checked.
        let found = unsafe {
            match (*(*cq).context).ops.poll_cq {
                Some(poll_cq) => poll_cq(cq, count, out.as_mut_ptr().cast()),
                None => -libc::ENOSYS,
            }
        };
        usize::try_from(found)
            .map_err(|_| io::Error::from_raw_os_error(if found == -1 { libc::EIO } else { -found }))
    }

    /// Requests one event, for the next completion of any kind.
    pub(crate) fn request_event(&self) -> io::Result<()> {
        let cq = self.ptr.as_ptr();
        // SAFETY: the queue and its context are alive.
        let status = unsafe {
            match (*(*cq).context).ops.req_notify_cq {
                Some(req_notify_cq) => req_notify_cq(cq, 0),
                None => libc::ENOSYS,
            }
        };
        check(status)
    }

    /// Takes and acknowledges an event of the channel. Returns false if none was pending.
    pub(crate) fn take_event(&self) -> bool {
        let calls = &self.channel.opened.calls;
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive, its descriptor is non-blocking, and both pointers are valid
        // for writes.
        if unsafe { (calls.get_cq_event)(self.channel.ptr.as_ptr(), &raw mut cq, &raw mut context) } != 0 {
            return false;
        }
        // SAFETY: the channel has only this queue, and one of its events was just taken.
        unsafe { (calls.ack_cq_events)(self.ptr.as_ptr(), 1) };
        true
    }
}

impl Drop for RawCq {
    fn drop(&mut self) {
        // SAFETY: created by create_cq and released once; queue pairs keep it alive, and its events
        // were acknowledged.
        report("ibv_destroy_cq", unsafe { (self.channel.opened.calls.destroy_cq)(self.ptr.as_ptr()) });
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct RawQp {
    ptr: NonNull<ibv_qp>,
    pd: Arc<RawPd>,
    _send_cq: Arc<RawCq>,
    _recv_cq: Arc<RawCq>,
}

owned_pointer!(RawQp);

/// Failure in the middle of a posted list.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Address of the first request that was not posted; 0 if the driver does not report it.
    pub(crate) at: usize,
    pub(crate) error: io::Error,
}

impl RawQp {
    /// Creates a queue pair of the type and sizes in `init`, in state Reset.
    pub(crate) fn new(
        pd: &Arc<RawPd>,
        send_cq: &Arc<RawCq>,
        recv_cq: &Arc<RawCq>,
        mut init: ibv_qp_init_attr,
    ) -> io::Result<RawQp> {
        (init.send_cq, init.recv_cq) = (send_cq.ptr.as_ptr(), recv_cq.ptr.as_ptr());
        (init.qp_context, init.srq) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the domain and the queues are alive, and the returned object keeps them alive.
        let qp = unsafe { (pd.opened.calls.create_qp)(pd.ptr.as_ptr(), &raw mut init) };
        Ok(RawQp {
            ptr: some(qp)?,
            pd: Arc::clone(pd),
            _send_cq: Arc::clone(send_cq),
            _recv_cq: Arc::clone(recv_cq),
        })
    }

    /// Returns the address that identifies the queue pair in asynchronous events.
    pub(crate) fn addr(&self) -> usize {
        self.ptr.as_ptr().addr()
    }

    /// Returns the device's number, which the device may reuse later.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number never changes.
        unsafe { (*self.ptr.as_ptr()).qp_num }
    }

    /// Changes the attributes in `mask`.
    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair is alive and `attr` is valid; the device refuses invalid values.
        check(unsafe { (self.pd.opened.calls.modify_qp)(self.ptr.as_ptr(), &raw mut attr, mask.0 as c_int) })
    }

    /// Posts a linked list of send work requests with one doorbell.
    ///
    /// # Safety
    /// `first` and the linked requests are valid for the call, including their elements and inline
    /// data. The caller serializes posts. The device checks the memory that keys name.
    pub(crate) unsafe fn post_send(&self, first: *mut ibv_send_wr) -> Result<(), Refused> {
        let mut bad = ptr::null_mut();
        let qp = self.ptr.as_ptr();
        // SAFETY: the queue pair and its context are alive; the list is valid.
        let status = unsafe {
            match (*(*qp).context).ops.post_send {
                Some(post_send) => post_send(qp, first, &raw mut bad),
                None => libc::ENOSYS,
            }
        };
        check(status).map_err(|error| Refused { at: bad.addr(), error })
    }

    /// Posts a linked list of receives.
    ///
    /// # Safety
    /// As for [`post_send`](Self::post_send).
    pub(crate) unsafe fn post_recv(&self, first: *mut ibv_recv_wr) -> Result<(), Refused> {
        let mut bad = ptr::null_mut();
        let qp = self.ptr.as_ptr();
        // SAFETY: the queue pair and its context are alive; the list is valid.
        let status = unsafe {
            match (*(*qp).context).ops.post_recv {
                Some(post_recv) => post_recv(qp, first, &raw mut bad),
                None => libc::ENOSYS,
            }
        };
        check(status).map_err(|error| Refused { at: bad.addr(), error })
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        // SAFETY: created by create_qp and released once. The call waits until the queue pair's
        // events are acknowledged. A thread that takes an event acknowledges it without waiting.
        report("ibv_destroy_qp", unsafe { (self.pd.opened.calls.destroy_qp)(self.ptr.as_ptr()) });
    }
}

/// Returns a pointer from the library, or the error in `errno` if it is null.
fn some<T>(made: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(made).ok_or_else(io::Error::last_os_error)
}

/// Converts a result of the library: 0, an error number, or -1 with the number in `errno`. Some
/// drivers return the negative number.
fn check(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(status)),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::Error::from_raw_os_error(-status)),
    }
}

/// Logs an object that cannot be released and therefore leaks.
fn report(what: &str, status: c_int) {
    if let Err(e) = check(status) {
        log::error!("{what}: {e}");
    }
}
