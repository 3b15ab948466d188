//! The front of the pager.
//!
//! # Concurrency
//! Any number of threads may use a [`RemotePager`]; its state is the fault thread's.

mod memory;
pub(crate) mod status;

use std::sync::Arc;

pub use memory::PagedMemory;
use rdmabox::{Address, Session};

use self::status::{PagerReport, StatusSocket};

use crate::{
    engine::{
        self, Events, Handle, Parts,
        stats::{Counters, PagerStats},
    },
    error::PagingError,
    kernel::{signals::with_signals_blocked, uffd::Uffd},
    logic::layout::Layout,
    options::PagerOptions,
    remote::Servers,
};

/// Memory of servers for the pages that do not fit into a local budget.
///
/// One pager has one budget, one fault thread, and one session with each server. All of its
/// [mappings](Self::map) share them. The fault thread and the sessions live until the pager and
/// its mappings are dropped. `rfs-paging status` lists the pager until it is dropped.
#[derive(Debug)]
pub struct RemotePager {
    handle: Arc<Handle>,
    sources: Arc<Sources>,
    options: PagerOptions,
    published: Option<StatusSocket>,
}

/// Where the counters are.
#[derive(Debug)]
struct Sources {
    counters: Arc<Counters>,
    sessions: Vec<Arc<Session>>,
}

impl Sources {
    fn stats(&self) -> PagerStats {
        let mut stats = self.counters.snapshot();
        self.sessions.iter().for_each(|session| stats.add_session(&session.stats()));
        stats
    }
}

impl RemotePager {
    /// Connects to the servers, and starts the fault thread.
    ///
    /// # Errors
    /// Every [`PagingError`] but [`PagingError::Length`] and [`PagingError::Stopped`].
    pub fn connect(addresses: &[Address], options: PagerOptions) -> Result<RemotePager, PagingError> {
        options.check(addresses.len())?;
        let uffd = Uffd::open().map_err(PagingError::Userfaultfd)?;
        let thread = |source| PagingError::Os { what: "starting a thread", source };
        let events = Events::start(options.on_event.clone()).map_err(thread)?;
        // No thread below runs a handler of the program, which might touch paged memory.
        with_signals_blocked(|| {
            let layout = Layout::new(options.redundancy);
            let servers = Servers::connect(addresses, &options.session, layout)?;
            let (sessions, counters) = (servers.sessions(), Arc::<Counters>::default());
            let handle = engine::start(Parts {
                uffd,
                servers,
                events,
                counters: Arc::clone(&counters),
                layout,
                budget: options.budget_pages(),
                read_ahead: options.read_ahead_pages(),
                follow: options.follow,
            })
            .map_err(thread)?;
            let sources = Arc::new(Sources { counters, sessions });
            let report = PagerReport {
                pid: std::process::id(),
                program: status::program(),
                servers: addresses.iter().map(ToString::to_string).collect(),
                local_budget: options.local_budget,
                ..PagerReport::default()
            };
            let answering = Arc::clone(&sources);
            let published = StatusSocket::start(report, move || answering.stats());
            Ok(RemotePager { handle, sources, options, published })
        })
    }

    /// Stops answering `rfs-paging status`, as a drop does. For a program that ends without
    /// dropping the pager.
    pub fn end_status(&mut self) {
        self.published = None;
    }

    /// Maps zeroed memory. `len` is rounded up to pages. It may exceed the budget, and even the
    /// memory of the servers, if the bytes that are not zero fit.
    ///
    /// # Errors
    /// [`PagingError::Length`], [`PagingError::Os`] and [`PagingError::Stopped`].
    pub fn map(&self, len: usize) -> Result<PagedMemory, PagingError> {
        PagedMemory::new(&self.handle, len)
    }

    /// Returns the options of the pager.
    pub fn options(&self) -> &PagerOptions {
        &self.options
    }

    /// Reads all counters. They are not one instant.
    pub fn stats(&self) -> PagerStats {
        self.sources.stats()
    }

    /// Says for each server how its session reaches it, as [`Session::description`].
    pub fn descriptions(&self) -> Vec<String> {
        self.sources.sessions.iter().map(|session| session.description()).collect()
    }
}
