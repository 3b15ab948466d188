//! Requests and replies. A decoded request borrows from the buffer of its message.

use serde::{Deserialize, Serialize};

use crate::{
    Attr, Belongs, Errno, Extent, Granted, HeldLock, Identity, LockClass, LockKind, LockRange, Locked, Owner,
    RegionRef, SetAttr, StatFs,
};

bitflags::bitflags! {
    /// Flags of a rename, with the values of `renameat2`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST if the new name exists.
        const NOREPLACE = 1;
        /// Swap the two names, which must both exist.
        const EXCHANGE = 2;
    }
}

bitflags::bitflags! {
    /// Flags of a fallocate, with the values of `fallocate`. Without flags the server allocates
    /// space and extends the file to the end of the range.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct FallocateFlags: u32 {
        /// The size does not change.
        const KEEP_SIZE = 1;
        /// Frees whole blocks of the range and zeroes the rest. Requires KEEP_SIZE.
        const PUNCH_HOLE = 2;
        /// Allocates the range and zeroes it.
        const ZERO_RANGE = 16;
    }
}

/// The effect of a write on the size of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// The size does not change. The write is part of a longer write, whose last part sets the
    /// size.
    Stay,
    /// The size grows to the end of the written data if it is smaller.
    Reach,
    /// As `Reach`, if the size equals this value. Otherwise the server writes nothing and replies
    /// EAGAIN.
    From(u64),
}

