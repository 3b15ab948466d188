//! The constants of a modelled card that the simulation uses.
//!
//! # Concurrency
//! Plain values.

use rdmabox::provider::model::CardParameters;

/// Times in ns, as the file of the card has them.
#[derive(Clone, Debug)]
pub(super) struct Constants {
    pub(super) doorbell: u64,
    pub(super) fetch: u64,
    pub(super) cache_entries: u64,
    pub(super) cache_miss: u64,
    pub(super) units: u64,
    pub(super) unit: u64,
    pub(super) requester: u64,
    pub(super) responder: u64,
    pub(super) latency: u64,
    pub(super) completion: u64,
    megabits: u64,
    packet: u64,
    header: u64,
    post: u64,
    doorbell_cpu: u64,
    poll: u64,
    handle: u64,
}

impl Constants {
    /// Reads the constants of a card, which has all of them.
    pub(super) fn of(card: &CardParameters) -> Constants {
        let value = |key: &str| {
            let found = card.constants().iter().find(|constant| constant.key == key);
            found.map_or(0, |constant| constant.value)
        };
        Constants {
            doorbell: value("doorbell.card_ns"),
            fetch: value("fetch.latency_ns"),
            cache_entries: value("work_request_cache.entries"),
            cache_miss: value("work_request_cache.miss_ns"),
            units: value("units.count"),
            unit: value("units.request_ns"),
            requester: value("requester.request_ns"),
            responder: value("responder.request_ns"),
            latency: value("wire.latency_ns"),
            completion: value("completion.card_ns"),
            megabits: value("wire.megabits").max(1),
            packet: value("wire.packet_bytes").max(1),
            header: value("wire.header_bytes"),
            post: value("host.post_ns"),
            doorbell_cpu: value("doorbell.cpu_ns"),
            poll: value("host.poll_ns"),
            handle: value("host.completion_ns"),
        }
    }

    /// Returns the time of a thread for a post of one work request.
    pub(super) fn post_ns(&self) -> u64 {
        self.post + self.doorbell_cpu
    }

    /// Returns the time of a thread for a poll that finds a completion.
    pub(super) fn poll_ns(&self) -> u64 {
        self.poll + self.handle
    }

    /// Returns the time that a message occupies the link.
    pub(super) fn occupancy(&self, bytes: usize) -> u64 {
        let packets = (bytes as u64).div_ceil(self.packet).max(1);
        (bytes as u64 + packets * self.header) * 8 * 1000 / self.megabits
    }
}
