use super::{
    super::{
        operation::{How, Outcome, Renaming, bytes},
        view::{Object, View},
    },
    *,
};

/// Builds rounds by hand: operations with their times and answers.
fn call(id: u64, worker: usize, (from, to): (u64, u64), op: Op, outcome: Outcome) -> Call {
    Call { worker, mount: worker, id, op, from, to, outcome, checked: true, paged: false, killed: false }
}

fn serialize(start: &State, calls: &[Call], views: &[View], killed: &[usize]) -> Result<State, Mismatch> {
    super::serialize(start, calls, views, killed, Names::Current)
}

/// Returns a state in which two workers have the file "a" open; it is empty.
fn opened() -> State {
    let how = How { write: true, create: true, ..How::default() };
    let open = Op::Open { slot: 0, path: "a", how };
    let calls = [call(1, 0, (0, 1), open, Outcome::Done), call(2, 1, (2, 3), open, Outcome::Done)];
    serialize(&State::empty(), &calls, &[], &[]).unwrap()
}

fn write(at: u64, len: u64) -> Op {
    Op::Write { slot: 0, at, len }
}

/// Returns the observation of a mount if the file has these bytes.
fn view(state: &State, content: Vec<u8>) -> View {
    let mut attr = state.attr(1);
    attr.size = content.len() as u64;
    let object = Object { place: Where::Name("a"), number: 77, attr, attribute: None, bytes: Some(content) };
    let root =
        Object { place: Where::Name("."), number: 1, attr: state.attr(0), attribute: None, bytes: None };
    View { mount: 0, objects: vec![root, object], lists: Default::default(), errors: Vec::new() }
}

#[test]
fn real_time_is_respected() {
    let start = opened();
    let read = Op::Read { slot: 0, at: 0, len: 9 };
    let (written, read_nothing) = (Outcome::Count(3), Outcome::Bytes(Vec::new()));
    // At the same time either comes first.
    let calls = [
        call(3, 0, (10, 20), write(0, 3), written.clone()),
        call(4, 1, (15, 25), read, read_nothing.clone()),
    ];
    serialize(&start, &calls, &[], &[]).unwrap();
    // A write that has returned is seen.
    let calls = [call(3, 0, (10, 20), write(0, 3), written), call(4, 1, (21, 25), read, read_nothing)];
    let error = serialize(&start, &calls, &[], &[]).unwrap_err();
    assert!(matches!(&error, Mismatch::Wrong(reason) if reason.contains("operation 4")), "{error:?}");
}

#[test]
fn overlapping_writes_may_mix_and_nothing_else_may_be_there() {
    let start = opened();
    let calls = [
        call(3, 0, (10, 20), write(0, 8), Outcome::Count(8)),
        call(4, 1, (11, 21), write(0, 8), Outcome::Count(8)),
    ];
    let (one, other) = (bytes(3, 8), bytes(4, 8));
    let mixed: Vec<_> = (0..8).map(|at| if at % 2 == 0 { one[at] } else { other[at] }).collect();
    let next = serialize(&start, &calls, &[view(&start, mixed.clone())], &[]).unwrap();
    assert_eq!(*next.inodes[&1].bytes, mixed);
    let mut wrong = mixed;
    wrong[5] = 0;
    assert!(serialize(&start, &calls, &[view(&start, wrong)], &[]).is_err());
}

#[test]
fn a_write_that_was_acknowledged_is_there_though_its_client_was_killed() {
    let start = opened();
    let acknowledged = [call(3, 0, (10, 20), write(0, 8), Outcome::Count(8))];
    let lost = view(&start, Vec::new());
    assert!(serialize(&start, &acknowledged, std::slice::from_ref(&lost), &[0]).is_err());
    let unknown = [call(3, 0, (10, u64::MAX), write(0, 8), Outcome::Unknown)];
    serialize(&start, &unknown, &[lost], &[0]).unwrap();
    let next = serialize(&start, &unknown, &[view(&start, bytes(3, 8))], &[0]).unwrap();
    assert_eq!(next.handles.len(), 1);
}

