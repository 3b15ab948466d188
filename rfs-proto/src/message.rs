//! The messages. A request borrows from the buffer that it is decoded from.

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
    /// What to do with space, with the values of `fallocate`. None: there is space, and the file reaches as far.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct FallocateFlags: u32 {
        /// The size stays as it is.
        const KEEP_SIZE = 1;
        /// Whole blocks lose their space, the rest reads as zero; with KEEP_SIZE.
        const PUNCH_HOLE = 2;
        /// There is space, and it reads as zero.
        const ZERO_RANGE = 16;
    }
}

/// What a write makes of the size of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// It stays: the write is a part of a longer one, of which the last part sets it.
    Stay,
    /// It reaches the end of what is written, if it did not before.
    Reach,
    /// The same, if it has been this before. Otherwise EAGAIN, and nothing is written.
    From(u64),
}

/// What a client asks. Names are bytes without `/` and NUL, 1 to [`MAX_NAME`](crate::MAX_NAME) long.
/// Permission is checked by the client's kernel; the server trusts an attached client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// First request of a session. Replied with [`Reply::Attached`], or with [`Reply::InUse`]: then the session may ask again.
    Attach {
        /// The client's [`VERSION`](crate::VERSION).
        version: u32,
        /// For the server's log.
        client: &'a str,
        /// Which of the server's file systems; the empty name is the first one's. ENOENT if there is none of that name.
        export: &'a str,
        /// The client asks for [`Request::Recalls`] all the time, and so may keep what it is told until it is recalled.
        keeps: bool,
        /// No other session may be attached to the file system as long as this one is. [`Reply::InUse`] while there are others.
        alone: bool,
        /// The mount that this is a session of, if it comes back when it loses one: chosen at random for its life, and known to
        /// nobody else. What it has stays for as long as its lease lasts. [`Reply::Ending`] while a session of it is there.
        mount: Option<Identity>,
    },
    /// A name's attributes. → `Attr`
    Lookup {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// An inode's attributes. → `Attr`
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
    /// Makes a file, fifo, socket or device node. → `Attr`
    Mknod {
        /// Directory.
        parent: u64,
        /// Name in it; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Kind and permission bits.
        mode: u32,
        /// Taken from the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Device number, for device nodes.
        rdev: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Makes a regular file and opens it. → `Opened`
    Create {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Permission bits.
        perm: u32,
        /// Taken from the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
        /// Fail with EEXIST if the name exists; otherwise an existing regular file is opened as it is.
        exclusive: bool,
    },
    /// Makes a directory. → `Attr`
    Mkdir {
        /// Directory.
        parent: u64,
        /// Name in it; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Permission bits.
        perm: u32,
        /// Taken from the permission bits, unless the directory has a default ACL.
        umask: u32,
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Makes a symbolic link. → `Attr`
    Symlink {
        /// Directory.
        parent: u64,
        /// Name in it; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// What it points to, 1 to [`MAX_SYMLINK`](crate::MAX_SYMLINK) bytes.
        #[serde(with = "serde_bytes")]
        target: &'a [u8],
        /// Owner.
        uid: u32,
        /// Group, unless the directory is setgid.
        gid: u32,
    },
    /// Reads a symbolic link. → `Target`
    Readlink {
        /// Inode.
        ino: u64,
    },
    /// Makes a hard link. → `Attr`
    Link {
        /// Inode, not a directory.
        ino: u64,
        /// Directory for the new name.
        parent: u64,
        /// New name; EEXIST if it exists.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
    },
    /// Removes a name that is not a directory. The inode goes with the last name, the last open,
    /// and the last session that was told of it and has not sent `Forget`. → `Done` or `Unlinked`
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
    /// Renames, as `renameat2`. → `Done` or `Unlinked`
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
        /// To leave a whiteout in the old place, and whose: a character device 0:0 with no permissions, made as by `Mknod`. Not with
        /// EXCHANGE (EINVAL).
        whiteout: Option<Owner>,
    },
    /// Opens a regular file: takes a layout lease for this session. Counted: as many `Close` as `Open` and
    /// `Create`. → `Opened`
    Open {
        /// Inode.
        ino: u64,
        /// The session may write from now on until its last `Close`; nobody else keeps attributes or pages meanwhile. As after
        /// `Create`.
        write: bool,
    },
    /// Gives one `Open` back. With the last one of this session its layout lease ends; with the last one of all
    /// sessions space beyond the end of the file is taken back, and an inode without names goes. → `Done`
    Close {
        /// Inode.
        ino: u64,
    },
    /// The extents from `offset` on, for an inode that this session has open. → `Layout`
    Layout {
        /// Inode.
        ino: u64,
        /// First byte of interest.
        offset: u64,
    },
    /// Makes sure that `offset..offset+len` has space, for an inode that this session has open; more may be
    /// given behind it, ahead of need. ENOSPC changes nothing. → `Layout` from `offset` on
    Allocate {
        /// Inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Directory entries after `cookie`. → `Dir`
    ReadDir {
        /// Directory.
        ino: u64,
        /// 0 to begin, then the last entry's cookie.
        cookie: u64,
        /// Upper bound for the number of entries.
        max_entries: u32,
    },
    /// Totals. → `StatFs`
    StatFs,
    /// Counters. → `Stats`
    Stats,
    /// An extended attribute, from a byte of its value on. ENODATA if there is none of that name. → `Value`
    GetXattr {
        /// Inode.
        ino: u64,
        /// Name, with its namespace.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// First byte of interest.
        offset: u32,
    },
    /// Sets an extended attribute or an ACL; the latter changes the permission bits, too. → `Done`
    SetXattr {
        /// Inode.
        ino: u64,
        /// Name, with its namespace.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Value, or what follows those [`Request::XattrPart`] sent.
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
        /// Whether there may or must be one.
        how: XattrSet,
        /// The value begins with the part that this session sent last.
        continued: bool,
        /// The caller has no right to set-group-ID: an ACL takes it away.
        drop_sgid: bool,
        /// Nothing is changed unless this is so.
        only_if: Option<Belongs>,
    },
    /// The beginning of a value that is too long for one message; replaces one that was sent before. → `Done`
    XattrPart {
        /// Up to [`XATTR_PART`](crate::XATTR_PART) bytes.
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
    },
    /// The names of all extended attributes, each followed by a NUL, from a byte on. → `Value`
    ListXattr {
        /// Inode.
        ino: u64,
        /// First byte of interest.
        offset: u32,
    },
    /// Removes an extended attribute or an ACL. ENODATA if there is none. → `Done`
    RemoveXattr {
        /// Inode.
        ino: u64,
        /// Name, with its namespace.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Nothing is changed unless this is so.
        only_if: Option<Belongs>,
    },
    /// Changes the space of an inode that this session has open, as `fallocate`. The session has no write to it under
    /// way. → `Attr`
    Fallocate {
        /// Inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What to do.
        flags: FallocateFlags,
    },
    /// Copies bytes from one file to another or within one, both open in this session. Holes stay holes where they can.
    /// Fewer bytes than asked for may be copied: at the end of the source, where space runs out, or because it is much.
    /// → `Copied`
    Copy {
        /// Inode of the source.
        from: u64,
        /// First byte there.
        from_offset: u64,
        /// Inode of the destination.
        to: u64,
        /// First byte there; EINVAL if the ranges overlap.
        to_offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Locks or unlocks a range of an inode that this session has open. EAGAIN if somebody is in the way. → `Locked`, `Waits`,
    /// or `Done` for an unlock
    Lock {
        /// Inode.
        ino: u64,
        /// Who, as the client says it.
        owner: u64,
        /// In which of the two worlds.
        class: LockClass,
        /// What.
        kind: LockKind,
        /// Where.
        range: LockRange,
        /// The process, for `TestLock`.
        pid: u32,
        /// It waits if somebody is in the way, under this number, which nothing else of the session waits under (EINVAL); the outcome
        /// comes with `Grants`. EDEADLK if whoever is in the way waits for it.
        ticket: Option<u64>,
    },
    /// A lock is waited for no more: it will not be granted. ENOENT if nothing waits: its outcome is among the `Grants`. → `Done`
    StopWaiting {
        /// Under which number.
        ticket: u64,
    },
    /// A lock that would be in the way of one. → `Conflict`
    TestLock {
        /// Inode.
        ino: u64,
        /// Who.
        owner: u64,
        /// In which of the two worlds.
        class: LockClass,
        /// Exclusive, or shared.
        exclusive: bool,
        /// Where.
        range: LockRange,
    },
    /// A name's attributes, and the entries that follow it in the directory's order, for those who look at one after
    /// the other. ENOENT if there is no such name. → `Dir`, which begins with the name
    LookupAhead {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: &'a [u8],
        /// Upper bound for the number of entries.
        max_entries: u32,
    },
    /// What this session may keep no longer; the reply comes when there is something. Whoever caused it waits until the session
    /// has asked again with `done`, or has ended. One such request at a time. → `Recalls`
    Recalls {
        /// The number of the last reply, all of which is kept no longer; 0 to begin.
        done: u64,
    },
    /// The session read an inode at a time: that of its last access is no earlier now. Nothing else changes, and nothing is recalled
    /// for it. → `Done`
    Accessed {
        /// Inode.
        ino: u64,
        /// Nanoseconds since 1970.
        at: i64,
    },
    /// What became of locks that are waited for; the reply comes when there is something. One such request at a time. → `Grants`
    Grants,
    /// A lock that is waited for does not wait behind others that wait any more. ENOENT as with `StopWaiting`. → `Done`
    Insist {
        /// Under which number.
        ticket: u64,
    },
    /// A request that is carried out once, however often a mount that comes back sends it: a repetition is answered as the first one
    /// was. → as to the request
    Once {
        /// One of [`SLOTS`](crate::SLOTS), in which the mount has one request at a time.
        slot: u32,
        /// Higher with each request of the slot; the same in a repetition.
        sequence: u64,
        /// The bytes of a request that [may be](Request::may_be_once) there: none of `Attach`, `Recalls`, `Grants`, `Detach` and `Once`.
        #[serde(with = "serde_bytes")]
        request: &'a [u8],
    },
    /// The mount does not come back after this session. → `Done`
    Detach,
    /// Writes to an inode that this session has open, and gives it space where it lacks some: for memory with
    /// [`checksum`](crate::checksum)s, which clients do not write one-sidedly. ENOSPC and EBADMSG change nothing. → `Done`
    Write {
        /// Inode.
        ino: u64,
        /// First byte.
        offset: u64,
        /// CRC-32C of the data, which the server compares with what has arrived: EBADMSG if they differ.
        check: u32,
        /// What becomes of the size.
        growth: Growth,
        /// 1 to [`WRITE_PART`](crate::WRITE_PART) bytes.
        #[serde(with = "serde_bytes")]
        data: &'a [u8],
    },
    /// Compares blocks of files with their checksums, from a place on: about a mebibyte, so that nobody is held up. EOPNOTSUPP if there are
    /// none. → `Verified`
    Verify {
        /// Where the last reply ended; 0 to begin.
        ino: u64,
        /// The same.
        offset: u64,
    },
    /// The session uses a directory no more, and wants no recalls of single names in it: all its names are recalled at once
    /// ([`Recall::Names`]), and none until the session asks for one again. → `Done`
    ReturnNames {
        /// Directory.
        ino: u64,
    },
    /// Every session that has locks of an inode gives up those whose open files are closed, before the reply. EBADF if the asker does
    /// not have it open. → `Done`
    ConfirmLocks {
        /// Inode.
        ino: u64,
    },
    /// The session uses these inodes no more, of which it has heard that they are
    /// [`Recall::Unlinked`] or [`Reply::Unlinked`]. The server ignores every other inode. The first
    /// one, which may name none, says that the session asks for `Recalls` from now on. → `Done`
    Forget {
        /// Inode numbers, 8 bytes each, little-endian; up to [`MAX_FORGET`](crate::MAX_FORGET) of
        /// them. EINVAL for a part of one.
        #[serde(with = "serde_bytes")]
        inos: &'a [u8],
    },
    /// The session keeps pages of an inode that it has open, and has lost the right to: from now on
    /// they are recalled again. The server ignores a session that does not keep. → `Done`
    HoldPages {
        /// Inode.
        ino: u64,
    },
    /// The session has written to an inode that it has open. Every other session that keeps pages
    /// of it drops them ([`Recall::Written`]) before the reply. EBADF if the asker does not have it
    /// open to write. → `Attr`, without [`Marks::SHARED`](crate::Marks::SHARED) if no other session
    /// has the inode open; then the session sends this no more until it opens the inode again.
    DropPages {
        /// Inode.
        ino: u64,
    },
}

impl Request<'_> {
    /// The directory in which it changes the one name that it changes: the reply may come [with](crate::encode_reply_with) its attributes.
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

    /// Whether it can be asked for in a [`Once`](Request::Once).
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

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It failed; nothing was changed.
    Error(Errno),
    /// It is done.
    Done,
    /// To `Attach`.
    Attached(Attached),
    /// Attributes.
    Attr(Attr),
    /// To `Open` and `Create`.
    Opened(Opened),
    /// To `Layout` and `Allocate`.
    Layout(Layout),
    /// To `Readlink`.
    Target(#[serde(with = "serde_bytes")] Vec<u8>),
    /// To `ReadDir`.
    Dir(DirPage),
    /// To `StatFs`.
    StatFs(StatFs),
    /// To `Stats`.
    Stats(ServerStats),
    /// To `GetXattr` and `ListXattr`.
    Value(Value),
    /// To `Copy`.
    Copied(Copied),
    /// To `Lock`.
    Locked(Locked),
    /// To `TestLock`.
    Conflict(Option<HeldLock>),
    /// To `Recalls`.
    Recalls(Recalls),
    /// To `Attach`: not now.
    InUse(InUse),
    /// To `Lock`: its outcome comes with `Grants`.
    Waits,
    /// To `Grants`: each outcome once, in order; never none.
    Grants(Vec<Granted>),
    /// To `Attach`: the session that the mount had before is being ended. To be asked again.
    Ending,
    /// To `Grants`: the server has been started again, and knows of nobody who waits. Locks that are waited for are to be asked for
    /// again, under the same tickets or others.
    AskAgain,
    /// To `Verify`.
    Verified(Verified),
    /// To `Unlink`, `Rmdir` and `Rename`: it is done, and this inode has lost its last name. It
    /// stays usable for the session until that sends `Forget`.
    Unlinked(u64),
}

/// What a comparison of blocks with their checksums has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Where to go on: inode and offset. `None` at the end.
    pub next: Option<(u64, u64)>,
    /// Those that differ.
    pub bad: Vec<BadBlock>,
}

/// A block that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadBlock {
    /// Whose it is.
    pub ino: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// And in the arena.
    pub arena: u64,
    /// The check of what was written.
    pub expected: u32,
    /// That of what is there.
    pub found: u32,
    /// A path of the file from the root directory on, or its last [`MAX_SHOWN_PATH`](crate::MAX_SHOWN_PATH) bytes; empty if it has none.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
}

/// Who keeps a session from attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Sessions that are attached; at least one.
    pub sessions: u64,
    /// It is one that has the file system to itself.
    pub alone: bool,
}

