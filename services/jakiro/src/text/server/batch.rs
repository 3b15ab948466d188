//! The connections with new input, and the exchange of their commands for answers.
//!
//! Input comes into one buffer of the worker. A connection gets a buffer of its own only for an
//! incomplete command. The commands of all connections go to the store together.
//!
//! # Concurrency
//! Owned by one worker.

use std::{mem, ops::Range};

use super::{
    connection::{Connection, Gone},
    connections::Connections,
    room::SMALL,
    server_state::ServerState,
};
use crate::text::{
    moment::Moment,
    plan::{self, Plan, Stop},
    protocol::Parser,
    round::{Answered, Part, Round},
};

/// Bytes that one call reads from a connection.
const READ: usize = 64 << 10;
/// Length of the buffer of a worker.
const BUFFER: usize = 256 << 10;
/// Bytes of the buffer that the input of a connection must find.
const MIN_READ: usize = 8 << 10;
/// Length of answers after which they are sent before further commands are carried out.
const OUTPUT: usize = 256 << 10;

/// The place of an input.
#[derive(Clone, Debug)]
enum Source {
    Buffer(Range<usize>),
    /// The input of the connection.
    Own,
}

/// A connection with input.
#[derive(Debug)]
struct Ready {
    id: usize,
    source: Source,
    /// The parser after the commands of the plan.
    parser: Parser,
    used: usize,
    stop: Stop,
    input_room: usize,
    /// Answers that the socket did not take.
    unsent: Vec<u8>,
    /// Commands of the plan that were not carried out, as the socket is full.
    left: usize,
    is_gone: bool,
}

/// A connection that is to be served further.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) id: usize,
    /// The command that ended the plan. `None` if the plan was left before.
    pub(super) stop: Option<Stop>,
}

