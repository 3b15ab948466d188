//! Losses at chosen moments of a write-out.
//!
//! # Concurrency
//! The test takes the place of the fault thread.

mod dishonest_lender;
mod random;

use std::sync::Arc;

use rdmabox::{Address, RequestError, SessionOptions};

use super::{Engine, Events, Parts, Wake, stats::Counters};
use crate::{
    Lender, LenderOptions, Redundancy,
    kernel::{memory, uffd::Uffd},
    logic::{PAGE, clock::PageId, layout::Layout, page::Visit, region::Region},
    remote::Servers,
};

/// An engine with lenders in this process, and one region.
struct World {
    engine: Engine,
    start: usize,
    pages: usize,
    _lenders: Vec<Lender>,
}

impl World {
    fn new(redundancy: Redundancy, servers: usize, pages: usize) -> World {
        World::with_memory(redundancy, &vec![8; servers], pages)
    }

    /// Makes a world whose servers have that many chunks.
    fn with_memory(redundancy: Redundancy, chunks: &[u64], pages: usize) -> World {
        let listen = |chunks: &u64| {
            let address = "127.0.0.1:0".parse().expect("an address");
            let options = LenderOptions::new(chunks << 20).allow_without_keys(true);
            Lender::listen(&[address], &options).expect("a lender")
        };
        let lenders: Vec<Lender> = chunks.iter().map(listen).collect();
        let addresses: Vec<Address> = lenders.iter().map(|lender| lender.addresses()[0].clone()).collect();
        let layout = Layout::new(redundancy);
        let mut options = SessionOptions::default();
        options.provider = Some(rdmabox::ProviderKind::Tcp);
        let parts = Parts {
            uffd: Uffd::open().expect("userfaultfd"),
            servers: Servers::connect(&addresses, &options, layout).expect("servers"),
            events: Events::start(Some(Arc::new(|_| {}))).expect("a thread"),
            counters: Arc::<Counters>::default(),
            layout,
            budget: 4096,
            read_ahead: 1,
            follow: false,
        };
        let mut engine = Engine::new(parts, Arc::new(Wake::new().expect("a descriptor")));
        let start = memory::map(pages * PAGE).expect("memory");
        engine.uffd.register(start, pages * PAGE).expect("registered");
        engine.regions.insert(start, Region::new(start, pages, 1, layout));
        World { engine, start, pages, _lenders: lenders }
    }

    fn at(&self, page: usize) -> PageId {
        PageId { region: self.start, page }
    }

    fn is_resident(&self, page: usize) -> bool {
        self.engine.regions[&self.start].get(page).is_resident()
    }

    /// Makes a page resident, as a fault does.
    fn fault(&mut self, page: usize, store: bool) {
        let at = self.at(page);
        if !self.is_resident(page) {
            self.engine.bring(&[(at, store)]);
        }
        if store {
            self.engine.allow_store(at);
        }
        assert!(self.is_resident(page), "page {page} is lost");
    }

    fn store(&mut self, page: usize, value: u64) {
        self.fault(page, true);
        let first = (self.start + page * PAGE) as *mut u64;
        for word in 0..PAGE / 8 {
            // SAFETY: The page is resident and not protected, and the test is its only user.
            unsafe { first.add(word).write_volatile(value.wrapping_add(word as u64)) };
        }
    }

    fn load(&mut self, page: usize) -> u64 {
        self.fault(page, false);
        let first = (self.start + page * PAGE) as *const u64;
        // SAFETY: The page is resident.
        let word = |word| unsafe { first.add(word).read_volatile() };
        let value = word(0);
        assert!((0..PAGE / 8).all(|at| word(at) == value.wrapping_add(at as u64)), "page {page} is torn");
        value
    }

    /// Starts the write-outs of resident pages that a store changed.
    fn start_write_out(&mut self, pages: &[usize]) {
        let pages: Vec<PageId> = pages.iter().map(|page| self.at(*page)).collect();
        for at in &pages {
            let region = self.engine.regions.get_mut(&self.start).expect("a region");
            while !matches!(region.update(at.page, |page| page.visit()), Visit::Clean { .. }) {}
        }
        self.engine.protect(&pages);
        assert_eq!(self.engine.write_out(&pages), []);
    }