/// What a session may keep no longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recalls {
    /// For [`Request::Recalls`]; grows by one.
    pub number: u64,
    /// In the order of the changes; never empty.
    pub recalls: Vec<Recall>,
}

/// Something that another session changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recall {
    /// What a name in a directory stands for, or that there is none; the attributes of the directory with it. What the session
    /// keeps of its other names stays good.
    Name {
        /// Directory.
        parent: u64,
        /// Name in it.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// All that the session keeps of a directory's names, and its attributes.
    Names {
        /// Directory.
        ino: u64,
    },
    /// An inode's attributes and extended attributes.
    Attr {
        /// Inode.
        ino: u64,
    },
    /// An inode's attributes, and its pages: another session may write to it, or has changed what is in it.
    Pages {
        /// Inode.
        ino: u64,
    },
    /// All that the session keeps: the server has been started again, and does not know what that is. Layouts that came from the server
    /// before are not in use any more once it is acknowledged.
    All,
    /// An inode's layout of a generation before this one: the file has given up space that it names. Once it is acknowledged, no operation on
    /// such a layout is under way any more.
    Layout {
        /// Inode.
        ino: u64,
        /// The first generation that is not meant.
        generation: u64,
    },
    /// Whom an inode belongs to, and its other attributes: from every session that was told of it, whether or not it keeps
    /// attributes. The names that stand for it stay good.
    Owner {
        /// Inode.
        ino: u64,
    },
    /// Nothing that is kept: by the acknowledgement the session says that it has given up all locks of an inode whose open files were
    /// closed before.
    Locks {
        /// Inode.
        ino: u64,
    },
    /// An inode has lost its last name. It stays usable for the session until that sends
    /// [`Request::Forget`]. No request waits for the acknowledgement.
    Unlinked {
        /// Inode.
        ino: u64,
    },
    /// The pages of an inode that the session has open: another session has written to it. The
    /// session drops them all before it acknowledges, and sends [`Request::HoldPages`] before it
    /// keeps pages of the inode again.
    Written {
        /// Inode.
        ino: u64,
    },
}

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Bytes.
    pub bytes: u64,
    /// The destination's attributes afterwards.
    pub attr: Attr,
}

