//! Servers that end: a mirror loses nothing, and without one the loss is an error and SIGBUS.

use std::{
    io::{Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::support::{
    ChildLender, Lenders, MIB, PAGE, Places, Provider, check, fill, options, pager, providers, wait_for,
};
use rfs_paging::{PagedMemory, PagerEvent, Redundancy, RemotePager};

const PAGES: usize = 600;

fn children(places: &mut Places, provider: Provider, count: usize) -> Vec<ChildLender> {
    (0..count).map(|_| ChildLender::start(&places.address(provider), 16 * MIB)).collect()
}

/// Checks the memory until the pager has found that servers are lost. Mapped memory of a killed
/// server works until its session notices the end of the process.
fn use_until_lost(pager: &RemotePager, memory: &PagedMemory, salt: u64, servers: u64) {
    wait_for("the loss", || {
        check(memory, 0..PAGES, salt);
        pager.stats().servers_lost == servers
    });
}

/// Kills a server, and another one after the repair. There is one server to spare.
fn kill_a_server_and_after_the_repair_another_one(redundancy: Redundancy, chunks: u64) {
    for provider in providers() {
        let mut places = Places::new();
        let servers = redundancy.servers() + 1;
        let mut lenders = children(&mut places, provider, servers);
        let addresses: Vec<_> = lenders.iter().map(|lender| lender.address.clone()).collect();
        let (options, log) = options(provider, 64);
        let pager = pager(&addresses, options.redundancy(redundancy));
        let mut memory = pager.map(PAGES * PAGE).expect("memory");
        fill(&mut memory, 0..PAGES, 1);
        assert_eq!(pager.stats().chunks, chunks);
        lenders[1].kill();
        use_until_lost(&pager, &memory, 1, 1);
        fill(&mut memory, 0..PAGES, 2);
        check(&memory, 0..PAGES, 2);
        // The pages of that server get another one.
        wait_for("the repair", || matches!(log.lock()[..], [_, PagerEvent::Repaired { .. }]));
        assert_eq!(pager.stats().chunks, chunks);
        fill(&mut memory, 0..PAGES, 3);
        lenders[0].kill();
        use_until_lost(&pager, &memory, 3, 2);
        fill(&mut memory, 0..PAGES, 4);
        check(&memory, 0..PAGES, 4);
        let stats = pager.stats();
        assert_eq!((stats.pages_lost, stats.servers_lost, stats.over_budget), (0, 2, 0), "{stats:?}");
        assert!(stats.max_resident <= 64, "{stats:?}");
        wait_for("the second loss", || log.lock().len() >= 3);
        let log = log.lock();
        for (event, left) in [(0, servers - 1), (2, servers - 2)] {
            let PagerEvent::ServerLost { lost_pages: 0, servers_left, .. } = log[event] else {
                panic!("{log:?}")
            };
            assert_eq!(servers_left, left, "{log:?}");
        }
    }
}

#[test]
fn a_mirror_survives_the_kill_of_each_server_but_the_last() {
    // Two copies of three chunks.
    kill_a_server_and_after_the_repair_another_one(Redundancy::Mirror, 6);
}

#[test]
fn a_code_survives_the_kill_of_a_server_and_after_the_repair_of_another_one() {
    // Two groups of two chunks and one of parity pages.
    kill_a_server_and_after_the_repair_another_one(Redundancy::Coded { data: 2, parity: 1 }, 6);
}

/// Catches a pager that finds losses only by requests: no fault reads parity pages, so the memory
/// would have no redundancy until the next write-out.
#[test]
fn a_loss_is_found_and_repaired_while_no_page_is_used() {
    for provider in providers() {
        for redundancy in [Redundancy::Mirror, Redundancy::Coded { data: 2, parity: 1 }] {
            let mut places = Places::new();
            let mut lenders = children(&mut places, provider, redundancy.servers() + 1);
            let addresses: Vec<_> = lenders.iter().map(|lender| lender.address.clone()).collect();
            let (options, log) = options(provider, 64);
            let pager = pager(&addresses, options.redundancy(redundancy));
            let mut memory = pager.map(PAGES * PAGE).expect("memory");
            fill(&mut memory, 0..PAGES, 1);
            for (lost, lender) in [(1, 0), (2, 1)] {
                lenders[lender].kill();
                wait_for("the loss", || pager.stats().servers_lost == lost);
                if lost == 1 {
                    wait_for("the repair", || matches!(log.lock()[..], [_, PagerEvent::Repaired { .. }]));
                }
            }
            check(&memory, 0..PAGES, 1);
            assert_eq!(pager.stats().pages_lost, 0);
        }
    }
}

#[test]
fn two_parity_pages_survive_the_kill_of_two_servers_at_once() {
    for provider in providers() {
        let mut places = Places::new();
        let mut lenders = children(&mut places, provider, 5);
        let addresses: Vec<_> = lenders.iter().map(|lender| lender.address.clone()).collect();
        let (options, _) = options(provider, 64);
        let pager = pager(&addresses, options.redundancy(Redundancy::Coded { data: 3, parity: 2 }));
        let mut memory = pager.map(PAGES * PAGE).expect("memory");
        fill(&mut memory, 0..PAGES, 1);
        lenders[0].kill();
        lenders[3].kill();
        use_until_lost(&pager, &memory, 1, 2);
        fill(&mut memory, 0..PAGES, 2);
        check(&memory, 0..PAGES, 2);
        let stats = pager.stats();
        assert_eq!((stats.pages_lost, stats.over_budget), (0, 0), "{stats:?}");
        assert!(stats.decoded_pages > 0, "{stats:?}");
    }
}

#[test]
fn a_lender_that_stops_in_order_is_lost_like_one_that_is_killed() {
    for provider in providers() {
        let mut lenders = Lenders::start(provider, 2, 16 * MIB);
        let (options, _) = options(provider, 64);
        let pager = pager(&lenders.addresses(), options.redundancy(Redundancy::Mirror));
        let mut memory = pager.map(PAGES * PAGE).expect("memory");
        fill(&mut memory, 0..PAGES, 1);
        lenders.lenders.remove(0);
        use_until_lost(&pager, &memory, 1, 1);
        fill(&mut memory, 0..PAGES, 2);
        check(&memory, 0..PAGES, 2);
        assert_eq!((pager.stats().pages_lost, pager.stats().servers_lost), (0, 1));
    }
}

/// Runs one of the functions below in a process of its own. Returns its output and its signal.
fn in_a_child(test: &str, provider: Provider) -> (String, Option<i32>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("loss::{test}"), "--ignored", "--nocapture"])
        .env("PROVIDER", format!("{provider:?}"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut text = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
    let status = child.wait().expect("its end");
    (text, status.signal())
}

fn provider() -> Provider {
    std::env::var("PROVIDER").expect("set by the test").parse().expect("a provider")
}

/// Fills memory, and kills its only server.
fn memory_without_server() -> (PagedMemory, RemotePager) {
    let mut places = Places::new();
    let mut lenders = children(&mut places, provider(), 1);
    let (options, _) = options(provider(), 64);
    let options = options.on_event(|event| eprintln!("EVENT {event}"));
    let pager = pager(&[lenders[0].address.clone()], options);
    let mut memory = pager.map(PAGES * PAGE).expect("memory");
    fill(&mut memory, 0..PAGES, 1);
    lenders[0].kill();
    (memory, pager)
}

#[test]
#[ignore = "part of without_a_mirror_the_loss_is_an_error_and_sigbus"]
fn load_from_a_lost_page() {
    let (memory, _pager) = memory_without_server();
    wait_for("SIGBUS", || (0..PAGES).any(|page| memory[page * PAGE] == 77));
    eprintln!("LOAD");
}

#[test]
#[ignore = "part of without_a_mirror_the_loss_is_an_error_and_sigbus"]
fn store_to_a_lost_page() {
    let (mut memory, _pager) = memory_without_server();
    wait_for("SIGBUS", || {
        (0..PAGES).for_each(|page| memory[page * PAGE] = 77);
        false
    });
    eprintln!("STORE");
}

#[test]
#[ignore = "part of without_a_mirror_the_loss_is_an_error_and_sigbus"]
fn use_what_is_left() {
    let (mut memory, pager) = memory_without_server();
    // A system call gets an error, and no signal.
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    let mut pass = |page: usize| {
        writer.write_all(&memory[page * PAGE..][..16])?;
        reader.read_exact(&mut [0; 16])
    };
    let error = (0..1_000_000).find_map(|n| pass(n % PAGES).err()).expect("a lost page");
    // New pages are local.
    let mut other = pager.map(100 * PAGE).expect("memory");
    fill(&mut other, 0..100, 2);
    check(&other, 0..100, 2);
    let lost = pager.stats().pages_lost;
    memory.discard(0..PAGES / 2 * PAGE).expect("no error");
    assert!(memory[..PAGES / 2 * PAGE].iter().all(|byte| *byte == 0));
    fill(&mut memory, 0..10, 3);
    check(&memory, 0..10, 3);
    eprintln!("DONE {lost} {:?}", error.kind());
}

#[test]
fn without_a_mirror_the_loss_is_an_error_and_sigbus() {
    const SIGBUS: i32 = 7;
    for provider in providers() {
        let begin = Instant::now();
        for test in ["load_from_a_lost_page", "store_to_a_lost_page"] {
            let (text, signal) = in_a_child(test, provider);
            assert_eq!(signal, Some(SIGBUS), "{test} {provider:?}: {text}");
            assert!(!text.contains("LOAD") && !text.contains("STORE"), "{text}");
            assert!(text.matches("EVENT lender").count() == 1, "one error: {text}");
        }
        let (text, signal) = in_a_child("use_what_is_left", provider);
        assert_eq!(signal, None, "{text}");
        assert!(text.contains("DONE 5"), "{text}");
        assert!(text.contains("EVENT lender"), "{text}");
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