/// A request of a client. Names are bytes without `/` and NUL, 1 to [`MAX_NAME`](crate::MAX_NAME)
/// long. The client's kernel checks permissions. The server trusts an attached client, unless its
/// key has a squash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Attaches the session to an export. It is the first request of a session. The session may
    /// repeat it after [`Reply::InUse`], [`Reply::Ending`] and ENOENT. → `Attached`, `InUse` or
    /// `Ending`
    Attach {
        /// The client's [`VERSION`](crate::VERSION).
        version: u32,
        /// Description of the client for the server's log.
        client: &'a str,
        /// Name of the export. The empty name selects the first export. ENOENT if no export has the
        /// name.
        export: &'a str,
        /// The session always has a [`Request::Recalls`] outstanding, and may therefore cache data
        /// until the server recalls it.
        keeps: bool,
        /// The session attaches exclusively: no other session may attach to the export until it
        /// ends. [`Reply::InUse`] while other sessions are attached.
        alone: bool,
        /// Identity of the mount, if it reconnects after it loses a session. It is random and
        /// secret. The server keeps the state of the mount for the length of a lease.
        /// [`Reply::Ending`] while a previous session of the mount ends.
        mount: Option<Identity>,
    },
    /// Returns the attributes of the inode that a name refers to. → `Attr`
    Lookup {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Returns the attributes of an inode. → `Attr`
    GetAttr {
        /// Inode.
        ino: u64,
    },
    /// Changes attributes. → `Attr`
    SetAttr {
        /// Inode.
        ino: u64,
        /// The changes.
        changes: SetAttr,
    },
    /// Creates a file, fifo, socket or device node. → `Attr`
    Mknod {
        /// Directory.
        parent: u64,
        /// Name in it; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Kind and permission bits.
        mode: u32,
        /// Bits to clear in the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Device number of a device node.
        rdev: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Creates a regular file and opens it. → `Opened`
    Create {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Permission bits.
        perm: u32,
        /// Bits to clear in the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
        /// EEXIST if the name exists. If false, the server opens an existing regular file
        /// unchanged.
        exclusive: bool,
    },
    /// Creates a directory. → `Attr`
    Mkdir {
        /// Directory.
        parent: u64,
        /// Name in it; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Permission bits.
        perm: u32,
        /// Bits to clear in the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Creates a symbolic link. → `Attr`
    Symlink {
        /// Directory.
        parent: u64,
        /// Name in it; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Target of the link, 1 to [`MAX_SYMLINK`](crate::MAX_SYMLINK) bytes.
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Returns the target of a symbolic link. → `Target`
    Readlink {
        /// Inode.
        ino: u64,
    },
    /// Creates a hard link. → `Attr`
    Link {
        /// Inode. It must not be a directory.
        ino: u64,
        /// Directory of the new name.
        parent: u64,
        /// New name; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Removes a name that is not of a directory. The server frees the inode when it has no name,
    /// no session has it open, and no session that knows it still needs it (see `Forget`). → `Done`
    /// or `Unlinked`
    Unlink {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Removes an empty directory. → `Done` or `Unlinked`
    Rmdir {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Renames an inode, as `renameat2`. → `Done` or `Unlinked`
    Rename {
        /// Old directory.
        parent: u64,
        /// Old name.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// New directory.
        new_parent: u64,
        /// New name.
        #[serde(with = "serde_bytes")]
        new_name: &'a [u8],
        /// NOREPLACE or EXCHANGE.
        flags: RenameFlags,
        /// Owner of a whiteout to leave under the old name: a character device 0:0 without
        /// permission bits, created as by `Mknod`. EINVAL with EXCHANGE.
        whiteout: Option<Owner>,
    },
    /// Opens a regular file. The server counts opens: the session sends one `Close` for each `Open`
    /// and `Create`. While a session has an inode open, the server does not reuse space of its
    /// layout. → `Opened`
    Open {
        /// Inode.
        ino: u64,
        /// The session may write until its last `Close`. Before the reply, the server recalls the
        /// attributes and pages of the inode from other sessions. `Create` opens for writing, too.
        write: bool,
    },
    /// Closes one `Open` of an inode. After the last close of all sessions the server frees space
    /// beyond the end of the file, and an inode without names that no session needs. → `Done`
    Close {
        /// Inode.
        ino: u64,
    },
    /// Returns the extents from `offset` on, for an inode that this session has open. → `Layout`
    Layout {
        /// Inode.
        ino: u64,
        /// First byte to describe.
        offset: u64,
    },
    /// Allocates space for the range, for an inode that this session has open. The server may
    /// preallocate space after the range. ENOSPC changes nothing. → `Layout` from `offset` on
    Allocate {
        /// Inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Returns directory entries after `cookie`. → `Dir`
    ReadDir {
        /// Directory.
        ino: u64,
        /// 0 to begin, then the cookie of the last entry.
        cookie: u64,
        /// Maximum number of entries.
        max_entries: u32,
    },
    /// Returns the totals of the export. → `StatFs`
    StatFs,
    /// Returns the counters of the server. → `Stats`
    Stats,
    /// Returns the value of an extended attribute from `offset` on. ENODATA if the inode has no
    /// such attribute. → `Value`
    GetXattr {
        /// Inode.
        ino: u64,
        /// Name, with its namespace.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// First byte to return.
        offset: u32,
    },
    /// Sets an extended attribute or an ACL. An access ACL also changes the permission bits. →
    /// `Done`
    SetXattr {
        /// Inode.
        ino: u64,
        /// Name, with its namespace.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Value, or its last part if `continued` is set.
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
        /// Condition on an existing attribute of that name.
        how: XattrSet,
        /// The value begins with the [`Request::XattrPart`] that this session sent last.
        continued: bool,
        /// The caller may not keep set-group-ID: setting an ACL clears it.
        drop_sgid: bool,
        /// Required owner.
        only_if: Option<Belongs>,
    },
    /// Sends the first part of a value that is too long for one message. It replaces an earlier
    /// part. → `Done`
    XattrPart {
        /// Up to [`XATTR_PART`](crate::XATTR_PART) bytes.
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
    },
    /// Returns the names of all extended attributes, each followed by a NUL, from byte `offset` of
    /// the list on. → `Value`
    ListXattr {
        /// Inode.
        ino: u64,
        /// First byte to return.
        offset: u32,
    },
    /// Removes an extended attribute or an ACL. ENODATA if the inode has no such attribute. →
    /// `Done`
    RemoveXattr {
        /// Inode.
        ino: u64,
        /// Name, with its namespace.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Required owner.
        only_if: Option<Belongs>,
    },
    /// Changes the space of an inode that this session has open, as `fallocate`. The session must
    /// have no write to the inode outstanding. → `Attr`
    Fallocate {
        /// Inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Operation.
        flags: FallocateFlags,
    },
    /// Copies a range between two files, or within a file. The session must have both open. The
    /// server keeps holes where it can. It copies fewer bytes at the end of the source, if space
    /// runs out, or if the range is long. → `Copied`
    Copy {
        /// Inode of the source.
        from: u64,
        /// First byte in the source.
        from_offset: u64,
        /// Inode of the destination.
        to: u64,
        /// First byte in the destination. EINVAL if the ranges overlap.
        to_offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Locks or unlocks a range of an inode that this session has open. EAGAIN if a lock conflicts
    /// and there is no ticket. → `Locked`, `Waits`, or `Done` for an unlock
    Lock {
        /// Inode.
        ino: u64,
        /// Lock owner: a number that the session chooses.
        owner: u64,
        /// Class of the lock.
        class: LockClass,
        /// Operation.
        kind: LockKind,
        /// Bytes to lock.
        range: LockRange,
        /// Process ID of the owner, for `TestLock`.
        pid: u32,
        /// Ticket under which the request waits if a lock conflicts. The reply to `Grants` has the
        /// outcome. EINVAL if the ticket is in use. EDEADLK if the holder of the conflicting lock
        /// waits for this owner.
        ticket: Option<u64>,
    },
    /// Cancels a lock request that waits. ENOENT if no request waits under the ticket: a reply to
    /// `Grants` has its outcome. → `Done`
    StopWaiting {
        /// Ticket of the request.
        ticket: u64,
    },
    /// Returns a lock that would conflict with the described one. → `Conflict`
    TestLock {
        /// Inode.
        ino: u64,
        /// Lock owner.
        owner: u64,
        /// Class of the lock.
        class: LockClass,
        /// True for an exclusive lock.
        exclusive: bool,
        /// Bytes to lock.
        range: LockRange,
    },
    /// Returns the attributes of a name, and the entries after it in directory order, for callers
    /// that look up one name after another. ENOENT if the name does not exist. → `Dir`, whose first
    /// entry is the name
    LookupAhead {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Maximum number of entries.
        max_entries: u32,
    },
    /// Waits for recalls. The server replies when it recalls something. The operation that causes a
    /// recall blocks until the session acknowledges the recall by the next `Recalls`, or ends. A
    /// session has one such request outstanding. → `Recalls`
    Recalls {
        /// The number of the last reply, whose recalls the session acknowledges; 0 to begin.
        done: u64,
    },
    /// Raises the time of the last access of an inode to `at`. Nothing else changes, and the server
    /// recalls nothing. → `Done`
    Accessed {
        /// Inode.
        ino: u64,
        /// Nanoseconds since 1970.
        at: i64,
    },
    /// Waits for outcomes of lock requests. The server replies when there is one. A session has one
    /// such request outstanding. → `Grants`
    Grants,
    /// Exempts a waiting lock request from the queue order: it waits only for locks that are held.
    /// ENOENT as for `StopWaiting`. → `Done`
    Insist {
        /// Ticket of the request.
        ticket: u64,
    },
    /// Executes a request exactly once, even if a mount that reconnects sends it again. The server
    /// replies to a repetition with the first reply. → the reply to the request
    Once {
        /// Slot, below [`SLOTS`](crate::SLOTS). A mount has one request per slot outstanding.
        slot: u32,
        /// Number of the request. It rises with each new request of the slot, and a repetition has
        /// the same number.
        sequence: u64,
        /// Encoded request. `Attach`, `Recalls`, `Grants`, `Detach` and `Once` are invalid here
        /// ([`Request::may_be_once`]).
        #[serde(with = "serde_bytes")]
        request: &'a [u8],
    },
    /// Tells the server that the mount does not reconnect, so the server drops its state when the
    /// session ends. → `Done`
    Detach,
    /// Writes to an inode that this session has open, and allocates missing space. Clients use it
    /// if they may not write the arena one-sidedly: if the memory has
    /// [`checksum`](crate::checksum)s, or the key has a squash. ENOSPC and EBADMSG change nothing.
    /// → `Done`
    Write {
        /// Inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// CRC-32C of the data. EBADMSG if the received data does not match.
        check: u32,
        /// Effect on the size.
        growth: Growth,
        /// 1 to [`WRITE_PART`](crate::WRITE_PART) bytes.
        #[serde(with = "serde_bytes")]
        data: &'a [u8],
    },
    /// Compares blocks of files with their checksums. One request covers about 1 MiB, so that it
    /// does not delay other requests. EOPNOTSUPP if the memory has no checksums. → `Verified`
    Verify {
        /// Inode at which to continue, from the last reply; 0 to begin.
        ino: u64,
        /// Offset in that inode, from the last reply; 0 to begin.
        offset: u64,
    },
    /// Tells the server that the session no longer uses a directory. The server recalls all its
    /// names at once ([`Recall::Names`]), and recalls none of them until the session looks up a
    /// name there again. → `Done`
    ReturnNames {
        /// Directory.
        ino: u64,
    },
    /// Asks every session with locks of an inode to release the locks of closed files. The server
    /// replies when they have done so. EBADF if this session does not have the inode open. → `Done`
    ConfirmLocks {
        /// Inode.
        ino: u64,
    },
    /// Tells the server that the session no longer uses inodes that [`Recall::Unlinked`] or
    /// [`Reply::Unlinked`] named. The server ignores other inodes. The first `Forget`, which may be
    /// empty, announces that the session always has a `Recalls` outstanding from now on. → `Done`
    Forget {
        /// Up to [`MAX_FORGET`](crate::MAX_FORGET) inode numbers of 8 bytes each, little-endian.
        /// EINVAL if the length is not a multiple of 8.
        #[serde(with = "serde_bytes")]
        inos: &'a [u8],
    },
    /// Registers the session as a cache holder of pages of an inode that it has open, after a
    /// recall ended its registration. The server ignores it if the session attached without
    /// `keeps`. → `Done`
    HoldPages {
        /// Inode.
        ino: u64,
    },
    /// Tells the server that the session has written to an inode. Every other session that caches
    /// pages of it drops them ([`Recall::Written`]) before the server replies. EBADF if this
    /// session does not have the inode open for writing. → `Attr`, without
    /// [`Marks::SHARED`](crate::Marks::SHARED) if no other session has the inode open; the session
    /// then stops sending `DropPages` until it opens the inode again
    DropPages {
        /// Inode.
        ino: u64,
    },
}

impl Request<'_> {
    /// Returns the directory of a request that changes exactly one name. The attributes of the
    /// directory may [follow](crate::encode_reply_with) the reply.
    pub fn directory(&self) -> Option<u64> {
        match *self {
            Request::Mknod { parent, .. }
            | Request::Create { parent, .. }
            | Request::Mkdir { parent, .. }
            | Request::Symlink { parent, .. }
            | Request::Link { parent, .. }
            | Request::Unlink { parent, .. }
            | Request::Rmdir { parent, .. } => Some(parent),
            _ => None,
        }
    }

    /// Returns true if the request is valid inside a [`Once`](Request::Once).
    pub fn may_be_once(&self) -> bool {
        !matches!(
            self,
            Request::Attach { .. }
                | Request::Recalls { .. }
                | Request::Grants
                | Request::Detach
                | Request::Once { .. }
        )
    }
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request failed and changed nothing.
    Error(Errno),
    /// The request succeeded.
    Done,
    /// Reply to `Attach`.
    Attached(Attached),
    /// Attributes of an inode.
    Attr(Attr),
    /// Reply to `Open` and `Create`.
    Opened(Opened),
    /// Reply to `Layout` and `Allocate`.
    Layout(Layout),
    /// Reply to `Readlink`.
    Target(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Reply to `ReadDir` and `LookupAhead`.
    Dir(DirPage),
    /// Reply to `StatFs`.
    StatFs(StatFs),
    /// Reply to `Stats`.
    Stats(ServerStats),
    /// Reply to `GetXattr` and `ListXattr`.
    Value(Value),
    /// Reply to `Copy`.
    Copied(Copied),
    /// Reply to `Lock`: the lock is granted.
    Locked(Locked),
    /// Reply to `TestLock`.
    Conflict(Option<HeldLock>),
    /// Reply to `Recalls`.
    Recalls(Recalls),
    /// Reply to `Attach`: attached sessions exclude this one.
    InUse(InUse),
    /// Reply to `Lock`: the request waits. `Grants` returns its outcome.
    Waits,
    /// Reply to `Grants`: each outcome once, in order; never empty.
    Grants(Vec<Granted>),
    /// Reply to `Attach`: the previous session of the mount is still ending. The client tries
    /// again.
    Ending,
    /// Reply to `Grants`: the server restarted and has no waiting requests. The client sends its
    /// lock requests again, with any tickets.
    AskAgain,
    /// Reply to `Verify`.
    Verified(Verified),
    /// Reply to `Unlink`, `Rmdir` and `Rename`: success, and this inode lost its last name. The
    /// session may use the inode until it sends `Forget`.
    Unlinked(u64),
}

/// The result of a comparison of blocks with their checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Number of compared blocks.
    pub blocks: u64,
    /// Inode and offset at which to continue. `None` at the end.
    pub next: Option<(u64, u64)>,
    /// Blocks that do not match their checksums.
    pub bad: Vec<BadBlock>,
}

/// A block that does not match its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadBlock {
    /// Inode of the file.
    pub ino: u64,
    /// Offset of the block in the file.
    pub offset: u64,
    /// Offset of the block in the arena.
    pub arena: u64,
    /// Stored check.
    pub expected: u32,
    /// Check of the bytes in the arena.
    pub found: u32,
    /// A path of the file from the root directory on, or its last
    /// [`MAX_SHOWN_PATH`](crate::MAX_SHOWN_PATH) bytes; empty if the file has no name.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// The sessions that exclude another session from an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Number of attached sessions; at least one.
    pub sessions: u64,
    /// True if the attached session is exclusive.
    pub alone: bool,
}

/// Data that a session may no longer cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalls {
    /// Number of the reply, for [`Request::Recalls`]. It grows by one with each reply.
    pub number: u64,
    /// Recalls in the order of the changes. Only the first reply of a session that attached without
    /// `keeps` can be empty.
    pub recalls: Vec<Recall>,
}

/// A recall: the data concerned changed or is about to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recall {
    /// The inode of a name in a directory, or the absence of the name, and the attributes of the
    /// directory. Other cached names of the directory stay valid.
    Name {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// All cached names of a directory, and its attributes.
    Names {
        /// Directory.
        ino: u64,
    },
    /// The attributes and extended attributes of an inode.
    Attr {
        /// Inode.
        ino: u64,
    },
    /// The attributes and pages of an inode: another session may write to it, or has changed its
    /// contents.
    Pages {
        /// Inode.
        ino: u64,
    },
    /// All cached data: the server restarted and has no list of the cached data. The
    /// acknowledgement states that the session no longer uses layouts of the previous server.
    All,
    /// The layouts of an inode before a generation: the file has freed some of their space. The
    /// acknowledgement states that no one-sided operation by such a layout is outstanding.
    Layout {
        /// Inode.
        ino: u64,
        /// The first generation that stays valid.
        generation: u64,
    },
    /// The owner and the other attributes of an inode. Every session that knows the inode gets it,
    /// even without cached attributes. Names of the inode stay valid.
    Owner {
        /// Inode.
        ino: u64,
    },
    /// No cached data. The acknowledgement states that the session has released all locks of an
    /// inode whose files were closed before the recall.
    Locks {
        /// Inode.
        ino: u64,
    },
    /// No cached data: an inode lost its last name. The session may use the inode until it sends
    /// [`Request::Forget`]. No request waits for the acknowledgement.
    Unlinked {
        /// Inode.
        ino: u64,
    },
    /// The pages of an inode that the session has open: another session has written to it. The
    /// session drops all pages before it acknowledges, and sends [`Request::HoldPages`] before it
    /// caches pages of the inode again.
    Written {
        /// Inode.
        ino: u64,
    },
}

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Number of copied bytes.
    pub bytes: u64,
    /// Attributes of the destination after the copy.
    pub attr: Attr,
}

/// The condition on an existing extended attribute of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrSet {
    /// No condition.
    Any,
    /// EEXIST if the attribute exists.
    Create,
    /// ENODATA if the attribute does not exist.
    Replace,
}

/// Part of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Version of the inode's extended attributes. Parts of different versions do not belong
    /// together.
    pub version: u64,
    /// Length of the whole value, in bytes.
    pub len: u32,
    /// Bytes from the requested offset on, up to [`XATTR_PART`](crate::XATTR_PART).
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// The regions and the state of an attached session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The arena. Extents are relative to its first byte.
    pub arena: RegionRef,
    /// The table of attribute [`record`](crate::record)s, indexed by slot.
    pub table: RegionRef,
    /// The words of the arena's blocks, if the memory has [`checksum`](crate::checksum)s. The arena
    /// is then read-only.
    pub sums: Option<RegionRef>,
    /// Time on the server's clock, in nanoseconds since 1970. Clients write times on this clock.
    pub now: i64,
    /// Number of the session, never 0, for [`record::appender`](crate::record::appender).
    pub session: u64,
    /// The session may not change anything: such requests get EROFS, and the regions are read-only.
    pub read_only: bool,
    /// Identity of the export's memory. If it differs from an earlier one, the file system is a new
    /// one, and all earlier knowledge is invalid.
    pub memory: Identity,
    /// Number of servers that were started on this memory, including this one.
    pub starts: u64,
    /// The server still has the state of the mount. If false, the mount has no open files, locks or
    /// cached data.
    pub resumed: bool,
    /// The regions are read-only: the server writes data ([`Request::Write`]), sizes and times, and
    /// checks permissions.
    pub confined: bool,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Attributes after the open.
    pub attr: Attr,
    /// Extents from the first byte on.
    pub layout: Layout,
}

/// Part of the extents of a file, sorted by file offset and without overlap. A gap is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Layout generation of the inode.
    pub generation: u64,
    /// The first extent that ends after the requested offset, and the extents after it.
    pub extents: Vec<Extent>,
    /// True if the file has no extents after these.
    pub complete: bool,
}

/// A page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirPage {
    /// Entries in the order of their cookies, without `.` and `..`. Cookies stay valid while the
    /// directory changes.
    pub entries: Vec<DirEntry>,
    /// Parent of the directory, for `..`.
    pub parent: u64,
    /// True if no entries follow.
    pub end: bool,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Position after this entry, for the next [`Request::ReadDir`]; never 0.
    pub cookie: u64,
    /// Name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Attributes.
    pub attr: Attr,
}

