//! The kernel behaves as the pager relies on it.

use std::{os::unix::process::ExitStatusExt, process::Command, thread, time::Duration};

use super::{
    memory,
    uffd::{Fault, FaultKind, Uffd},
};

const PAGE: usize = 4096;

/// Waits for the next fault.
fn next_fault(uffd: &Uffd) -> Fault {
    let mut faults = Vec::new();
    while faults.is_empty() {
        uffd.read_faults(&mut faults).expect("no error");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults[0]
}

fn region(pages: usize) -> (Uffd, usize) {
    let uffd = Uffd::open().expect("userfaultfd");
    let start = memory::map(pages * PAGE).expect("memory");
    uffd.register(start, pages * PAGE).expect("registered");
    (uffd, start)
}

fn load(address: usize) -> u8 {
    // SAFETY: The address is in a region that is mapped as long as the test runs.
    unsafe { (address as *const u8).read_volatile() }
}

fn store(address: usize, byte: u8) {
    // SAFETY: As for `load`; the tests store from one thread at a time.
    unsafe { (address as *mut u8).write_volatile(byte) };
}

#[test]
fn a_page_that_is_filled_protected_reports_the_first_store() {
    let (uffd, start) = region(2);
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            let loaded = load(start + 5);
            store(start + 6, 9);
            store(start + PAGE, 1);
            loaded
        });
        assert_eq!(next_fault(&uffd).kind, FaultKind::Load);
        uffd.copy(start, &[7; PAGE], true).expect("no error");
        let fault = next_fault(&uffd);
        assert_eq!((fault.address / PAGE * PAGE, fault.kind), (start, FaultKind::Protected));
        uffd.unprotect(start, PAGE).expect("no error");
        assert_eq!(next_fault(&uffd).kind, FaultKind::Store);
        uffd.zero(start + PAGE, PAGE).expect("no error");
        assert_eq!(user.join().expect("no panic"), 7);
    });
    assert_eq!((load(start + 5), load(start + 6), load(start + PAGE)), (7, 9, 1));
}

#[test]
fn a_store_that_waits_while_its_page_is_dropped_faults_again() {
    let (uffd, start) = region(1);
    uffd.copy(start, &[7; PAGE], true).expect("no error");
    thread::scope(|scope| {
        scope.spawn(|| store(start, 8));
        assert_eq!(next_fault(&uffd).kind, FaultKind::Protected);
        // SAFETY: The range is a region of this test.
        unsafe { memory::discard(start, PAGE).expect("no error") };
        uffd.wake(start, PAGE).expect("no error");
        assert_eq!(next_fault(&uffd).kind, FaultKind::Store);
        uffd.copy(start, &[7; PAGE], false).expect("no error");
    });
    assert_eq!((load(start), load(start + 1)), (8, 7));
}

/// Loads from a page that `lose` makes raise SIGBUS while the thread waits for it.
fn load_from_lost_page(lose: fn(&Uffd, usize)) {
    let (uffd, start) = region(1);
    thread::scope(|scope| {
        scope.spawn(|| load(start));
        assert_eq!(next_fault(&uffd).kind, FaultKind::Load);
        lose(&uffd, start);
    });
}

#[test]
#[ignore = "part of a_lost_page_raises_sigbus"]
fn lost_by_a_hole() {
    load_from_lost_page(|uffd, page| {
        // SAFETY: The page is a region of this test.
        unsafe { memory::replace_by_hole(page, PAGE).expect("no error") };
        uffd.wake(page, PAGE).expect("no error");
    });
}

#[test]
#[ignore = "part of a_lost_page_raises_sigbus"]
fn lost_by_poison() {
    load_from_lost_page(|uffd, page| uffd.poison(page, PAGE).expect("no error"));
}

#[test]
fn a_lost_page_raises_sigbus() {
    let mut ways = vec!["kernel::tests::lost_by_a_hole"];
    if Uffd::open().expect("userfaultfd").has_poison() {
        ways.push("kernel::tests::lost_by_poison");
    } else {
        println!("not run: poisoned pages, which this kernel lacks");
    }
    for way in ways {
        let program = std::env::current_exe().expect("this program");
        let outcome = Command::new(program).args(["--exact", way, "--ignored"]).output().expect("a child");
        assert_eq!(outcome.status.signal(), Some(libc::SIGBUS), "{way}: {outcome:?}");
    }
}
