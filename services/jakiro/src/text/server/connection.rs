//! A connection between two rounds: its socket, the input of an incomplete command, and answers
//! that the client has not taken yet.
//!
//! A connection without such bytes has no buffer.
//!
//! # Concurrency
//! Owned by one worker.

use std::os::fd::OwnedFd;

use rustix::{
    buffer::spare_capacity,
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use super::room::{Room, SMALL};
use crate::text::protocol::Parser;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) parser: Parser,
    /// Input that no command has used up.
    pub(super) input: Vec<u8>,
    /// Length of the input that the next command needs.
    pub(super) needed: usize,
    /// Room of the input, in bytes.
    pub(super) input_room: usize,
    /// Answers that the client has not taken, from a place on.
    output: (Vec<u8>, usize),
    output_room: usize,
    /// True if the connection ends when the client has taken all answers.
    pub(super) ends: bool,
    /// True if epoll reports space for answers, and not input.
    pub(super) waits_for_space: bool,
    /// True while the connection has a part in the round.
    pub(super) is_ready: bool,
}

/// The client has gone, or takes its answers too slowly.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            parser: Parser::default(),
            input: Vec::new(),
            needed: 1,
            input_room: 0,
            output: (Vec::new(), 0),
            output_room: 0,
            ends: false,
            waits_for_space: false,
            is_ready: false,
        }
    }

    pub(super) fn has_output(&self) -> bool {
        !self.output.0.is_empty()
    }

    /// Reads the missing bytes of the next command, behind the input. Returns their number.
    pub(super) fn read_more(&mut self) -> Result<usize, Gone> {
        // The missing bytes of a line come one by one, at worst.
        let wanted = self.needed.max(SMALL);
        self.input.reserve_exact(wanted.saturating_sub(self.input.len()).max(1));
        received(rustix::net::recv(&self.socket, spare_capacity(&mut self.input), RecvFlags::DONTWAIT))
    }

    /// Reads bytes. Returns their number: 0 if there are none now.
    pub(super) fn read(&self, bytes: &mut [u8]) -> Result<usize, Gone> {
        received(rustix::net::recv(&self.socket, bytes, RecvFlags::DONTWAIT))
    }

    /// Sends bytes. Returns how many of them the socket took.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Gone> {
        match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(_) => Err(Gone),
        }
    }

    /// Keeps answers that the socket did not take.
    pub(super) fn keep_output(&mut self, bytes: Vec<u8>, room: &Room) -> Result<(), Gone> {
        if self.output.0.is_empty() {
            self.output = (bytes, 0);
        } else {
            self.output.0.extend_from_slice(&bytes);
        }
        if room.resize(&mut self.output_room, self.output.0.len()) {
            return Ok(());
        }
        log::warn!("a connection of the text protocol is closed: clients take too few of their answers");
        Err(Gone)
    }

    /// Sends answers that were kept. Returns true if none are left.
    pub(super) fn send_output(&mut self, room: &Room) -> Result<bool, Gone> {
        let sent = self.send(&self.output.0[self.output.1..])?;
        self.output.1 += sent;
        if self.output.1 < self.output.0.len() {
            return Ok(false);
        }
        self.output = (Vec::new(), 0);
        room.resize(&mut self.output_room, 0);
        Ok(true)
    }

    /// Gives the room of the buffers back.
    pub(super) fn release(&mut self, room: &Room) {
        room.resize(&mut self.input_room, 0);
        room.resize(&mut self.output_room, 0);
    }
}

/// Returns the number of bytes that came: 0 if there are none now.
fn received(outcome: Result<(usize, usize), Errno>) -> Result<usize, Gone> {
    match outcome {
        Ok((_, 0)) => Err(Gone),
        Ok((_, count)) => Ok(count),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(_) => Err(Gone),
    }
}
