//! Replies that the host WRITEs to memory of the client.
//!
//! The client registers [`ReplyMemory`] and publishes its address in its call memory at the host.
//! The host has a [`ReplyWriter`] for each session. It sends an answer from where the host has
//! written it, so no byte is copied for it. A record is complete when its tail matches, as one that
//! is fetched.
//!
//! # Concurrency
//! The client's slots belong to the callers. Any thread of the call server uses the writer: `sent`
//! counts the requests under way, and its lock is held during a post.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::layout;
use crate::{
    mapping::Memory,
    rpc::message::memory_error,
    verbs::{
        Access, CompletionQueue, MrHandle, ProtectionDomain, QueuePair, RemoteAddr, SendOp, SendWr, Sge,
        VerbsError, WcStatus, WorkCompletion,
    },
};

/// Requests of a writer under way at a time: two for each slot, because a note that a reply is
/// deferred may precede it.
pub(crate) const WRITER_DEPTH: u32 = 2 * crate::rpc::message::CALL_SLOTS as u32;
/// Time for a device to complete one of these requests.
const ROOM: Duration = Duration::from_secs(2);

/// The client's memory for answers.
#[derive(Debug)]
pub(crate) struct ReplyMemory {
    pub(super) memory: Arc<Memory>,
    region: MrHandle,
}

impl ReplyMemory {
    /// Allocates and registers the memory.
    ///
    /// # Errors
    /// Memory or room for a registration is exhausted.
    pub(crate) fn new(pd: &dyn ProtectionDomain) -> Result<ReplyMemory, VerbsError> {
        let memory = Arc::new(Memory::private(layout::REPLY_MEMORY).map_err(memory_error)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(&memory, 0, memory.len() as u64, access)?;
        Ok(ReplyMemory { memory, region })
    }

    /// Returns the two words that tell the host where the memory is.
    pub(super) fn words(&self) -> [u64; 2] {
        [self.region.addr(), u64::from(self.region.rkey()) | layout::HAS_KEY]
    }
}

/// Decodes the words of [`ReplyMemory::words`]. A peer may have written anything.
pub(super) fn reply_addr(words: [u64; 2]) -> Option<RemoteAddr> {
    (words[1] & layout::HAS_KEY != 0).then_some(RemoteAddr { addr: words[0], rkey: words[1] as u32 })
}

/// The host's way to the client's memory for answers: the queue pair of the call memory.
#[derive(Debug)]
pub(crate) struct ReplyWriter {
    qp: Arc<dyn QueuePair>,
    cq: Arc<dyn CompletionQueue>,
    /// Requests posted, and not known to have completed.
    sent: Mutex<u32>,
}

impl ReplyWriter {
    /// Creates a writer of replies. `cq` is the send queue of `qp`, which no other code posts to or
    /// polls.
    pub(crate) fn new(qp: Arc<dyn QueuePair>, cq: Arc<dyn CompletionQueue>) -> ReplyWriter {
        ReplyWriter { qp, cq, sent: Mutex::new(0) }
    }

    /// Starts a WRITE of registered memory. The memory may change when the client has the bytes: a
    /// repetition then writes bytes of the next answer, whose tail does not match yet.
    ///
    /// # Errors
    /// The reason why the session has to end.
    pub(super) fn write(&self, sge: Sge, remote: RemoteAddr) -> Result<(), String> {
        let mut sent = self.sent.lock();
        self.wait_for_room(&mut sent)?;
        let op = SendOp::Write { remote, imm: None };
        self.qp
            .post_send(&[SendWr::new(0, op, &[sge])])
            .map_err(|e| format!("cannot write a reply to the client: {e}"))?;
        *sent += 1;
        Ok(())
    }

    /// Takes completions, until there is room for one more request.
    fn wait_for_room(&self, sent: &mut u32) -> Result<(), String> {
        let mut begun = None;
        loop {
            let mut wcs = [WorkCompletion::EMPTY; 8];
            let found = self.cq.poll(&mut wcs).map_err(|e| e.to_string())?;
            *sent = sent.saturating_sub(found as u32);
            if let Some(failed) = wcs[..found].iter().find(|wc| wc.status != WcStatus::Success) {
                return Err(format!("a reply was not written to the client: {:?}", failed.status));
            }
            if *sent < WRITER_DEPTH && found < wcs.len() {
                return Ok(());
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > ROOM {
                return Err("the device does not complete the WRITEs of replies".into());
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{provider::soft::SoftDevice, verbs::Device};

    #[test]
    fn the_words_of_a_memory_come_back() {
        let pd = SoftDevice::new().unwrap().alloc_pd().unwrap();
        let memory = ReplyMemory::new(&*pd).unwrap();
        let found = reply_addr(memory.words()).unwrap();
        assert_eq!((found.addr, found.rkey), (memory.region.addr(), memory.region.rkey()));
        assert_eq!(reply_addr([0, 0]), None);
    }

    proptest! {
        #[test]
        fn any_words_decode(words: [u64; 2]) {
            let found = reply_addr(words);
            prop_assert_eq!(found.is_some(), words[1] & layout::HAS_KEY != 0);
        }
    }
}
