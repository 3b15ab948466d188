//! Paged memory holds the bytes that a program stores, and its pager keeps the budget.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    thread,
};

use crate::support::{
    Lenders, MIB, PAGE, Provider, check, fill, options, pager, providers, session, wait_for,
};
use rdmabox::{Key, Secret};
use rfs_paging::{
    Lender, LenderError, LenderOptions, PagedMemory, PagerEvent, PagerOptions, PagerStats, PagingError,
    Redundancy, RemotePager, lender_status,
};

#[test]
fn memory_larger_than_the_budget_keeps_its_bytes() {
    for provider in providers() {
        let lenders = Lenders::start(provider, 1, 32 * MIB);
        let (options, log) = options(provider, 64);
        let pager = pager(&lenders.addresses(), options);
        let mut memory = pager.map(1000 * PAGE + 1).expect("memory");
        assert_eq!(memory.len(), 1000 * PAGE + 1);
        for salt in 0..3 {
            fill(&mut memory, 0..1000, salt);
            check(&memory, 0..1000, salt);
        }
        let stats = pager.stats();
        assert!(stats.max_resident <= 64, "{stats:?}");
        assert_eq!(stats.over_budget, 0, "{stats:?}");
        assert_eq!((stats.pages_lost, stats.servers_lost, log.lock().len()), (0, 0, 0));
        assert!(stats.pages_written >= 936 * 3, "{stats:?}");
        assert_eq!(stats.bytes_written, stats.pages_written * PAGE as u64);
        assert_eq!(stats.chunks, 4);
        // Write-outs may still be under way.
        wait_for("the same count here and in the kernel", || {
            let present = present_pages(&mut memory);
            assert!(present <= 64, "{present} pages are present");
            present == pager.stats().resident
        });
        check_counters(&pager, provider);
        drop(memory);
        assert_eq!(pager.stats().chunks, 0);
        assert_eq!(pager.stats().resident, 0);
        wait_for("the chunks of the lender", || lenders.lenders[0].status().free_chunks == 32);
    }
}

/// Returns the number of pages that the kernel has for the memory.
fn present_pages(memory: &mut PagedMemory) -> u64 {
    let pages = memory.len().div_ceil(PAGE);
    let mut map = File::open("/proc/self/pagemap").expect("procfs");
    map.seek(SeekFrom::Start((memory.as_mut_ptr() as usize / PAGE * 8) as u64)).expect("no error");
    let mut entries = vec![0; pages * 8];
    map.read_exact(&mut entries).expect("no error");
    // Bit 63: present.
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() as u64
}

/// Waits until no page moves, and returns the counters. All pages that left were evicted, and the
/// counters of evictions agree with those of faults.
fn at_rest(pager: &RemotePager) -> PagerStats {
    let mut last = PagerStats::default();
    wait_for("counters that agree", || {
        let stats = pager.stats();
        let demanded = stats.zero_fills + stats.pages_read - stats.read_ahead_pages;
        let left = stats.zero_fills + stats.pages_read - stats.resident;
        let reasons = stats.clean_evictions + stats.zero_evictions + stats.pages_written - stats.redirtied;
        // A fault counts before its page is there, and the page counts after it.
        let is_quiet = stats == std::mem::replace(&mut last, stats);
        is_quiet && demanded == stats.faults && stats.evictions == left && stats.evictions == reasons
    });
    last
}

/// Checks the counters of pages and requests. There is no redundancy, and no request failed.
fn check_counters(pager: &RemotePager, provider: Provider) {
    let stats = at_rest(pager);
    assert!(stats.pages_read > 0 && stats.clean_evictions > 0, "{stats:?}");
    assert_eq!(stats.bytes_read, stats.pages_read * PAGE as u64, "{stats:?}");
    if provider == Provider::Shm {
        // Shared memory has no work requests.
        assert_eq!((stats.doorbells, stats.work_requests), (0, 0), "{stats:?}");
        assert_eq!(stats.direct, stats.pages_read + stats.pages_written, "{stats:?}");
    } else {
        assert!((1..=stats.work_requests).contains(&stats.doorbells), "{stats:?}");
        let requests = stats.work_requests + stats.merged;
        assert!(requests >= stats.pages_read + stats.pages_written, "{stats:?}");
    }
}

