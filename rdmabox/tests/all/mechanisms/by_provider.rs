//! Checks the guide's table of the mechanisms that act on each provider. Each cell is measured by
//! counters of a session.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use rdmabox::{
    ProviderKind, Session,
    admission::WindowScope,
    provider::model::{CardParameters, ModelledCard, Timing},
    stats::StatsSnapshot,
};

use super::{offsets, submit};
use crate::support::{Fixture, at, base, pattern, providers};

const GUIDE: &str = include_str!("../../../GUIDE.md");
/// First cell of the table.
const FIRST: &str = "| mechanism |";
const WINDOW: u64 = 8192;
const POLLING: &str = "adaptive polling";

/// Held by the tests here, which share devices and count all that is in flight there.
static DEVICES: Mutex<()> = Mutex::new(());

/// Returns the words of a column of the guide's table by the name of their row, without footnotes.
fn column(name: &str) -> BTreeMap<&'static str, &'static str> {
    let plain = |cell: &'static str| cell.split("[^").next().unwrap().trim();
    let table = &GUIDE[GUIDE.find(FIRST).expect("the table")..];
    let mut rows = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(plain).collect::<Vec<_>>());
    let head = rows.next().unwrap();
    let at = head.iter().position(|cell| *cell == name).expect("a column of this name");
    // The second line separates the head.
    rows.skip(1).map(|row| (row[0], row[at])).collect()
}

/// Makes each kind of load, and returns which mechanisms acted.
fn measured(fixture: &mut Fixture, is_mapped: bool) -> BTreeMap<&'static str, bool> {
    fixture.options.max_inline = 0;
    let session = fixture.connect();
    let place = base(&session);
    // Until the handle of mapped memory has come, requests are posted.
    while is_mapped && session.stats().direct == 0 {
        session.read(place, &mut [0]).unwrap();
    }
    let load = |work: &dyn Fn(&Session)| -> StatsSnapshot {
        let before = session.stats();
        work(&session);
        session.stats().since(&before)
    };
    let adjacent = load(&|s| requests(s, is_mapped, 512, 512));
    let apart = load(&|s| requests(s, is_mapped, 1024, 512));
    let started = load(&|s| {
        let start = |i| s.start_write(at(place, i * 512), pattern(512, i));
        let started: Vec<_> = (0..16).map(start).collect();
        started.into_iter().for_each(|write| drop(write.wait().unwrap()));
    });
    let sizes = load(&|s| [512, 16 << 10].iter().for_each(|len| s.write(place, &vec![1; *len]).unwrap()));
    let polls = load(&|s| (0..100).for_each(|_| s.read(place, &mut [0; 512]).unwrap()));
    let lanes = |session: &Session| session.lanes().iter().filter(|lane| lane.work_requests > 0).count();
    let spread = fixture.connect();
    requests(&spread, is_mapped, 1024, 512);
    let one_batch = lanes(&spread);
    // A run that is cut into four lists.
    fixture.options.max_merge_bytes = 64 << 10;
    let cut = fixture.connect();
    requests(&cut, is_mapped, 8192, 8192);
    let all = lanes(&cut);

    fixture.options.window_bytes = WINDOW;
    let small = fixture.connect();
    requests(&small, is_mapped, 8192, 4096);
    let (first, second) = (fixture.connect(), fixture.connect());
    requests(&first, is_mapped, 8192, 4096);
    BTreeMap::from([
        ("merging", adjacent.merged > 0),
        ("chaining", apart.doorbells < apart.work_requests),
        ("gathering", started.gathered > 0),
        ("preMR or dynMR", (sizes.pre_mr_bytes, sizes.dyn_mr_bytes) == (512, 16 << 10)),
        ("queue pairs", all > 1),
        ("one batch over queue pairs", one_batch > 1),
        (POLLING, polls.empty_polls > 0),
        ("window of a session", small.stats().window_waits > 0),
        ("window of a device", second.in_window().1 > 0),
    ])
}

/// Writes 32 parts of `len` bytes: in one submission, or one by one where the caller executes each.
fn requests(session: &Session, is_mapped: bool, stride: usize, len: usize) {
    let places = offsets(base(session), (0..32).map(|i| i * stride));
    match is_mapped {
        true => places.into_iter().for_each(|place| session.write(place, &pattern(len, 1)).unwrap()),
        false => {
            submit(session, true, &places, len);
        }
    }
}

/// Compares a column with measurements. `rows` that no test here measures have tests elsewhere.
fn check(name: &str, mut fixture: Fixture, is_mapped: bool) {
    const ELSEWHERE: [&str; 2] = ["threshold measured by default", "receive buffer of a mount"];
    let _devices = DEVICES.lock();
    // Fixtures count sessions alone; the guide tells the default.
    fixture.options.window_scope = WindowScope::ByProvider;
    let mut measured = measured(&mut fixture, is_mapped);
    let mut guide = column(name);
    guide.retain(|row, _| !ELSEWHERE.contains(row));
    if name == "RDMA" {
        // Soft-RoCE inside one host executes a request in its post, so that the first poll may find
        // it. A card does not.
        guide.remove(POLLING);
        measured.remove(POLLING);
    }
    let words = measured.into_iter().map(|(row, acts)| (row, if acts { "yes" } else { "no" })).collect();
    assert_eq!(guide, words, "{name}");
}

#[test]
fn the_guide_says_which_mechanisms_act_on_each_provider() {
    for provider in providers() {
        let mut fixture = Fixture::new(provider);
        if provider == ProviderKind::Shm {
            check("shared memory", fixture, true);
            fixture = Fixture::new(provider);
            fixture.options.direct = false;
        }
        let name = match provider {
            ProviderKind::Shm => "shared memory, posted",
            ProviderKind::Tcp => "TCP",
            _ => "RDMA",
        };
        check(name, fixture, false);
    }
}

#[test]
fn the_guide_says_which_mechanisms_act_on_a_modelled_card() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let mut fixture = Fixture::new(provider);
        // A request takes 0.25 ms at least, so that the first poll never finds it.
        let card = ModelledCard::new(CardParameters::cx3(), Timing::Dilated(100));
        fixture.options.card = Some(card);
        check("modelled card", fixture, false);
    }
}
