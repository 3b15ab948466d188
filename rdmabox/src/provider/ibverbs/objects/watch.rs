//! The thread that watches a device: its asynchronous events, and the rendezvous streams of its
//! queue pairs.
//!
//! The end of a stream fails its queue pair. A device's event names an object by address. The
//! object is looked up before the event is acknowledged, because it cannot be destroyed until
//! then. It is processed afterwards, because its destruction waits for the acknowledgement.
//!
//! # Concurrency
//! Any thread may read events. `members` is held for lookups only, never while a queue pair
//! fails.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use parking_lot::{Mutex, RwLock};
use rustix::{
    buffer::spare_capacity,
    event::{EventfdFlags, epoll, eventfd},
};

use super::events::{Meaning, meaning};
use crate::{
    failure,
    provider::ibverbs::{
        discovery::{PortInfo, PortState},
        raw::{Library, Opened},
    },
    verbs::VerbsError,
};

/// Event data of the descriptors without a queue pair. Queue pair numbers have 32 bits.
const WAKE: u64 = u64::MAX;
const EVENTS: u64 = u64::MAX - 1;

/// A queue pair that the device may fail.
pub(crate) trait WatchedQp: std::fmt::Debug + Send + Sync {
    /// Moves the queue pair to Err. `why` is for the log.
    fn fail(&self, why: &str);
}

/// A completion queue that the device may overrun.
pub(crate) trait WatchedCq: std::fmt::Debug + Send + Sync {
    /// Records that the device has lost completions.
    fn set_overrun(&self);
}

#[derive(Debug, Default)]
struct Members {
    qps: HashMap<u32, Weak<dyn WatchedQp>>,
    qps_by_addr: HashMap<usize, Weak<dyn WatchedQp>>,
    cqs: HashMap<usize, Weak<dyn WatchedCq>>,
}

/// An open device and the objects on it.
#[derive(Debug)]
pub(crate) struct Watch {
    opened: Arc<Opened>,
    library: Library,
    device: String,
    port: RwLock<PortInfo>,
    epoll: OwnedFd,
    wake: OwnedFd,
    members: Mutex<Members>,
    stop: AtomicBool,
}

