//! A thread that serves a ring.
//!
//! The thread registers one entry per queue, so that the kernel hands requests to idle threads.
//! An entry whose request has no answer when the file system returns (a blocked lock request)
//! stays with the thread, which registers another entry.
//!
//! # Concurrency
//! The thread owns its ring and its entries. Other threads reach it through [`Answers`], which
//! has a lock.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{
    abi::{CMD_COMMIT_AND_FETCH, CMD_REGISTER, CmdReq, EntryHeaders, EntryInOut},
    answers::{Answer, Answers, Payload},
    entry::Entry,
    kick::Kick,
};
use crate::fuse::session::{
    Filesystem, RequestKind,
    slot::{OtherRequests, Slot},
    trace::{Details, Trace},
    wire::{
        self,
        abi::{InHeader, OutHeader},
        decode::{self, Incoming},
    },
};

/// Capacity of the submission queue.
const SUBMISSIONS: u32 = 32;
/// User data of the read that wakes the thread. All other user data are numbers of entries.
const WOKEN: u64 = u64::MAX;
/// Number of unanswered small reads and writes above which the thread polls for their completion
/// instead of sleeping. Their answers then leave together.
const MANY: usize = 6;
/// Maximum size of a small read or write. The thread blocks for larger ones, which would delay
/// the answers of earlier requests.
const SMALL: u32 = 32 << 10;
/// Number of `iovec`s of an entry.
const PARTS: u32 = 2;