/// Catches a pager that sends pages beside those that a program stores to.
#[test]
fn pages_that_were_never_touched_are_never_sent() {
    for provider in providers() {
        let lenders = Lenders::start(provider, 1, 8 * MIB);
        let pager = pager(&lenders.addresses(), options(provider, 64).0);
        let mut memory = pager.map(1000 * PAGE).expect("memory");
        // No page gets zeros: the numbers of pages are even.
        (0..1000).step_by(2).for_each(|page| fill(&mut memory, page..page + 1, 1));
        let check_sent = || {
            let stats = at_rest(&pager);
            assert!((500 - 64..=500).contains(&stats.pages_written), "{provider:?}: {stats:?}");
            assert_eq!(stats.bytes_written, stats.pages_written * PAGE as u64, "{provider:?}: {stats:?}");
            stats
        };
        let stats = check_sent();
        assert_eq!((stats.pages_read, stats.zero_fills, stats.faults), (0, 500, 500), "{stats:?}");
        // Loads of pages of both kinds send the last of the stored pages, and no others.
        for page in 0..1000 {
            if page % 2 == 0 {
                check(&memory, page..page + 1, 1);
            } else {
                assert!(memory[page * PAGE..(page + 1) * PAGE].iter().all(|byte| *byte == 0), "page {page}");
            }
        }
        let stats = check_sent();
        assert_eq!(stats.zero_fills, 1000, "{stats:?}");
    }
}

/// Catches parity pages and copies for pages that have no bytes, too.
#[test]
fn untouched_pages_and_pages_of_zeros_use_no_server() {
    for provider in providers() {
        for redundancy in [Redundancy::None, Redundancy::Mirror, Redundancy::Coded { data: 2, parity: 1 }] {
            let lenders = Lenders::start(provider, redundancy.servers(), MIB);
            let pager = pager(&lenders.addresses(), options(provider, 32).0.redundancy(redundancy));
            let mut memory = pager.map(2000 * PAGE).expect("memory");
            assert!(memory.iter().all(|byte| *byte == 0));
            // Stores of zeros, and of a byte that is zero again before the page leaves.
            memory.fill(0);
            let stats = pager.stats();
            assert!(stats.zero_evictions > 3000, "{provider:?}, {redundancy}: {stats:?}");
            let sent = (stats.pages_written, stats.bytes_written, stats.parity_reads, stats.chunks);
            assert_eq!(sent, (0, 0, 0, 0), "{provider:?}, {redundancy}: {stats:?}");
            assert!(stats.max_resident <= 32, "{provider:?}, {redundancy}: {stats:?}");
            assert!(lenders.lenders.iter().all(|lender| lender.status().free_chunks == 1));
        }
    }
}

#[test]
fn a_page_that_becomes_zero_leaves_its_server() {
    let lenders = Lenders::start(Provider::Tcp, 1, 8 * MIB);
    let pager = pager(&lenders.addresses(), options(Provider::Tcp, 32).0);
    let mut memory = pager.map(512 * PAGE).expect("memory");
    fill(&mut memory, 0..512, 1);
    assert_eq!(pager.stats().chunks, 2);
    memory.fill(0);
    // Other pages push them out.
    let mut other = pager.map(100 * PAGE).expect("memory");
    fill(&mut other, 0..100, 1);
    assert!(memory.iter().all(|byte| *byte == 0));
    assert_eq!(pager.stats().chunks, 1, "the chunk of the other memory");
    check(&other, 0..100, 1);
}

#[test]
fn clean_pages_are_not_sent_again() {
    let lenders = Lenders::start(Provider::Tcp, 1, 8 * MIB);
    let pager = pager(&lenders.addresses(), options(Provider::Tcp, 64).0);
    let mut memory = pager.map(400 * PAGE).expect("memory");
    fill(&mut memory, 0..400, 5);
    // The first pass pushes the last dirty pages out.
    check(&memory, 0..400, 5);
    let before = pager.stats();
    for _ in 0..3 {
        check(&memory, 0..400, 5);
    }
    let after = pager.stats();
    assert_eq!(after.pages_written, before.pages_written, "{after:?}");
    assert!(after.clean_evictions - before.clean_evictions > 900, "{after:?}");
}

#[test]
fn sequential_faults_read_ahead_and_a_switch_prevents_it() {
    let lenders = Lenders::start(Provider::Tcp, 1, 8 * MIB);
    let mut reads = Vec::new();
    for block in [4096, 128 << 10] {
        let (options, _) = options(Provider::Tcp, 256);
        let pager = pager(&lenders.addresses(), options.read_ahead(block));
        let mut memory = pager.map(1024 * PAGE).expect("memory");
        fill(&mut memory, 0..1024, 9);
        let before = pager.stats();
        check(&memory, 0..1024, 9);
        let after = pager.stats();
        reads.push((after.faults - before.faults, after.read_ahead_pages, after.merged - before.merged));
    }
    let [(faults, ahead, _), (fewer_faults, read_ahead, merged)] = reads[..] else { panic!("{reads:?}") };
    assert_eq!(ahead, 0);
    assert!(fewer_faults * 8 < faults, "{reads:?}");
    assert!(read_ahead > 500 && merged > 500, "{reads:?}");
}