/// The watching thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn new(
        opened: Arc<Opened>,
        library: Library,
        device: String,
        port: PortInfo,
    ) -> Result<Arc<Watch>, VerbsError> {
        crate::provider::ibverbs::raw::set_nonblocking(std::os::fd::AsRawFd::as_raw_fd(&opened.async_fd()))
            .map_err(|e| VerbsError::os("fcntl(O_NONBLOCK)", e))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| VerbsError::os("epoll_create1", e.into()))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| VerbsError::os("eventfd", e.into()))?;
        let watch = Watch {
            opened,
            library,
            device,
            port: RwLock::new(port),
            epoll,
            wake,
            members: Mutex::default(),
            stop: AtomicBool::new(false),
        };
        watch.add(watch.wake.as_fd(), WAKE, epoll::EventFlags::IN)?;
        watch.add(watch.opened.async_fd(), EVENTS, epoll::EventFlags::IN)?;
        Ok(Arc::new(watch))
    }

    fn add(&self, fd: BorrowedFd<'_>, data: u64, flags: epoll::EventFlags) -> Result<(), VerbsError> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(data), flags)
            .map_err(|e| VerbsError::os("epoll_ctl", e.into()))
    }

    /// Returns the last known state of the port that connections use.
    pub(crate) fn port(&self) -> PortInfo {
        self.port.read().clone()
    }

    pub(crate) fn add_cq(&self, addr: usize, cq: Weak<dyn WatchedCq>) {
        self.members.lock().cqs.insert(addr, cq);
    }

    pub(crate) fn remove_cq(&self, addr: usize) {
        self.members.lock().cqs.remove(&addr);
    }

    pub(crate) fn add_qp(&self, num: u32, addr: usize, qp: Weak<dyn WatchedQp>) {
        let mut members = self.members.lock();
        members.qps.insert(num, Weak::clone(&qp));
        members.qps_by_addr.insert(addr, qp);
    }

    pub(crate) fn remove_qp(&self, num: u32, addr: usize) {
        let mut members = self.members.lock();
        members.qps.remove(&num);
        members.qps_by_addr.remove(&addr);
    }

    /// Fails queue pair `num` when its stream ends.
    pub(crate) fn add_stream(&self, num: u32, stream: BorrowedFd<'_>) -> Result<(), VerbsError> {
        use epoll::EventFlags;
        // Data on the stream also counts as its end.
        self.add(stream, u64::from(num), EventFlags::IN | EventFlags::RDHUP)
    }

    /// Stops watching a stream, which may not have been watched.
    pub(crate) fn remove_stream(&self, stream: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, stream);
    }

    /// Processes all pending events of the device.
    pub(crate) fn read_events(&self) {
        enum Object {
            Cq(Option<Arc<dyn WatchedCq>>),
            Qp(Option<Arc<dyn WatchedQp>>),
            None,
        }
        while let Some((name, meaning, object)) = self.opened.next_event(|kind, subject| {
            let (name, meaning) = meaning(kind, subject);
            let members = self.members.lock();
            let object = match meaning {
                Meaning::CqOverrun { cq } => Object::Cq(members.cqs.get(&cq).and_then(Weak::upgrade)),
                Meaning::QpFailed { qp } => Object::Qp(members.qps_by_addr.get(&qp).and_then(Weak::upgrade)),
                _ => Object::None,
            };
            (name, meaning, object)
        }) {
            match (meaning, object) {
                (Meaning::CqOverrun { .. }, Object::Cq(Some(cq))) => {
                    log::error!(
                        "{}: {name}: a completion queue was too small, completions are lost",
                        self.device
                    );
                    cq.set_overrun();
                }
                (Meaning::QpFailed { .. }, Object::Qp(Some(qp))) => qp.fail(name),
                (Meaning::PortChanged { port, active }, _) => self.port_changed(name, port, active),
                (Meaning::DeviceFailed, _) => {
                    log::error!("{}: {name}: the device has failed", self.device);
                    self.fail_all(name);
                }
                _ => log::debug!("{}: {name}", self.device),
            }
        }
    }

    fn port_changed(&self, name: &str, number: u8, active: Option<bool>) {
        let device = &self.device;
        if self.port.read().number != number {
            log::debug!("{device} port {number}: {name}");
            return;
        }
        match active {
            Some(false) => {
                log::warn!("{device} port {number}: {name}: no data moves until it is active again")
            }
            Some(true) => log::info!("{device} port {number}: {name}"),
            None => log::debug!("{device} port {number}: {name}"),
        }
        match self.library.ask_port(self.opened.context(), device, number) {
            Ok(mut now) => {
                if let Some(active) = active {
                    now.state = if active { PortState::Active } else { PortState::Down };
                }
                *self.port.write() = now;
            }
            Err(e) => log::warn!("{e}"),
        }
    }

    fn fail_all(&self, why: &str) {
        let qps: Vec<Arc<dyn WatchedQp>> =
            self.members.lock().qps.values().filter_map(Weak::upgrade).collect();
        qps.iter().for_each(|qp| qp.fail(why));
    }

    fn run(&self) -> io::Result<()> {
        let mut ready = Vec::with_capacity(32);
        while !self.stop.load(Ordering::Acquire) {
            ready.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut ready), None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            for event in ready.drain(..) {
                let epoll::Event { data, .. } = event;
                match data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                    EVENTS => self.read_events(),
                    number => {
                        let number = number as u32;
                        let qp = self.members.lock().qps.get(&number).and_then(Weak::upgrade);
                        if let Some(qp) = qp {
                            qp.fail("the peer has gone");
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Watcher {
    pub(crate) fn start(watch: Arc<Watch>) -> Result<Watcher, VerbsError> {
        let thread = std::thread::Builder::new()
            .name("rdmabox-watch".into())
            .spawn({
                let watch = Arc::clone(&watch);
                move || {
                    if let Err(e) = watch.run() {
                        watch.fail_all("the thread that watches the device stopped");
                        let device = &watch.device;
                        failure::report(&format!("{device}: the thread that watches it stopped: {e}"));
                    }
                }
            })
            .map_err(|e| VerbsError::os("cannot start the thread that watches a device", e))?;
        Ok(Watcher { watch, thread: Some(thread) })
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.watch.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.watch.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread may hold the last reference to a queue pair, and through it to the device.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
