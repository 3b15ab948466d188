//! Establishes a session: handshake, queue pairs, runtime.
//!
//! [`greet_best`] opens the control stream and runs the handshake. It probes a TCP address first,
//! and prefers the host's Unix socket if the host is this machine. [`establish`] then connects the
//! queue pairs and builds the shared parts of the [`Session`](super::Session).
//!
//! # Concurrency
//! Runs on the connecting thread, without locks. Every step ends by the caller's deadline.

mod greeting;
mod session_link;
mod setup;

pub(crate) use self::greeting::greet_best;

use std::{sync::Arc, time::Instant};

use self::{
    greeting::Greeting,
    session_link::{SessionLink, qp_index},
    setup::Setup,
};
use super::{
    deferred_qp::DeferredReplyQp, options::SessionOptions, qp_connector::handshake_failed, session::Shared,
};
use crate::session::{address::Address, error::ConnectError, handshake, lease::Renewal};

/// Establishes the session of a completed handshake.
pub(crate) fn establish(
    greeting: Greeting,
    (requested, options): (&Address, &SessionOptions),
    deadline: Instant,
) -> Result<Shared, ConnectError> {
    let Greeting { address, mut control, answer, secret, fallback } = greeting;
    let setup = Setup::new(&address, options, deadline, (answer.token, secret))?;
    let provider = setup.connector.provider();
    let rpc = setup.connect_calls()?;
    let caps = setup.data_caps()?;
    let (cqs, lanes) = setup.connect_lanes(caps)?;
    let fetch =
        answer.fetch.map(|base| -> Result<_, ConnectError> { Ok((base, setup.connect_fetch(caps)?)) });
    let fetch = fetch.transpose()?;

    let ready = handshake::receive_answer(&mut control, deadline)
        .map_err(|source| handshake_failed(&address, options.connect_timeout, source))?;
    if !ready.ok {
        return Err(ConnectError::Refused { address: address.clone(), reason: ready.text });
    }
    let io = |source| ConnectError::Io { address: address.clone(), source };
    control.set_timeout(None).map_err(io)?;

    let pool = setup.pool()?;
    let control = Arc::new(control);
    let fetch = fetch.map(|(base, joined)| setup.fetch_client(base, joined, &control)).transpose()?;
    let rpc = rpc.fetching(fetch);
    let renewal = answer.lease.map(|lease| Renewal::start(&control, lease)).transpose().map_err(io)?;
    let deferred_qp = DeferredReplyQp {
        device: Arc::clone(&setup.device),
        connector: Arc::clone(&setup.connector),
        // The index after the last data queue pair.
        index: qp_index(options.queue_pairs),
        timeout: options.connect_timeout,
    };
    let link = SessionLink { control: Arc::clone(&control), connector: Arc::clone(&setup.connector), caps };
    let stats = Arc::clone(&setup.stats);
    let atomic_ops = setup.device.attr().atomic_ops;
    let runtime = setup.runtime(link, (cqs, lanes), pool);
    let tls = options.tls.is_some();
    Ok(Shared {
        address,
        provider,
        tls,
        fallback,
        atomics: answer.atomics,
        atomic_ops,
        runtime,
        rpc: Arc::new(rpc),
        deferred_qp,
        stats,
        control,
        _renewal: renewal,
        requested: requested.clone(),
        options: options.clone(),
    })
}
