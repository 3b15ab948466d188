//! The file system's operations: each handler translates a request of the kernel into calls of
//! the client.
//!
//! [`Adapter`] implements [`Filesystem`]. Its submodules have replies and error numbers
//! (`answers`), directories (`listing`), open files (`open_file`) and the end of writes
//! (`write_completion`). `owner` has changes that only a file's owner may make.
//!
//! # Concurrency
//! Session threads run the handlers concurrently. The adapter's members have the locks; no
//! handler holds one while it calls the server.

mod answers;
mod listing;
mod open_file;
mod owner;
mod write_completion;

use std::{
    cell::RefCell,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::SystemTime,
};

use fuser::{
    Errno, FileHandle, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, TimeOrNow,
    WriteFlags,
};
use rfs_proto::{BLOCK, FallocateFlags, LockKind, MAX_NAME, Owner, SetAttr};
use rustix::fs::OFlags;

use super::{
    Settings, convert,
    handles::{Handle, Handles},
    kernel::KernelLink,
    labels::Labels,
    lifetimes::Lifetimes,
    locks::{Locks, Refused},
    losses::Losses,
    pages::{PageDrop, Pages},
    process,
    recalls::Recalls,
    remote_pages::RemotePages,
    reply,
    retries::Retries,
    session::{
        Filesystem, Lock, LockedBy, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
        ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
        Request, threads::Threads,
    },
};
use open_file::{MAX_CREATES, MAX_CREATES_AFTER_WALK, create_new, is_to_write};
use rfs_client::{Asked, Client, ClientError, Creator, LockRequest, ReadData, Seek};
use write_completion::{WritePath, WriteRequest};

/// Directions of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The only extended attribute that changes the mode.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const ANY_ACL: &[u8] = b"system.posix_acl_";

thread_local! {
    /// Buffer for reads that cannot be answered in place.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A client as a FUSE file system.
#[derive(Debug)]
pub struct Adapter {
    client: Arc<Client>,
    settings: Settings,
    lifetimes: Lifetimes,
    kernel: KernelLink,
    locks: Locks,
    handles: Arc<Handles>,
    pages: Arc<Pages>,
    labels: Labels,
    retries: Retries,
    failure_logged: Arc<AtomicBool>,
    losses: Arc<Losses>,
    recalls: Recalls,
    remote_pages: Arc<RemotePages>,
    /// True if the kernel can map files that it reads and writes around its pages. Older kernels
    /// refuse shared mappings of such files, so files of several mounts go through pages there.
    maps_around: bool,
}

impl Adapter {
    /// Creates an adapter. `kernel` is connected once the mount exists. With [`Settings::keeps`]
    /// the client has to be attached with `keeps`. The adapter obeys recalls in any case, because
    /// clients always cache layouts.
    pub fn new(client: Arc<Client>, settings: Settings, kernel: KernelLink) -> io::Result<Adapter> {
        let recalls = Recalls::obey(client.clone(), kernel.clone())?;
        Ok(Adapter {
            locks: Locks::new(client.clone(), kernel.clone()),
            handles: Arc::default(),
            pages: Arc::new(Pages::new(kernel.clone())),
            labels: Labels::here(),
            retries: Retries::default(),
            failure_logged: Arc::default(),
            losses: Arc::default(),
            remote_pages: Arc::new(RemotePages::new(client.clone())),
            maps_around: false,
            client,
            lifetimes: Lifetimes::new(&settings),
            settings,
            kernel,
            recalls,
        })
    }

    /// Returns the record of data that the kernel could not write back.
    pub fn losses(&self) -> Arc<Losses> {
        Arc::clone(&self.losses)
    }
}

/// Returns the client's form of a lock request, or `None` for an unknown kind of lock.
fn lock_request(ino: INodeNo, by: LockedBy, lock: Lock) -> Option<LockRequest> {
    let LockedBy { handle, owner, class } = by;
    let (kind, range) = (convert::lock_kind(lock.typ)?, convert::lock_range(lock.start, lock.end));
    Some(LockRequest { ino: ino.0, handle: handle.0, owner: owner.0, class, kind, range, pid: lock.pid })
}

fn creator(request: &Request, umask: u32) -> Creator {
    Creator { uid: request.uid(), gid: request.gid(), umask }
}

/// Returns true if the request's open file has O_DIRECT set.
fn is_o_direct(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::DIRECT)
}

/// Returns true for root. The kernel says no more about a caller's rights.
fn is_privileged(request: &Request) -> bool {
    request.uid() == 0
}