#[test]
fn a_write_of_a_killed_client_may_tell_the_length_of_its_first_page() {
    let start = opened();
    let fits = |killed, count, content: Vec<u8>| {
        let written = call(3, 0, (10, 20), write(4062, 722), Outcome::Count(count));
        let calls = [Call { paged: true, killed, ..written }];
        serialize(&start, &calls, &[view(&start, content)], &[0]).is_ok()
    };
    let content = |len| [vec![0; 4062], bytes(3, len)].concat();
    // The bytes that are told are there. The others may be there.
    assert!(fits(true, 34, content(34)) && fits(true, 34, content(722)));
    assert!(!fits(true, 34, Vec::new()) && !fits(true, 33, content(34)) && !fits(true, 722, content(34)));
    assert!(!fits(false, 34, content(34)));
    let failed = call(3, 0, (10, u64::MAX), write(4062, 722), Outcome::Unknown);
    let failed = [Call { paged: true, killed: true, ..failed }];
    for content in [Vec::new(), content(34), content(722)] {
        serialize(&start, &failed, &[view(&start, content)], &[0]).unwrap();
    }
}

/// A read that begins after a write has told a part of its length finds that part. The rest may
/// come later.
#[test]
fn the_part_that_a_killed_client_has_told_is_there_for_later_reads() {
    let start = opened();
    let fits = |seen: Vec<u8>| {
        let written = call(3, 0, (10, 20), write(4062, 722), Outcome::Count(34));
        let written = Call { paged: true, killed: true, ..written };
        let read = Op::Read { slot: 0, at: 4062, len: 722 };
        let calls = [written, call(5, 1, (21, 30), read, Outcome::Bytes(seen))];
        serialize(&start, &calls, &[view(&start, [vec![0; 4062], bytes(3, 722)].concat())], &[0]).is_ok()
    };
    assert!(fits(bytes(3, 34)) && fits(bytes(3, 722)));
    assert!(!fits(Vec::new()) && !fits(bytes(3, 33)));
}

#[test]
fn a_read_of_a_killed_client_may_end_with_a_page_and_its_bytes_are_right() {
    let start = opened();
    let written = [call(3, 0, (5, 6), write(0, 8000), Outcome::Count(8000))];
    let start = serialize(&start, &written, &[], &[]).unwrap();
    let fits = |killed, paged, seen: &[u8]| {
        let read = Op::Read { slot: 0, at: 0, len: 8000 };
        let read = call(5, 1, (11, 21), read, Outcome::Bytes(seen.to_vec()));
        serialize(&start, &[Call { killed, paged, ..read }], &[], &[]).is_ok()
    };
    let bytes = bytes(3, 8000);
    assert!(fits(true, true, &bytes) && fits(true, true, &bytes[..4096]));
    assert!(!fits(true, true, &[0; 4096]) && !fits(true, true, &bytes[..4095]) && !fits(true, true, &[]));
    assert!(!fits(false, true, &bytes[..4096]) && !fits(true, false, &bytes[..4096]));
}

#[test]
fn the_size_after_a_truncation_and_a_write_is_that_of_one_order() {
    let start = opened();
    let calls = [
        call(3, 0, (10, 20), write(0, 100), Outcome::Count(100)),
        call(4, 1, (11, 21), Op::Truncate { slot: 0, size: 40 }, Outcome::Done),
    ];
    let mut cut = bytes(3, 100);
    serialize(&start, &calls, &[view(&start, cut.clone())], &[]).unwrap();
    cut.truncate(40);
    serialize(&start, &calls, &[view(&start, cut.clone())], &[]).unwrap();
    cut.truncate(30);
    assert!(serialize(&start, &calls, &[view(&start, cut)], &[]).is_err());
}

