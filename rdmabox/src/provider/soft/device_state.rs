//! The state that protection domains and queue pairs share with their device.
//!
//! # Concurrency
//! Any thread may use it; `engine_look` is a leaf lock.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    completion::{Engine, Member, PollSet},
    stream::ConnectedProcess,
};
use crate::verbs::VerbsError;

/// Creates the descriptor that a peer holds while it may access memory. The argument is `None` if
/// the kernel cannot name the peer's process here.
pub(crate) struct TetherMaker(
    pub(crate) Box<dyn Fn(Option<ConnectedProcess>) -> io::Result<OwnedFd> + Send + Sync>,
);

impl std::fmt::Debug for TetherMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TetherMaker")
    }
}

/// State that protection domains and queue pairs share with their device.
#[derive(Debug)]
pub(crate) struct DeviceState<M: Member> {
    pub(crate) engine: OnceLock<Engine<M>>,
    /// Maximum time that the engine polls before it sleeps. Locked while the engine starts.
    pub(crate) engine_look: Mutex<Duration>,
    pub(crate) next_qp: AtomicU32,
    /// See `SoftDevice::tether`.
    pub(crate) tether: OnceLock<TetherMaker>,
}

impl<M: Member> DeviceState<M> {
    /// Returns the poll set of the engine, which starts at the first call.
    pub(crate) fn engine_set(&self) -> Result<Arc<PollSet<M>>, VerbsError> {
        let look = self.engine_look.lock();
        if let Some(engine) = self.engine.get() {
            return Ok(Arc::clone(engine.set()));
        }
        let engine = Engine::start(*look)?;
        let set = Arc::clone(engine.set());
        // `engine_look` is locked, so no other thread can set the engine.
        let _ = self.engine.set(engine);
        Ok(set)
    }
}
