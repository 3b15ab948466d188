//! A mount that outlives this process: how it begins, and how it continues.
//!
//! # Concurrency
//! The main thread.

use std::{collections::HashSet, fs::File, io, os::fd::OwnedFd, sync::Arc};

use super::caretaker::{HeldMount, Kept, Link};
use crate::{
    cli::Args,
    fuse::{DeviceServing, DeviceSession, Filesystem, Placement, ResentRequest, Trace, negotiate},
    mount::{ActiveMount, Target},
    run::{
        error::{RunError, os},
        ring::session_devices,
    },
};
use rfs_client::KeptState;

/// Word of the kept state with the longest write of the kernel. The negotiation comes before it.
const MAX_WRITE: usize = 3;

/// A mount with a caretaker.
pub(in crate::run) struct ContinuedMount {
    link: Link,
    state: Arc<KeptState>,
    /// Devices and requests of a previous process.
    previous: Option<(Vec<Arc<OwnedFd>>, Vec<ResentRequest>)>,
}

/// A mount of a program that a caretaker has started.
pub(in crate::run) enum Cared {
    /// The next program continues it.
    Outlives(ContinuedMount),
    /// It ends with this program. The caretaker learns when it answers.
    Ends(Link),
}

/// Threads that serve a mount.
pub(in crate::run) struct KeptServing {
    pub(in crate::run) threads: DeviceServing,
    /// True for a new mount.
    pub(in crate::run) is_first: bool,
    /// The connection with the caretaker.
    pub(in crate::run) link: Link,
}

impl ContinuedMount {
    /// Prepares a new mount, or takes the requests of a previous process. Returns where the mount
    /// of the previous process is.
    pub(in crate::run) fn begin(
        link: Link,
        kept: Option<Kept>,
    ) -> Result<(ContinuedMount, Option<Target>), RunError> {
        let Some(Kept { mount, devices, state }) = kept else {
            let state = KeptState::create().map_err(os("cannot keep the state of the mount"))?;
            return Ok((ContinuedMount { link, state, previous: None }, None));
        };
        let taken = || {
            let mounted = ActiveMount::named(&mount.path, mount.device.clone(), &mount.maker);
            let mounted = mounted.ok_or(io::ErrorKind::InvalidData)?;
            let first = devices.first().ok_or(io::ErrorKind::InvalidData)?;
            let resent = ResentRequest::take_all(first, state.word(MAX_WRITE) as usize)?;
            io::Result::Ok((resent, first.try_clone()?, mounted))
        };
        let (mut resent, first, mounted) =
            taken().map_err(os("cannot continue the session of the kernel"))?;
        state.take_back(&ResentRequest::numbers(&resent));
        // Begun appends come first: their locks tell how far they came.
        resent.sort_by_key(|request| !request.repeated().is_some_and(|unique| state.is_begun_append(unique)));
        let target = Target::HandedOver(first, mounted);
        Ok((ContinuedMount { link, state, previous: Some((devices, resent)) }, Some(target)))
    }

    /// Returns the kept state.
    pub(in crate::run) fn state(&self) -> &Arc<KeptState> {
        &self.state
    }

    /// Returns the kernel's numbers of the requests that it has sent again.
    pub(in crate::run) fn repeated(&self) -> HashSet<u64> {
        self.previous.as_ref().map_or_else(HashSet::new, |(_, resent)| ResentRequest::numbers(resent))
    }

    /// Returns the connection with the caretaker, for a mount that ends with its program.
    pub(in crate::run) fn into_link(self) -> Link {
        self.link
    }

    /// Returns true if a previous process has served the mount.
    pub(in crate::run) fn has_previous(&self) -> bool {
        self.previous.is_some()
    }
}

/// Begins to serve a mount, or continues to.
pub(in crate::run) fn start_kept<F: Filesystem>(
    args: &Args,
    (mut filesystem, placement, trace): (F, &Placement, &Arc<Trace>),
    (ContinuedMount { link, state, previous }, mount, lock): (ContinuedMount, HeldMount, Option<File>),
    (device, own, only_user): (OwnedFd, &Arc<OwnedFd>, Option<u32>),
) -> Result<KeptServing, RunError> {
    let is_first = previous.is_none();
    let (filesystem, devices, resent) = match previous {
        Some((devices, resent)) => {
            filesystem.continue_session([0, 1, 2].map(|index| state.word(index)), state.takeovers());
            (Arc::new(filesystem), devices, resent)
        }
        None => {
            let filesystem = negotiate(filesystem, device, false).map_err(RunError::Handshake)?.filesystem;
            let devices = session_devices(args, own, false)?;
            let negotiated = filesystem.negotiated();
            negotiated.into_iter().enumerate().for_each(|(index, value)| state.set_word(index, value));
            state.set_word(MAX_WRITE, args.settings().max_write.into());
            link.keep(&mount, &state, &devices, lock.as_ref()).map_err(os("cannot reach the caretaker"))?;
            (filesystem, devices, Vec::new())
        }
    };
    let max_write = state.word(MAX_WRITE) as usize;
    let (kept, trace) = (Some(state), Arc::clone(trace));
    let session = DeviceSession { devices, kept, max_write, resent, only_user, trace };
    let threads = session.start(&filesystem, placement).map_err(os("cannot start a thread"))?;
    Ok(KeptServing { threads, is_first, link })
}
