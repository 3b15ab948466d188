//! Tests of the life of a session: the builder, invalid options, closing, dropping, reconnecting.

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};

use rdmabox::{ConnectError, ProviderKind, RequestError, Session, SessionOptions};

use crate::support::{Fixture, base, on_each_provider, providers};

#[test]
fn a_builder_connects_with_its_options() {
    on_each_provider(|f| {
        let session = Session::builder()
            .options(f.options.clone())
            .queue_pairs(2)
            .window_bytes(1 << 20)
            .fetch_size(64)
            .direct(false)
            .operation_timeout(Duration::from_secs(77))
            .connect(&f.address)
            .unwrap();
        let options = session.options();
        assert_eq!((options.queue_pairs, options.window_bytes, options.fetch_size), (2, 1 << 20, 64));
        assert_eq!((options.direct, options.operation_timeout), (false, Duration::from_secs(77)));
        assert_eq!(options.provider, f.options.provider);
        let base = base(&session);
        session.write(base, &[1; 8]).unwrap();
        assert_eq!(f.memory.load_u64(0), u64::from_ne_bytes([1; 8]));
    });
}

#[test]
fn options_without_sense_are_refused_before_a_connection_is_made() {
    // No host listens there.
    let nowhere = "unix:/nonexistent/socket".parse().unwrap();
    let refused = |change: fn(&mut SessionOptions)| {
        let mut options = SessionOptions::default();
        change(&mut options);
        match Session::connect(&nowhere, &options) {
            Err(ConnectError::InvalidOption { option, .. }) => option,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|options| options.queue_pairs = 0), "queue_pairs");
    assert_eq!(refused(|options| options.queue_pairs = 17), "queue_pairs");
    assert_eq!(refused(|options| options.window_bytes = 0), "window_bytes");
    assert_eq!(refused(|options| options.fetch_size = 0), "fetch_size");
    assert_eq!(refused(|options| options.operation_timeout = Duration::ZERO), "operation_timeout");
    assert_eq!(refused(|options| options.connect_timeout = Duration::ZERO), "connect_timeout");
    assert_eq!(refused(|options| options.provider = Some(ProviderKind::Rdma)), "provider");
}

#[test]
fn a_closed_session_reconnects_with_its_options() {
    on_each_provider(|mut f| {
        f.options.queue_pairs = 3;
        let session = f.connect();
        let before = base(&session);
        session.write(before, &[1; 8]).unwrap();
        session.close(Duration::ZERO);
        assert_eq!(session.write(before, &[2; 8]), Err(RequestError::Disconnected));
        let again = session.reconnect().unwrap();
        assert!(again.is_connected() && !session.is_connected());
        assert_eq!((again.options().queue_pairs, again.provider()), (3, session.provider()));
        let mut back = [0; 8];
        again.read(base(&again), &mut back).unwrap();
        assert_eq!(back, [1; 8]);
        // A session that is still connected is not affected.
        let third = again.reconnect().unwrap();
        again.write(base(&again), &[3; 8]).unwrap();
        third.read(base(&third), &mut back).unwrap();
        assert_eq!(back, [3; 8]);
    });
}

/// The client was given a TCP address, and uses the host's Unix socket.
#[test]
fn a_session_reconnects_to_the_address_that_it_was_given() {
    if !providers().contains(&ProviderKind::Shm) {
        return;
    }
    let f = Fixture::new(ProviderKind::Shm);
    let running = f.running.as_ref().unwrap();
    let tcp = running.addresses().iter().find(|address| address.provider() == ProviderKind::Tcp);
    let Some(tcp) = tcp else { return };
    let session = Session::connect(tcp, &SessionOptions::default()).unwrap();
    let again = session.reconnect().unwrap();
    assert_eq!(again.description(), session.description());
}

#[test]
fn dropping_a_session_waits_for_no_callback() {
    if !providers().contains(&ProviderKind::Tcp) {
        return;
    }
    let f = Fixture::new(ProviderKind::Tcp);
    let session = f.connect();
    let (entered, inside) = mpsc::channel();
    let (go_on, told) = mpsc::channel::<()>();
    let (send, ended) = mpsc::channel();
    // A poller finds the completion and runs this.
    session.write_then(base(&session), vec![1; 8], move |outcome| {
        entered.send(()).unwrap();
        // Blocks until the session has been dropped, or the test has failed.
        let _ = told.recv();
        send.send(outcome).unwrap();
    });
    inside.recv().unwrap();
    assert_eq!(Arc::strong_count(&session), 1);
    drop(session);
    // The host has heard of the end, while the callback still runs.
    while f.service.ended.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    drop(go_on);
    assert_eq!(ended.recv().unwrap(), Ok(vec![1; 8]));
}