#[derive(Debug)]
pub(super) struct Batch {
    buffer: Box<[u8]>,
    at: usize,
    ready: Vec<Ready>,
    plan: Plan<'static>,
    parts: Vec<Part>,
    output: Vec<u8>,
    answered: Vec<Answered>,
    /// A buffer for the next long value.
    spare: Vec<u8>,
    bytes_read: usize,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            buffer: vec![0; BUFFER].into_boxed_slice(),
            at: 0,
            ready: Vec::new(),
            plan: Plan::default(),
            parts: Vec::new(),
            output: Vec::new(),
            answered: Vec::new(),
            spare: Vec::new(),
            bytes_read: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Returns true if the next input may find too little space.
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() - self.at < MIN_READ
    }

    /// Reads from a connection, and adds it to the batch if there is input.
    pub(super) fn read(&mut self, id: usize, connection: &mut Connection) -> Result<(), Gone> {
        let (source, count) = if connection.input.is_empty() {
            let end = self.buffer.len().min(self.at + READ);
            let count = connection.read(&mut self.buffer[self.at..end])?;
            let range = self.at..self.at + count;
            self.at = range.end;
            (Source::Buffer(range), count)
        } else {
            (Source::Own, connection.read_more()?)
        };
        self.bytes_read += count;
        if count > 0 {
            self.push(id, connection, source);
        }
        Ok(())
    }

    /// Adds a connection whose input has come before.
    pub(super) fn rejoin(&mut self, id: usize, connection: &mut Connection) {
        self.push(id, connection, Source::Own);
    }

    fn push(&mut self, id: usize, connection: &mut Connection, source: Source) {
        connection.is_ready = true;
        self.ready.push(Ready {
            id,
            source,
            parser: connection.parser,
            used: 0,
            stop: Stop::Incomplete(1),
            input_room: connection.input_room,
            unsent: Vec::new(),
            left: 0,
            is_gone: false,
        });
    }

    /// Exchanges the commands of all connections for answers, and sends the answers.
    ///
    /// Appends the connections to `settled`. Closes connections whose clients have gone.
    pub(super) fn exchange(
        &mut self,
        connections: &mut Connections,
        shared: &ServerState,
        settled: &mut Vec<Settled>,
    ) {
        let now = Moment::now(&shared.store);
        let mut plan = mem::take(&mut self.plan).recycle();
        self.parts.clear();
        for ready in &mut self.ready {
            let input = input(&self.buffer, connections, ready);
            let (steps, requests) = (plan.steps.len(), plan.requests.len());
            let held = &mut ready.input_room;
            let has_room = |needed| needed <= SMALL || shared.room.resize(held, needed);
            let planned = plan.add(&mut ready.parser, input, (now, shared.store.max_value()), has_room);
            (ready.used, ready.stop) = (planned.used, planned.stop);
            self.parts.push(Part { steps: steps..plan.steps.len(), requests: requests..plan.requests.len() });
        }
        let (mut round, mut written) = (Round::default(), 0);
        while !round.is_done(&self.parts) {
            self.output.clear();
            self.answered.clear();
            let store = (&*shared.store, OUTPUT);
            round.advance((&plan, &self.parts), store, &mut self.output, &mut self.answered);
            written += self.output.len();
            for answered in &self.answered {
                let ready = &mut self.ready[answered.part];
                ready.send(connections, &self.output[answered.output.clone()]);
                if answered.left > 0 && (ready.is_gone || !ready.unsent.is_empty()) {
                    ready.left = answered.left;
                    round.skip(&self.parts);
                }
            }
        }
        self.plan = plan.recycle();
        shared.count(mem::take(&mut self.bytes_read), written);
        let mut all = mem::take(&mut self.ready);
        for (place, ready) in all.drain(..).enumerate() {
            let id = ready.id;
            match self.settle(connections, ready, place, shared) {
                Ok(stop) => settled.push(Settled { id, stop }),
                Err(Gone) => connections.close(id),
            }
        }
        self.ready = all;
        self.at = 0;
    }

    /// Stores the rest of the input and of the answers with the connection.
    fn settle(
        &mut self,
        connections: &mut Connections,
        ready: Ready,
        place: usize,
        shared: &ServerState,
    ) -> Result<Option<Stop>, Gone> {
        let (mut parser, mut used, mut stop) = (ready.parser, ready.used, Some(ready.stop));
        if ready.left > 0 {
            let input = input(&self.buffer, connections, &ready);
            let before = connections.get(ready.id).ok_or(Gone)?.parser;
            (parser, used) = plan::replay(
                before,
                input,
                shared.store.max_value(),
                self.parts[place].steps.len() - ready.left,
            );
            stop = None;
        }
        let connection = connections.get_mut(ready.id).ok_or(Gone)?;
        connection.is_ready = false;
        connection.input_room = ready.input_room;
        if ready.is_gone {
            return Err(Gone);
        }
        connection.parser = parser;
        connection.needed = if let Some(Stop::Incomplete(needed)) = stop { needed } else { 1 };
        match ready.source {
            Source::Own => drop(connection.input.drain(..used)),
            Source::Buffer(range) => {
                let rest = &self.buffer[range][used..];
                let wanted = connection.needed.max(rest.len());
                if wanted > SMALL && (wanted..2 * wanted).contains(&self.spare.capacity()) {
                    connection.input = mem::take(&mut self.spare);
                }
                connection.input.extend_from_slice(rest);
            }
        }
        let wanted = if connection.input.is_empty() {
            let mut buffer = mem::take(&mut connection.input);
            if buffer.capacity() > self.spare.capacity() {
                buffer.clear();
                self.spare = buffer;
            }
            0
        } else {
            connection.needed.max(connection.input.len())
        };
        connection.input.shrink_to(wanted.max(SMALL));
        if !shared.room.resize(&mut connection.input_room, wanted) {
            log::warn!("a connection of the text protocol is closed: there is no room for its commands");
            return Err(Gone);
        }
        if !ready.unsent.is_empty() {
            connection.keep_output(ready.unsent, &shared.room)?;
        }
        Ok(stop)
    }
}

impl Ready {
    /// Sends answers, and keeps the bytes that the socket does not take.
    fn send(&mut self, connections: &Connections, bytes: &[u8]) {
        if bytes.is_empty() || self.is_gone {
            return;
        }
        match connections.get(self.id).ok_or(Gone).and_then(|connection| connection.send(bytes)) {
            Ok(count) => self.unsent.extend_from_slice(&bytes[count..]),
            Err(Gone) => self.is_gone = true,
        }
    }
}

/// Returns the input of a connection.
fn input<'a>(buffer: &'a [u8], connections: &'a Connections, ready: &Ready) -> &'a [u8] {
    match &ready.source {
        Source::Buffer(range) => &buffer[range.clone()],
        Source::Own => connections.get(ready.id).map_or(&[], |connection| &connection.input),
    }
}
