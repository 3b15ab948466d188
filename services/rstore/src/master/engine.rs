//! The machine with its log and its clock, and where its outputs go.
//!
//! An input is in the log before it is applied. If the log cannot be written, calls are refused.
//! Events, which cannot be refused, wait in their order until the log can be written again.
//!
//! # Concurrency
//! One owner, under the lock of the desk.

use std::{
    collections::{HashMap, VecDeque},
    sync::mpsc::Sender,
    time::{Duration, Instant},
};

use pool::{ClientId, wire::Message};
use rdmabox::PendingReply;

use super::{
    log::Log,
    options::{MasterError, MasterOptions},
};
use crate::{
    machine::{Input, Machine, Output},
    proto::{Answer, Reply, Status},
    refusal::Refusal,
};

/// Time between attempts to write a log after a failure.
const RETRY: Duration = Duration::from_millis(500);

/// The machine and its surroundings.
#[derive(Debug)]
pub(super) struct Engine {
    machine: Machine,
    log: Option<Log>,
    /// Time of the next attempt to write the log, and the last failure.
    blocked: Option<(Instant, String)>,
    /// Events that are not in the log yet.
    events: VecDeque<Input>,
    /// Time of the machine when this process began.
    base: u64,
    begun: Instant,
    /// Calls whose replies wait for stores.
    waiting: HashMap<u64, PendingReply>,
    /// Numbers of calls begin at a random number, so they differ from those of an earlier process.
    last_call: u64,
    calls: u64,
    outputs: Sender<Output>,
}

impl Engine {
    pub(super) fn open(options: &MasterOptions, outputs: Sender<Output>) -> Result<Engine, MasterError> {
        let opened = options.log.as_deref().map(|path| Log::open(path, &options.settings));
        let (log, machine) = match opened.transpose()? {
            Some((log, machine)) => (Some(log), machine),
            None => (None, Machine::new(options.settings.clone())),
        };
        let last_call = getrandom::u64().map_err(MasterError::Random)? >> 1;
        Ok(Engine {
            base: machine.now(),
            machine,
            log,
            blocked: None,
            events: VecDeque::new(),
            begun: Instant::now(),
            waiting: HashMap::new(),
            last_call,
            calls: 0,
            outputs,
        })
    }

    fn now(&self) -> u64 {
        self.base + u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX >> 1)
    }

    /// Returns a number for a call.
    pub(super) fn number(&mut self) -> u64 {
        self.calls += 1;
        self.last_call += 1;
        self.last_call
    }

    /// Applies a call. Returns its reply, if there is one now.
    pub(super) fn call(&mut self, number: u64, input: Input) -> Option<Reply> {
        match self.catch_up().and_then(|()| self.record(&input)) {
            Ok(now) => self.apply(now, number, input),
            Err(reason) => Some(Reply { epoch: 0, answer: Answer::Refused(Refusal::Log(reason)) }),
        }
    }

    /// Applies an event, as soon as it can be written to the log.
    pub(super) fn event(&mut self, input: Input) {
        self.events.push_back(input);
        // The failure is logged once for each attempt to write.
        let _ = self.catch_up();
    }

    /// Lets time pass.
    pub(super) fn tick(&mut self) {
        if !self.events.is_empty() {
            let _ = self.catch_up();
        } else if self.machine.is_due(self.now()) {
            self.event(Input::Tick);
        }
    }

    fn catch_up(&mut self) -> Result<(), String> {
        while let Some(input) = self.events.pop_front() {
            match self.record(&input) {
                Ok(now) => _ = self.apply(now, 0, input),
                Err(reason) => {
                    self.events.push_front(input);
                    return Err(reason);
                }
            }
        }
        Ok(())
    }

    /// Writes an input to the log. Returns the time at which to apply it.
    ///
    /// # Errors
    /// The reason why the input may not be applied.
    fn record(&mut self, input: &Input) -> Result<u64, String> {
        let now = self.now();
        if let Some(log) = &mut self.log {
            if let Some((until, reason)) = &self.blocked
                && Instant::now() < *until
            {
                return Err(reason.clone());
            }
            if let Err(error) = log.append(now, input, &self.machine) {
                ::log::error!("an input is not applied, as the log cannot be written: {error}");
                self.blocked = Some((Instant::now() + RETRY, error.to_string()));
                return Err(error.to_string());
            }
            self.blocked = None;
        }
        Ok(now)
    }

    /// Applies an input of the log. Returns the reply to the call `number`, if there is one now.
    fn apply(&mut self, now: u64, number: u64, input: Input) -> Option<Reply> {
        let mut own = None;
        for output in self.machine.apply(now, input) {
            match output {
                Output::Reply { call, client, answer } => {
                    let epoch = client.map_or(0, |client| self.machine.epoch(client));
                    let reply = Reply { epoch, answer };
                    match self.waiting.remove(&call) {
                        Some(waiting) => waiting.answer(&reply.to_bytes()),
                        None if call == number => own = Some(reply),
                        // A call of an earlier process.
                        None => {}
                    }
                }
                // The receiver ends with the master.
                output => _ = self.outputs.send(output),
            }
        }
        own
    }

    /// Keeps a call whose reply waits for stores.
    pub(super) fn wait(&mut self, number: u64, reply: PendingReply) {
        self.waiting.insert(number, reply);
    }

    pub(super) fn epoch(&self, client: ClientId) -> u32 {
        self.machine.epoch(client)
    }

    /// Returns the clients of a list that reach no store and hold no reference any more.
    pub(super) fn lost(&self, mut clients: Vec<ClientId>) -> Vec<ClientId> {
        clients.retain(|client| self.machine.is_gone(*client));
        clients
    }

    pub(super) fn status(&self) -> Status {
        Status { calls: self.calls, ..self.machine.status() }
    }
}
