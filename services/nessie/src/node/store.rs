//! The operations of a node, with their checks and counters.
//!
//! # Concurrency
//! Any number of threads may call it.

use std::{
    fmt::Write,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rdmabox::{MAX_CALL, PendingReply};

use super::{
    cluster::{membership::Membership, roster::JoinRequest},
    driver::{Aborted, Driver},
    options::NodeOptions,
    service::{Command, Execute},
    stats::Counters,
};
use crate::{
    error::NessieError,
    logic::{
        allocator::Shortage,
        context::Context,
        entry::Entry,
        operations::{
            delete::Delete,
            get::{Get, Got},
            put::{Leftover, PutMachine},
        },
        verb::{Answer, Failure, Step},
    },
};

/// Attempts of an operation that waits for entries that may be used again soon.
const ATTEMPTS: usize = 4;

/// A value of a GET, which dereferences to its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(Entry);

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.value()
    }
}

impl From<Failure> for NessieError {
    fn from(failure: Failure) -> NessieError {
        match failure {
            Failure::IndexFull => NessieError::IndexFull,
            Failure::NoSlot => NessieError::NoSlot,
            Failure::DataFull => NessieError::DataFull,
            Failure::Decode(e) => NessieError::Decode(e),
        }
    }
}

/// The operations of a node for its callers.
pub(super) struct Store {
    pub(super) driver: Driver,
    pub(super) options: NodeOptions,
    pub(super) counters: Arc<Counters>,
    pub(super) membership: Arc<Membership>,
    /// This node stores no new values.
    pub(super) is_leaving: AtomicBool,
}