    /// Takes the end of one request.
    fn complete_one(&mut self) {
        let completion = self.engine.completions.1.recv().expect("the end of a request");
        let mut written = Vec::new();
        self.engine.complete(completion, &mut written);
        self.engine.drop_written(written);
    }

    /// Stores values to all pages, and writes them out in full stripes.
    fn store_all_and_write_out(&mut self, values: impl Fn(usize) -> u64) {
        (0..self.pages).for_each(|page| self.store(page, values(page)));
        self.start_write_out(&(0..self.pages).collect::<Vec<_>>());
        self.engine.finish_writes();
        assert!((0..self.pages).all(|page| !self.is_resident(page)));
    }

    fn lose(&mut self, server: usize) {
        self.engine.lose_server(server, RequestError::Disconnected);
    }

    fn repair(&mut self) {
        while self.engine.repair.is_some() {
            self.engine.continue_repair(true);
        }
    }

    fn lost(&self) -> u64 {
        self.engine.counters.snapshot().pages_lost
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.engine.finish_writes();
        // SAFETY: The test does not use the memory any more.
        unsafe { memory::unmap(self.start, self.pages * PAGE) };
    }
}

const SHAPES: [Redundancy; 3] =
    [Redundancy::Mirror, Redundancy::Coded { data: 2, parity: 1 }, Redundancy::Coded { data: 3, parity: 2 }];

#[test]
fn a_page_whose_server_is_lost_before_the_drop_stays() {
    let mut world = World::new(Redundancy::None, 1, 1);
    world.store(0, 7);
    world.start_write_out(&[0]);
    let completion = world.engine.completions.1.recv().expect("the end of the write-out");
    let mut written = Vec::new();
    world.engine.complete(completion, &mut written);
    assert_eq!(written, [world.at(0)]);
    world.lose(0);
    world.engine.drop_written(written);
    assert_eq!(world.load(0), 7);
}

#[test]
fn full_stripes_need_no_reads_and_other_stripes_read_what_stays() {
    let mut world = World::new(Redundancy::Coded { data: 2, parity: 1 }, 3, 8);
    world.store_all_and_write_out(|page| page as u64);
    let stats = world.engine.counters.snapshot();
    assert_eq!((stats.parity_reads, stats.pages_written, stats.bytes_written), (0, 8, 12 * PAGE as u64));
    // Page 1 stays at its server. Page 3 is here, and page 5 is about to change.
    world.load(3);
    [0, 2, 4, 5].into_iter().for_each(|page| world.store(page, 99));
    world.start_write_out(&[0, 2, 4]);
    world.engine.finish_writes();
    let stats = world.engine.counters.snapshot();
    assert_eq!((stats.parity_reads, stats.bytes_written), (1, 18 * PAGE as u64));
    world.lose(0);
    for (page, value) in [(0, 99), (1, 1), (2, 99), (3, 3), (4, 99), (5, 99), (6, 6), (7, 7)] {
        assert_eq!(world.load(page), value, "page {page}");
    }
    assert_eq!(world.lost(), 0);
}

/// Loses servers after `completions` requests of a write-out of page 0 have ended.
fn lose_in_the_middle(redundancy: Redundancy, completions: usize, servers: &[usize]) {
    let context = format!("{redundancy} {completions} {servers:?}");
    let mut world = World::new(redundancy, redundancy.servers(), 3 * 4);
    world.store_all_and_write_out(|page| page as u64);
    world.store(0, 1000);
    world.start_write_out(&[0]);
    (0..completions).for_each(|_| world.complete_one());
    servers.iter().for_each(|server| world.lose(*server));
    // The other pages of the stripe come first, while the write-out may be under way.
    for page in 1..world.pages {
        assert_eq!(world.load(page), page as u64, "{context}");
    }
    world.engine.finish_writes();
    assert_eq!(world.load(0), 1000, "{context}");
    assert_eq!(world.lost(), 0, "{context}");
    // Paging goes on with the servers that are left.
    world.store_all_and_write_out(|page| 7 * page as u64);
    (0..world.pages).for_each(|page| assert_eq!(world.load(page), 7 * page as u64, "{context}"));
}

