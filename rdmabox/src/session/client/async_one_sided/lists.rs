//! Started ordered lists, whose steps own their buffers.
//!
//! # Concurrency
//! Any thread may call these methods, also inside a completion callback. No locks.

use std::sync::Arc;

use super::super::{
    checks::{aligned, list_fits, supported},
    session::Session,
    transfer::Transfer,
};
use crate::{
    error::Failed,
    memory::{Lent, OwnedOp, RecvBuf},
    runtime::{GroupOp, Started, in_callback},
};

impl Session {
    /// Starts an ordered list, as [`execute`](Self::execute): in order, on one queue pair, with one
    /// doorbell. The transfer returns the list with the bytes that its steps read.
    ///
    /// The list is one unit among started requests. It waits for the overlapping writes before it,
    /// and other requests may pass it.
    ///
    /// # Errors
    /// The transfer fails with the list. The state of its steps is known as for
    /// [`execute`](Self::execute), and the bytes of the failed steps are undefined.
    /// [`RequestError::Unsupported`](crate::RequestError::Unsupported),
    /// [`RequestError::ListTooLong`](crate::RequestError::ListTooLong) and
    /// [`RequestError::Invalid`](crate::RequestError::Invalid) refuse the whole list, without any
    /// effect.
    ///
    /// ```
    /// # use rdmabox::{MemoryServer, OwnedOp, Session, SessionOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let host = MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?;
    /// # let session = Session::connect(&host.addresses()[0], &SessionOptions::default())?;
    /// # let base = MemoryServer::locate(&session)?.base();
    /// let list = session.start_execute(vec![
    ///     OwnedOp::Write { remote: base.at(64), data: b"record".to_vec() },
    ///     OwnedOp::FetchAdd { remote: base, add: 1, old: 0 },
    ///     OwnedOp::Read { remote: base.at(64), out: vec![0; 6] },
    /// ]);
    /// let list = list.wait()?;
    /// assert!(matches!(&list[2], OwnedOp::Read { out, .. } if out == b"record"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_execute<B: RecvBuf>(&self, mut ops: Vec<OwnedOp<B>>) -> Transfer<Vec<OwnedOp<B>>> {
        let fits = list_fits(ops.iter().map(OwnedOp::range), &self.shared.runtime);
        let fits = fits.and_then(|()| ops.iter().filter_map(OwnedOp::word).try_for_each(aligned));
        let atomics = ops.iter().filter_map(OwnedOp::atomic_op);
        if let Err(e) = fits.and_then(|()| supported(atomics, self.shared.atomic_ops)) {
            return Transfer::failed(e, Some(ops));
        }
        // In a callback, inline execution could recurse: each callback could start the next list.
        let over = match in_callback() {
            true => Ok(0),
            false => self.execute_mapped(ops.iter_mut().map(OwnedOp::direct)),
        };
        let over = match over {
            Ok(over) if over < ops.len() => over,
            Ok(_) => return Transfer::done(ops),
            Err(e) => return Transfer::failed(e, Some(ops)),
        };
        let (ticket, loans) = self.shared.runtime.take_idle(ops.len() - over, self.timeout);
        let mut lent = Lent::new(ops, loans);
        let steps = lent.lend_steps(over).map(|(op, loan)| GroupOp { op, loan }).collect();
        self.shared.runtime.begin_group(steps, &ticket);
        Transfer::new(Started::new(Arc::clone(&self.shared.runtime), ticket, lent))
    }

    /// Starts an ordered list and runs `done` with it, as [`write_then`](Self::write_then). A panic
    /// of `done` is contained. An empty list succeeds.
    pub fn execute_then<B: RecvBuf>(
        &self,
        ops: Vec<OwnedOp<B>>,
        done: impl FnOnce(Result<Vec<OwnedOp<B>>, Failed<Vec<OwnedOp<B>>>>) + Send + 'static,
    ) {
        self.start_execute(ops).then(&self.shared.runtime, done);
    }
}
