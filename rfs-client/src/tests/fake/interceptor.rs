//! A decorator with which a test interferes with each operation of a remote.

use std::sync::Arc;

use parking_lot::Mutex;
use rdmabox::{Memory, RequestError, Until};

use crate::{
    remote::{
        CallOptions, Remote, ReplyWait, Status,
        address::Region,
        operation::{Access, Transfer},
    },
    tests::fake::Fake,
};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Call,
    /// A call that was answered, before the client has the reply.
    Reply,
    Write,
    Read,
    Execute,
}

type Hook = Box<dyn FnMut(OpKind) -> Result<(), RequestError> + Send>;

/// A remote with which a test acts, or fails, before each operation.
pub(crate) struct Interceptor {
    inner: Arc<Fake>,
    hook: Mutex<Hook>,
    /// Started reads and writes that are not carried out yet, while they are held.
    held: Mutex<Option<Vec<Transfer>>>,
    served: Mutex<Vec<Until>>,
}

impl std::fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interceptor")
    }
}

impl Interceptor {
    pub(crate) fn new(inner: &Arc<Fake>) -> Arc<Interceptor> {
        Arc::new(Interceptor {
            inner: inner.clone(),
            hook: Mutex::new(Box::new(|_| Ok(()))),
            held: Mutex::default(),
            served: Mutex::default(),
        })
    }

    /// Runs `act` before the next operation of this kind.
    pub(crate) fn once(&self, kind: OpKind, act: impl FnOnce() -> Result<(), RequestError> + Send + 'static) {
        self.later(0, kind, act);
    }

    /// Runs `act` as [`once`](Self::once), but skips `skip` operations of this kind.
    pub(crate) fn later(
        &self,
        mut skip: u32,
        kind: OpKind,
        act: impl FnOnce() -> Result<(), RequestError> + Send + 'static,
    ) {
        let mut act = Some(act);
        *self.hook.lock() = Box::new(move |what| match act.take() {
            Some(act) if what == kind && skip == 0 => act(),
            later => {
                skip -= u32::from(what == kind && skip > 0);
                act = later;
                Ok(())
            }
        });
    }

    /// Runs `act` before each operation.
    pub(crate) fn each_step(&self, mut act: impl FnMut(OpKind) + Send + 'static) {
        *self.hook.lock() = Box::new(move |kind| {
            act(kind);
            Ok(())
        });
    }

    /// Runs `act` before each operation of this kind.
    pub(crate) fn each(&self, kind: OpKind, mut act: impl FnMut() + Send + 'static) {
        *self.hook.lock() = Box::new(move |what| {
            if what == kind {
                act();
            }
            Ok(())
        });
    }

    /// Holds reads and writes that are started from now on, until a release.
    pub(crate) fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    /// Returns the number of held operations.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().as_ref().map_or(0, Vec::len)
    }

    /// Returns the conditions under which threads offered to poll, since the last query.
    pub(crate) fn served(&self) -> Vec<Until> {
        std::mem::take(&mut *self.served.lock())
    }

    /// Ends the held operations with this outcome.
    pub(crate) fn release(&self, outcome: &Result<(), RequestError>) {
        let held = self.held.lock().as_mut().map(std::mem::take);
        for held in held.into_iter().flatten() {
            match outcome {
                Ok(()) => self.inner.start(vec![held], None),
                Err(e) => held.fail(e.clone()),
            }
        }
    }

    fn intercept(&self, what: OpKind) -> Result<(), RequestError> {
        // The lock is free during the hook, because the hook may intercept again.
        let mut hook = std::mem::replace(&mut *self.hook.lock(), Box::new(|_| Ok(())));
        let outcome = hook(what);
        *self.hook.lock() = hook;
        outcome
    }
}

impl Remote for Interceptor {
    fn call(
        &self,
        request: &[u8],
        reply: &mut Vec<u8>,
        options: CallOptions<'_>,
    ) -> Result<(), RequestError> {
        if matches!(options.wait, ReplyWait::Cancellable(_)) {
            return self.inner.call(request, reply, options);
        }
        self.intercept(OpKind::Call)?;
        self.inner.call(request, reply, options)?;
        self.intercept(OpKind::Reply)
    }

    fn finish_calls(&self) -> Result<(), RequestError> {
        self.inner.finish_calls()
    }

    fn access(&self, access: &mut Access<'_, '_>) -> Result<(), RequestError> {
        self.intercept(match access {
            Access::Write(_) => OpKind::Write,
            Access::Read(_) => OpKind::Read,
            Access::List(_) => OpKind::Execute,
        })?;
        self.inner.access(access)
    }

    fn start(&self, transfers: Vec<Transfer>, until: Option<Until>) {
        self.served.lock().extend(until);
        match self.held.lock().as_mut() {
            Some(held) => held.extend(transfers),
            None => self.inner.start(transfers, until),
        }
    }

    fn map(&self, region: Region) -> Option<(Arc<Memory>, usize)> {
        self.inner.map(region)
    }

    fn status(&self) -> Status {
        self.inner.status()
    }
}