#[test]
fn adjacent_victims_leave_as_one_work_request() {
    let lenders = Lenders::start(Provider::Tcp, 1, 8 * MIB);
    let pager = pager(&lenders.addresses(), options(Provider::Tcp, 512).0);
    let mut memory = pager.map(1024 * PAGE).expect("memory");
    fill(&mut memory, 0..1024, 3);
    let stats = pager.stats();
    assert!(stats.pages_written > 400, "{stats:?}");
    // Batches of 64 adjacent pages, in one list each.
    assert!(stats.work_requests * 4 < stats.pages_written, "{stats:?}");
    assert!(stats.doorbells <= stats.work_requests, "{stats:?}");
    check(&memory, 0..1024, 3);
}

/// Catches counters that stay zero: a store to a page that came from a server is a hit, and with a
/// small window requests wait.
#[test]
fn stores_to_protected_pages_and_waits_for_the_window_are_counted() {
    let lenders = Lenders::start(Provider::Tcp, 1, 8 * MIB);
    let mut session = session(Provider::Tcp);
    session.window_bytes = 2 * PAGE as u64;
    let pager = pager(&lenders.addresses(), options(Provider::Tcp, 64).0.session(session));
    let mut memory = pager.map(300 * PAGE).expect("memory");
    fill(&mut memory, 0..300, 1);
    check(&memory, 0..300, 1);
    // A page that a load has brought back is protected.
    let before = pager.stats();
    fill(&mut memory, 296..300, 2);
    let stats = pager.stats();
    assert_eq!((stats.hits - before.hits, stats.faults), (4, before.faults), "{stats:?}");
    assert!(stats.window_waits > 0, "{stats:?}");
    check(&memory, 0..296, 1);
    check(&memory, 296..300, 2);
}

#[test]
fn mappings_share_the_budget_and_discarded_pages_are_zero() {
    let lenders = Lenders::start(Provider::Shm, 1, 8 * MIB);
    let pager = pager(&lenders.addresses(), options(Provider::Shm, 64).0);
    let mut one = pager.map(300 * PAGE).expect("memory");
    let mut two = pager.map(300 * PAGE).expect("memory");
    fill(&mut one, 0..300, 1);
    fill(&mut two, 0..300, 2);
    check(&one, 0..300, 1);
    one.discard(10 * PAGE + 1..200 * PAGE).expect("no error");
    check(&one, 0..10, 1);
    check(&one, 200..300, 1);
    assert!(one[11 * PAGE..200 * PAGE].iter().all(|byte| *byte == 0));
    drop(one);
    check(&two, 0..300, 2);
    assert!(pager.stats().max_resident <= 64);
    // The memory outlives the pager.
    drop(pager);
    fill(&mut two, 0..300, 3);
    check(&two, 0..300, 3);
}

#[test]
fn threads_that_fault_on_the_same_pages_see_one_page() {
    for provider in providers() {
        let lenders = Lenders::start(provider, 1, 8 * MIB);
        let pager = pager(&lenders.addresses(), options(provider, 48).0);
        let mut memory = pager.map(400 * PAGE).expect("memory");
        fill(&mut memory, 0..400, 7);
        for _ in 0..5 {
            thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| check(&memory, 0..400, 7)))));
        }
    }
}

#[test]
fn a_system_call_may_use_paged_memory() {
    let lenders = Lenders::start(Provider::Tcp, 1, 8 * MIB);
    let pager = pager(&lenders.addresses(), options(Provider::Tcp, 32).0);
    let mut memory = pager.map(500 * PAGE).expect("memory");
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let bytes: Vec<u8> = (0..500 * PAGE).map(|at| (at % 251) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| std::io::Write::write_all(&mut writer, &bytes).expect("no error"));
        std::io::Read::read_exact(&mut reader, &mut memory).expect("no error");
    });
    assert!(*memory == *bytes);
}

/// Catches a lender that gives a chunk to two pagers, or gives one the bytes of the other.
#[test]
fn pagers_of_one_lender_never_see_pages_of_each_other() {
    for provider in providers() {
        let lenders = Lenders::start(provider, 1, 3 * MIB);
        let free_chunks = || lenders.lenders[0].status().free_chunks;
        let all_chunks = free_chunks();
        let pagers = [(); 2].map(|()| pager(&lenders.addresses(), options(provider, 32).0));
        let mut memories = pagers.each_ref().map(|pager| pager.map(600 * PAGE).expect("memory"));
        for round in 0..6 {
            // One fills most of the lender, and the other lives in the space that it gave up.
            let (large, small) = (round % 2, 1 - round % 2);
            let salt = |owner: usize| (round * 2 + owner) as u64;
            memories[small].discard(0..600 * PAGE).expect("no error");
            // The lender wipes chunks before it lends them again, and nothing waits for that.
            let of_large = pagers[large].stats().chunks as u32;
            wait_for("the chunks to be free", || free_chunks() + of_large == all_chunks);
            fill(&mut memories[large], 0..450, salt(large));
            fill(&mut memories[small], 0..200, salt(small));
            check(&memories[large], 0..450, salt(large));
            check(&memories[small], 0..200, salt(small));
            assert!(memories[small][200 * PAGE..].iter().all(|byte| *byte == 0), "round {round}");
        }
        let stats = pagers.each_ref().map(|pager| pager.stats());
        assert!(stats.iter().all(|stats| stats.pages_read > 1000 && stats.over_budget == 0), "{stats:?}");
    }
}

