//! The side of a mount that answers questions about itself: a control socket, and an address of
//! metrics.
//!
//! # Concurrency
//! The thread `status` answers on the socket, `metrics` on the address. Both sleep in between.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rfs_status::{
    control::{Answer, Asker, ControlError, ControlSocket, STATUS, SocketPermissions},
    metrics::{BoundEndpoint, Endpoint, EndpointError},
    mounts::access::ACCESS,
};

use super::{AccessOffer, StatusSource, trace};
use crate::{fuse::Trace, mount::control};

/// Longest wait for the end of a program that answers at the path of this mount. The kernel gives a
/// mount the device number of one that has ended, and that one's program may still answer.
const FORMER_LIMIT: Duration = Duration::from_secs(1);
const FORMER_PAUSE: Duration = Duration::from_millis(20);

/// Answers questions about a running mount. Dropping it removes the control socket.
#[derive(Debug)]
pub(crate) struct Answers {
    _control: Option<ControlSocket>,
    _endpoint: Option<Endpoint>,
}

impl Answers {
    /// Starts to answer. `access` is the server, or the reason why programs do not get it.
    /// `recorded` records on request. A mount without a control socket works; it logs the reason.
    ///
    /// # Errors
    /// The metrics cannot be served.
    pub(crate) fn start(
        source: StatusSource,
        recorded: &Arc<Trace>,
        (path, access): (Option<&Path>, Result<AccessOffer, String>),
        metrics: Option<BoundEndpoint>,
    ) -> Result<Answers, EndpointError> {
        let metrics_address = metrics.as_ref().map(|bound| bound.address().to_string());
        let source = Arc::new(StatusSource { metrics_address, ..source });
        let for_metrics = Arc::clone(&source);
        let collect = move || for_metrics.status().metrics();
        let endpoint = metrics.map(|bound| bound.serve(collect)).transpose()?;
        let control = path.and_then(|path| start_control(path, source, Arc::clone(recorded), access));
        Ok(Answers { _control: control, _endpoint: endpoint })
    }
}

fn start_control(
    path: &Path,
    source: Arc<StatusSource>,
    recorded: Arc<Trace>,
    access: Result<AccessOffer, String>,
) -> Option<ControlSocket> {
    control::make_directory(path);
    let access = Arc::new(access);
    let answer = move |question: &str, _: Asker| match question {
        STATUS => serde_json::to_string(&source.status()).ok().map(Answer::from),
        ACCESS => {
            let answer = (*access).as_ref().map_err(String::clone).and_then(AccessOffer::answer);
            Some(answer.unwrap_or_else(|e| serde_json::json!({ "error": e }).to_string().into()))
        }
        question => trace::answer(&recorded, question),
    };
    let give_up = Instant::now() + FORMER_LIMIT;
    loop {
        match ControlSocket::start(path, SocketPermissions::default(), "status", answer.clone()) {
            Err(ControlError::InUse(_)) if Instant::now() < give_up => thread::sleep(FORMER_PAUSE),
            started => {
                return started
                    .inspect_err(|e| log::warn!("rfs-fuse status cannot ask this mount: {e}"))
                    .ok();
            }
        }
    }
}