#[test]
fn a_copy_is_bounded_by_the_size_that_its_mount_knew() {
    let start = opened();
    let copy = Op::Copy { from: 0, to: 0, at: 50, target: 200, len: 10 };
    let round = |mount, count| {
        let mut copied = call(4, 1, (21, 25), copy, Outcome::Count(count));
        copied.mount = mount;
        [call(3, 0, (10, 20), write(0, 100), Outcome::Count(100)), copied]
    };
    serialize(&start, &round(1, 10), &[], &[]).unwrap();
    serialize(&start, &round(1, 0), &[], &[]).unwrap();
    assert!(serialize(&start, &round(1, 11), &[], &[]).is_err());
    assert!(serialize(&start, &round(0, 0), &[], &[]).is_err(), "the mount that wrote knows the size");
}

#[test]
fn a_buffered_read_beside_another_call_may_go_by_a_size_from_before_a_truncation() {
    let start = opened();
    let calls = [call(3, 0, (10, 20), write(0, 100), Outcome::Count(100))];
    let start = serialize(&start, &calls, &[], &[]).unwrap();
    let round = |seen: Vec<u8>, paged, other: (u64, u64)| {
        let read = Op::Read { slot: 0, at: 40, len: 60 };
        let mut read = call(5, 1, (41, 50), read, Outcome::Bytes(seen));
        read.paged = paged;
        let truncation = call(4, 0, (30, 40), Op::Truncate { slot: 0, size: 40 }, Outcome::Done);
        let attribute = call(6, 0, other, Op::Chmod { path: "a", mode: 0o600 }, Outcome::Done);
        [truncation, read, attribute]
    };
    let fits = |seen, paged, other| serialize(&start, &round(seen, paged, other), &[], &[]).is_ok();
    let beside = (42, 60);
    assert!(fits(vec![], true, beside) && fits(vec![0; 60], true, beside));
    assert!(!fits(bytes(3, 60), true, beside), "bytes that were cut off are gone");
    assert!(!fits(vec![0; 60], true, (51, 60)) && !fits(vec![0; 60], false, beside));
}

#[test]
fn one_of_two_that_create_exclusively_succeeds() {
    let how = How { write: true, create: true, exclusive: true, ..How::default() };
    let open = Op::Open { slot: 0, path: "a", how };
    let exists = Outcome::Failed(libc::EEXIST);
    let both = |first: &Outcome, second: &Outcome| {
        [call(1, 0, (0, 10), open, first.clone()), call(2, 1, (1, 11), open, second.clone())]
    };
    for (first, second) in [(&Outcome::Done, &exists), (&exists, &Outcome::Done)] {
        serialize(&State::empty(), &both(first, second), &[], &[]).unwrap();
    }
    assert!(serialize(&State::empty(), &both(&Outcome::Done, &Outcome::Done), &[], &[]).is_err());
    assert!(serialize(&State::empty(), &both(&exists, &exists), &[], &[]).is_err());
}