/// Owner of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Kernel,
    /// `commit_id` identifies the request to the kernel. `is_small` is true for a small read or
    /// write.
    Us {
        commit_id: u64,
        is_small: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct WorkerEntry {
    memory: &'static Entry,
    queue: u16,
    owner: Owner,
}

/// The parts of a mount that a thread needs.
#[derive(Debug)]
pub(super) struct Mount {
    pub(super) device: Arc<OwnedFd>,
    pub(super) kick: Arc<Kick>,
    pub(super) trace: Arc<Trace>,
}

/// The ring of a thread, with its entries.
pub(super) struct Worker {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    answers: Arc<Answers>,
    entries: Vec<WorkerEntry>,
    /// Maximum length of a payload.
    payload_len: usize,
    /// Buffer for the read that wakes this thread.
    woken: &'static mut [u8; 8],
}

impl Worker {
    /// Creates a ring for the calling thread, with an entry for each queue.
    ///
    /// # Errors
    /// The kernel has no io_uring, or this process may not use it, or memory is exhausted.
    pub(super) fn new(queues: &[u16], payload_len: usize) -> io::Result<Worker> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // The kernel runs completion work when the thread asks for it, and does not interrupt the
        // thread.
        let ring = builder.setup_single_issuer().setup_defer_taskrun().build(SUBMISSIONS)?;
        let answers = Arc::new(Answers::new()?);
        let mut entries = Vec::with_capacity(queues.len());
        for &queue in queues {
            entries.push(WorkerEntry { memory: Entry::new(payload_len)?, queue, owner: Owner::Kernel });
        }
        Ok(Worker { ring, answers, entries, payload_len, woken: Box::leak(Box::new([0; 8])) })
    }

    /// Registers the entries with the kernel. Once all queues have an entry, the kernel sends all
    /// requests to them.
    pub(super) fn register(&mut self, mount: &Mount) -> io::Result<()> {
        for number in 0..self.entries.len() {
            self.submit_entry(mount, number)?;
        }
        self.arm()?;
        self.ring.submit()?;
        match self.ring.completion().find(|done| done.result() < 0) {
            Some(refused) => Err(io::Error::from_raw_os_error(-refused.result())),
            None => Ok(()),
        }
    }

    /// Serves requests until the mount ends.
    pub(super) fn run(&mut self, mount: &Mount, filesystem: &impl Filesystem) -> io::Result<()> {
        let mut events = Vec::new();
        let mut answers = Vec::new();
        loop {
            let submitted = match self.answers.may_sleep() {
                true => self.ring.submit_and_wait(1),
                false => self.ring.submit(),
            };
            match submitted {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            self.give_back(mount, &mut answers)?;
            events.extend(self.ring.completion().map(|event| (event.user_data(), event.result())));
            let _turn = (!events.is_empty()).then(|| filesystem.threads().map(|threads| threads.begin(true)));
            for (at, &(what, result)) in events.iter().enumerate() {
                match (what, result) {
                    (WOKEN, _) => self.arm()?,
                    (entry, 0..) => {
                        let next = events[at + 1..].iter().find(|(what, _)| *what != WOKEN);
                        let followed =
                            next.is_some_and(|&(entry, result)| result >= 0 && self.has_small(entry));
                        self.serve(mount, filesystem, (entry as usize, followed), &mut answers)?;
                    }
                    (_, error) if is_over(error) => return Ok(()),
                    (_, error) => return Err(io::Error::from_raw_os_error(-error)),
                }
            }
            events.clear();
        }
    }

    /// Registers an entry.
    fn submit_entry(&mut self, mount: &Mount, number: usize) -> io::Result<()> {
        let WorkerEntry { memory, queue, .. } = self.entries[number];
        let command = CmdReq { qid: queue, ..CmdReq::default() };
        let mut submission = command_of(mount, CMD_REGISTER, command, Some(memory.parts()), number);
        set_len(&mut submission, PARTS);
        self.push(&submission)
    }

    /// Submits the read that wakes this thread.
    fn arm(&mut self) -> io::Result<()> {
        let wake = types::Fd(self.answers.wake().as_fd().as_raw_fd());
        let read = opcode::Read::new(wake, self.woken.as_mut_ptr(), self.woken.len() as u32).build();
        self.push(&squeue::Entry128::from(read.user_data(WOKEN)))
    }

    fn push(&mut self, submission: &squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: memory that submissions point to is never freed: entries, and the buffer of
            // the wake-up.
            if unsafe { self.ring.submission().push(submission) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Returns true if an entry holds a small read or write.
    fn has_small(&self, entry: u64) -> bool {
        self.entries.get(entry as usize).is_some_and(|held| is_small(&held.memory.headers()))
    }

    /// Serves the request of an entry. `followed` is true if a small read or write is next.
    fn serve(
        &mut self,
        mount: &Mount,
        filesystem: &impl Filesystem,
        (number, followed): (usize, bool),
        answers: &mut Vec<Answer>,
    ) -> io::Result<()> {
        // Sends earlier answers first, so they do not wait for this request.
        if !self.ring.submission().is_empty() {
            self.ring.submit()?;
        }
        let held = self.entries.get_mut(number).ok_or(io::ErrorKind::InvalidData)?;
        let (memory, queue) = (held.memory, held.queue);
        let headers = memory.headers();
        held.owner = Owner::Us { commit_id: headers.entry.commit_id, is_small: is_small(&headers) };
        let header =
            InHeader::read_from_prefix(&headers.in_out).map_or_else(|_| InHeader::new_zeroed(), |(h, _)| h);
        let small = || {
            self.entries.iter().filter(|held| matches!(held.owner, Owner::Us { is_small: true, .. })).count()
        };
        let others = match followed {
            true => OtherRequests::Another,
            false if small() >= MANY => OtherRequests::Many,
            false => OtherRequests::Few,
        };
        let traced = match mount.trace.is_on() {
            true => {
                let (bytes, place) = headers.moved();
                let name = RequestKind::of_opcode(header.opcode).name();
                mount.trace.arrive(header.unique, name, Details { caller: header.pid, bytes, place })
            }
            false => None,
        };
        let _handled = traced.as_ref().map(|traced| traced.handle());
        let slot = Slot::new(Arc::clone(&self.answers), (number, memory), header.unique, others);
        let slot = slot.traced_as(traced);
        // SAFETY: the entry is given back only after this call. A slot writes to the payload only
        // where the decoded parts are copies (`decode`).
        let payload = unsafe { memory.payload(headers.entry.payload_sz as usize) };
        if header.opcode == wire::opcode::RELEASE {
            filesystem.will_release();
        }
        decode::dispatch(filesystem, &Incoming { header, op: &headers.op_in, payload }, slot);
        self.give_back(mount, answers)?;
        let idle = |held: &WorkerEntry| held.queue == queue && held.owner == Owner::Kernel;
        if !self.entries.iter().any(idle)
            && let Err(e) = self.add_entry(mount, queue)
        {
            // Requests that have an entry can still be answered.
            log::error!("a thread of a ring serves no request until it has answered a blocked one: {e}");
        }
        Ok(())
    }

    /// Registers another entry for a queue whose other entries all wait for answers.
    fn add_entry(&mut self, mount: &Mount, queue: u16) -> io::Result<()> {
        self.entries.push(WorkerEntry { memory: Entry::new(self.payload_len)?, queue, owner: Owner::Kernel });
        self.submit_entry(mount, self.entries.len() - 1)?;
        self.ring.submit()?;
        // The kernel hands queued requests only to entries that are given back.
        mount.kick.kick(queue)
    }

    /// Gives answered entries back to the kernel.
    fn give_back(&mut self, mount: &Mount, answers: &mut Vec<Answer>) -> io::Result<()> {
        self.answers.take(answers);
        for Answer { entry: number, unique, errno, payload } in answers.drain(..) {
            let Some(WorkerEntry { memory, queue, owner }) = self.entries.get_mut(number) else { continue };
            let Owner::Us { commit_id, .. } = std::mem::replace(owner, Owner::Kernel) else { continue };
            let (memory, qid) = (*memory, *queue);
            let len = match payload {
                Payload::InPlace(len) => len,
                Payload::Small(bytes, len) => {
                    // SAFETY: the request is answered, and its handler has returned, because
                    // answers are taken between requests.
                    unsafe { memory.payload_mut(len) }.copy_from_slice(&bytes[..len]);
                    len
                }
            };
            // Payloads are shorter than 4 GiB.
            let (len, payload_sz) = ((size_of::<OutHeader>() + len) as u32, len as u32);
            // SAFETY: this is the request's only answer, and the entry is given back below.
            unsafe {
                memory.set_headers(
                    OutHeader { len, error: -errno, unique },
                    EntryInOut { commit_id, payload_sz, ..EntryInOut::default() },
                );
            }
            let command = CmdReq { commit_id, qid, ..CmdReq::default() };
            self.push(&command_of(mount, CMD_COMMIT_AND_FETCH, command, None, number))?;
        }
        Ok(())
    }
}

/// Returns true for a small read or write.
fn is_small(headers: &EntryHeaders) -> bool {
    headers.bytes_moved().is_some_and(|bytes| bytes <= SMALL)
}

/// Returns true for errors that mean the end of the mount.
fn is_over(error: i32) -> bool {
    let over = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED, Errno::NODEV];
    over.iter().any(|errno| errno.raw_os_error() == -error)
}

/// Returns a command to the FUSE device.
fn command_of(
    mount: &Mount,
    operation: u32,
    command: CmdReq,
    address: Option<u64>,
    number: usize,
) -> squeue::Entry128 {
    let mut bytes = [0; 80];
    bytes[..size_of::<CmdReq>()].copy_from_slice(command.as_bytes());
    let device = types::Fd(mount.device.as_raw_fd());
    let built = opcode::UringCmd80::new(device, operation).cmd(bytes).addr(address).build();
    built.user_data(number as u64)
}

/// Sets `len` of a submission, for which the crate has no function.
fn set_len(submission: &mut squeue::Entry128, len: u32) {
    /// Offset of `len` in `struct io_uring_sqe`.
    const LEN_AT: usize = 24;
    const { assert!(size_of::<squeue::Entry128>() == 128) };
    // SAFETY: the type is an `io_uring_sqe` and 64 bytes in the kernel's layout, with a 32-bit
    // number at this offset.
    unsafe { std::ptr::from_mut(submission).cast::<u8>().add(LEN_AT).cast::<u32>().write_unaligned(len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_mount_ends_a_thread() {
        assert!(is_over(-107) && is_over(-103) && is_over(-125));
        assert!(!is_over(-22) && !is_over(-2) && !is_over(0));
    }

    #[test]
    fn the_length_of_a_submission_has_the_offset_of_the_kernel() {
        // The crate sets the length of a read.
        let read =
            |len| squeue::Entry128::from(opcode::Read::new(types::Fd(3), std::ptr::null_mut(), len).build());
        let mut ours = read(0);
        set_len(&mut ours, 0x0102_0304);
        let bytes = |entry: &squeue::Entry128| {
            // SAFETY: 128 bytes, all of which are set.
            unsafe { std::ptr::from_ref(entry).cast::<[u8; 128]>().read() }
        };
        assert_eq!(bytes(&ours), bytes(&read(0x0102_0304)));
    }
}
