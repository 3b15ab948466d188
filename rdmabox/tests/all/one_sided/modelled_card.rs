//! Tests of sessions on a modelled card: exact counts without time, and contents, minimum times and
//! failures with it.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rdmabox::{
    BatchMode, PollingMode, PreMrThreshold, ProviderKind, Session,
    provider::model::{CardCounters, CardParameters, ModelledCard, Timing},
};

use crate::support::{Fixture, at, base, pattern};

/// Software providers below the card.
const BELOW: [ProviderKind; 2] = [ProviderKind::Shm, ProviderKind::Tcp];

fn card(timing: Timing) -> Arc<ModelledCard> {
    ModelledCard::new(CardParameters::cx3(), timing)
}

/// Returns the counts of the card while `work` runs.
fn counts(card: &ModelledCard, work: impl FnOnce()) -> CardCounters {
    let before = card.counters();
    work();
    card.counters().since(&before)
}

/// RDMAbox, Table I, at the card.
#[test]
fn the_card_counts_what_each_mode_posts() {
    const N: u64 = 16;
    for provider in BELOW {
        for &batch in BatchMode::ALL {
            let mut fixture = Fixture::new(provider);
            let card = card(Timing::Counts);
            (fixture.options.batch, fixture.options.card) = (batch, Some(Arc::clone(&card)));
            fixture.options.queue_pairs = 1;
            fixture.options.pre_mr_threshold = PreMrThreshold::Bytes(u64::MAX);
            let session = fixture.connect();
            let place = base(&session);
            let data = pattern(1024, 1);
            let write = |stride: usize| {
                let parts: Vec<_> = (0..16).map(|i| (at(place, i * stride), &data[..])).collect();
                session.write_vectored(&parts).unwrap();
            };
            for (stride, is_adjacent) in [(1024, true), (8192, false)] {
                let found = counts(&card, || write(stride));
                let merges = is_adjacent && matches!(batch, BatchMode::Merge | BatchMode::Hybrid);
                let chains = matches!(batch, BatchMode::Doorbell | BatchMode::Hybrid);
                let requests = if merges { 1 } else { N };
                let doorbells = if chains { 1 } else { requests };
                let expected = (requests, doorbells, requests - doorbells);
                let what = format!("{provider} {batch} {is_adjacent}");
                assert_eq!((found.work_requests, found.doorbells, found.fetches), expected, "{what}");
                assert_eq!(found.copied_bytes, N * 1024, "{what}");
                assert_eq!((found.copies, found.registrations), (requests, 0), "{what}");
            }
        }
    }
}

#[test]
fn a_request_above_the_threshold_is_registered_and_not_copied() {
    let mut fixture = Fixture::new(ProviderKind::Shm);
    let card = card(Timing::Counts);
    fixture.options.card = Some(Arc::clone(&card));
    fixture.options.pre_mr_threshold = PreMrThreshold::Bytes(8192);
    let session = fixture.connect();
    let place = base(&session);
    for (len, expected) in [(8192, (1, 0)), (8193, (0, 1))] {
        let found = counts(&card, || session.write(place, &pattern(len, 1)).unwrap());
        assert_eq!((found.copies, found.registrations), expected, "write of {len}");
        let found = counts(&card, || session.read(place, &mut vec![0; len]).unwrap());
        assert_eq!((found.copies, found.registrations), expected, "read of {len}");
    }
}

/// `auto` is the threshold of the card's constants: RDMAbox, Fig. 5(b).
#[test]
fn the_automatic_threshold_is_that_of_the_card() {
    for timing in [Timing::Counts, Timing::Dilated(20)] {
        let mut fixture = Fixture::new(ProviderKind::Shm);
        let card = card(timing);
        fixture.options.card = Some(Arc::clone(&card));
        fixture.options.pre_mr_threshold = PreMrThreshold::Auto;
        let session = fixture.connect();
        let place = base(&session);
        for (len, expected) in [(924 << 10, (1, 0)), ((924 << 10) + 1, (0, 1))] {
            let found = counts(&card, || session.write(place, &vec![1; len]).unwrap());
            assert_eq!((found.copies, found.registrations), expected, "{timing:?} {len}");
        }
    }
}

