//! Ordered lists for several sessions at once.
//!
//! # Concurrency
//! One thread submits all lists, then polls for all sessions until the last list is done. No locks.

use smallvec::SmallVec;

use super::{
    super::{checks::refuse_in_callback, session::Session},
    Op,
};
use crate::{
    error::RequestError,
    memory::{self, Scope},
    runtime::{SubmittedList, Waitable, wait_many},
};

/// Runs an ordered list on each of several sessions, and waits for all of them. The lists are under
/// way at once. Each list runs as with [`Session::execute`]. Lists of different entries are not
/// ordered, also if the entries have the same session.
///
/// Use it to write a record to several hosts, or to read parts of it from several hosts, in the
/// time of the slowest host. The calling thread alone moves the data of all sessions. No thread is
/// started or woken for it.
///
/// Returns the outcome of each list, in the order of `lists`. One list that fails does not affect
/// the others. The example [`replicated_register`](crate::guide::replicated_register) makes the
/// lists for any number of sessions, and goes on after the failure of one. Without lists the vector
/// is empty, and an empty list succeeds.
///
/// # Errors
/// Each outcome is as for [`Session::execute`]. A list that is not done within the operation
/// timeout of its session fails with [`RequestError::Timeout`]. In a callback, all lists fail with
/// [`RequestError::Invalid`], and have no effect.
///
/// ```
/// use rdmabox::{MemoryServer, Op, Session, SessionOptions, across};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (one, two) = (MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?,
/// #     MemoryServer::listen(&["127.0.0.1:0".parse()?], 1 << 20)?);
/// let sessions = [&one, &two]
///     .map(|host| Session::connect(&host.addresses()[0], &SessionOptions::default()).unwrap());
/// let bases = sessions.each_ref().map(|session| MemoryServer::locate(session).unwrap().base());
/// // Both hosts have the record before either of them has the new version.
/// let copies = |at: u64, data| {
///     let mut first = [Op::Write { remote: bases[0].at(at), data }];
///     let mut second = [Op::Write { remote: bases[1].at(at), data }];
///     across(&mut [(&sessions[0], &mut first), (&sessions[1], &mut second)])
/// };
/// for (at, data) in [(8, b"a record".as_slice()), (0, &1u64.to_ne_bytes())] {
///     copies(at, data).into_iter().collect::<Result<(), _>>()?;
/// }
/// # Ok(())
/// # }
/// ```
pub fn across(lists: &mut [(&Session, &mut [Op<'_>])]) -> Vec<Result<(), RequestError>> {
    memory::scope(|scope| {
        let mut submitted: SmallVec<[Result<Option<SubmittedList<'_>>, RequestError>; 4]> =
            lists.iter_mut().map(|(session, ops)| session.submit(ops, scope)).collect();
        let under_way = submitted.iter_mut().filter_map(|list| list.as_mut().ok()?.as_mut());
        wait_many(under_way.map(|list| list as &mut dyn Waitable), true, None);
        let outcome = |list: Result<Option<SubmittedList<'_>>, RequestError>| match list? {
            Some(list) => list.result(),
            None => Ok(()),
        };
        submitted.into_iter().map(outcome).collect()
    })
}

impl Session {
    /// Submits an ordered list, of which the caller waits until it is done. Returns `None` if it is
    /// done already.
    fn submit<'s, 'env>(
        &'s self,
        ops: &'env mut [Op<'_>],
        scope: &Scope<'env>,
    ) -> Result<Option<SubmittedList<'s>>, RequestError> {
        refuse_in_callback()?;
        self.check_list(ops)?;
        let over = self.execute_mapped(ops.iter_mut().map(Op::direct))?;
        let rest = &mut ops[over..];
        if rest.is_empty() {
            return Ok(None);
        }
        let steps = rest.iter_mut().map(|op| op.lend(scope)).collect();
        Ok(Some(self.shared.runtime.submit_list(steps, self.timeout)))
    }
}