/// Whether an extended attribute of that name may be there before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrSet {
    /// It may.
    Any,
    /// It must not: EEXIST.
    Create,
    /// It must: ENODATA.
    Replace,
}

/// Part of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Changes with every change of the inode's extended attributes: parts of different versions do not fit together.
    pub version: u64,
    /// Bytes of the whole value.
    pub len: u32,
    /// Those from the offset on, up to [`XATTR_PART`](crate::XATTR_PART).
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// What a client needs for one-sided access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// File data: extents count from its first byte.
    pub arena: RegionRef,
    /// Attribute [`record`](crate::record)s, by slot.
    pub table: RegionRef,
    /// The words of the arena's blocks, if the memory has [`checksum`](crate::checksum)s; then the arena can only be read.
    pub sums: Option<RegionRef>,
    /// The server's clock, in nanoseconds since 1970, so that a client can write times on it.
    pub now: i64,
    /// The session's number, never 0, for [`record::appender`](crate::record::appender).
    pub session: u64,
    /// The session may look and not change: requests that do are EROFS, and the regions can only be read.
    pub read_only: bool,
    /// Which memory this is. Another one, another file system: nothing that was known of it holds.
    pub memory: Identity,
    /// How often a server has been started on that memory, this time included.
    pub starts: u64,
    /// The mount was here before, and all that it had is as it left it. Otherwise it has nothing.
    pub resumed: bool,
    /// The regions can only be read: the server places bytes ([`Request::Write`]), sizes and times, and checks permissions.
    pub confined: bool,
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Its attributes now.
    pub attr: Attr,
    /// Its extents from the first byte on.
    pub layout: Layout,
}