fn write_and_read(session: &Session, threads: usize) {
    let place = base(session);
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || {
                for round in 0..20 {
                    let own = at(place, number * (64 << 10));
                    let data = pattern(200 * (round + 1), number * 100 + round);
                    if round % 2 == 0 {
                        session.write(own, &data).unwrap();
                    } else {
                        session.start_write(own, data.clone()).wait().unwrap();
                    }
                    let mut back = vec![0; data.len()];
                    session.read(own, &mut back).unwrap();
                    assert!(back == data, "thread {number}, round {round}");
                }
            });
        }
    });
}

#[test]
fn bytes_are_right_in_every_polling_mode() {
    for provider in BELOW {
        for mode in ["busy", "event", "event-batch", "hybrid", "adaptive", "shared-cq:2"] {
            let mut fixture = Fixture::new(provider);
            fixture.options.card = Some(card(Timing::Dilated(20)));
            fixture.options.polling = mode.parse().unwrap();
            write_and_read(&fixture.connect(), 4);
        }
    }
}

#[test]
fn a_request_takes_at_least_its_dilated_time() {
    let mut fixture = Fixture::new(ProviderKind::Shm);
    fixture.options.card = Some(card(Timing::Dilated(10_000)));
    let session = fixture.connect();
    let place = base(&session);
    let began = Instant::now();
    session.write(place, &[1; 4096]).unwrap();
    // A unit, both ways on the wire, and the bytes: 1160 + 2 * 300 + 600 ns.
    assert!(began.elapsed() >= Duration::from_millis(23), "{:?}", began.elapsed());
}

/// On a card no completion is there at the first poll, so each wait of an event mode sleeps.
/// Catches a MAX_RETRY of 0 that polls more than event mode, and an event mode that polls.
#[test]
fn no_retries_sleep_as_often_as_event_mode() {
    const OPS: u64 = 20;
    let counted = |polling: PollingMode, max_retry: Option<u32>| {
        let mut fixture = Fixture::new(ProviderKind::Shm);
        // A request takes 25 ms. 120 polls take 72 ms.
        fixture.options.card = Some(card(Timing::Dilated(10_000)));
        (fixture.options.polling, fixture.options.max_retry) = (polling, max_retry);
        let session = fixture.connect();
        let place = base(&session);
        let before = session.stats();
        (0..OPS).for_each(|_| session.write(place, &[1; 4096]).unwrap());
        let took = session.stats().since(&before);
        assert_eq!(took.completions, OPS);
        (took.sleeps, took.empty_polls)
    };
    let (none, none_polls) = counted(PollingMode::Adaptive, Some(0));
    let (event, event_polls) = counted(PollingMode::Event, None);
    let (many, many_polls) = counted(PollingMode::Adaptive, Some(120));
    // A pause of the machine may hide a sleep.
    for (sleeps, polls) in [(none, none_polls), (event, event_polls)] {
        assert!((OPS - 2..=OPS).contains(&sleeps), "{none} and {event} sleeps for {OPS} requests");
        assert!((2 * sleeps..=2 * OPS).contains(&polls), "{polls} empty polls for {sleeps} sleeps");
    }
    assert_eq!(many, 0, "an adaptive budget of 120 polls covers each request");
    assert!(many_polls > 2 * none_polls, "{many_polls} and {none_polls} empty polls");
}

/// Catches a batch that keeps one unit of the card busy and leaves three idle.
#[test]
fn a_large_batch_rings_a_doorbell_on_each_queue_pair() {
    for provider in BELOW {
        let mut fixture = Fixture::new(provider);
        let card = card(Timing::Counts);
        fixture.options.card = Some(Arc::clone(&card));
        let session = fixture.connect();
        let place = base(&session);
        let data = pattern(512, 1);
        for (count, lanes) in [(4, 1), (7, 1), (8, 2), (16, 4), (192, 4)] {
            let parts: Vec<_> = (0..count).map(|i| (at(place, i * 1024), &data[..])).collect();
            let found = counts(&card, || session.write_vectored(&parts).unwrap());
            let count = count as u64;
            assert_eq!(
                (found.doorbells, found.work_requests, found.fetches),
                (lanes, count, count - lanes),
                "{provider}"
            );
        }
    }
}

#[test]
fn a_host_that_goes_away_fails_the_requests() {
    for provider in BELOW {
        let mut fixture = Fixture::new(provider);
        fixture.options.card = Some(card(Timing::Dilated(20)));
        let session = fixture.connect();
        let place = base(&session);
        session.write(place, &[1; 4096]).unwrap();
        fixture.end();
        assert!(session.write(place, &[1; 4096]).is_err(), "{provider}");
    }
}
