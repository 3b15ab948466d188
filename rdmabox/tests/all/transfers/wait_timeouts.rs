//! Tests of waits for a limited time: the transfer stays with the caller, and ends for each kind of
//! owner.

use std::{sync::mpsc, time::Duration};

use futures::executor::block_on;
use rdmabox::{Failed, ProviderKind, RequestError, Session};

use crate::support::{base, on_each_provider, outside, process::HostProcess, providers};

const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn a_transfer_that_ends_in_time_returns_its_outcome() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        let mut write = session.start_write(base, vec![1; 8]);
        assert_eq!(write.wait_timeout(NEVER), Some(Ok(vec![1; 8])));
        // Longer than any clock counts.
        let mut read = session.start_read(base, vec![0; 8]);
        assert_eq!(read.wait_timeout(Duration::MAX), Some(Ok(vec![1; 8])));
        let mut refused = session.start_write(outside(base), vec![2; 8]);
        assert!(!refused.is_taken(), "done, perhaps, but not returned");
        let Some(Err(Failed { error, buffer, .. })) = refused.wait_timeout(NEVER) else {
            panic!("not refused")
        };
        assert!(matches!(error, RequestError::Completion(_)), "{error:?}");
        assert_eq!(buffer, Some(vec![2; 8]));
        assert!(refused.is_taken(), "a failure is an outcome, too");
    });
}

/// A wait of no time makes progress: nothing else polls here.
#[test]
fn waits_without_blocking_reach_the_end() {
    on_each_provider(|f| {
        let session = f.connect();
        let base = base(&session);
        for round in 0..100u8 {
            let mut write = session.start_write(base, vec![round; 5000]);
            let outcome = loop {
                match write.wait_timeout(Duration::ZERO) {
                    Some(outcome) => break outcome,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(outcome, Ok(vec![round; 5000]));
        }
        assert_eq!(session.in_flight().0, 0);
    });
}

#[test]
#[should_panic = "the outcome of a transfer is given once"]
fn an_outcome_is_returned_once() {
    on_each_provider(|f| {
        let session = f.connect();
        let mut write = session.start_write(base(&session), vec![1; 8]);
        assert_eq!(write.wait_timeout(NEVER), Some(Ok(vec![1; 8])));
        let _ = write.wait();
    });
}

/// Returns a session with a host that is stopped. Over shared memory and RDMA a write needs no
/// process of the host.
fn stopped_host(operation_timeout: Duration) -> (HostProcess, std::sync::Arc<Session>) {
    let host = HostProcess::start(ProviderKind::Tcp);
    let session = Session::builder()
        .operation_timeout(operation_timeout)
        .provider(ProviderKind::Tcp)
        .connect(&host.address)
        .unwrap();
    (host, session)
}

#[test]
fn a_transfer_goes_on_after_a_limited_wait_for_every_kind_of_owner() {
    if !providers().contains(&ProviderKind::Tcp) {
        return;
    }
    let (host, session) = stopped_host(NEVER);
    let base = base(&session);
    host.stop();
    let mut transfers: Vec<_> = (0..4).map(|i| session.start_write(base.at(64 * i), vec![1; 8])).collect();
    for transfer in &mut transfers {
        assert_eq!(transfer.wait_timeout(Duration::ZERO), None);
        assert_eq!(transfer.wait_timeout(Duration::from_millis(2)), None);
        assert!(!transfer.is_done());
    }
    let mut transfers = transfers.into_iter();
    let mut next = || transfers.next().unwrap();
    let (waited, awaited, mut limited) = (next(), next(), next());
    // The dropped one lets go of its buffer at its end.
    drop(next());
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(waited.wait(), Ok(vec![1; 8])));
        scope.spawn(|| {
            send.send(()).unwrap();
            assert_eq!(block_on(awaited), Ok(vec![1; 8]));
        });
        receive.recv().unwrap();
        host.go_on();
        assert_eq!(limited.wait_timeout(NEVER), Some(Ok(vec![1; 8])));
    });
    while session.in_flight().0 > 0 {
        std::thread::yield_now();
    }
    assert_eq!(session.stats().lane_failures, 0);
}

#[test]
fn limited_waits_end_with_the_operation_timeout() {
    if !providers().contains(&ProviderKind::Tcp) {
        return;
    }
    let timeout = Duration::from_millis(300);
    let (host, session) = stopped_host(timeout);
    let base = base(&session);
    host.stop();
    let mut write = session.start_write(base, vec![1; 8]);
    let mut waits = 0;
    let outcome = loop {
        match write.wait_timeout(Duration::from_millis(1)) {
            Some(outcome) => break outcome,
            None => waits += 1,
        }
    };
    assert!(waits > 0);
    let failed = outcome.unwrap_err();
    assert_eq!((failed.error, failed.buffer), (RequestError::Timeout(timeout), Some(vec![1; 8])));
    assert_eq!(session.in_flight().0, 0);
}