#[test]
fn a_loss_between_any_two_writes_of_a_stripe_loses_no_page() {
    for redundancy in SHAPES {
        let layout = Layout::new(redundancy);
        for completions in 0..=1 + layout.parity() {
            for server in 0..redundancy.servers() {
                lose_in_the_middle(redundancy, completions, &[server]);
                if layout.parity() > 1 {
                    lose_in_the_middle(
                        redundancy,
                        completions,
                        &[server, (server + 1) % redundancy.servers()],
                    );
                }
            }
        }
    }
}

#[test]
fn after_the_repair_other_servers_may_be_lost() {
    for redundancy in SHAPES {
        let layout = Layout::new(redundancy);
        // Not only full stripes, and pages that nothing covers.
        let mut world = World::new(redundancy, redundancy.servers() + layout.parity(), 1000);
        world.store_all_and_write_out(|page| page as u64);
        for page in (0..1000).step_by(7) {
            world.store(page, 5000 + page as u64);
        }
        world.start_write_out(&(0..1000).step_by(7).collect::<Vec<_>>());
        world.engine.finish_writes();
        world.engine.discard(world.start, 500..510).expect("no error");
        (0..layout.parity()).for_each(|server| world.lose(server));
        world.repair();
        assert!(world.engine.counters.snapshot().repaired_chunks > 0);
        (layout.parity()..2 * layout.parity()).for_each(|server| world.lose(server));
        for page in (0..1000).filter(|page| !(500..510).contains(page)) {
            let value = if page % 7 == 0 { 5000 } else { 0 } + page as u64;
            assert_eq!(world.load(page), value, "{redundancy} page {page}");
        }
        assert_eq!(world.lost(), 0);
    }
}

#[test]
fn with_too_many_losses_the_pages_of_other_servers_stay() {
    let mut world = World::new(Redundancy::Coded { data: 3, parity: 1 }, 4, 12);
    world.store_all_and_write_out(|page| page as u64);
    // The order of servers in the first group is theirs by number, but turned.
    let members: Vec<usize> = world.engine.regions[&world.start]
        .members(0)
        .iter()
        .map(|member| member.expect("a member").server)
        .collect();
    world.load(3);
    world.lose(members[0]);
    assert_eq!(world.lost(), 0);
    world.lose(members[1]);
    // Pages 0, 6, 9 and 1, 4, 7, 10. Page 3 is resident.
    assert_eq!(world.lost(), 7);
    for page in [2, 3, 5, 8, 11] {
        assert_eq!(world.load(page), page as u64);
    }
    world.engine.discard(world.start, 0..12).expect("no error");
    world.store_all_and_write_out(|page| 50 + page as u64);
    world.repair();
    (0..12).for_each(|page| assert_eq!(world.load(page), 50 + page as u64));
    assert_eq!(world.lost(), 7);
}

#[test]
fn the_repair_goes_on_after_a_group_without_room() {
    // The first group is at servers 0 and 1, and the second one at 2 and 0. Server 2 is full then.
    let mut world = World::with_memory(Redundancy::Mirror, &[8, 8, 1], 512);
    world.store_all_and_write_out(|page| page as u64);
    world.lose(0);
    // Each group and the end of the pass.
    (0..3).for_each(|_| world.engine.continue_repair(true));
    assert_eq!(world.engine.counters.snapshot().repaired_chunks, 1);
    assert!(world.engine.repair.is_some(), "the first group has one copy");
    world.lose(2);
    (256..512).for_each(|page| assert_eq!(world.load(page), page as u64));
    assert_eq!(world.lost(), 0);
}

#[test]
fn a_lost_page_is_usable_after_a_discard() {
    for has_poison in [true, false] {
        let mut world = World::new(Redundancy::None, 2, 300);
        if !has_poison {
            world.engine.uffd.forget_poison();
        }
        world.store_all_and_write_out(|page| page as u64);
        // The first group is at server 0.
        world.lose(0);
        assert_eq!(world.lost(), 256);
        world.engine.poison(world.at(3));
        world.engine.discard(world.start, 0..10).expect("no error");
        world.store(3, 77);
        world.start_write_out(&[3]);
        world.engine.finish_writes();
        assert!(!world.is_resident(3));
        assert_eq!((world.load(3), world.load(299)), (77, 299));
    }
}
