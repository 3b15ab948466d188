//! One thread waits for several sessions: ordered lists across hosts, and waits for transfers of
//! any types.

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use futures::{executor::block_on, future::join4};
use rdmabox::{Op, PollingMode, ProviderKind, RemoteAddr, RequestError, Session, across, wait_all, wait_any};

use crate::support::{Fixture, REFUSED, at, base, outside, pattern, providers};

const SOON: Duration = Duration::from_secs(20);

struct Hosts {
    fixtures: Vec<Fixture>,
    sessions: Vec<Arc<Session>>,
    bases: Vec<RemoteAddr>,
}

impl Hosts {
    fn new(kinds: &[(ProviderKind, bool)], polling: PollingMode) -> Hosts {
        let fixture = |(provider, direct): &(ProviderKind, bool)| {
            let mut fixture = Fixture::new(*provider);
            (fixture.options.direct, fixture.options.polling) = (*direct, polling);
            fixture
        };
        let fixtures: Vec<Fixture> = kinds.iter().map(fixture).collect();
        let sessions: Vec<_> = fixtures.iter().map(Fixture::connect).collect();
        let bases = sessions.iter().map(|session| base(session)).collect();
        Hosts { fixtures, sessions, bases }
    }
}

/// Runs a test with several hosts of each provider, and with hosts of different providers.
fn on_several_hosts(test: impl Fn(Hosts)) {
    let mut kinds: Vec<_> = providers().into_iter().map(|provider| (provider, false)).collect();
    if providers().contains(&ProviderKind::Shm) {
        kinds.push((ProviderKind::Shm, true));
    }
    for kind in &kinds {
        eprintln!("--- {kind:?}");
        test(Hosts::new(&[*kind; 3], PollingMode::Adaptive));
    }
    // Where one provider is tested, there are several hosts all the same.
    kinds.resize(kinds.len().max(3), kinds[0]);
    for &polling in PollingMode::ALL {
        eprintln!("--- all kinds, {polling}");
        test(Hosts::new(&kinds, polling));
    }
}

#[test]
fn a_list_runs_on_each_host_and_each_has_its_outcome() {
    on_several_hosts(|hosts| {
        let Hosts { fixtures, sessions, bases } = &hosts;
        for (seed, len) in [8, 5000, 1 << 20].into_iter().enumerate() {
            let data = pattern(len, seed);
            let mut backs = vec![vec![0; len]; sessions.len()];
            let mut olds = vec![0; sessions.len()];
            let mut lists: Vec<Vec<Op<'_>>> = (bases.iter().zip(&mut backs).zip(&mut olds))
                .map(|((&base, out), old)| {
                    vec![
                        Op::Write { remote: at(base, 64), data: &data },
                        Op::FetchAdd { remote: base, add: 1, old },
                        Op::Read { remote: at(base, 64), out },
                    ]
                })
                .collect();
            let mut of_sessions: Vec<(&Session, &mut [Op<'_>])> = sessions
                .iter()
                .map(|session| &**session)
                .zip(lists.iter_mut().map(|list| &mut list[..]))
                .collect();
            assert_eq!(across(&mut of_sessions), vec![Ok(()); sessions.len()]);
            assert!(backs.iter().all(|back| *back == data));
            assert!(olds.iter().all(|old| *old == seed as u64));
            for fixture in fixtures {
                let mut found = vec![0; len];
                fixture.memory.read(64, &mut found);
                assert!(found == data);
            }
        }
        assert!(sessions.iter().all(|session| session.in_flight().0 == 0));
    });
}

#[test]
fn a_list_that_fails_does_not_affect_the_others() {
    on_several_hosts(|hosts| {
        let Hosts { sessions, bases, .. } = &hosts;
        let mut old = 0;
        let mut refused = [Op::Write { remote: outside(bases[0]), data: &[1; 8] }];
        let mut good = [Op::FetchAdd { remote: bases[1], add: 5, old: &mut old }];
        let wrapping = RemoteAddr { addr: u64::MAX, ..bases[2] };
        let mut invalid = [Op::Write { remote: wrapping, data: &[1; 8] }];
        let outcomes = across(&mut [
            (&sessions[0], &mut refused),
            (&sessions[1], &mut good),
            (&sessions[2], &mut invalid),
            (&sessions[1], &mut []),
        ]);
        assert_eq!((&outcomes[0], &outcomes[1], &outcomes[3]), (&Err(REFUSED), &Ok(()), &Ok(())));
        assert!(matches!(outcomes[2], Err(RequestError::Invalid(_))));
        assert_eq!(across(&mut []), []);
    });
}

#[test]
fn the_end_of_one_session_leaves_the_other_outcomes() {
    on_several_hosts(|hosts| {
        let Hosts { sessions, bases, .. } = &hosts;
        sessions[0].close(Duration::ZERO);
        let write = |i: usize| [Op::Write { remote: bases[i], data: &[1; 100] }];
        let (mut first, mut second) = (write(0), write(1));
        let outcomes = across(&mut [(&sessions[0], &mut first), (&sessions[1], &mut second)]);
        assert_eq!(outcomes, [Err(RequestError::Disconnected), Ok(())]);
    });
}

#[test]
fn two_lists_of_one_session_are_under_way_at_once() {
    on_several_hosts(|hosts| {
        let Hosts { sessions, bases, .. } = &hosts;
        let (one, two) = (pattern(300_000, 1), pattern(300_000, 2));
        let mut first = [Op::Write { remote: bases[0], data: &one }];
        let mut second = [Op::Write { remote: at(bases[0], 1 << 20), data: &two }];
        let outcomes = across(&mut [(&sessions[0], &mut first), (&sessions[0], &mut second)]);
        assert_eq!(outcomes, [Ok(()), Ok(())]);
        let mut back = vec![0; 300_000];
        sessions[0].read(at(bases[0], 1 << 20), &mut back).unwrap();
        assert!(back == two);
    });
}

#[test]
fn threads_that_share_sessions_wait_across_them_at_once() {
    on_several_hosts(|hosts| {
        let Hosts { fixtures, sessions, bases } = &hosts;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    for _ in 0..30 {
                        let (mut one, mut two) = (0, 0);
                        let data = pattern(20_000, thread);
                        let place = 4096 + thread * 32768;
                        let mut first = [
                            Op::FetchAdd { remote: bases[0], add: 1, old: &mut one },
                            Op::Write { remote: at(bases[0], place), data: &data },
                        ];
                        let mut second = [
                            Op::Write { remote: at(bases[1], place), data: &data },
                            Op::FetchAdd { remote: bases[1], add: 1, old: &mut two },
                        ];
                        let outcomes = across(&mut [(&sessions[0], &mut first), (&sessions[1], &mut second)]);
                        assert_eq!(outcomes, [Ok(()), Ok(())]);
                        sessions[1].write(at(bases[1], place), &data).unwrap();
                    }
                });
            }
        });
        for fixture in &fixtures[..2] {
            let mut count = [0; 8];
            fixture.memory.read(0, &mut count);
            assert_eq!(u64::from_ne_bytes(count), 90);
        }
    });
}

