//! Tests the runtime on a device that injects faults. Every request ends once, a successful write
//! is present, a failed write may be present, and no resource leaks.
//!
//! RDMABOX_FAULT_SEED=N repeats one seed. RDMABOX_FAULT_SEEDS=COUNT runs COUNT random seeds.
//!
//! Own program: it counts the descriptors and threads of its process.

use std::{
    fs,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use rdmabox::{
    CallsBy, Memory, Op, OwnedOp, ProviderKind, RemoteAddr, RequestError, Session, SessionOptions, WcStatus,
    provider::fault::{Chance, Faults, Plan, seeds},
};

mod support;

use support::{Fixture, at, base, split};

const THREADS: usize = 3;
/// Requests of each.
const REQUESTS: usize = 250;
/// Lengths of the transfers, around the limits of inline, staged and registered requests.
const LENGTHS: [usize; 7] = [1, 8, 220, 221, 4096, 4097, 12_000];
/// From one place to the next one.
const STRIDE: usize = 16 << 10;
/// Bytes of memory of a thread: its places, and behind them a word that it adds to.
const AREA: usize = (LENGTHS.len() + 1) * STRIDE;
const WORD: usize = LENGTHS.len() * STRIDE;

/// Returns the byte of a write.
fn byte(stamp: u64, position: usize) -> u8 {
    (stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ ((position * 31) >> 3) as u8
}

fn content(stamp: u64, len: usize) -> Vec<u8> {
    if stamp == 0 { vec![0; len] } else { (0..len).map(|position| byte(stamp, position)).collect() }
}

/// The possible contents of a place: the last successful write, and any part of the failed writes
/// since.
struct Place {
    len: usize,
    may_be: Vec<u64>,
}

impl Place {
    fn written(&mut self, stamp: u64, outcome: &Result<(), RequestError>) {
        if outcome.is_ok() {
            self.may_be.clear();
        }
        self.may_be.push(stamp);
    }

    #[track_caller]
    fn assert_is(&self, found: &[u8]) {
        let candidates: Vec<_> = self.may_be.iter().map(|stamp| content(*stamp, self.len)).collect();
        for (at, byte) in found.iter().enumerate() {
            assert!(
                candidates.iter().any(|one| one[at] == *byte),
                "byte {at} of {}: {:?}",
                self.len,
                self.may_be
            );
        }
    }
}

/// A thread of the test, and its knowledge of its memory.
struct Hand {
    session: Arc<Session>,
    base: RemoteAddr,
    random: Chance,
    stamp: u64,
    places: Vec<Place>,
    /// Possible values of the word.
    word: (u64, u64),
    failed: usize,
}

impl Hand {
    fn place(&self, place: usize) -> RemoteAddr {
        at(self.base, place * STRIDE)
    }

    fn next(&mut self, place: usize) -> (u64, Vec<u8>) {
        self.stamp += 1;
        (self.stamp, content(self.stamp, self.places[place].len))
    }

    fn note(&mut self, outcome: &Result<(), RequestError>) {
        self.failed += usize::from(outcome.is_err());
        if let Err(e) = outcome {
            assert!(!matches!(e, RequestError::Unanswered | RequestError::Cancelled), "{e}");
        }
    }

    fn write(&mut self, place: usize) {
        let (stamp, data) = self.next(place);
        let to = self.place(place);
        let outcome = match self.random.index(3) {
            0 => self.session.write(to, &data),
            1 => {
                let (outcome, back) = split(self.session.start_write(to, data.clone()).wait());
                assert!(back == data, "the buffer comes back as it was");
                outcome
            }
            _ => {
                let (send, receive) = mpsc::channel();
                let copy = data.clone();
                self.session.write_then(to, data, move |outcome| send.send(split(outcome)).unwrap());
                let (outcome, back) = receive.recv().expect("it is called");
                assert!(back == copy && receive.recv().is_err(), "it is called once");
                outcome
            }
        };
        self.note(&outcome);
        self.places[place].written(stamp, &outcome);
    }

    /// Writes to all places at once. The writes may go different ways.
    fn write_many(&mut self) {
        let all: Vec<_> = (0..self.places.len()).map(|place| (self.place(place), self.next(place))).collect();
        let parts: Vec<_> = all.iter().map(|(to, (_, data))| (*to, &data[..])).collect();
        let outcome = self.session.write_vectored(&parts);
        self.note(&outcome);
        for (place, (_, (stamp, _))) in self.places.iter_mut().zip(&all) {
            place.written(*stamp, &outcome);
        }
    }

    fn read(&mut self, place: usize) {
        let (from, len) = (self.place(place), self.places[place].len);
        let mut out = vec![0xee; len];
        let outcome = match self.random.index(2) {
            0 => self.session.read(from, &mut out),
            _ => {
                let (outcome, back) = split(self.session.start_read(from, out).wait());
                out = back;
                outcome
            }
        };
        self.note(&outcome);
        if outcome.is_ok() {
            self.places[place].assert_is(&out);
        }
    }

    fn add(&mut self) {
        let outcome = self.session.fetch_add(at(self.base, WORD), 1);
        let (least, most) = self.word;
        match outcome {
            Ok(old) => {
                assert!((least..=most).contains(&old), "{old}, and not {least} to {most}");
                self.word = (old + 1, old + 1);
            }
            // It may have been carried out.
            Err(_) => self.word.1 += 1,
        }
        self.note(&outcome.map(drop));
    }

    fn run(mut self) -> Hand {
        for _ in 0..REQUESTS {
            let place = self.random.index(self.places.len());
            match self.random.index(10) {
                0..4 => self.write(place),
                4..8 => self.read(place),
                8 => self.write_many(),
                _ => self.add(),
            }
        }
        self
    }

    /// Asserts the contents of the host's memory at the end.
    fn assert_memory(&self, memory: &Memory, start: usize) {
        for (at, place) in self.places.iter().enumerate() {
            let mut found = vec![0; place.len];
            memory.read(start + at * STRIDE, &mut found);
            place.assert_is(&found);
            // Nothing is written beyond it.
            let mut beyond = vec![0; STRIDE - place.len];
            memory.read(start + at * STRIDE + place.len, &mut beyond);
            assert!(beyond.iter().all(|byte| *byte == 0), "beyond {} bytes", place.len);
        }
        let word = memory.load_u64(start + WORD);
        assert!((self.word.0..=self.word.1).contains(&word), "{word}, and not {:?}", self.word);
    }
}

fn options(seed: u64, direct: bool, base: &SessionOptions) -> SessionOptions {
    let polling = ["adaptive", "busy", "event", "event-batch", "hybrid", "shared-cq:2"];
    let batch = ["hybrid", "single", "merge", "doorbell"];
    // The first eight seeds cover every way to poll and to post, late completions on shared queues,
    // and all faults at once. Later seeds vary these.
    let (kind, round) = (seed as usize % 8, (seed / 8) as usize);
    Session::builder()
        .options(base.clone())
        .faults(Arc::new(Plan::new(Faults::varied(seed))))
        .polling(polling[(5 + 5 * kind + round % 6) % polling.len()].parse().unwrap())
        .batch(batch[(kind / 2 + round % 4) % batch.len()].parse().unwrap())
        .queue_pairs(1 + (kind + 1 + round % 3) % 3)
        // Their queue pairs are not replaced.
        .calls(CallsBy::Reply)
        .direct(direct)
        // Time until a missing completion is noticed.
        .operation_timeout(Duration::from_millis(300))
        .connect_timeout(Duration::from_secs(30))
        .into_options()
}

/// Runs one session. Returns how many of its requests failed.
fn run(mut fixture: Fixture, direct: bool, seed: u64) -> usize {
    fixture.options = options(seed, direct, &fixture.options);
    let session = fixture.connect();
    let place = base(&session);
    let hands: Vec<_> = thread::scope(|scope| {
        let start = |number: usize| {
            let hand = Hand {
                session: Arc::clone(&session),
                base: at(place, number * AREA),
                random: Chance::new(seed ^ (number as u64) << 32),
                stamp: 0,
                places: LENGTHS.map(|len| Place { len, may_be: vec![0] }).into(),
                word: (0, 0),
                failed: 0,
            };
            scope.spawn(move || hand.run())
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    assert!(session.is_connected(), "faults of queue pairs for data end no session");
    let mut reply = Vec::new();
    session.call(b"abc", &mut reply).unwrap();
    assert_eq!(reply, b"cba");
    assert_eq!(session.in_flight().0, 0, "all have ended");
    let failed = hands.iter().map(|hand| hand.failed).sum();
    let memory = Arc::clone(&fixture.memory);
    session.close(std::time::Duration::ZERO);
    // Until then a request that has failed may still be carried out.
    drop(fixture.running.take());
    for (number, hand) in hands.iter().enumerate() {
        hand.assert_memory(&memory, number * AREA);
    }
    failed
}

/// Returns the numbers of descriptors and threads of this process.
fn taken() -> (usize, usize) {
    let count = |directory| fs::read_dir(directory).map_or(0, Iterator::count);
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn every_request_ends_once_and_what_succeeded_is_there() {
    let mut before = None;
    let mut failed = 0;
    for seed in seeds() {
        for (provider, tls, direct) in [
            (ProviderKind::Shm, false, true),
            (ProviderKind::Shm, false, false),
            (ProviderKind::Tcp, false, false),
            (ProviderKind::Tcp, true, false),
        ] {
            eprintln!("RDMABOX_FAULT_SEED={seed} over {provider}, TLS: {tls}, on the spot: {direct}");
            let fixture = if tls { Fixture::with_tls() } else { Fixture::new(provider) };
            failed += run(fixture, direct, seed);
            let before = *before.get_or_insert_with(taken);
            let give_up = Instant::now() + Duration::from_secs(20);
            while taken().0 > before.0 || taken().1 > before.1 {
                assert!(Instant::now() < give_up, "{before:?} became {:?}", taken());
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    assert!(failed > 0, "the device has no faults");
}

/// Calls until one fails; how many were answered.
fn call_until_it_ends(session: &Session, number: u64) -> usize {
    let mut reply = Vec::new();
    for count in 0..400u64 {
        let request = [number.to_le_bytes(), count.to_le_bytes()].concat();
        match session.call(&request, &mut reply) {
            Ok(()) => assert!(reply.iter().rev().eq(&request), "the reply to another call"),
            Err(e) => {
                assert!(!matches!(e, RequestError::Unanswered | RequestError::Invalid(_)), "{e}");
                return count as usize;
            }
        }
    }
    400
}

#[test]
fn a_call_is_answered_rightly_or_not_at_all() {
    let mut answered = 0;
    for seed in seeds() {
        for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
            eprintln!("RDMABOX_FAULT_SEED={seed} over {provider}, calls");
            let mut fixture = Fixture::new(provider);
            fixture.options = options(seed, true, &fixture.options);
            let mut faults = Faults::varied(seed);
            faults.calls = true;
            let plan = Plan::new(faults);
            fixture.options.faults = Some(Arc::new(plan));
            // Its own connections may be cut, too.
            let Ok(session) = Session::connect(&fixture.address, &fixture.options) else { continue };
            answered += thread::scope(|scope| {
                let threads: Vec<_> = (0..3)
                    .map(|number| {
                        scope.spawn({
                            let session = &session;
                            move || call_until_it_ends(session, number)
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .sum::<usize>()
            });
            drop(session);
            drop(fixture.running.take());
            assert_eq!(fixture.service.ended.load(std::sync::atomic::Ordering::SeqCst), 1);
        }
    }
    assert!(answered > 0);
}

/// A buffer that cannot be registered fails its request. Catches requests before it in their list
/// that are never completed, because no request behind it asks for an acknowledgement.
#[test]
fn a_refused_registration_ends_its_list_at_once() {
    const LEN: usize = 8192;
    // The parts at the smaller distance merge.
    for (provider, distance) in
        [(ProviderKind::Tcp, LEN), (ProviderKind::Tcp, 2 * LEN), (ProviderKind::Shm, LEN)]
    {
        let mut refused = 0;
        for seed in seeds() {
            let mut fixture = Fixture::new(provider);
            let mut faults = Faults::none(seed);
            faults.refused = 300;
            fixture.options.faults = Some(Arc::new(Plan::new(faults)));
            fixture.options.direct = false;
            fixture.options.operation_timeout = Duration::from_secs(120);
            let session = fixture.connect();
            let base = base(&session);
            let began = Instant::now();
            let start = |i: usize| session.start_write(at(base, i * distance), content(i as u64 + 1, LEN));
            let started: Vec<_> = session.together(|| (0..32).map(start).collect());
            for (i, transfer) in started.into_iter().enumerate() {
                match split(transfer.wait()) {
                    (Ok(()), written) => {
                        let mut found = vec![0; LEN];
                        fixture.memory.read(i * distance, &mut found);
                        assert!(found == written, "write {i} of seed {seed}");
                    }
                    (Err(RequestError::Completion(WcStatus::LocProtErr)), _) => refused += 1,
                    (Err(e), _) => assert_eq!(e, RequestError::Flushed, "write {i} of seed {seed}"),
                }
            }
            assert!(began.elapsed() < Duration::from_secs(60), "seed {seed}: {:?}", began.elapsed());
        }
        assert!(refused > 0, "the device has no faults");
    }
}

/// A list that needs more places than a send queue has would wait for them until its timeout.
#[test]
fn a_list_that_is_longer_than_the_send_queue_is_refused_at_once() {
    for provider in [ProviderKind::Shm, ProviderKind::Tcp] {
        let mut fixture = Fixture::new(provider);
        fixture.options.direct = false;
        for (places, limit) in [(8, 8), (0, 64)] {
            let mut faults = Faults::none(0);
            faults.places = places;
            fixture.options.faults = Some(Arc::new(Plan::new(faults)));
            let session = fixture.connect();
            let base = base(&session);
            let execute = |steps: usize| {
                let data = [1; 8];
                let write = |i| Op::Write { remote: at(base, 8 * i), data: &data };
                session.execute(&mut (0..steps).map(write).collect::<Vec<_>>())
            };
            let start = |steps: usize| {
                let write = |i| OwnedOp::Write { remote: at(base, 8 * i), data: vec![2; 8] };
                let list = session.start_execute((0..steps).map(write).collect());
                let is_done = list.is_done();
                (list.wait().map(drop).map_err(RequestError::from), is_done)
            };
            let steps = limit + 1;
            let refused = RequestError::ListTooLong { steps, limit };
            assert_eq!(execute(steps), Err(refused.clone()));
            assert_eq!(start(steps), (Err(refused), true));
            assert_eq!(fixture.memory.load_u64(0), 0, "a step had an effect");
            assert_eq!((execute(limit), start(limit).0), (Ok(()), Ok(())));
            fixture.memory.write(0, &[0; 8]);
        }
    }
}
