//! The fault thread: it resolves faults, moves pages, and owns all state of a pager.
//!
//! The thread waits for faults, for the ends of write-outs, and for commands. It changes page
//! states only between two of these, so no state has a lock. It must not touch paged memory that
//! may be absent: it would wait for itself. It reads resident pages that are protected.
//!
//! # Concurrency
//! One thread per pager. It never waits for a thread of the program. Callbacks of write-outs and
//! callers of commands reach it through channels and one eventfd.

mod command;
mod events;
mod eviction;
mod faults;
mod loads;
mod loss;
mod placement;
mod repair;
mod slots;
pub(crate) mod stats;
#[cfg(test)]
mod tests;
mod write_out;

use std::{
    collections::BTreeMap,
    io, panic,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

pub(crate) use command::{Command, Handle, Wake};
pub(crate) use events::Events;
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use slab::Slab;

use self::{
    placement::Placement,
    repair::Repair,
    stats::Counters,
    write_out::{Completion, WriteOut},
};
use crate::{
    kernel::uffd::Uffd,
    lender::protocol::LentChunk,
    logic::{
        PAGE,
        budget::Budget,
        clock::{Clock, PageId},
        layout::Layout,
        region::Region,
    },
    remote::Servers,
};

/// The parts of a pager that its maker provides.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) uffd: Uffd,
    pub(crate) servers: Servers,
    pub(crate) events: Events,
    pub(crate) counters: Arc<Counters>,
    pub(crate) layout: Layout,
    /// Pages.
    pub(crate) budget: usize,
    /// Pages of the longest block.
    pub(crate) read_ahead: usize,
    /// The thread may share the core of a thread that faults.
    pub(crate) follow: bool,
}

/// The state of the fault thread.
#[derive(Debug)]
struct Engine {
    uffd: Uffd,
    servers: Servers,
    events: Events,
    counters: Arc<Counters>,
    layout: Layout,
    budget: Budget,
    read_ahead: usize,
    /// By the address of the first page.
    regions: BTreeMap<usize, Region<LentChunk>>,
    clock: Clock,
    /// Write-outs under way, one for each stripe.
    writes: Slab<WriteOut>,
    /// Pages of these write-outs.
    writing: usize,
    completions: (mpsc::Sender<Completion>, mpsc::Receiver<Completion>),
    wake: Arc<Wake>,
    /// Copies to make after a loss.
    repair: Option<Repair>,
    /// Time of the last check of all connections.
    checked: Instant,
    /// A lack of room has been reported, and has not ended since.
    no_room: bool,
    /// `None` if the thread stays where the kernel puts it.
    placement: Option<Placement>,
}

/// Starts the fault thread. It ends with the last [`Handle`].
pub(crate) fn start(parts: Parts) -> io::Result<Arc<Handle>> {
    let wake = Arc::new(Wake::new()?);
    let (send, receive) = mpsc::channel();
    let follow = parts.follow;
    let mut engine = Engine::new(parts, Arc::clone(&wake));
    thread::Builder::new().name("rfs-paging".into()).spawn(move || {
        engine.placement = follow.then(|| Placement::new(&engine.uffd, &engine.events)).flatten();
        let run = panic::AssertUnwindSafe(|| engine.run(&receive));
        let ended = panic::catch_unwind(run);
        if !matches!(ended, Ok(Ok(()))) {
            // Without this thread absent pages would read as zero, or threads would wait forever.
            eprintln!("rfs-paging: the fault thread failed, and with it the program's memory: {ended:?}");
            std::process::abort();
        }
    })?;
    Ok(Arc::new(Handle::new(send, wake)))
}

impl Engine {
    fn new(parts: Parts, wake: Arc<Wake>) -> Engine {
        Engine {
            uffd: parts.uffd,
            servers: parts.servers,
            events: parts.events,
            counters: parts.counters,
            layout: parts.layout,
            budget: Budget::new(parts.budget),
            read_ahead: parts.read_ahead,
            regions: BTreeMap::new(),
            clock: Clock::default(),
            writes: Slab::new(),
            writing: 0,
            completions: mpsc::channel(),
            wake,
            repair: None,
            checked: Instant::now(),
            no_room: false,
            placement: None,
        }
    }

    fn run(&mut self, commands: &mpsc::Receiver<Command>) -> io::Result<()> {
        loop {
            let mut fds = [PollFd::new(&self.uffd, PollFlags::IN), PollFd::new(&*self.wake, PollFlags::IN)];
            match poll(&mut fds, self.timeout().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let faults = fds[0].revents().contains(PollFlags::IN);
            if fds[1].revents().contains(PollFlags::IN) {
                self.wake.clear();
                self.reap();
                while let Ok(command) = commands.try_recv() {
                    if !self.obey(command) {
                        return Ok(());
                    }
                }
            }
            if faults {
                self.serve_faults()?;
            }
            self.check_connections();
            self.continue_repair(!faults);
            self.settle();
        }
    }

    /// Returns how long the thread may sleep; `None` without an end.
    fn timeout(&self) -> Option<Timespec> {
        let timeout = [self.repair_timeout(), self.check_timeout()].into_iter().flatten().min()?;
        // Neither has more seconds than a `Timespec` has.
        Timespec::try_from(timeout).ok()
    }

    /// Carries out a command. Returns false if the thread shall end.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Map { start, len, reply } => {
                let registered = self.uffd.register(start, len);
                if registered.is_ok() {
                    let region = Region::new(start, len / PAGE, self.read_ahead, self.layout);
                    self.regions.insert(start, region);
                }
                let _ = reply.send(registered);
            }
            Command::Discard { region, pages, reply } => {
                let _ = reply.send(self.discard(region, pages));
            }
            Command::Unmap { region, reply } => {
                let _ = reply.send(self.unmap(region));
            }
            Command::Stop => return false,
        }
        true
    }

    /// Gives chunks back that no page needs, and brings the counters up to date.
    fn settle(&mut self) {
        for region in self.regions.values_mut() {
            let unused = region.take_unused();
            if !unused.is_empty() {
                self.servers.free(unused);
            }
            if self.writes.is_empty() {
                let void = region.take_void();
                self.servers.free(void);
            }
        }
        self.counters.set_resident(self.resident());
        self.counters.chunks.store(self.servers.chunks() as u64, std::sync::atomic::Ordering::Relaxed);
    }

    fn resident(&self) -> usize {
        self.regions.values().map(Region::resident).sum()
    }

    /// Returns the page at an address; `None` if no region has it.
    fn page_at(&self, address: usize) -> Option<PageId> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        let page = region.page_at(address);
        (page < region.pages()).then_some(PageId { region: *start, page })
    }

    fn region(&mut self, at: PageId) -> Option<&mut Region<LentChunk>> {
        self.regions.get_mut(&at.region)
    }
}
