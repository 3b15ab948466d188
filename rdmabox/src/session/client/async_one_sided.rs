//! Started one-sided operations of a session, whose buffers come back with the outcome.
//!
//! # Concurrency
//! Any thread may call these methods, also inside a completion callback. No locks.

mod atomics;
mod lists;

use std::sync::Arc;

use super::{
    checks::{at, wraps},
    session::Session,
    transfer::Transfer,
};
use crate::{
    error::Failed,
    memory::{Lent, RecvBuf, SendBuf},
    runtime::{Started, Until, WaitedBy, in_callback},
    verbs::{DirectOp, RemoteAddr},
};

impl Session {
    /// Starts a write. The transfer returns the buffer with the outcome. Overlapping writes of one
    /// thread take effect in the order of their starts.
    ///
    /// While other requests are under way, a small one (up to 16 KiB) may stay in the merge queue
    /// for at most 0.4 ms. The thread that polls, or this thread, then takes it along with its
    /// neighbours.
    pub fn start_write<B: SendBuf>(&self, remote: RemoteAddr, data: B) -> Transfer<B> {
        self.begin_write(remote, data, WaitedBy::Caller)
    }

    fn begin_write<B: SendBuf>(&self, remote: RemoteAddr, data: B, waited_by: WaitedBy) -> Transfer<B> {
        let (len, max) = (data.bytes().len(), self.max_part());
        if let Err(e) = wraps(remote, len) {
            return Transfer::failed(e, Some(data));
        }
        // In a callback, inline execution could recurse: each callback could start the next
        // request.
        if !in_callback()
            && let Some(result) =
                self.shared.runtime.execute_one_mapped(&mut DirectOp::Write { remote, data: data.bytes() })
        {
            return match result {
                Ok(()) => Transfer::done(data),
                Err(e) => Transfer::failed(e, Some(data)),
            };
        }
        let count = len.div_ceil(max).max(1);
        let (ticket, loans) = self.shared.runtime.take_idle(count, self.timeout);
        let lent = Lent::new(data, loans);
        let requests = lent.lend(max).enumerate().map(|(i, loan)| (at(remote, i * max), loan));
        self.shared.runtime.begin(true, count, requests, &ticket, waited_by);
        Transfer::new(Started::new(Arc::clone(&self.shared.runtime), ticket, lent))
    }

    /// Starts a read that fills the whole buffer. The transfer returns the buffer with the outcome.
    /// A read sees a started write only if it starts after the write is done. A small read may wait
    /// for its neighbours, as in [`start_write`](Self::start_write).
    pub fn start_read<B: RecvBuf>(&self, remote: RemoteAddr, out: B) -> Transfer<B> {
        self.begin_read(remote, out, WaitedBy::Caller)
    }

    fn begin_read<B: RecvBuf>(&self, remote: RemoteAddr, mut out: B, waited_by: WaitedBy) -> Transfer<B> {
        let (len, max) = (out.bytes().len(), self.max_part());
        if let Err(e) = wraps(remote, len) {
            return Transfer::failed(e, Some(out));
        }
        if !in_callback()
            && let Some(result) =
                self.shared.runtime.execute_one_mapped(&mut DirectOp::Read { remote, out: out.bytes_mut() })
        {
            return match result {
                Ok(()) => Transfer::done(out),
                Err(e) => Transfer::failed(e, Some(out)),
            };
        }
        let count = len.div_ceil(max).max(1);
        let (ticket, loans) = self.shared.runtime.take_idle(count, self.timeout);
        let mut lent = Lent::new(out, loans);
        let requests = lent.lend_mut(max).enumerate().map(|(i, loan)| (at(remote, i * max), loan));
        self.shared.runtime.begin(false, count, requests, &ticket, waited_by);
        Transfer::new(Started::new(Arc::clone(&self.shared.runtime), ticket, lent))
    }

    /// Starts a write. The thread that finds the completion runs `done` with the outcome, which
    /// always has the buffer. `done` must be quick and must not block. It may start requests.
    ///
    /// # Panics
    /// This method does not panic. A panic of `done` is contained. The thread that runs it, the
    /// session and the other callbacks go on. The crate logs the message of the panic as an error
    /// ([Log](crate#log)). The values that `done` owned are dropped, so the program may wait for a
    /// callback that never reports. The same holds for the callbacks of all other requests.
    pub fn write_then<B: SendBuf>(
        &self,
        remote: RemoteAddr,
        data: B,
        done: impl FnOnce(Result<B, Failed<B>>) + Send + 'static,
    ) {
        self.begin_write(remote, data, WaitedBy::Poller).then(&self.shared.runtime, done);
    }

    /// Starts a read and runs `done` with the outcome, which always has the buffer, as
    /// [`write_then`](Self::write_then). A panic of `done` is contained.
    pub fn read_then<B: RecvBuf>(
        &self,
        remote: RemoteAddr,
        out: B,
        done: impl FnOnce(Result<B, Failed<B>>) + Send + 'static,
    ) {
        self.begin_read(remote, out, WaitedBy::Poller).then(&self.shared.runtime, done);
    }

    /// Runs `start`, and posts the requests that this thread starts in it afterwards as one batch.
    /// Adjacent requests merge, and the others leave as one list, as if many threads had issued
    /// them at once (RDMAbox, section IV-A). READs and WRITEs are sorted by address, each for
    /// themselves, unless they overlap. Each atomic and each ordered list has a doorbell of its
    /// own. A blocking request in `start` is posted at once,
    /// together with all requests started before it.
    ///
    /// A wait for one of the transfers posts them as well, in `start` or on another thread. Any
    /// other wait does not: `start` must not wait by other means for the effect of a request that
    /// it started. Requests of other sessions are not held back. `together` of several sessions may
    /// nest: only the innermost one holds its session's requests back.
    pub fn together<R>(&self, start: impl FnOnce() -> R) -> R {
        self.shared.runtime.together(start)
    }

    /// Runs `start`, which starts requests with callbacks, then polls completions on this thread
    /// for the requests of all threads. Polling ends when all requests are done (any one with
    /// [`Until::AnyDone`]), after 100 microseconds without a completion, or after 5 milliseconds.
    /// Callbacks run on this thread, so no other thread is woken for them. Call it on a thread
    /// without other work.
    ///
    /// Only one thread polls at a time. `serve` just runs `start` on a further thread, in a
    /// callback, with event-driven completions, and for some time after polling found nothing.
    pub fn serve<R>(&self, until: Until, start: impl FnOnce() -> R) -> R {
        self.shared.runtime.serve(until, start)
    }
}
