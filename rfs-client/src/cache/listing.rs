//! Whether the kernel's cached listing of a directory is right. No I/O, no locks, no clock.
//!
//! The kernel collects entries that are read through an open directory, and takes the listing for
//! complete at the end. It may add an entry from a reply that precedes a recall after it has
//! dropped the listing for the recall. A directory that was open at a recall is therefore
//! spoiled: before its end the kernel drops the listing again. Only one handle collects at a
//! time, so no entry is added then.
//!
//! At an open, the kernel drops its listing after the reply. The listing therefore counts only
//! once a later request came through that handle, as with pages of files.

/// A time in the order of recalls of this directory's names.
type Moment = u64;

/// How the kernel uses its listing for an open directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingUse {
    /// The cached listing is right.
    Keep,
    /// The kernel drops its listing and collects anew.
    Collect,
    /// Nothing is collected and nothing is dropped.
    Bypass,
}

/// A handle through which the kernel collects.
#[derive(Clone, Copy, Debug)]
struct Collector {
    handle: u64,
    since: Moment,
}

/// The state of one directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    now: Moment,
    /// Time as of which the kernel's listing is right.
    good: Option<Moment>,
    collector: Option<Collector>,
}

impl Listing {
    /// Notes that the directory is opened as `handle`, a new number. `kept` tells whether its names
    /// are recalled.
    pub(crate) fn opened(&mut self, handle: u64, kept: bool) -> ListingUse {
        if !kept || self.collector.is_some() {
            return ListingUse::Bypass;
        }
        self.collector = Some(Collector { handle, since: self.now });
        if self.good == Some(self.now) { ListingUse::Keep } else { ListingUse::Collect }
    }

    fn collector(&self, handle: u64) -> Option<Collector> {
        self.collector.filter(|collector| collector.handle == handle)
    }

    /// Notes a request through a handle: the kernel has dropped an old listing by now.
    pub(crate) fn used(&mut self, handle: u64) {
        if let Some(collector) = self.collector(handle) {
            self.good = Some(collector.since);
        }
    }

    /// Returns true if the kernel must drop its listing before it hears that `handle` has reached
    /// the end.
    pub(crate) fn is_spoiled(&self, handle: u64) -> bool {
        self.collector(handle).is_some_and(|collector| collector.since != self.now)
    }

    /// Notes that a handle is closed for good.
    pub(crate) fn closed(&mut self, handle: u64) {
        self.collector.take_if(|collector| collector.handle == handle);
    }

    /// Notes that a name in the directory was recalled.
    pub(crate) fn recalled(&mut self) {
        self.now += 1;
    }
}

#[cfg(test)]
mod tests;
