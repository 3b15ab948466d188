//! The values that are measured at a point. No I/O, no locks, no clock.

use serde::{Deserialize, Serialize};

use crate::{
    harness::{
        self,
        usage::{Memory, Programs},
    },
    sample::{Latency, median},
};

/// The measurements of one point in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Rate in [`Pattern::unit`](crate::load::Pattern::unit) per second.
    pub rate: f64,
    /// Latency of the requests.
    pub latency: Latency,
    /// Resident memory before the load.
    pub idle: Resident,
    /// Resident memory after the load; for empty files, while all files exist.
    pub resident: Resident,
}

/// Resident memory of a target's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Memory of all client processes together.
    pub client: Memory,
    /// Memory of all server processes together.
    pub servers: Memory,
}

impl Resident {
    /// Returns the current resident memory.
    pub fn of(programs: &Programs) -> Self {
        let (client, servers) = programs.memory();
        Self { client, servers }
    }

    fn median(of: &[Self]) -> Self {
        let number = |number: fn(&Self) -> u64| {
            let values: Vec<f64> = of.iter().map(|resident| number(resident) as f64).collect();
            median(&values).unwrap_or(0.0) as u64
        };
        Self {
            client: Memory { own: number(|r| r.client.own), shared: number(|r| r.client.shared) },
            servers: Memory { own: number(|r| r.servers.own), shared: number(|r| r.servers.shared) },
        }
    }
}

impl harness::Reading for Reading {
    fn median(rounds: &[Self]) -> Self {
        let resident =
            |of: fn(&Self) -> Resident| Resident::median(&rounds.iter().map(of).collect::<Vec<_>>());
        let latencies: Vec<Latency> = rounds.iter().map(|round| round.latency).collect();
        Self {
            rate: median(&rounds.iter().map(|round| round.rate).collect::<Vec<_>>()).unwrap_or(0.0),
            latency: Latency::median(&latencies).unwrap_or_default(),
            idle: resident(|round| round.idle),
            resident: resident(|round| round.resident),
        }
    }

    fn rate(&self) -> f64 {
        self.rate
    }
}

impl Reading {
    /// Returns the growth of client and servers in bytes, including the server's exported memory.
    pub fn grown(&self) -> (u64, u64) {
        let all = |memory: Memory| memory.own + memory.shared;
        (
            all(self.resident.client).saturating_sub(all(self.idle.client)),
            all(self.resident.servers).saturating_sub(all(self.idle.servers)),
        )
    }
}