/// Returns true if the caller is in a group.
fn in_group(request: &Request, group: u32) -> bool {
    group == request.gid() || process::has_group(request.pid(), group)
}

impl Filesystem for Adapter {
    fn threads(&self) -> Option<&Threads> {
        Some(self.kernel.barrier().threads())
    }

    fn will_release(&self) {
        self.client.will_release();
    }

    fn init(&mut self, config: &mut KernelConfig) {
        self.settings.negotiate(config);
        self.settings.negotiate_names(config);
        self.maps_around = config.capabilities().contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let version = config.kernel_abi();
        self.kernel.set_version((version.0, version.1));
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _arrival = self.client.arrival();
        let query = self.name_query(request, parent, name);
        // open_by_handle_at(2) and NFS look these two names up.
        let found = match name.as_bytes() {
            b"." => self.client.lookup_number(parent.0),
            b".." => self.client.lookup_parent(parent.0),
            name => match self.client.lookup(parent.0, name) {
                Err(ClientError::Errno(rfs_proto::Errno::ENOENT)) => self.create_after_walk(&query),
                // The directory was removed. For a caller that is about to create a file, the
                // kernel would not walk the path again.
                Err(ClientError::Errno(rfs_proto::Errno::ESTALE)) => {
                    self.recalls.drop_name_later(parent.0, name);
                    return reply.error(Errno::ENOENT);
                }
                found => found,
            },
        };
        match found {
            Err(ClientError::Errno(rfs_proto::Errno::ENOENT)) => {
                if let Some(reply) = self.lifetimes.absent(&self.client, &query, reply) {
                    reply.error(Errno::ENOENT);
                }
            }
            found => self.answer_entry("lookup", &query, found, reply),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.client.forget(ino.0, nlookup);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, reply: ReplyAttr) {
        let since = self.client.since();
        self.answer_attr("getattr", (since, request.pid()), self.client.getattr(ino.0), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        if let Some(handle) = handle
            && let Err(e) = self.client.check_locks(ino.0, handle.0)
        {
            return reply.error(self.errno("setattr", &e));
        }
        let changes = SetAttr {
            perm: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::set_time),
            mtime: mtime.map(convert::set_time),
            drop_privileges: size.is_some() && !is_privileged(request),
            ctime: ctime.map(convert::nanoseconds),
            only_if: None,
        };
        let since = self.client.since();
        let written = match self.settings.writeback {
            true => self.client.set_write_time(ino.0, &changes).transpose(),
            false => None,
        };
        let changed = written.unwrap_or_else(|| self.set_attr(request, ino.0, &changes));
        let changed = changed.and_then(|attr| match changes.drop_privileges {
            true => Ok(self.drop_sgid_of_other_group(&attr, request)?.unwrap_or(attr)),
            false => Ok(attr),
        });
        self.answer_attr("setattr", (self.client.since_but_changed(since), request.pid()), changed, reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.client.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(self.inode_errno("readlink", &e)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _arrival = self.client.arrival();
        let query = self.name_query(request, parent, name);
        let made = self.client.mknod(parent.0, name.as_bytes(), mode, rdev, creator(request, umask));
        self.answer_creation("mknod", &query, made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _arrival = self.client.arrival();
        let query = self.name_query(request, parent, name);
        let made = self.client.mkdir(parent.0, name.as_bytes(), mode & 0o7777, creator(request, umask));
        self.answer_creation("mkdir", &query, made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.client.unlink(parent.0, name.as_bytes());
        self.refresh_after_change(parent.0, request.pid());
        self.answer_removal("unlink", request.pid(), removed, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.client.rmdir(parent.0, name.as_bytes());
        self.refresh_after_change(parent.0, request.pid());
        self.answer_removal("rmdir", request.pid(), removed, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _arrival = self.client.arrival();
        let query = self.name_query(request, parent, link_name);
        let target = target.as_os_str().as_bytes();
        let made = self.client.symlink(parent.0, link_name.as_bytes(), target, creator(request, 0));
        self.answer_creation("symlink", &query, made, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let whiteout = flags.contains(RenameFlags::RENAME_WHITEOUT);
        let others = flags.difference(RenameFlags::RENAME_WHITEOUT);
        let Some(others) = rfs_proto::RenameFlags::from_bits(others.bits()) else {
            return reply.error(Errno::EINVAL);
        };
        let whiteout = whiteout.then(|| Owner { uid: request.uid(), gid: request.gid() });
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        let renamed = self.client.rename(from, to, others, whiteout);
        self.refresh_after_change(parent.0, request.pid());
        self.refresh_after_change(newparent.0, request.pid());
        self.answer_removal("rename", request.pid(), renamed, reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _arrival = self.client.arrival();
        let mut query = self.name_query(request, newparent, newname);
        let made = self.client.link(ino.0, newparent.0, newname.as_bytes());
        query.since = self.client.since_but_changed(query.since);
        self.answer_creation("link", &query, made, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let since = self.client.since();
        match self.open_file(ino.0, is_to_write(flags.0), request.pid()) {
            Ok(attr) => {
                self.retries.finish_walk(request.pid());
                let (handle, how) = self.new_handle(&self.client.telling(), since, &attr, flags.0);
                self.record_access(&attr, flags.0, how);
                reply.opened(handle, how);
            }
            Err(e) => reply.error(self.inode_errno("open", &e)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _arrival = self.client.arrival();
        let query = self.name_query(request, parent, name);
        // Always exclusive: the kernel takes a created file for new. It neither truncates the file
        // nor checks permissions. If another thread has created the file, ESTALE sends this thread
        // back to look the name up and to open the file. That works once per call, so a name that
        // may disappear again is tried several times before. In the second walk, the lookup creates
        // the file if it has disappeared (`create_after_walk`).
        let exclusive = OFlags::from_bits_retain(flags as u32).contains(OFlags::EXCL);
        let by = creator(request, umask);
        let create = || self.client.create(parent.0, name.as_bytes(), mode & 0o7777, by, true);
        let tries = match exclusive {
            true => 1,
            false if self.retries.is_sent_back(query.thread) => MAX_CREATES_AFTER_WALK,
            false => MAX_CREATES,
        };
        match create_new(tries, create) {
            Ok(Some(attr)) => {
                self.retries.finish_walk(query.thread);
                self.refresh_after_change(parent.0, request.pid());
                let telling = self.client.telling();
                let opened = self.new_handle(&telling, query.since, &attr, flags);
                self.lifetimes.created(&self.client, &telling, &query, &attr, opened, reply);
            }
            Ok(None) if exclusive => reply.error(Errno::EEXIST),
            Ok(None) => {
                self.send_back_to_create(&query, mode & 0o7777, by);
                reply.error(Errno::ESTALE);
            }
            Err(e) => reply.error(self.name_errno("create", query.thread, &e)),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        (offset, size): (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    ) {
        if !is_o_direct(flags) {
            self.handles.record_page_fill(ino.0, (offset, size.into()));
            if self.client.is_contested(ino.0) {
                self.handles.record_read(ino.0, request.unique(), (offset, size.into()));
            }
        }
        if let Err(e) = self.client.check_locks(ino.0, handle.0).and_then(|()| self.hold_pages(ino.0)) {
            return reply.error(self.errno("read", &e));
        }
        let failure_logged = Arc::clone(&self.failure_logged);
        let beside = reply.beside();
        let answer = move |data: Result<ReadData<'_>, ClientError>| match data {
            Ok(data) => reply::send(reply, data),
            Err(e) => reply.error(answers::errno(&failure_logged, "read", &e)),
        };
        let next = || self.kernel.next(beside);
        let Err(answer) = self.client.read_later(ino.0, offset, size as usize, next, answer) else { return };
        let mut answer = Some(answer);
        let read = BUFFER.with_borrow_mut(|buffer| {
            self.client.read(ino.0, offset, size as usize, buffer, |data| {
                if let Some(answer) = answer.take() {
                    answer(Ok(data));
                }
            })
        });
        if let (Err(e), Some(answer)) = (read, answer) {
            answer(Err(e));
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        reply: ReplyWrite,
    ) {
        if let Err(e) = self.client.check_locks(ino.0, handle.0) {
            return reply.error(self.errno("write", &e));
        }
        let handle = Handle(handle.0);
        // A write from the page cache carries changes of mapped memory. Its offset is final, even
        // with O_APPEND.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // With `direct_io` no handle has pages.
        let path = match handle.is_without_pages() {
            _ if from_cache => WritePath::WriteBack,
            true => WritePath::AroundPages,
            false => WritePath::ThroughPages,
        };
        if path == WritePath::ThroughPages
            && let Err(e) = self.hold_pages(ino.0)
        {
            return reply.error(self.errno("write", &e));
        }
        // Changes of mapped memory need not be visible to other mounts.
        let shared = !from_cache && self.client.is_shared(ino.0);
        let contested = path == WritePath::ThroughPages && self.client.is_contested(ino.0);
        let direct = path == WritePath::AroundPages;
        let appends = !from_cache
            && handle.is_for_append()
            && OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::APPEND);
        let (unique, o_direct) = (request.unique(), is_o_direct(flags));
        // The kernel sends at most max_write bytes.
        let len = data.len() as u32;
        let write = WriteRequest { ino: ino.0, handle, unique, offset, len, path, o_direct, shared };
        let unprivileged = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // True if the write only stores bytes: no pages to drop, no rights to clear, and the caller
        // hears of an error. With `direct_io` no file has pages.
        let drops_pages = handle.is_for_append() || (handle.is_without_pages() && !self.settings.direct_io);
        let only_places = !(from_cache || unprivileged || drops_pages || self.settings.writeback);
        if only_places
            && !contested
            && self.client.is_for_later(data.len())
            && !(direct && self.may_have_capability(ino.0))
            && let Some(started) =
                self.client.write_later(ino.0, offset, data, || self.kernel.next(reply.beside()))
        {
            return started.start(self.write_completion(write, reply));
        }
        let mut written = if appends {
            self.client.append(ino.0, data).map(|at| (at, len))
        } else if self.settings.writeback {
            self.client.write_back(ino.0, offset, data).map(|()| (offset, len))
        } else if from_cache || o_direct {
            // The kernel does not write the rest of a short write here. It fails a split write with
            // EIO if one part is short.
            self.client.write(ino.0, offset, data).map(|()| (offset, len))
        } else {
            self.client.write_some(ino.0, offset, data).map(|bytes| (offset, bytes as u32))
        };
        if unprivileged || direct {
            let by = unprivileged.then_some(request);
            written = written.and_then(|range| self.drop_privileges(ino.0, by).map(|()| range));
        }
        self.finish_write(write, written, reply);
    }

    fn flush(&self, _: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.client.used(ino.0, handle.0);
        self.client.may_close(ino.0, handle.0);
        let flushed = self.client.flush(ino.0);
        let unlocked = self.client.unlock_owner(ino.0, owner.0);
        self.answer_result("flush", flushed.and(unlocked), reply);
    }

    fn getlk(&self, _: &Request, ino: INodeNo, by: LockedBy, lock: Lock, reply: ReplyLock) {
        let Some(wanted) = lock_request(ino, by, lock) else {
            return reply.error(Errno::EINVAL);
        };
        match self.client.test_lock(&wanted) {
            Ok(None) => reply.locked(lock.start, lock.end, convert::F_UNLCK, 0),
            Ok(Some(_)) => self.locks.confirm(wanted, Refused::Test(lock, reply)),
            Err(e) => reply.error(self.errno("getlk", &e)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        by: LockedBy,
        lock: Lock,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(wanted) = lock_request(ino, by, lock) else {
            return reply.error(Errno::EINVAL);
        };
        if wanted.kind == LockKind::Unlock {
            return self.answer_result("setlk", self.client.unlock(&wanted), reply);
        }
        let failed = match sleep {
            true => self.locks.lock_waiting(wanted, request.pid(), reply).err(),
            false => match self.client.lock(&wanted, None) {
                Ok(asked) => {
                    self.locks.answer(wanted, asked != Asked::Locked { void: false }, reply);
                    None
                }
                Err(ClientError::Errno(rfs_proto::Errno::EAGAIN)) => {
                    self.locks.confirm(wanted, Refused::Lock(reply));
                    None
                }
                Err(e) => Some((e, reply)),
            },
        };
        if let Some((e, reply)) = failed {
            reply.error(self.errno("setlk", &e));
        }
    }

    fn release(&self, _: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let unlocked = self.client.unlock_handle(ino.0, handle.0);
        self.handles.close(ino.0, Handle(handle.0));
        let closed = self.client.close(ino.0);
        self.answer_result("release", closed.and(unlocked), reply);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let synced = self.client.check_locks(ino.0, handle.0).and_then(|()| self.client.fsync(ino.0));
        self.answer_result("fsync", synced, reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, reply: ReplyEmpty) {
        // The server has a name when the operation that makes it returns.
        reply.ok();
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = convert::xattr_set(flags) else { return reply.error(Errno::EINVAL) };
        // Only an ACL needs this. The kernel has a flag for it, which fuser does not pass on.
        let drop_sgid = name.as_bytes() == ACCESS_ACL
            && !is_privileged(request)
            && self.client.getattr(ino.0).is_ok_and(|attr| !in_group(request, attr.gid));
        let set = |only_if| self.client.set_xattr(ino.0, name.as_bytes(), value, how, drop_sgid, only_if);
        let set = match name.as_bytes().starts_with(ANY_ACL) {
            true => self.change_acl(request, set),
            false => set(None),
        };
        self.refresh_after_change(ino.0, request.pid());
        self.answer_result("setxattr", set, reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match self.client.get_xattr(ino.0, name.as_bytes()) {
            Err(ClientError::Errno(rfs_proto::Errno::ENODATA))
                if self.labels.are_unsupported(name.as_bytes()) =>
            {
                reply.error(Errno::EOPNOTSUPP);
            }
            value => self.answer_value("getxattr", value, size, reply),
        }
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.client.list_xattr(ino.0).map(|names| {
            // As on local file systems, only root sees names of this namespace.
            let shown = |name: &&[u8]| is_privileged(request) || !name.starts_with(b"trusted.");
            names.split_inclusive(|byte| *byte == 0).filter(shown).collect::<Vec<_>>().concat()
        });
        self.answer_value("listxattr", names, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |only_if| self.client.remove_xattr(ino.0, name.as_bytes(), only_if);
        let removed = match name.as_bytes().starts_with(ANY_ACL) {
            true => match self.change_acl(request, remove) {
                // The file has no ACL, which is the result that the caller wants.
                Err(ClientError::Errno(rfs_proto::Errno::ENODATA)) => Ok(()),
                removed => removed,
            },
            false => remove(None),
        };
        self.refresh_after_change(ino.0, request.pid());
        self.answer_result("removexattr", removed, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        (ino, handle): (INodeNo, FileHandle),
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(flags) = FallocateFlags::from_bits(mode as u32) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let checked = self.client.check_locks(ino.0, handle.0);
        let done = checked.and_then(|()| self.client.fallocate(ino.0, offset, length, flags));
        let by = (!is_privileged(request)).then_some(request);
        let done = done.and_then(|_| self.drop_privileges(ino.0, by));
        self.answer_result("fallocate", done, reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        // The kernel sends no other direction, and no negative offset.
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        if self.settings.writeback && self.client.is_open_to_write(ino.0) {
            // Dirty pages of the kernel are data, too.
            let client = Arc::clone(&self.client);
            let seek = move || match client.seek(ino.0, offset, what) {
                Ok(found) => reply.offset(found as i64),
                Err(e) => reply.error(convert::errno(e.errno())),
            };
            return self.pages.drop_then(PageDrop::tail(ino.0, offset), seek);
        }
        match self.client.seek(ino.0, offset, what) {
            // Offsets in a file fit into i64.
            Ok(found) => reply.offset(found as i64),
            Err(e) => reply.error(self.errno("lseek", &e)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        (from, handle, from_offset): (INodeNo, FileHandle, u64),
        (to, to_handle, to_offset): (INodeNo, FileHandle, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let checked = self.client.check_locks(from.0, handle.0);
        let checked = checked.and_then(|()| self.client.check_locks(to.0, to_handle.0));
        let copied = checked.and_then(|()| self.client.copy((from.0, from_offset), (to.0, to_offset), len));
        let copied = copied.and_then(|bytes| {
            self.drop_privileges(to.0, (!is_privileged(request)).then_some(request))?;
            Ok(bytes)
        });
        match copied {
            // The server copies far less than 4 GiB per call.
            Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
            Err(e) => reply.error(self.errno("copy_file_range", &e)),
        }
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some((handle, how)) = self.kernel.barrier().intercept_opendir(request.pid()) {
            return reply.opened(handle, how);
        }
        self.open_directory(ino, flags.0, reply);
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        if !self.kernel.barrier().intercept_releasedir(handle) {
            self.client.closed_listing(ino.0, handle.0);
        }
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.list((ino, handle), offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_plus(request, (ino, handle), offset, reply);
    }

    fn statfs(&self, _: &Request, reply: ReplyStatfs) {
        match self.client.statfs() {
            Ok(t) => reply.statfs(
                t.blocks,
                t.blocks_free,
                t.blocks_free,
                t.inodes,
                t.inodes_free,
                BLOCK as u32,
                MAX_NAME as u32,
                BLOCK as u32,
            ),
            Err(e) => reply.error(self.errno("statfs", &e)),
        }
    }
}
