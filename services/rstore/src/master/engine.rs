//! The machine with its log and its clock, and where its outputs go.
//!
//! # Concurrency
//! One owner, under the lock of the desk.

use std::{collections::HashMap, sync::mpsc::Sender, time::Instant};

use pool::{ClientId, Incarnation, Order, StoreId};
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

/// A task for the thread of the links.
#[derive(Debug)]
pub(super) enum LinkTask {
    Connect(StoreId, String, Incarnation),
    Order(StoreId, u64, Order),
    Disconnect(StoreId),
}

/// The machine and its surroundings.
#[derive(Debug)]
pub(super) struct Engine {
    machine: Machine,
    log: Option<Log>,
    /// Time of the machine when this process began.
    base: u64,
    begun: Instant,
    /// Calls whose replies wait for stores.
    waiting: HashMap<u64, PendingReply>,
    /// Numbers of calls begin at a random number, so they differ from those of an earlier process.
    last_call: u64,
    calls: u64,
    tasks: Sender<LinkTask>,
}

impl Engine {
    pub(super) fn open(options: &MasterOptions, tasks: Sender<LinkTask>) -> Result<Engine, MasterError> {
        let opened = options.log.as_deref().map(|path| Log::open(path, &options.settings));
        let (log, machine) = match opened.transpose()? {
            Some((log, machine)) => (Some(log), machine),
            None => (None, Machine::new(options.settings.clone())),
        };
        let last_call = getrandom::u64().map_err(MasterError::Random)? >> 1;
        let (base, begun) = (machine.now(), Instant::now());
        Ok(Engine { machine, log, base, begun, waiting: HashMap::new(), last_call, calls: 0, tasks })
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

    /// Applies an input. Returns the reply to the call `number`, if there is one now.
    pub(super) fn apply(&mut self, number: u64, input: Input) -> Option<Reply> {
        let now = self.now();
        if let Some(log) = &mut self.log
            && let Err(error) = log.append(now, &input, &self.machine)
        {
            ::log::error!("the input is not applied, as the log cannot be written: {error}");
            return Some(Reply { epoch: 0, answer: Answer::Refused(Refusal::Log(error.to_string())) });
        }
        let mut own = None;
        for output in self.machine.apply(now, input) {
            match output {
                Output::Reply { call, client, answer } => {
                    let epoch = client.map_or(0, |client| self.machine.epoch(client));
                    let reply = Reply { epoch, answer };
                    match self.waiting.remove(&call) {
                        Some(waiting) => {
                            let mut bytes = Vec::new();
                            reply.encode(&mut bytes);
                            waiting.answer(&bytes);
                        }
                        None if call == number => own = Some(reply),
                        // A call of an earlier process.
                        None => {}
                    }
                }
                Output::Connect { store, address, incarnation } => {
                    self.task(LinkTask::Connect(store, address, incarnation));
                }
                Output::Order { store, number, order } => self.task(LinkTask::Order(store, number, order)),
                Output::Disconnect(store) => self.task(LinkTask::Disconnect(store)),
            }
        }
        own
    }

    fn task(&self, task: LinkTask) {
        // The receiver ends with the master.
        let _ = self.tasks.send(task);
    }

    /// Keeps a call whose reply waits for stores.
    pub(super) fn wait(&mut self, number: u64, reply: PendingReply) {
        self.waiting.insert(number, reply);
    }

    pub(super) fn is_due(&self) -> bool {
        self.machine.is_due(self.now())
    }

    pub(super) fn epoch(&self, client: ClientId) -> u32 {
        self.machine.epoch(client)
    }

    pub(super) fn status(&self) -> Status {
        Status { calls: self.calls, ..self.machine.status() }
    }
}