#[test]
fn a_listing_shows_names_that_come_and_go_or_not_and_all_others() {
    let mut start = opened();
    start.names.insert((0, "b"), 1);
    let rename = Op::Rename { from: "a", to: "c", how: Renaming::Replace };
    let listed = |names: &[&str]| Outcome::Names(names.iter().map(|name| (*name).to_owned()).collect());
    let round = |names: &[&str]| {
        [
            call(3, 0, (10, 20), rename, Outcome::Done),
            call(4, 1, (11, 21), Op::List { path: "." }, listed(names)),
        ]
    };
    for right in [&["a", "b"][..], &["b", "c"], &["b"], &["a", "b", "c"]] {
        serialize(&start, &round(right), &[], &[]).unwrap();
    }
    for wrong in [&["a"][..], &["a", "b", "x"], &["b", "b twice"]] {
        assert!(serialize(&start, &round(wrong), &[], &[]).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_read_beside_a_truncation_may_have_the_size_before_and_zeros() {
    let start = opened();
    let start = serialize(&start, &[call(3, 0, (5, 6), write(0, 8), Outcome::Count(8))], &[], &[]).unwrap();
    let read = |outcome| {
        let cut = call(4, 0, (10, 20), Op::Truncate { slot: 0, size: 3 }, Outcome::Done);
        [cut, call(5, 1, (11, 21), Op::Read { slot: 0, at: 0, len: 9 }, Outcome::Bytes(outcome))]
    };
    let mut zeros = bytes(3, 8);
    zeros[3..].fill(0);
    serialize(&start, &read(zeros.clone()), &[], &[]).unwrap();
    // Its length is that of one order, and its bytes are those of the file or zero.
    assert!(serialize(&start, &read(zeros[..6].to_vec()), &[], &[]).is_err());
    zeros[5] = 0xff;
    assert!(serialize(&start, &read(zeros), &[], &[]).is_err());
}

#[test]
fn the_size_between_the_two_requests_of_a_buffered_write_is_seen() {
    let start = opened();
    let attr = |size| Outcome::Attr(super::super::operation::Attr { size, ..start.attr(1) });
    let round = |paged, size| {
        let written = call(3, 0, (10, 20), write(4000, 200), Outcome::Count(200));
        [Call { paged, ..written }, call(4, 1, (11, 12), Op::Stat { slot: 0 }, attr(size))]
    };
    serialize(&start, &round(true, 4096), &[], &[]).unwrap();
    assert!(serialize(&start, &round(false, 4096), &[], &[]).is_err());
    assert!(serialize(&start, &round(true, 4100), &[], &[]).is_err());
}

/// Returns true if a round fits. A mount renames "a" to "c"; the call `own` is of the other mount.
fn fits_beside(own: (Op, (u64, u64)), last: Op, (from, seen): (u64, Outcome), names: Names) -> bool {
    let rename = Op::Rename { from: "a", to: "c", how: Renaming::Replace };
    let calls = [
        call(3, 1, (10, 20), rename, Outcome::Done),
        call(4, 0, own.1, own.0, Outcome::Done),
        call(5, 0, (from, from + 5), last, seen),
    ];
    super::serialize(&opened(), &calls, &[], &[], names).is_ok()
}

#[test]
fn a_mount_may_use_a_name_as_it_was_after_its_own_change_of_the_directory() {
    let (mkdir, stat) = (Op::Mkdir { path: "d" }, Op::StatName { path: "a" });
    let attr = Outcome::Attr(opened().attr(1));
    let fits = |own, from, names| fits_beside(own, stat, (from, attr.clone()), names);
    assert!(fits((mkdir, (5, 30)), 31, Names::Earlier));
    assert!(!fits((mkdir, (5, 30)), 31, Names::Current));
    assert!(!fits((mkdir, (5, 9)), 31, Names::Earlier), "no change of its own at that time");
    assert!(!fits((mkdir, (5, 30)), 31 + DROP_LIMIT, Names::Earlier), "the name is dropped by then");
    let chmod = Op::Chmod { path: ".", mode: 0o755 };
    assert!(fits((chmod, (5, 30)), 31, Names::Earlier), "the kernel holds the directory, too");
    let chmod = Op::Chmod { path: "c", mode: 0o644 };
    assert!(!fits((chmod, (15, 30)), 31, Names::Earlier), "another object");
    assert!(fits((chmod, (15, 30 + GRACE)), 31 + GRACE, Names::Earlier), "a change that ends late");
    // Absent names are cached, too.
    let absent = Outcome::Failed(libc::ENOENT);
    let fits = |last| fits_beside((mkdir, (5, 30)), last, (31, absent.clone()), Names::Earlier);
    assert!(fits(Op::StatName { path: "c" }) && fits(Op::Unlink { path: "c" }));
    assert!(!fits(Op::StatName { path: "d" }), "its own change");
    assert!(fits(Op::Rename { from: "c", to: "b", how: Renaming::Replace }));
    assert!(fits(Op::Link { from: "a", to: "b" }), "the name that is not there");
}

#[test]
fn a_mount_may_use_a_name_as_it_was_until_its_own_change_of_it_has_returned() {
    let (stat, chmod) = (Op::StatName { path: "a" }, Op::Chmod { path: "a", mode: 0o600 });
    let fits_with = |last: Op, (mount, from), seen: Outcome, names| {
        let mut late = call(5, 2, (from, from + 40), last, seen);
        late.mount = mount;
        let calls = [
            call(3, 0, (10, 30), Op::Unlink { path: "a" }, Outcome::Done),
            // The other mount has seen the change.
            call(4, 1, (11, 20), stat, Outcome::Failed(libc::ENOENT)),
            late,
        ];
        super::serialize(&opened(), &calls, &[], &[], names).is_ok()
    };
    let fits = |at, names| fits_with(chmod, at, Outcome::Done, names);
    assert!(fits((0, 25), Names::Earlier));
    assert!(!fits((0, 25), Names::Current));
    let listed = Outcome::Names(["a".to_owned()].into());
    let list = Op::List { path: "." };
    assert!(!fits_with(list, (0, 25), listed, Names::Earlier), "the directory is locked until then");
    assert!(!fits((0, 31), Names::Earlier), "the change has returned");
    assert!(!fits((1, 25), Names::Earlier), "the other mount knows");
}

#[test]
fn a_rename_by_another_mount_may_show_in_one_name_first() {
    let absent = || Outcome::Failed(libc::ENOENT);
    let fits = |later: (u64, u64), names| {
        let rename = Op::Rename { from: "a", to: "c", how: Renaming::Replace };
        let calls = [
            call(3, 1, (10, 30), rename, Outcome::Done),
            // The server has answered this. The kernel has answered the next from its cache.
            call(4, 0, (11, 20), Op::StatName { path: "a" }, absent()),
            call(5, 0, later, Op::Chmod { path: "c", mode: 0o600 }, absent()),
        ];
        super::serialize(&opened(), &calls, &[], &[], names).is_ok()
    };
    assert!(fits((21, 25), Names::Earlier) && !fits((21, 25), Names::Current));
    assert!(!fits((31, 35), Names::Earlier), "the rename has returned");
}

#[test]
fn the_kernel_asks_for_a_name_that_it_is_about_to_make() {
    let mkdir = (Op::Mkdir { path: "d" }, (5, 30));
    let fits = |last, seen| fits_beside(mkdir, last, (31, seen), Names::Earlier);
    let exists = Outcome::Failed(libc::EEXIST);
    let link = Op::Link { from: "c", to: "a" };
    assert!(fits(link, Outcome::Done) && !fits(link, exists.clone()));
    let how = How { write: true, create: true, exclusive: true, ..How::default() };
    let create = Op::Open { slot: 2, path: "a", how };
    assert!(fits(create, Outcome::Done) && !fits(create, exists));
    let create = Op::Open { slot: 2, path: "c", how: How { exclusive: false, ..how } };
    assert!(fits(create, Outcome::Done), "the file is opened, not made a second time");
}

#[test]
fn a_listing_may_show_a_name_as_it_was() {
    let mkdir = (Op::Mkdir { path: "d" }, (5, 30));
    let listed = |names: &[&str]| Outcome::Names(names.iter().map(|name| (*name).to_owned()).collect());
    let fits = |seen: &[&str], names| fits_beside(mkdir, Op::List { path: "." }, (31, listed(seen)), names);
    assert!(fits(&["c", "d"], Names::Current));
    for late in [&["a", "d"][..], &["a", "c", "d"], &["d"]] {
        assert!(fits(late, Names::Earlier) && !fits(late, Names::Current), "{late:?}");
    }
    assert!(!fits(&["c"], Names::Earlier) && !fits(&["b", "c", "d"], Names::Earlier));
}
