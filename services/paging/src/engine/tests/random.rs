//! Random orders of stores, write-outs, discards, losses and repairs, beside plain values.
//!
//! Between two losses without a repair, a group may have slots that no page needs any more. They
//! are slots of discarded pages, and of pages that became zero. New parity pages must not depend on
//! them, and old parity pages still do.
//!
//! # Concurrency
//! The test takes the place of the fault thread.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::logic::page::Page;

/// Two groups of a code of three pages, and more of the other kinds.
const PAGES: usize = 800;

#[derive(Clone, Debug)]
enum Step {
    Store(Range<usize>, u64),
    /// Starts write-outs of the changed pages of a range.
    WriteOut(Range<usize>),
    /// Takes the ends of some requests.
    Complete(usize),
    Discard(Range<usize>),
    Load(Range<usize>),
    Lose(usize),
    Repair,
}

fn range(longest: usize) -> impl Strategy<Value = Range<usize>> {
    (0..PAGES, 1..=longest).prop_map(|(first, len)| first..PAGES.min(first + len))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (range(12), 1..1_000_000_u64).prop_map(|(pages, value)| Step::Store(pages, value)),
        4 => range(60).prop_map(Step::WriteOut),
        2 => (1..40_usize).prop_map(Step::Complete),
        4 => range(40).prop_map(Step::Discard),
        1 => Just(Step::Discard(0..PAGES)),
        3 => range(8).prop_map(Step::Load),
        2 => (0..8_usize).prop_map(Step::Lose),
        1 => Just(Step::Repair),
    ]
}

/// A world and the values of its pages: zero for a page of zeros.
struct Beside {
    world: World,
    values: Vec<u64>,
    /// Servers that may be lost before the next repair.
    margin: usize,
}

impl Beside {
    fn new(redundancy: Redundancy) -> Beside {
        let parity = Layout::new(redundancy).parity();
        let mut world = World::new(redundancy, redundancy.servers() + parity, PAGES);
        world.store_all_and_write_out(|page| 7 + page as u64);
        Beside { world, values: (0..PAGES).map(|page| 7 + page as u64).collect(), margin: parity }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Store(pages, value) => pages.for_each(|page| {
                self.world.store(page, value);
                self.values[page] = value;
            }),
            Step::WriteOut(pages) => self.write_out(pages),
            Step::Complete(requests) => {
                for _ in 0..requests {
                    if !self.world.engine.writes.is_empty() {
                        self.world.complete_one();
                    }
                }
            }
            Step::Discard(pages) => {
                self.values[pages.clone()].fill(0);
                self.world.engine.discard(self.world.start, pages).expect("no error");
            }
            Step::Load(pages) => pages.for_each(|page| self.check(page)),
            Step::Lose(server) => {
                let servers = &self.world.engine.servers;
                let server = server % servers.len();
                if self.margin > 0 && !servers.is_lost(server) {
                    self.margin -= 1;
                    self.world.lose(server);
                }
            }
            Step::Repair => self.repair(),
        }
    }

    /// Writes the changed pages of a range out, and drops those that are zero.
    fn write_out(&mut self, pages: Range<usize>) {
        let world = &mut self.world;
        let region = world.engine.regions.get_mut(&world.start).expect("a region");
        let is_changed = |page: Page| page.is_resident() && !page.is_writing() && !page.is_clean();
        let changed: Vec<usize> = pages.filter(|page| is_changed(region.get(*page))).collect();
        let changed: Vec<usize> = changed
            .into_iter()
            .filter(|page| {
                // A page that was read is clean after its visit.
                let mut visit = region.update(*page, |page| page.visit());
                if matches!(visit, Visit::Age { .. }) {
                    visit = region.update(*page, |page| page.visit());
                }
                matches!(visit, Visit::Clean { .. })
            })
            .collect();
        let changed: Vec<PageId> = changed.into_iter().map(|page| world.at(page)).collect();
        world.engine.protect(&changed);
        let zeros = world.engine.write_out(&changed);
        world.engine.drop_pages(&zeros, Page::drop_zero);
    }

    fn repair(&mut self) {
        self.world.engine.finish_writes();
        self.world.repair();
        let layout = self.world.engine.layout;
        self.margin = layout.parity().min(self.world.engine.servers.live() - layout.data());
    }

    fn check(&mut self, page: usize) {
        match self.values[page] {
            0 => {
                self.world.fault(page, false);
                let first = (self.world.start + page * PAGE) as *const u64;
                // SAFETY: The page is resident.
                let is_zero = |word| unsafe { first.add(word).read_volatile() } == 0;
                assert!((0..PAGE / 8).all(is_zero), "page {page} is not zero");
            }
            value => assert_eq!(self.world.load(page), value, "page {page}"),
        }
    }

    /// Checks all pages, and that a discard of all of them returns all chunks.
    fn end(mut self) {
        (0..PAGES).for_each(|page| self.check(page));
        assert_eq!(self.world.lost(), 0);
        self.world.engine.discard(self.world.start, 0..PAGES).expect("no error");
        assert_eq!(self.world.engine.servers.chunks(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Catches parity pages that depend on the old bytes of a discarded page. Also catches slots
    /// that are given back while parity pages need them, and chunks that stay lent.
    #[test]
    fn discards_and_losses_leave_all_other_pages(
        shape in 0..SHAPES.len(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut beside = Beside::new(SHAPES[shape]);
        steps.into_iter().for_each(|step| beside.step(step));
        beside.end();
    }
}