#[test]
fn a_full_server_costs_the_budget_and_loses_nothing() {
    let lenders = Lenders::start(Provider::Tcp, 1, MIB);
    let (options, log) = options(Provider::Tcp, 64);
    let pager = pager(&lenders.addresses(), options);
    let mut memory = pager.map(700 * PAGE).expect("memory");
    fill(&mut memory, 0..700, 4);
    check(&memory, 0..700, 4);
    let stats = pager.stats();
    assert!(stats.over_budget > 0 && stats.max_resident >= 700 - 256, "{stats:?}");
    wait_for("the event", || !log.lock().is_empty());
    assert!(matches!(log.lock()[..], [PagerEvent::NoRoom { budget: 64, .. }]), "{:?}", log.lock());
    // Room again: the budget holds again from the next fault on.
    memory.discard(0..600 * PAGE).expect("no error");
    thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(memory[0], 0);
    check(&memory, 600..700, 4);
    assert!(pager.stats().resident <= 64, "{:?}", pager.stats());
}

#[test]
fn wrong_options_and_addresses_are_refused() {
    let lenders = Lenders::start(Provider::Tcp, 1, MIB);
    let addresses = lenders.addresses();
    let refused = |options: PagerOptions| match RemotePager::connect(&addresses, options) {
        Err(PagingError::InvalidOption { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(PagerOptions::new(1000)), "local_budget");
    assert_eq!(refused(PagerOptions::new(MIB).redundancy(Redundancy::Mirror)), "the number of servers");
    let coded = |data, parity| PagerOptions::new(MIB).redundancy(Redundancy::Coded { data, parity });
    assert_eq!(refused(coded(2, 1)), "the number of servers");
    assert_eq!(refused(coded(1, 1)), "the redundancy");
    assert_eq!(refused(coded(2, usize::MAX)), "the redundancy");
    assert_eq!(refused(PagerOptions::new(MIB).read_ahead(100)), "read_ahead");
    let pager = RemotePager::connect(&addresses, PagerOptions::new(MIB)).expect("a pager");
    assert!(matches!(pager.map(0), Err(PagingError::Length(0))));
    assert!(matches!(pager.map(usize::MAX), Err(PagingError::Length(_))));

    let other =
        rdmabox::MemoryServer::listen(&["127.0.0.1:0".parse().expect("an address")], 4096).expect("a host");
    match RemotePager::connect(other.addresses(), PagerOptions::new(MIB)) {
        Err(PagingError::NotALender { .. }) => {}
        other => panic!("{other:?}"),
    }
    match lender_status(&"unix:/nonexistent/lend.sock".parse().expect("an address"), &session(Provider::Shm))
    {
        Err(PagingError::Connect { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_network_address_needs_keys_and_pagers_have_to_prove_them() {
    let address = ["127.0.0.1:0".parse().expect("an address")];
    match Lender::listen(&address, &LenderOptions::new(MIB)) {
        Err(LenderError::WithoutKeys(_)) => {}
        other => panic!("{other:?}"),
    }
    let key = |id: &str| Key { id: id.parse().expect("a name"), secret: Secret::random().expect("a secret") };
    let keys = vec![key("one"), key("two")];
    let lender = Lender::listen(&address, &LenderOptions::new(4 * MIB).keys(keys.clone())).expect("a lender");
    for key in keys {
        let mut session = session(Provider::Tcp);
        session.key = Some(key);
        let pager = pager(lender.addresses(), options(Provider::Tcp, 64).0.session(session));
        let mut memory = pager.map(300 * PAGE).expect("memory");
        fill(&mut memory, 0..300, 1);
        check(&memory, 0..300, 1);
    }
    let mut wrong = session(Provider::Tcp);
    wrong.key = Some(key("one"));
    for session in [wrong, session(Provider::Tcp)] {
        match RemotePager::connect(lender.addresses(), options(Provider::Tcp, 64).0.session(session)) {
            Err(PagingError::Connect { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
