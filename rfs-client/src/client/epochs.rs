//! Operations that outlive the loss of their session: epochs and lost locks.
//!
//! # Concurrency
//! Session threads.

use rdmabox::RequestError;
use rfs_proto::{Errno, Reply, Request};

use crate::{
    client::{Client, TRIES},
    error::ClientError,
    inode::Inode,
    remote::address::Epoch,
};

impl Client {
    /// Runs `act` on an open file, and repeats it if a new epoch has begun meanwhile and voided its
    /// addresses.
    ///
    /// # Errors
    /// ESTALE if the file is gone. EIO if locks that were held in `issued_epoch` are lost: they
    /// may have guarded this operation.
    pub(crate) fn retry_in_new_epoch<R>(
        &self,
        inode: &Inode,
        issued_epoch: Epoch,
        mut act: impl FnMut() -> Result<R, ClientError>,
    ) -> Result<R, ClientError> {
        for _ in 0..TRIES {
            inode.locks.check_guards(issued_epoch)?;
            let (epoch, used) = (inode.layout.read().epoch(), self.remote.epochs().in_use);
            let has_begun = || epoch != self.remote.epochs().newest || used != self.remote.epochs().in_use;
            match act() {
                Err(ClientError::Request(RequestError::Disconnected) | ClientError::Errno(Errno::EBADF))
                    if has_begun() && self.is_connected() => {}
                outcome => return outcome,
            }
            // The reclaim has renewed the layout, unless the file was opened just then.
            self.remote.ready()?;
            if inode.is_gone() {
                return Err(Errno::ESTALE.into());
            }
            if inode.layout.read().epoch() != self.remote.epochs().newest {
                let _calls = inode.layout_calls.lock();
                self.fetch_layout(inode, None)?;
            }
        }
        Err(ClientError::Unstable)
    }

    /// Makes a call about open files that their locks may guard. The caller issued it in
    /// `issued_epoch`.
    ///
    /// # Errors
    /// EIO if such a lock was lost in a later epoch. The call is not carried out in a later epoch
    /// then.
    pub(crate) fn call_guarded(
        &self,
        inodes: &[&Inode],
        issued_epoch: Epoch,
        request: &Request<'_>,
    ) -> Result<Reply, ClientError> {
        // The order matters: a lock that is held here and lost before the epoch is read is detected
        // after that.
        let held_locks = inodes.iter().any(|inode| !inode.locks.held.lock().is_empty());
        let epoch = self.remote.epochs().in_use;
        let guarded = || inodes.iter().try_for_each(|inode| inode.locks.check_guards(issued_epoch));
        guarded()?;
        if !held_locks {
            return self.call(request);
        }
        match self.call_in(epoch, request) {
            Err(e @ ClientError::Request(RequestError::Disconnected)) => guarded().and(Err(e)),
            outcome => outcome,
        }
    }
}
