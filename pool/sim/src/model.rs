//! The input of a simulation: rates, requests and files. No I/O, no locks, no clock.

use crate::{
    event::{Nanos, SECOND},
    placement::Placement,
};

/// Most pieces of all files together. Each takes two bytes of memory.
pub const MAX_PIECES: u64 = 1 << 27;

/// The rates of the machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes of data per second that the link of a store carries in one direction.
    pub link: f64,
    /// Bytes that an idle link of a store sends at once.
    pub burst: u64,
    /// Bytes of data per second that a client's machine moves.
    pub client: f64,
    /// Clients that share one machine.
    pub clients_per_machine: usize,
    /// Time of a request that depends on no size: system calls, threads that wake up, the round
    /// trip.
    pub overhead: Nanos,
}

/// The requests of each client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// Bytes of a request.
    pub bytes: u64,
    /// Requests that a client has in flight.
    pub depth: usize,
    /// Offsets are random multiples of the length; else they follow each other.
    pub is_random: bool,
    /// All clients begin at the first byte of their files at once. Otherwise they begin at random
    /// offsets, as if they had started at different times.
    pub together: bool,
}

/// Stores, clients and their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of stores; the memory of the server is the first.
    pub stores: u16,
    /// Number of clients, with a file each.
    pub clients: usize,
    /// Bytes of each file.
    pub file: u64,
    /// Which stores have the pieces.
    pub placement: Placement,
    /// Length of a piece.
    pub unit: u64,
}

/// A simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// The rates of the machines.
    pub rates: Rates,
    /// The requests of each client.
    pub requests: Requests,
    /// Stores, clients and their files.
    pub shape: Shape,
    /// Simulated time after which counting begins.
    pub warm_up: Nanos,
    /// Simulated time from the beginning to the end.
    pub end: Nanos,
    /// Seed of random offsets.
    pub seed: u64,
}

/// A model that cannot be simulated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ModelError {
    /// A number that has to be positive is not.
    #[error("{0} has to be more than zero")]
    Zero(&'static str),
    /// A request is longer than a file.
    #[error("a file of {file} bytes has no request of {request} bytes")]
    ShortFile {
        /// Bytes of a file.
        file: u64,
        /// Bytes of a request.
        request: u64,
    },
    /// The files have more pieces than the memory of the simulator is for.
    #[error(
        "the files of {clients} clients with {file} bytes each have too many pieces: {MAX_PIECES} at most"
    )]
    TooLarge {
        /// Number of clients.
        clients: usize,
        /// Bytes of a file.
        file: u64,
    },
}

impl Model {
    /// Returns an error if there is nothing to simulate.
    ///
    /// # Errors
    /// See [`ModelError`].
    pub fn check(&self) -> Result<(), ModelError> {
        let Model { rates, requests, shape, .. } = self;
        let positive = [
            ("the rate of a link", rates.link > 0.0),
            ("the rate of a client", rates.client > 0.0),
            ("the number of clients on a machine", rates.clients_per_machine > 0),
            ("the length of a request", requests.bytes > 0),
            ("the number of requests in flight", requests.depth > 0),
            ("the number of stores", shape.stores > 0),
            ("the number of clients", shape.clients > 0),
            ("the length of a piece", shape.unit > 0),
            ("the measured time", self.end > self.warm_up),
        ];
        if let Some((what, _)) = positive.into_iter().find(|(_, is_positive)| !is_positive) {
            return Err(ModelError::Zero(what));
        }
        if shape.file < requests.bytes {
            return Err(ModelError::ShortFile { file: shape.file, request: requests.bytes });
        }
        match shape.file.div_ceil(shape.unit).checked_mul(shape.clients as u64) {
            Some(..=MAX_PIECES) => Ok(()),
            _ => Err(ModelError::TooLarge { clients: shape.clients, file: shape.file }),
        }
    }

    /// Returns the seconds in which bytes are counted.
    pub fn seconds(&self) -> f64 {
        (self.end - self.warm_up) as f64 / SECOND as f64
    }
}
