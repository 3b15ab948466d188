//! The answering side: a few threads serve the calls of all sessions.
//!
//! All message queue pairs share a completion queue. One thread waits on it at a time, takes one completion, and
//! lets the next one wait while it handles the call. Sessions are unknown here; a [`Handler`] knows them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};

use super::{MAX_CALL, Messages, SEND_ID};
use crate::verbs::{CompletionQueue, ProtectionDomain, QueuePair, VerbsError, WcStatus, WorkCompletion};

/// What becomes of a session's messages.
pub(crate) trait Handler: Send + Sync {
    /// Answers one call. An error ends the session.
    fn call(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<(), String>;
    /// Ends the session.
    fn end(&self, reason: Reason<'_>);
}

/// Why a session's messages end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason<'a> {
    /// Its queue pair is broken: the client has gone, as a rule.
    Gone,
    /// A message made no sense.
    Misbehaved(&'a str),
}

/// A session's message queue pair at the host.
pub(crate) struct Endpoint {
    messages: Messages,
    handler: Arc<dyn Handler>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("messages", &self.messages).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Shared {
    cq: Arc<dyn CompletionQueue>,
    /// Held by the thread that waits.
    turn: Mutex<()>,
    endpoints: RwLock<HashMap<u32, Arc<Endpoint>>>,
    stop: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct RpcServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl RpcServer {
    pub(crate) fn start(cq: Arc<dyn CompletionQueue>, threads: usize) -> std::io::Result<RpcServer> {
        let shared = Arc::new(Shared {
            cq,
            turn: Mutex::new(()),
            endpoints: RwLock::default(),
            stop: AtomicBool::new(false),
        });
        let mut server = RpcServer { shared, threads: Vec::new() };
        for index in 0..threads {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new()
                .name(format!("rdmabox-rpc-{index}"))
                .spawn(move || serve(&shared))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    pub(crate) fn cq(&self) -> &Arc<dyn CompletionQueue> {
        &self.shared.cq
    }

    /// Serves a queue pair from now on; it is not connected yet.
    pub(crate) fn add(
        &self,
        pd: &dyn ProtectionDomain,
        qp: Arc<dyn QueuePair>,
        handler: Arc<dyn Handler>,
    ) -> Result<(), VerbsError> {
        let number = qp.qp_num();
        let endpoint = Endpoint { messages: Messages::new(pd, qp)?, handler };
        endpoint.messages.post_all_recvs().map_err(|e| VerbsError::Protocol(e.to_string()))?;
        self.shared.endpoints.write().insert(number, Arc::new(endpoint));
        Ok(())
    }

    pub(crate) fn remove(&self, qp_num: u32) {
        let gone = self.shared.endpoints.write().remove(&qp_num);
        if let Some(endpoint) = gone {
            endpoint.messages.qp.to_error();
        }
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.cq.wake();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    let mut request = Vec::with_capacity(MAX_CALL);
    let mut reply = Vec::with_capacity(MAX_CALL);
    while let Some(wc) = next(shared) {
        let endpoint = shared.endpoints.read().get(&wc.qp_num).cloned();
        let Some(endpoint) = endpoint else { continue };
        if wc.status != WcStatus::Success {
            endpoint.handler.end(Reason::Gone);
            continue;
        }
        if wc.wr_id == SEND_ID {
            continue;
        }
        if let Err(reason) = endpoint.answer(&wc, &mut request, &mut reply) {
            endpoint.handler.end(Reason::Misbehaved(&reason));
        }
    }
}

/// The next completion; `None` at the end.
fn next(shared: &Shared) -> Option<WorkCompletion> {
    let _turn = shared.turn.lock();
    let mut wc = [WorkCompletion::EMPTY];
    let mut armed = false;
    loop {
        if shared.stop.load(Ordering::Acquire) {
            // The others wait for the turn or sleep.
            shared.cq.wake();
            return None;
        }
        let step = match shared.cq.poll(&mut wc) {
            Ok(1) => return Some(wc[0]),
            Ok(_) if armed => {
                armed = false;
                shared.cq.wait(None).map(|_| ())
            }
            Ok(_) => {
                armed = true;
                shared.cq.arm()
            }
            Err(e) => Err(e),
        };
        if let Err(e) = step {
            log::error!("message completion queue: {e}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Endpoint {
    fn answer(&self, wc: &WorkCompletion, request: &mut Vec<u8>, reply: &mut Vec<u8>) -> Result<(), String> {
        let slot = self
            .messages
            .slot_of(wc)
            .ok_or_else(|| "malformed message: not a call in one of the call slots".to_string())?;
        self.messages.take(wc, request);
        self.messages.post_recv(wc.wr_id as usize).map_err(|e| e.to_string())?;
        reply.clear();
        self.handler.call(request, reply)?;
        if reply.len() > MAX_CALL {
            return Err(format!("a reply of {} bytes, the limit is {MAX_CALL}", reply.len()));
        }
        self.messages.send(slot, reply).map_err(|e| e.to_string())
    }
}
