//! Whether the listing that the kernel has of a directory is right. Pure.
//!
//! The kernel collects what is read through an open directory, and takes it for whole when that has come to its end. What was
//! answered before a name was recalled it may add a moment after it was told to drop everything. So a directory that was
//! open at a recall is spoilt: before it comes to its end the kernel drops all again. Nothing is added then, because one open
//! directory collects at a time; those that are opened meanwhile are read apart from it.
//!
//! As with pages of files, what the kernel drops at an open it drops after it was answered, so that what is there counts
//! only once something was asked for through that open directory.

/// A moment in the order of recalls of this directory's names.
type Moment = u64;

/// How a directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// What the kernel has is right.
    Kept,
    /// It is dropped and collected anew.
    Anew,
    /// What is read is not collected, and nothing is dropped.
    Apart,
}

/// An open directory that collects.
#[derive(Clone, Copy, Debug)]
struct Collector {
    handle: u64,
    since: Moment,
}

/// One directory's.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    now: Moment,
    /// What the kernel has was all asked for since then.
    good: Option<Moment>,
    collector: Option<Collector>,
}

impl Listing {
    /// The directory is opened as `handle`, which no other one has had; `kept`: names in it are recalled.
    pub(crate) fn opened(&mut self, handle: u64, kept: bool) -> Opened {
        if !kept || self.collector.is_some() {
            return Opened::Apart;
        }
        self.collector = Some(Collector { handle, since: self.now });
        if self.good == Some(self.now) { Opened::Kept } else { Opened::Anew }
    }

    fn collector(&self, handle: u64) -> Option<Collector> {
        self.collector.filter(|collector| collector.handle == handle)
    }

    /// Something is asked for through an open one: the kernel has dropped what was not right.
    pub(crate) fn used(&mut self, handle: u64) {
        if let Some(collector) = self.collector(handle) {
            self.good = Some(collector.since);
        }
    }

    /// True if what the kernel has collected is to be dropped before it hears that `handle` has come to its end.
    pub(crate) fn is_spoilt(&self, handle: u64) -> bool {
        self.collector(handle).is_some_and(|collector| collector.since != self.now)
    }

    /// It is closed for good.
    pub(crate) fn closed(&mut self, handle: u64) {
        self.collector.take_if(|collector| collector.handle == handle);
    }

    /// A name in the directory was recalled.
    pub(crate) fn recalled(&mut self) {
        self.now += 1;
    }
}

#[cfg(test)]
mod tests;
