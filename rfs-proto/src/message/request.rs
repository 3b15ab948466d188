//! The requests. A decoded request borrows from the buffer of its message.

use serde::{Deserialize, Serialize};

use super::options::{FallocateFlags, Growth, RenameFlags, XattrSet};
#[cfg(doc)]
use super::{recall::Recall, reply::Reply};
use crate::{ExpectedOwner, Identity, LockClass, LockKind, LockRange, OLDEST_VERSION, Owner, SetAttr};

/// A request of a client. Names are bytes without `/` and NUL, 1 to [`MAX_NAME`](crate::MAX_NAME)
/// long. The client's kernel checks permissions. The server trusts an attached client, unless its
/// key has a squash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Attaches the session to an export. It is the first request of a session. The session may
    /// repeat it after [`Reply::InUse`], [`Reply::Ending`], ENOENT and EPROTONOSUPPORT. →
    /// `Attached`, `InUse` or `Ending`
    Attach {
        /// Version of the protocol for the session: the client's [`VERSION`](crate::VERSION), or,
        /// after EPROTONOSUPPORT, the version of the server.
        version: u32,
        /// Description of the client for the server's log and status: the text of a
        /// [`ClientDescription`](crate::ClientDescription).
        client: &'a str,
        /// Name of the export. The empty name selects the first export. ENOENT if no export has the
        /// name.
        export: &'a str,
        /// The session always has a [`Request::Recalls`] outstanding, and may therefore cache data
        /// until the server recalls it.
        keeps: bool,
        /// The session attaches exclusively: no other session may attach to the export until it
        /// ends. [`Reply::InUse`] while other sessions are attached. EOPNOTSUPP if the server
        /// removes files of the export by itself.
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
        /// Inode. It must not be a directory. ENOENT if it has lost its last name.
        ino: u64,
        /// Directory of the new name.
        parent: u64,
        /// New name; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Removes a name that is not of a directory. The server frees the inode when it has no name
    /// and no session has it open. A session that knows the inode and still needs it delays that
    /// (see `Forget`). → `Done` or `Unlinked`
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
        /// Inode that the client has cached under the old name. ESTALE, without any effect, if
        /// the name stands for another inode: the client's kernel would move the wrong one.
        moved: Option<u64>,
        /// Inode that the client has cached under the new name. ESTALE, without any effect, if the
        /// name stands for another inode.
        replaced: Option<u64>,
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
    /// beyond the end of the file. It also frees an inode without names that no session needs. →
    /// `Done`
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
        only_if: Option<ExpectedOwner>,
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
        only_if: Option<ExpectedOwner>,
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
    /// session does not have the inode open for writing. If no other session has the inode open,
    /// the reply lacks [`Marks::SHARED`](crate::Marks::SHARED). The session then stops sending
    /// `DropPages` until it opens the inode again. → `Attr`
    DropPages {
        /// Inode.
        ino: u64,
    },
    /// Asks how the session reaches a store of a [`DataPlace`](crate::DataPlace). ENXIO if the
    /// export has no such store. → `Store`
    ReachStore {
        /// Number of the store.
        store: u16,
    },
    /// Creates a regular file without a name and opens it for writing. The first
    /// [`Link`](Request::Link) gives it a name. Without a name, it goes as an unlinked file does. →
    /// `Opened`
    Tmpfile {
        /// Directory whose default ACL and set-group-ID bit apply. It does not change.
        parent: u64,
        /// Permission bits.
        perm: u32,
        /// Bits to clear in the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Returns the time at which an inode was created. It never changes. Since version 19. →
    /// `Birth`
    Birth {
        /// Inode.
        ino: u64,
    },
    /// Tells that the session does not know the outcome of a write to a store: its bytes may still
    /// arrive there. The server ends the access that the session got by
    /// [`ReachStore`](Request::ReachStore). Until that has ended, no file gets space that files
    /// give up at the store. Since version 19. → `Done`
    FenceStore {
        /// Number of the store. 0: all stores for which the session has access.
        store: u16,
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

    /// Returns the first version of the protocol that has the request, or the
    /// [oldest](crate::OLDEST_VERSION) that this program speaks. A session of an earlier version
    /// must not send it.
    pub fn since(&self) -> u32 {
        match self {
            Request::Birth { .. } | Request::FenceStore { .. } => 19,
            _ => OLDEST_VERSION,
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
