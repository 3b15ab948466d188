//! The side of the pager: answers on a control socket.
//!
//! # Concurrency
//! The socket has a thread, which ends when [`StatusSocket`] is dropped.

use std::mem::ManuallyDrop;

use rfs_status::control::{Asker, ControlSocket, STATUS, SocketPermissions};

use super::{PagerReport, folder, remove_dead};
use crate::engine::stats::PagerStats;

/// A pager that answers questions. Dropping it removes the socket.
#[derive(Debug)]
pub(crate) struct StatusSocket {
    socket: ManuallyDrop<ControlSocket>,
    /// The process of the pager. A child of `fork` must leave the socket alone.
    process: u32,
}

impl StatusSocket {
    /// Starts to answer with `report` and the counters that `stats` returns. `None` if that is not
    /// possible: paging does not depend on it.
    pub(crate) fn start(
        report: PagerReport,
        stats: impl Fn() -> PagerStats + Send + 'static,
    ) -> Option<StatusSocket> {
        let unpublished = |error: &dyn std::fmt::Display| log::debug!("rfs-paging status: {error}");
        let path = folder::new_socket().inspect_err(|error| unpublished(error)).ok()?;
        let answer = move |question: &str, _: Asker| {
            let counters = stats();
            (question == STATUS).then(|| document(&PagerReport { counters, ..report.clone() }))
        };
        let socket = ControlSocket::start(&path, SocketPermissions::default(), "rfs-paging-ctl", answer);
        let socket = ManuallyDrop::new(socket.inspect_err(|error| unpublished(error)).ok()?);
        path.parent().into_iter().for_each(remove_dead);
        Some(StatusSocket { socket, process: std::process::id() })
    }
}

/// Returns the JSON document of a report.
fn document(report: &PagerReport) -> String {
    serde_json::to_string(report).unwrap_or_default()
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: The field is not used again.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

/// Returns the name of this program.
pub(crate) fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().into()
}
