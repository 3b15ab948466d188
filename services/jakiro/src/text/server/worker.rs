//! A thread that serves connections.
//!
//! The worker waits for events of its connections, reads from all that have input, exchanges their
//! commands for answers at once, and sends the answers. It never waits for a single client. Answers
//! that a client does not take stay with its connection. Until they are gone, the worker reads
//! nothing further from the connection.
//!
//! # Concurrency
//! One thread. Its mailbox wakes it for new connections and for the end of the server.

use std::{io, mem, sync::Arc};

use rustix::event::epoll::Event;

use super::{
    batch::{Batch, Settled},
    connections::{BELL, Connections},
    mailbox::Mailbox,
    server_state::ServerState,
};
use crate::text::plan::Stop;

/// Events that one call takes.
const MAX_EVENTS: usize = 256;

pub(super) struct Worker {
    shared: Arc<ServerState>,
    mailbox: Arc<Mailbox>,
    connections: Connections,
    batch: Batch,
    settled: Vec<Settled>,
    /// Connections with input that the last exchange has left.
    again: Vec<usize>,
}

impl Worker {
    pub(super) fn new(shared: Arc<ServerState>, mailbox: Arc<Mailbox>) -> io::Result<Worker> {
        let connections = Connections::new(&mailbox, Arc::clone(&shared))?;
        Ok(Worker {
            shared,
            mailbox,
            connections,
            batch: Batch::new(),
            settled: Vec::new(),
            again: Vec::new(),
        })
    }

    /// Runs until the server ends.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        while !self.shared.stops() {
            if let Err(error) = self.connections.wait(&mut events, self.again.is_empty()) {
                log::error!("a thread of the text protocol ends: it cannot wait for events: {error}");
                return;
            }
            self.round(&events);
        }
    }

    /// Serves the connections of events, and those that the last round has left.
    fn round(&mut self, events: &[Event]) {
        for id in mem::take(&mut self.again) {
            if let Some(connection) = self.connections.get_mut(id) {
                self.batch.rejoin(id, connection);
            }
        }
        for event in events {
            match event.data.u64() {
                BELL => self.mailbox.take().into_iter().for_each(|socket| self.connections.insert(socket)),
                id => self.serve(id as usize),
            }
            if self.batch.is_full() {
                self.exchange();
            }
        }
        self.exchange();
    }

    /// Reads from a connection, or sends answers that it has not taken.
    fn serve(&mut self, id: usize) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        if connection.is_ready {
            return;
        }
        if !connection.has_output() {
            if self.batch.read(id, connection).is_err() {
                self.connections.close(id);
            }
            return;
        }
        match connection.send_output(&self.shared.room) {
            Ok(true) if !connection.ends => {
                if !connection.input.is_empty() {
                    self.batch.rejoin(id, connection);
                }
                self.connections.watch(id, false);
            }
            Ok(false) => {}
            Ok(true) | Err(_) => self.connections.close(id),
        }
    }

    /// Exchanges the commands of the batch for answers.
    fn exchange(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.batch.exchange(&mut self.connections, &self.shared, &mut self.settled);
        let mut settled = mem::take(&mut self.settled);
        for Settled { id, stop } in settled.drain(..) {
            let text = self.carry_out(id, stop);
            self.finish(id, text);
        }
        self.settled = settled;
    }

    /// Carries a command out that concerns all items. Returns its answer.
    fn carry_out(&mut self, id: usize, stop: Option<Stop>) -> String {
        match stop {
            None | Some(Stop::Incomplete(_)) => String::new(),
            Some(Stop::Close) => {
                if let Some(connection) = self.connections.get_mut(id) {
                    connection.ends = true;
                }
                String::new()
            }
            Some(Stop::Flush { at, quiet }) => {
                self.shared.flush(at);
                if quiet { String::new() } else { "OK\r\n".into() }
            }
            Some(Stop::Stats(report)) => self.shared.report(report),
        }
    }

    /// Sends the last answer of an exchange, and decides on the next event of the connection.
    fn finish(&mut self, id: usize, text: String) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let sent = match connection.has_output() || text.is_empty() {
            true => Ok(0),
            false => connection.send(text.as_bytes()),
        };
        let kept = sent.and_then(|sent| {
            let rest = text.as_bytes()[sent..].to_vec();
            if rest.is_empty() { Ok(()) } else { connection.keep_output(rest, &self.shared.room) }
        });
        let has_output = connection.has_output();
        let is_left = connection.needed <= connection.input.len();
        if kept.is_err() || (connection.ends && !has_output) {
            self.connections.close(id);
        } else if has_output {
            self.connections.watch(id, true);
        } else if is_left {
            self.again.push(id);
        }
    }
}
