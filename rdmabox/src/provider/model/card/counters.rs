//! Counters of the card.

/// Counts of a card since it was made. With
/// [`Timing::Counts`](crate::provider::model::Timing::Counts) the card processes a list as soon as
/// it is posted. So the counts depend on the posts alone, except for `interrupts`, which depends on
/// when a thread polls. `work_request_misses` and `in_flight_peak` then see one list at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CardCounters {
    /// Lists that were posted: writes to the card's registers.
    pub doorbells: u64,
    /// Work requests.
    pub work_requests: u64,
    /// Work requests that the card read from memory, because only the first of a list comes with
    /// the doorbell.
    pub fetches: u64,
    /// Work requests that the card read once more, because its cache had lost them.
    pub work_request_misses: u64,
    /// Queue pair contexts that the card read from memory.
    pub context_misses: u64,
    /// Memory translations that the peers' cards read from memory.
    pub translation_misses: u64,
    /// Completions of work requests, signaled or not.
    pub completions: u64,
    /// Events that woke a waiting thread.
    pub interrupts: u64,
    /// Buffers that were registered for requests.
    pub registrations: u64,
    /// Copies between callers' buffers and registered memory.
    pub copies: u64,
    /// Bytes of these copies.
    pub copied_bytes: u64,
    /// Model time in ns that threads worked: posting, polling, copying, registering, and the
    /// program's own work.
    pub busy_ns: u64,
    /// Largest number of work requests on the card at a time.
    pub in_flight_peak: u64,
}

impl CardCounters {
    /// Returns the counts since `earlier`, and the peak as it is.
    #[must_use]
    pub fn since(&self, earlier: &CardCounters) -> CardCounters {
        CardCounters {
            doorbells: self.doorbells.saturating_sub(earlier.doorbells),
            work_requests: self.work_requests.saturating_sub(earlier.work_requests),
            fetches: self.fetches.saturating_sub(earlier.fetches),
            work_request_misses: self.work_request_misses.saturating_sub(earlier.work_request_misses),
            context_misses: self.context_misses.saturating_sub(earlier.context_misses),
            translation_misses: self.translation_misses.saturating_sub(earlier.translation_misses),
            completions: self.completions.saturating_sub(earlier.completions),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            registrations: self.registrations.saturating_sub(earlier.registrations),
            copies: self.copies.saturating_sub(earlier.copies),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            in_flight_peak: self.in_flight_peak,
        }
    }

    /// Returns the counts with their names. The peak is no count, and not among them.
    pub fn named(&self) -> [(&'static str, u64); 12] {
        [
            ("doorbells", self.doorbells),
            ("work_requests", self.work_requests),
            ("fetches", self.fetches),
            ("work_request_misses", self.work_request_misses),
            ("context_misses", self.context_misses),
            ("translation_misses", self.translation_misses),
            ("completions", self.completions),
            ("interrupts", self.interrupts),
            ("registrations", self.registrations),
            ("copies", self.copies),
            ("copied_bytes", self.copied_bytes),
            ("busy_ns", self.busy_ns),
        ]
    }
}
