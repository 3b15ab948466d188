//! Counts the effects that the RDMAbox paper claims for each mechanism, on every provider.

mod admission;
mod batching;
mod by_provider;
mod completions;
mod device_window;
mod gathering;
mod registration;

use crate::support::{Fixture, at, on_each_that_posts, pattern, providers};
use rdmabox::{
    BatchMode, PollingMode, ProviderKind, RemoteAddr, Session, SessionOptions,
    admission::WindowScope,
    provider::model::{CardParameters, ModelledCard, Timing},
    stats::StatsSnapshot,
};

/// Runs a test of posted requests over each provider, and on a modelled card over the software
/// providers. The window of a card is the device's.
pub(crate) fn on_each_that_posts_and_cards(test: impl Fn(Fixture)) {
    on_each_that_posts(&test);
    for provider in providers().into_iter().filter(|provider| *provider != ProviderKind::Rdma) {
        eprintln!("--- a modelled card over {provider}");
        let mut fixture = Fixture::new(provider);
        fixture.options.card = Some(ModelledCard::new(CardParameters::cx3(), Timing::Counts));
        fixture.options.window_scope = WindowScope::ByProvider;
        test(fixture);
    }
}

/// Submits requests of `len` bytes at `places` together. Returns the change of the counters.
pub(crate) fn submit(session: &Session, write: bool, places: &[RemoteAddr], len: usize) -> StatsSnapshot {
    let before = session.stats();
    if write {
        let data = pattern(len, 1);
        let parts: Vec<_> = places.iter().map(|place| (*place, &data[..])).collect();
        session.write_vectored(&parts).unwrap();
    } else {
        let mut out = vec![vec![0; len]; places.len()];
        let mut parts: Vec<_> =
            places.iter().zip(&mut out).map(|(place, out)| (*place, &mut out[..])).collect();
        session.read_vectored(&mut parts).unwrap();
    }
    session.stats().since(&before)
}

pub(crate) fn requests_doorbells_merged(s: &StatsSnapshot) -> (u64, u64, u64) {
    (s.work_requests, s.doorbells, s.merged)
}

pub(crate) fn offsets(base: RemoteAddr, offsets: impl IntoIterator<Item = usize>) -> Vec<RemoteAddr> {
    offsets.into_iter().map(|offset| at(base, offset)).collect()
}

/// Has each of four threads start its own one, and waits until all have.
pub(crate) fn on_four_threads<T: Send>(start: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || start(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn the_defaults_are_those_of_the_paper() {
    let options = SessionOptions::default();
    assert_eq!((options.queue_pairs, options.window_bytes), (4, 7 << 20));
    assert_eq!((options.batch, options.polling), (BatchMode::Hybrid, PollingMode::Adaptive));
    assert!(options.admission.is_none());
}
