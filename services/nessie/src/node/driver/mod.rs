//! Executes machines on sessions.
//!
//! [`Driver::drive`] runs one operation on the caller's thread. It gives up when the operation has
//! taken its limit, when a node does not answer, or when this node may not serve any more. The
//! answers say whether the last verb may have been executed, so that a repair can follow.
//!
//! # Concurrency
//! Any number of threads drive operations at the same time. No lock is held during I/O.

mod cache;
mod repair;
mod sweep;
mod verbs;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    cluster::{membership::Membership, peer::Peer},
    memory::table::OwnTable,
    options::NodeOptions,
    stats::Counters,
};
use crate::{
    error::NessieError,
    logic::{
        context::{Context, Rules},
        placement::Hashed,
        verb::{Answer, Step, Verb},
        word::Fields,
    },
};

use cache::Cache;
use repair::Pending;

/// Pauses that a PUT grants an unfinished PUT of its key.
const PAUSES_FOR_UNFINISHED_PUT: u16 = 20;

/// The parts of this node that an operation has while it runs.
pub(super) struct Run {
    pub(super) begun: Instant,
    /// Entries of this node's data table that the operation stored.
    pub(super) held: SmallVec<[u32; 4]>,
    pauses: u32,
}

/// An operation that was given up.
pub(super) struct Aborted {
    pub(super) error: NessieError,
    /// The last verb may have been executed.
    pub(super) is_issued: bool,
}

/// The parts of a node that operations use.
pub(super) struct Driver {
    pub(super) placement: Hashed,
    pub(super) peers: Arc<[Peer]>,
    pub(super) table: Arc<OwnTable>,
    pub(super) membership: Arc<Membership>,
    pub(super) counters: Arc<Counters>,
    pub(super) node: u16,
    /// Number of the nodes that have a part of the index. They come first.
    listed: usize,
    cache: Cache,
    stride: usize,
    limit: Duration,
    max_depth: u8,
    pending: Mutex<Vec<Pending>>,
}

impl Driver {
    pub(super) fn new(
        options: &NodeOptions,
        peers: Arc<[Peer]>,
        table: Arc<OwnTable>,
        membership: Arc<Membership>,
        counters: Arc<Counters>,
    ) -> Driver {
        let nodes: Vec<u16> = (0..options.members.count() as u16).collect();
        let fields = Fields::new(options.tables() as u32, options.filter_bits);
        Driver {
            placement: Hashed::new(&nodes, options.slots(), options.ways, fields),
            peers,
            table,
            membership,
            counters,
            node: options.id,
            listed: options.members.count(),
            cache: Cache::new(options.cache_entries),
            stride: options.stride(),
            limit: options.limit(),
            max_depth: options.max_depth,
            pending: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn context(&self) -> Context<'_> {
        let (max_depth, patience, rules) = (self.max_depth, PAUSES_FOR_UNFINISHED_PUT, Rules::SAFE);
        Context { placement: &self.placement, max_depth, patience, rules }
    }

    pub(super) fn run(&self) -> Run {
        Run { begun: Instant::now(), held: SmallVec::new(), pauses: 0 }
    }

    /// Runs the steps of a machine until it ends.
    ///
    /// # Errors
    /// [`Aborted`]: the machine has not ended, and names the state that it leaves.
    pub(super) fn drive<T>(
        &self,
        run: &mut Run,
        mut step: impl FnMut(&Context<'_>, Answer) -> Step<T>,
    ) -> Result<T, Aborted> {
        let cx = self.context();
        let given_up = |error: NessieError, is_issued: bool| {
            Counters::add(&self.counters.aborts);
            Aborted { error, is_issued }
        };
        self.membership.check().map_err(|error| given_up(error, false))?;
        let mut answer = Answer::None;
        loop {
            let verb = match step(&cx, answer) {
                Step::Issue(verb) => verb,
                Step::Done(outcome) => {
                    // A result counts only if no entry can have been used again, and if no other
                    // node can have given this one up.
                    self.check(run).map_err(|error| given_up(error, true))?;
                    return Ok(outcome);
                }
            };
            // To set a flag of this node's entry is always right, and leaves less to repair.
            if matches!(verb, Verb::Swap { .. } | Verb::Pause) {
                self.check(run).map_err(|error| given_up(error, false))?;
            }
            answer = self.execute(run, verb).map_err(|error| given_up(error, true))?;
        }
    }

    fn check(&self, run: &Run) -> Result<(), NessieError> {
        if run.begun.elapsed() > self.limit {
            return Err(NessieError::TooLate(self.limit));
        }
        self.membership.check()
    }
}
