//! Tests of a window that the sessions on a device share.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use rdmabox::{
    Failed, ProviderKind, Session,
    admission::WindowScope,
    provider::model::{CardParameters, ModelledCard, Timing},
};

use crate::support::{Fixture, at, base, on_each_that_posts, pattern};

const WINDOW: u64 = 64 << 10;
const PART: usize = 4096;

/// These tests share devices, and count all that is in flight there.
static DEVICES: Mutex<()> = Mutex::new(());

/// Runs a test with hosts whose clients share a window: on each provider, and on a modelled card.
fn on_each_device(hosts: usize, test: impl Fn(Vec<Fixture>)) {
    let _devices = DEVICES.lock();
    let on = |change: &dyn Fn(&mut Fixture), provider| {
        let fixture = |_| {
            let mut f = Fixture::new(provider);
            (f.options.direct, f.options.window_bytes) = (false, WINDOW);
            change(&mut f);
            f
        };
        test((0..hosts).map(fixture).collect());
    };
    on_each_that_posts(|f| {
        let change = |f: &mut Fixture| f.options.window_scope = WindowScope::Device;
        on(&change, f.options.provider.expect("a provider"));
    });
    let card = ModelledCard::new(CardParameters::open("cx3").unwrap(), Timing::Counts);
    // The scope of a card is the device by default.
    let change = |f: &mut Fixture| {
        (f.options.window_scope, f.options.card) = (WindowScope::ByProvider, Some(Arc::clone(&card)));
    };
    on(&change, ProviderKind::Tcp);
}

/// Writes parts that do not merge, on four threads.
fn write_parts(session: &Session, rounds: usize) {
    let base = base(session);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            scope.spawn(move || {
                for round in 0..rounds {
                    let start = |i| {
                        session.start_write(at(base, (thread << 18) + i * 2 * PART), pattern(PART, round + i))
                    };
                    let writes: Vec<_> = (0..16).map(start).collect();
                    writes.into_iter().for_each(|write| drop(write.wait().unwrap()));
                }
            });
        }
    });
}

/// Catches sessions that count alone: each would fill the window, and three would have up to three
/// windows in flight.
#[test]
fn sessions_to_several_hosts_keep_to_one_window() {
    on_each_device(3, |fixtures| {
        let sessions: Vec<_> = fixtures.iter().map(Fixture::connect).collect();
        std::thread::scope(|scope| {
            for session in &sessions {
                scope.spawn(|| write_parts(session, 30));
            }
        });
        for session in &sessions {
            let (now, peak) = session.in_window();
            assert_eq!((now, session.in_flight().0), (0, 0));
            // A share of two sessions, and one request of each, may be beyond the window.
            assert!(peak <= WINDOW + WINDOW / 2 + 3 * PART as u64, "{peak}");
        }
    });
}

/// Catches a session that waits for the completions of another session, whose peer may be stopped.
/// Also catches a session that has one request at a time until they come.
#[test]
fn a_full_window_of_one_session_leaves_another_one_its_share() {
    on_each_device(2, |fixtures| {
        let full = fixtures[0].connect();
        let other = fixtures[1].connect();
        let (place, other_place) = (base(&full), base(&other));
        let (send, receive) = mpsc::channel();
        let (go_on, waits) = mpsc::channel();
        let own = Arc::clone(&full);
        let fill = move |outcome: Result<Vec<u8>, Failed<Vec<u8>>>| {
            outcome.unwrap();
            // In a callback nothing is polled, so these fill the window until it has ended.
            let start = |i: usize| own.start_write(at(place, (1 + 2 * i) * PART), vec![1; PART]);
            let held: Vec<_> = own.together(|| (0..16).map(start).collect());
            send.send((own.in_flight().0, held)).unwrap();
            waits.recv().unwrap();
        };
        // Over shared memory the thread that starts the write also runs the callback.
        let starter = Arc::clone(&full);
        let filler = std::thread::spawn(move || starter.write_then(place, vec![0; 8], fill));
        let (filled, held) = receive.recv().unwrap();
        let mut found = vec![0; PART];
        for round in 0..20 {
            let bytes = pattern(PART, round);
            other.write(other_place, &bytes).unwrap();
            other.read(other_place, &mut found).unwrap();
            assert_eq!(found, bytes);
        }
        write_parts(&other, 20);
        let own = other.in_flight().1;
        go_on.send(()).unwrap();
        filler.join().unwrap();
        held.into_iter().for_each(|write| drop(write.wait().unwrap()));
        let (now, peak) = other.in_window();
        assert_eq!((filled, now), (WINDOW, 0));
        assert!((WINDOW / 4..=WINDOW / 2).contains(&own), "{own}");
        assert!(peak <= WINDOW + WINDOW / 2, "{peak}");
    });
}

/// Catches a session that another one leaves with one request at a time.
#[test]
fn sessions_that_wait_get_a_share_of_the_window() {
    on_each_device(2, |fixtures| {
        let sessions: Vec<_> = fixtures.iter().map(Fixture::connect).collect();
        std::thread::scope(|scope| {
            for session in &sessions {
                scope.spawn(|| write_parts(session, 100));
            }
        });
        for session in &sessions {
            assert!(session.in_flight().1 >= WINDOW / 4, "{:?}", session.in_flight());
        }
    });
}

/// Catches a switch that a card or an RDMA device does not follow.
#[test]
fn sessions_on_a_device_count_alone_if_the_options_say_so() {
    on_each_device(2, |mut fixtures| {
        fixtures.iter_mut().for_each(|f| f.options.window_scope = WindowScope::Session);
        let sessions: Vec<_> = fixtures.iter().map(Fixture::connect).collect();
        let (first, second) = (&sessions[0], &sessions[1]);
        first.write(base(first), &[1; 3 * PART]).unwrap();
        assert_eq!((first.in_window(), second.in_window()), ((0, 3 * PART as u64), (0, 0)));
    });
}

/// Catches the scope of the device where the documentation says the session.
#[test]
fn software_sessions_count_alone_by_default() {
    on_each_that_posts(|mut f| {
        if f.options.provider == Some(ProviderKind::Rdma) {
            return;
        }
        f.options.window_scope = WindowScope::ByProvider;
        let (first, second) = (f.connect(), f.connect());
        first.write(base(&first), &[1; 3 * PART]).unwrap();
        assert_eq!(first.in_window(), (0, 3 * PART as u64));
        assert_eq!(second.in_window(), (0, 0));
    });
}