/// Part of a file's extents: sorted by file offset, not overlapping. What lies between is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The inode's layout generation.
    pub generation: u64,
    /// The first extent that ends after the offset asked for, and those that follow.
    pub extents: Vec<Extent>,
    /// True if there are no further extents behind these.
    pub complete: bool,
}

/// A page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirPage {
    /// Entries in order of their cookies, which stay valid while the directory changes. `.` and `..` are not
    /// among them.
    pub entries: Vec<DirEntry>,
    /// The directory's parent, for `..`.
    pub parent: u64,
    /// True if nothing follows.
    pub end: bool,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Where to go on after it; never 0.
    pub cookie: u64,
    /// Name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Attributes.
    pub attr: Attr,
}

impl Recall {
    /// True if the attributes of an inode go with it.
    pub fn concerns(&self, inode: u64) -> bool {
        match self {
            Recall::All => true,
            Recall::Layout { .. } => false,
            kept => kept.inode() == Some(inode),
        }
    }

    /// True if what a name in a directory stands for goes with it.
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

    /// True if pages of an inode go with it.
    pub fn concerns_pages(&self, inode: u64) -> bool {
        match self {
            Recall::Pages { ino } | Recall::Written { ino } => *ino == inode,
            Recall::All => true,
            _ => false,
        }
    }

    /// The inode that it is about; `None` for all.
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

/// Counters of the server's file code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Requests handled, by name of the request.
    pub calls: Vec<(String, u64)>,
    /// Sessions attached now.
    pub sessions: u64,
    /// Seconds since start.
    pub uptime_secs: u64,
}