#[test]
fn a_callback_cannot_wait_across_sessions() {
    on_several_hosts(|hosts| {
        let (session, base) = (Arc::clone(&hosts.sessions[0]), hosts.bases[0]);
        let (send, receive) = mpsc::channel();
        let own = Arc::clone(&session);
        session.write_then(base, vec![1; 8], move |_| {
            let mut list = [Op::Write { remote: at(base, 64), data: &[1; 8] }];
            let mut outcomes = across(&mut [(&own, &mut list)]);
            let mut started = own.start_write(at(base, 128), vec![1; 8]);
            let begun = Instant::now();
            let all = wait_all(&mut [&mut started], SOON);
            send.send((outcomes.pop().unwrap(), all || begun.elapsed() < SOON, started)).unwrap();
        });
        let (outcome, at_once, started) = receive.recv().unwrap();
        assert!(matches!(outcome, Err(RequestError::Invalid(_))) && at_once);
        started.wait().unwrap();
    });
}

#[test]
fn transfers_of_different_types_and_sessions_are_waited_for_together() {
    on_several_hosts(|hosts| {
        let Hosts { sessions, bases, .. } = &hosts;
        for round in 0..20 {
            let mut write = sessions[0].start_write(at(bases[0], 8), pattern(200_000, round));
            let mut count = sessions[1].start_fetch_add(bases[1], 1);
            let mut read = sessions[2].start_read(at(bases[2], 8), vec![0; 50_000]);
            let mut call = sessions[0].call_async(vec![1, 2]);
            let first = wait_any(&mut [&mut write, &mut count, &mut read, &mut call], SOON).unwrap();
            assert!([write.is_done(), count.is_done(), read.is_done(), call.is_done()][first]);
            if round % 2 == 0 {
                assert!(wait_all(&mut [&mut call, &mut write, &mut read, &mut count], SOON));
                assert_eq!(count.wait(), Ok(round as u64));
                assert_eq!((call.wait().unwrap(), write.wait().unwrap().len()), (vec![2, 1], 200_000));
                assert_eq!(read.wait().unwrap().len(), 50_000);
            } else {
                // The tasks, not the thread that waited, are notified.
                let (write, count, read, call) = block_on(join4(write, count, read, call));
                assert_eq!(count, Ok(round as u64));
                assert!(write.is_ok() && read.is_ok() && call.is_ok());
            }
        }
        assert_eq!(wait_any(&mut [], Duration::ZERO), None);
        assert!(wait_all(&mut [], Duration::ZERO));
    });
}

/// Catches a limit of zero that only looks: no other thread polls here.
#[test]
fn looking_again_and_again_makes_progress() {
    on_several_hosts(|hosts| {
        let mut write = hosts.sessions[0].start_write(hosts.bases[0], vec![1; 8]);
        let began = Instant::now();
        while wait_any(&mut [&mut write], Duration::ZERO).is_none() {
            assert!(began.elapsed() < SOON, "no progress");
        }
        write.wait().unwrap();
    });
}

#[test]
fn a_finished_transfer_makes_wait_any_return_at_once() {
    on_several_hosts(|hosts| {
        let Hosts { sessions, bases, .. } = &hosts;
        let mut refused = sessions[0].start_write(RemoteAddr { addr: u64::MAX, ..bases[0] }, vec![1; 8]);
        let mut read = sessions[1].start_read(bases[1], vec![0; 1 << 20]);
        assert_eq!(wait_any(&mut [&mut refused], SOON), Some(0));
        assert!(wait_any(&mut [&mut read, &mut refused], SOON).is_some());
        assert!(wait_all(&mut [&mut read, &mut refused], SOON));
        assert!(refused.wait().is_err());
        read.wait().unwrap();
    });
}