impl Recall {
    /// Returns true if the recall invalidates the attributes of an inode.
    pub fn concerns(&self, inode: u64) -> bool {
        match self {
            Recall::All => true,
            Recall::Layout { .. } => false,
            kept => kept.inode() == Some(inode),
        }
    }

    /// Returns true if the recall invalidates a name in a directory.
    pub fn concerns_name(&self, directory: u64, of: &[u8]) -> bool {
        match self {
            Recall::Name { parent, name } => (*parent, &name[..]) == (directory, of),
            Recall::Names { ino } => *ino == directory,
            Recall::Attr { .. }
            | Recall::Pages { .. }
            | Recall::Owner { .. }
            | Recall::Unlinked { .. }
            | Recall::Written { .. }
            | Recall::Layout { .. }
            | Recall::Locks { .. } => false,
            Recall::All => true,
        }
    }

    /// Returns true if the recall invalidates pages of an inode.
    pub fn concerns_pages(&self, inode: u64) -> bool {
        match self {
            Recall::Pages { ino } | Recall::Written { ino } => *ino == inode,
            Recall::All => true,
            _ => false,
        }
    }

    /// Returns the inode whose cached data the recall concerns; `None` for `All` and `Locks`.
    pub fn inode(&self) -> Option<u64> {
        match self {
            Recall::Name { parent, .. } => Some(*parent),
            Recall::Names { ino }
            | Recall::Attr { ino }
            | Recall::Pages { ino }
            | Recall::Owner { ino }
            | Recall::Unlinked { ino }
            | Recall::Written { ino }
            | Recall::Layout { ino, .. } => Some(*ino),
            Recall::All | Recall::Locks { .. } => None,
        }
    }
}

/// Counters of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Number of requests, by name of the request.
    pub calls: Vec<(String, u64)>,
    /// Number of attached sessions.
    pub sessions: u64,
    /// Seconds since the start of the server.
    pub uptime_secs: u64,
}
