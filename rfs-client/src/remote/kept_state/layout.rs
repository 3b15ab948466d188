//! Where the kept state has its parts. No I/O, no locks, no clock.
//!
//! The header comes first, then the calls in flight, the requests in work, the locks and the
//! inodes. A change of any number here is another format.

/// First word of the area.
pub(super) const MAGIC: u64 = 0x7266_735f_6b65_7074;
/// Version of the format, and of the meaning of its words.
pub(super) const FORMAT: u64 = 1;

/// Words of the header, by their offset.
pub(super) mod header {
    pub(in crate::remote::kept_state) const MAGIC: usize = 0;
    pub(in crate::remote::kept_state) const FORMAT: usize = 8;
    /// Number of processes that have taken over.
    pub(in crate::remote::kept_state) const TAKEOVERS: usize = 16;
    /// The identity of the mount, 16 bytes.
    pub(in crate::remote::kept_state) const MOUNT: usize = 32;
    /// The identity of the server's memory, 16 bytes.
    pub(in crate::remote::kept_state) const MEMORY: usize = 48;
    /// Number of the session at the server; 0 before the first attach.
    pub(in crate::remote::kept_state) const SESSION: usize = 64;
    /// 1 once something did not fit.
    pub(in crate::remote::kept_state) const INCOMPLETE: usize = 72;
    /// Numbers of inodes, requests and locks that were ever in use at once.
    pub(in crate::remote::kept_state) const ROWS_USED: usize = 80;
    pub(in crate::remote::kept_state) const REQUESTS_USED: usize = 88;
    pub(in crate::remote::kept_state) const LOCKS_USED: usize = 96;
    /// Words of the caller.
    pub(in crate::remote::kept_state) const WORDS: usize = 128;
}

/// Number of words of the caller.
pub(super) const WORDS: usize = 16;

/// Calls: one for each slot. A word is the sequence number, doubled, plus 1 while the call is in
/// flight. Then comes the kernel's number of the request. Then come the ordinal of the call in the
/// request and the length of the envelope, of 32 bits each, and the envelope.
pub(super) const CALLS: usize = 4096;
pub(super) const CALL_LEN: usize = 16 * 1024;
pub(super) const CALL_HEADER: usize = 24;
/// Longest envelope that is kept.
pub(super) const MAX_ENVELOPE: usize = CALL_LEN - CALL_HEADER;

/// Requests in work: the kernel's number, the number of effects, then the effects: an inode, and
/// its counter with the amount.
pub(super) const REQUESTS: usize = CALLS + CALL_LEN * rfs_proto::SLOTS as usize;
pub(super) const REQUEST_LEN: usize = 4096;
pub(super) const REQUEST_COUNT: usize = 2048;
pub(super) const REQUEST_HEADER: usize = 16;
pub(super) const EFFECT_LEN: usize = 16;
/// Effects of one request that are kept. A listing has the most.
pub(super) const MAX_EFFECTS: usize = (REQUEST_LEN - REQUEST_HEADER) / EFFECT_LEN;

/// Locks: an inode (0: no lock), a handle, an owner, and a word of the class and the ticket.
pub(super) const LOCKS: usize = REQUESTS + REQUEST_LEN * REQUEST_COUNT;
pub(super) const LOCK_LEN: usize = 32;
pub(super) const LOCK_COUNT: usize = 1 << 17;

/// Inodes: the number (0: no inode), then the counters, and the slot of the record plus 1.
pub(super) const INODES: usize = LOCKS + LOCK_LEN * LOCK_COUNT;
pub(super) const INODE_LEN: usize = 64;
pub(super) const INODE_COUNT: usize = 1 << 24;
/// Offset of the counters in an inode, of 64 bits each, in the order of `Counter`.
pub(super) const COUNTERS: usize = 8;
/// Offset of the record's slot in an inode.
pub(super) const SLOT: usize = 56;

/// Returns the offset of an inode.
pub(super) fn row_at(index: usize) -> usize {
    INODES + INODE_LEN * index
}

/// Kinds of notes that are no counters: the offset of an append, and its lock.
pub(super) const APPEND_OFFSET: u8 = 100;
pub(super) const APPEND_LOCK: u8 = 101;
/// Kind of a note that does not count any more.
pub(super) const VOID: u8 = 102;

/// Length of the area in bytes.
pub(super) const LEN: usize = INODES + INODE_LEN * INODE_COUNT;
