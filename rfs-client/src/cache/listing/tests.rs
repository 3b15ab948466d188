use proptest::prelude::*;

use crate::cache::listing::*;

#[test]
fn a_listing_is_good_after_the_first_use() {
    let mut listing = Listing::default();
    assert_eq!(listing.opened(1, true), ListingUse::Collect);
    listing.closed(1);
    assert_eq!(listing.opened(2, true), ListingUse::Collect, "the kernel's listing is unknown");
    listing.used(2);
    listing.closed(2);
    assert_eq!(listing.opened(3, false), ListingUse::Bypass);
    assert_eq!(listing.opened(4, true), ListingUse::Keep);
}

#[test]
fn one_handle_collects_at_a_time() {
    let mut listing = Listing::default();
    listing.opened(1, true);
    assert_eq!(listing.opened(2, true), ListingUse::Bypass);
    listing.used(2);
    listing.closed(2);
    assert_eq!(listing.opened(3, true), ListingUse::Bypass);
    listing.closed(1);
    assert_eq!(listing.opened(4, true), ListingUse::Collect);
}

#[test]
fn a_recall_spoils_a_listing_that_is_being_collected() {
    let mut listing = Listing::default();
    listing.opened(1, true);
    listing.used(1);
    listing.opened(2, true);
    listing.recalled();
    assert!(listing.is_spoiled(1) && !listing.is_spoiled(2), "the other one collects nothing");
    listing.used(1);
    assert!(listing.is_spoiled(1));
    listing.closed(1);
    assert_eq!(listing.opened(3, true), ListingUse::Collect);
    assert!(!listing.is_spoiled(3));
}

/// Number of parts that a directory is read in, before its end.
const PARTS: usize = 3;

/// A directory that is open in the kernel.
struct Open {
    handle: u64,
    how: ListingUse,
    /// True once the kernel has processed the reply to the open.
    settled: bool,
    at: usize,
    /// True if the next read begins a listing.
    begins: bool,
    /// Time of the begin of the listing. Entries must not be older.
    began: u64,
    /// A reply in flight: the part and its time.
    answer: Option<(usize, u64)>,
}

/// Linux's cache of a directory's listing.
#[derive(Default)]
struct Kernel {
    whole: bool,
    collected: usize,
    /// The cached parts, with their times.
    pages: [Option<u64>; PARTS],
}

impl Kernel {
    fn drop_pages(&mut self) {
        self.pages = [None; PARTS];
    }

    /// Reads a part from the cache. Returns `None` if the kernel has to ask.
    fn kept(&mut self, at: usize) -> Option<Option<u64>> {
        if !self.whole {
            return None;
        }
        if at == PARTS {
            return Some(None);
        }
        if self.pages[at].is_none() {
            (self.whole, self.collected) = (false, 0);
            return None;
        }
        Some(self.pages[at])
    }

    fn add(&mut self, (part, as_of): (usize, u64)) {
        if self.whole || self.collected != part {
            return;
        }
        match self.pages.get_mut(part) {
            Some(page) => {
                *page = Some(as_of);
                self.collected += 1;
            }
            None => self.whole = true,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Close(usize),
    /// The kernel processes a reply in flight.
    Read(usize),
    /// A program reads on.
    Next(usize),
    Seek(usize, usize),
    /// Another client changes a name.
    Change,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Open),
        2 => (0..4_usize).prop_map(Step::Close),
        10 => (0..4_usize).prop_map(Step::Read),
        10 => (0..4_usize).prop_map(Step::Next),
        2 => (0..4_usize, 0..=PARTS).prop_map(|(which, at)| Step::Seek(which, at)),
        2 => Just(Step::Change),
    ];
    prop::collection::vec(step, 0..200)
}

/// Runs the steps. Returns the number of reads that the cache served.
fn run(steps: Vec<Step>) -> Result<u64, TestCaseError> {
    let (mut listing, mut kernel, mut open) = (Listing::default(), Kernel::default(), Vec::<Open>::new());
    let (mut now, mut handles, mut hits) = (0, 0, 0);
    for step in steps {
        match step {
            Step::Open if open.len() < 4 => {
                handles += 1;
                let how = listing.opened(handles, true);
                let (handle, began) = (handles, now);
                open.push(Open { handle, how, settled: false, at: 0, begins: true, began, answer: None });
            }
            Step::Read(which) if which < open.len() => {
                let dir = &mut open[which];
                if !std::mem::replace(&mut dir.settled, true) {
                    if dir.how == ListingUse::Collect {
                        kernel.drop_pages();
                    }
                } else if let Some(answer) = dir.answer.take() {
                    if dir.how != ListingUse::Bypass {
                        kernel.add(answer);
                    }
                    dir.at = (answer.0 + 1).min(PARTS);
                }
            }
            Step::Next(which) if open.get(which).is_some_and(|dir| dir.settled && dir.answer.is_none()) => {
                let dir = &mut open[which];
                if std::mem::take(&mut dir.begins) {
                    dir.began = now;
                }
                let kept = if dir.how == ListingUse::Bypass { None } else { kernel.kept(dir.at) };
                match kept {
                    Some(Some(as_of)) => {
                        hits += 1;
                        prop_assert!(as_of >= dir.began, "as of {as_of}, read from {} on", dir.began);
                        dir.at += 1;
                    }
                    Some(None) => {}
                    None => {
                        listing.used(dir.handle);
                        if dir.at == PARTS && listing.is_spoiled(dir.handle) {
                            kernel.drop_pages();
                        }
                        dir.answer = Some((dir.at, now));
                    }
                }
            }
            Step::Seek(which, at) if open.get(which).is_some_and(|dir| dir.answer.is_none()) => {
                (open[which].at, open[which].begins) = (at, true);
            }
            Step::Close(which) if open.get(which).is_some_and(|dir| dir.settled && dir.answer.is_none()) => {
                listing.closed(open.swap_remove(which).handle);
            }
            Step::Change => {
                now += 1;
                listing.recalled();
                kernel.drop_pages();
            }
            _ => {}
        }
    }
    Ok(hits)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A program that reads a directory from its beginning sees all changes from before.
    #[test]
    fn cached_entries_are_never_older_than_the_begin_of_a_listing(steps in steps()) {
        run(steps)?;
    }
}

#[test]
fn a_second_listing_is_read_from_the_cache() {
    let listing = || {
        let reads = (0..=PARTS).flat_map(|_| [Step::Next(0), Step::Read(0)]);
        [Step::Open, Step::Read(0)].into_iter().chain(reads).chain([Step::Close(0)])
    };
    let hits = |steps: Vec<Step>| run(steps).expect("right");
    assert_eq!(hits(listing().collect()), 0);
    assert_eq!(hits(listing().chain(listing()).collect()), PARTS as u64);
    assert_eq!(hits(listing().chain([Step::Change]).chain(listing()).collect()), 0);
    assert_eq!(hits([Step::Change].into_iter().chain(listing()).chain(listing()).collect()), PARTS as u64);
}