impl Store {
    fn check_key(&self, key: &[u8]) -> Result<(), NessieError> {
        let (len, max) = (key.len(), self.options.max_key);
        if len > max {
            return Err(NessieError::TooLong { what: "key", len, max, option: "--max-key" });
        }
        Ok(())
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Value>, NessieError> {
        self.check_key(key)?;
        let mut get = Get::new(&self.driver.context(), key);
        let mut run = self.driver.run();
        let got = self.driver.drive(&mut run, |cx, answer| get.step(cx, answer)).map_err(|e| e.error)??;
        Counters::add(&self.counters.gets);
        match got {
            Got::Found(entry) => Ok(Some(Value(entry))),
            Got::NotFound => Ok(None),
            Got::Lost => Err(NessieError::Lost),
        }
    }

    pub(super) fn delete(&self, key: &[u8]) -> Result<(), NessieError> {
        self.check_key(key)?;
        let begin = |cx: &Context<'_>| Delete::new(cx, key);
        self.change(&self.counters.deletes, begin, Delete::step, Delete::leftover)
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), NessieError> {
        self.check_key(key)?;
        let (len, max) = (value.len(), self.options.max_value);
        if len > max {
            return Err(NessieError::TooLong { what: "value", len, max, option: "--max-value" });
        }
        let begin = |cx: &Context<'_>| PutMachine::new(cx, key, value);
        self.change(&self.counters.puts, begin, PutMachine::step, PutMachine::leftover)
    }

    /// Runs an operation that changes the index. Repeats it while no entry is free: a tombstone of
    /// a DELETE needs an entry, too.
    fn change<M, T>(
        &self,
        counter: &AtomicU64,
        begin: impl Fn(&Context<'_>) -> M,
        step: impl Fn(&mut M, &Context<'_>, Answer) -> Step<Result<T, Failure>>,
        leftover: impl Fn(M, &Context<'_>, bool) -> Option<Leftover>,
    ) -> Result<(), NessieError> {
        let attempt = || {
            if self.is_leaving.load(Ordering::SeqCst) {
                return Err(NessieError::Leaving { node: self.options.id });
            }
            let mut machine = begin(&self.driver.context());
            let mut run = self.driver.run();
            match self.driver.drive(&mut run, |cx, answer| step(&mut machine, cx, answer)) {
                Ok(outcome) => {
                    self.driver.table.end_hold(&run.held);
                    outcome?;
                    Counters::add(counter);
                    Ok(())
                }
                Err(Aborted { error, is_issued }) => {
                    self.driver.keep(leftover(machine, &self.driver.context(), is_issued), run, is_issued);
                    Err(error)
                }
            }
        };
        for _ in 1..ATTEMPTS {
            match attempt() {
                Err(NessieError::DataFull) => self.wait_for_entry()?,
                other => return other,
            }
        }
        attempt()
    }

    /// Waits for an entry that may be used again soon, or looks for entries without a reference.
    fn wait_for_entry(&self) -> Result<(), NessieError> {
        match self.driver.table.shortage() {
            None => {}
            Some(Shortage::Until(nanos)) => thread::sleep(Duration::from_nanos(nanos)),
            Some(Shortage::Full) if self.driver.sweep(self.options.slots())? == 0 => {
                return Err(NessieError::DataFull);
            }
            Some(Shortage::Full) => {}
        }
        Ok(())
    }

    pub(super) fn status(&self) -> String {
        let mut text = String::new();
        let (unused, waiting, all) = self.driver.table.counts();
        let state = match self.membership.check() {
            Ok(()) => "serves".to_string(),
            Err(e) => e.to_string(),
        };
        let _ = writeln!(text, "node {}: {state}", self.options.id);
        let _ = writeln!(text, "index: {} slots, {} ways", self.options.slots(), self.options.ways);
        let _ = writeln!(text, "data: {all} entries, {unused} unused, {waiting} waiting");
        let _ = writeln!(text, "repairs waiting: {}", self.driver.pending());
        for peer in &*self.driver.peers {
            let state = match (peer.is_lost(), peer.link()) {
                (true, _) => "lost".into(),
                (false, Some(link)) => format!("connected: {}", link.session.description()),
                (false, None) => format!("not connected: {}", peer.fault()),
            };
            let Some(address) = peer.address() else { continue };
            let _ = writeln!(text, "peer {} {address}: {state}", peer.node);
        }
        for (name, value) in self.counters.snapshot().rows() {
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }

    /// Executes commands of local programs until the service ends.
    pub(super) fn serve(self: &Arc<Self>, commands: impl IntoIterator<Item = (Command, PendingReply)>) {
        let answer = |store: &Store, command: Command, reply: PendingReply| match store.execute(command) {
            Ok(bytes) => reply.answer(&bytes),
            Err(reason) => reply.reject(&reason),
        };
        for (command, reply) in commands {
            if command != Command::Leave {
                answer(self, command, reply);
                continue;
            }
            // It takes long, and other nodes may leave meanwhile.
            let store = Arc::clone(self);
            let leave = move || answer(&store, command, reply);
            if let Err(e) = thread::Builder::new().name("nessie-leave".into()).spawn(leave) {
                log::error!("cannot start a thread: {e}");
            }
        }
    }
}

impl Execute for Store {
    fn execute(&self, command: Command) -> Result<Vec<u8>, String> {
        let outcome = match command {
            Command::Get(key) => self.get(&key).map(|value| match value {
                Some(value) => [b"+", &*value].concat(),
                None => b"-".to_vec(),
            }),
            Command::Put(key, value) => self.put(&key, &value).map(|()| Vec::new()),
            Command::Delete(key) => self.delete(&key).map(|()| Vec::new()),
            Command::Status => Ok(self.status().into_bytes()),
            Command::Adopt(key, from) => {
                self.check_key(&key).and_then(|()| self.adopt(&key, from)).map(|_| Vec::new())
            }
            Command::Leave => self.leave().map(|()| Vec::new()),
        };
        match outcome {
            // A longer reply would end the session.
            Ok(bytes) if bytes.len() > MAX_CALL => Err(format!(
                "the reply has {} bytes, and a call has at most {MAX_CALL}: use a node in the program",
                bytes.len()
            )),
            outcome => outcome.map_err(|e| e.to_string()),
        }
    }

    fn admit(&self, request: &JoinRequest) -> Result<Vec<u8>, String> {
        self.admit_node(request).map(|roster| roster.encode()).map_err(|e| match e {
            NessieError::Refused(reason) => reason,
            other => other.to_string(),
        })
    }
}
