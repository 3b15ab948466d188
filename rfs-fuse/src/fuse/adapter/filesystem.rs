//! The handlers of requests.
//!
//! # Concurrency
//! Session threads. Takes no locks.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, time::SystemTime};

use fuser::{
    Errno, FileHandle, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, TimeOrNow,
    WriteFlags,
};
use rfs_proto::{BLOCK, LockKind, MAX_NAME, SetAttr};

use super::{Adapter, creator, is_privileged, open_file::is_to_write};
use crate::fuse::{
    convert,
    kernel_cache::{handles::Handle, lifetimes},
    locks::RefusedLock,
    session::{
        Filesystem, Lock, LockedBy, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
        ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite,
        ReplyXattr, Request, RequestCounts, threads::Threads,
    },
};
use rfs_client::{ClientError, LockOutcome, LockRequest};

/// Returns the client's form of a lock request, or `None` for an unknown kind of lock.
fn lock_request(ino: INodeNo, by: LockedBy, lock: Lock) -> Option<LockRequest> {
    let LockedBy { handle, owner, class } = by;
    let (kind, range) = (convert::lock_kind(lock.typ)?, convert::lock_range(lock.start, lock.end));
    Some(LockRequest { ino: ino.0, handle: handle.0, owner: owner.0, class, kind, range, pid: lock.pid })
}

impl Filesystem for Adapter {
    fn threads(&self) -> Option<&Threads> {
        Some(self.kernel.barrier().threads())
    }

    fn counts(&self) -> Option<&RequestCounts> {
        Some(&self.counts)
    }

    fn will_release(&self) {
        self.client.locks.will_release();
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.locks.interrupt(unique);
        true
    }

    fn init(&mut self, config: &mut KernelConfig) {
        self.settings.negotiate(config);
        self.settings.negotiate_names(config);
        self.maps_around = config.capabilities().contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let version = config.kernel_abi();
        self.version = (version.0, version.1);
        self.kernel.set_version(self.version);
    }

    fn negotiated(&self) -> [u64; 3] {
        [self.version.0.into(), self.version.1.into(), self.maps_around.into()]
    }

    fn continue_session(&mut self, [major, minor, maps_around]: [u64; 3], takeovers: u64) {
        self.maps_around = maps_around != 0;
        // Versions are small numbers.
        self.version = (major as u32, minor as u32);
        self.kernel.set_version(self.version);
        self.handles.continue_from(takeovers, &self.client.kept_handles());
        self.locks.continue_from(takeovers);
        self.inherited.start(&self.client, &self.kernel);
        // The names that the kernel has cached are not known here.
        if let Err(e) = self.kernel.drop_names() {
            log::warn!("the kernel keeps cached names: {e}");
        }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.lookup_name(request, parent, name, reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.client.lookups.forget(ino.0, nlookup);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, reply: ReplyAttr) {
        let (since, got) = self.client.attributes.getattr_to_tell(ino.0);
        self.answer_attr("getattr", (since, request.pid()), got, reply);
    }

    fn statx(&self, request: &Request, ino: INodeNo, births: bool, reply: ReplyStatx) {
        match self.settings.births {
            true => self.attributes_and_birth(request, ino, births, reply),
            // The kernel asks for attributes only from now on.
            false => reply.error(Errno::ENOSYS),
        }
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
        self.change_attributes(request, ino, handle, &changes, reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.client.names.readlink(ino.0) {
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
        let _arrival = self.client.caching.arrival();
        let query = self.name_query(request, parent, name);
        let made = self.client.names.mknod(parent.0, name.as_bytes(), mode, rdev, creator(request, umask));
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
        let _arrival = self.client.caching.arrival();
        let query = self.name_query(request, parent, name);
        let made = self.client.names.mkdir(parent.0, name.as_bytes(), mode & 0o7777, creator(request, umask));
        self.answer_creation("mkdir", &query, made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removal = self.client.names.removal(parent.0, name.as_bytes());
        let removed = self.client.names.unlink(parent.0, name.as_bytes());
        self.refresh_after_change(parent.0, request.pid());
        removal.answer(removed.is_ok());
        self.answer_removal("unlink", request.pid(), removed, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.client.names.rmdir(parent.0, name.as_bytes());
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
        let _arrival = self.client.caching.arrival();
        let query = self.name_query(request, parent, link_name);
        let target = target.as_os_str().as_bytes();
        let made = self.client.names.symlink(parent.0, link_name.as_bytes(), target, creator(request, 0));
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
        self.rename_name(request, (parent, name), (newparent, newname), flags, reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _arrival = self.client.caching.arrival();
        let mut query = self.name_query(request, newparent, newname);
        let made = self.client.names.link(ino.0, newparent.0, newname.as_bytes()).map(lifetimes::uncacheable);
        query.since = self.client.caching.since_but_changed(query.since);
        self.answer_creation("link", &query, made, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let since = self.client.caching.since();
        match self.open_file(ino.0, is_to_write(flags.0), request.pid()) {
            Ok(attr) => {
                self.retries.finish_walk(request.pid());
                let (handle, how) =
                    self.new_handle(&self.client.caching.hold_recalls(), since, &attr, flags.0);
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
        self.create_file(request, (parent, name), (mode, umask), flags, reply);
    }

    fn tmpfile(
        &self,
        request: &Request,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.create_unnamed_file(request, parent, (mode, umask), flags, reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        range: (u64, u32),
        flags: OpenFlags,
        reply: ReplyData,
    ) {
        self.read_file(request, (ino, handle), range, flags, reply);
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
        self.write_file(request, (ino, handle), offset, data, (write_flags, flags), reply);
    }

    fn flush(&self, _: &Request, ino: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.client.pages.used(ino.0, handle.0);
        self.client.locks.may_close(ino.0, handle.0);
        let flushed = self.client.files.flush(ino.0);
        let unlocked = self.client.locks.unlock_owner(ino.0, owner.0);
        self.answer_result("flush", flushed.and(unlocked), reply);
    }

    fn getlk(&self, _: &Request, ino: INodeNo, by: LockedBy, lock: Lock, reply: ReplyLock) {
        let Some(wanted) = lock_request(ino, by, lock) else {
            return reply.error(Errno::EINVAL);
        };
        match self.client.locks.test_lock(&wanted) {
            Ok(None) => reply.locked(lock.start, lock.end, convert::F_UNLCK, 0),
            Ok(Some(_)) => self.locks.confirm(wanted, RefusedLock::Test(lock, reply)),
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
            return self.answer_result("setlk", self.client.locks.unlock(&wanted), reply);
        }
        let failed = match sleep {
            true => self.locks.lock_waiting(wanted, request, reply).err(),
            false => match self.client.locks.lock(&wanted, None) {
                Ok(asked) => {
                    self.locks.answer(wanted, asked != LockOutcome::Locked { void: false }, reply);
                    None
                }
                Err(ClientError::Errno(rfs_proto::Errno::EAGAIN)) => {
                    self.locks.confirm(wanted, RefusedLock::Lock(reply));
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
        let unlocked = self.client.locks.unlock_handle(ino.0, handle.0);
        self.handles.close(ino.0, Handle(handle.0));
        self.note_handle(ino.0, Handle(handle.0), -1);
        let closed = self.client.files.close(ino.0);
        self.answer_result("release", closed.and(unlocked), reply);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let synced =
            self.client.locks.check_locks(ino.0, handle.0).and_then(|()| self.client.files.fsync(ino.0));
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
        self.set_xattr(request, (ino, name), value, flags, reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.get_xattr(ino, name, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.list_xattr(request, ino, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_xattr(request, ino, name, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        file: (INodeNo, FileHandle),
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.allocate(request, file, (offset, length), mode, reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, offset: i64, whence: i32, reply: ReplyLseek) {
        self.seek(ino, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: (INodeNo, FileHandle, u64),
        to: (INodeNo, FileHandle, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        self.copy(request, from, to, len, reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some((handle, how)) = self.kernel.barrier().intercept_opendir(request.pid()) {
            return reply.opened(handle, how);
        }
        self.open_directory(ino, flags.0, reply);
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        if !self.kernel.barrier().intercept_releasedir(handle) {
            self.client.directories.closed_listing(ino.0, handle.0);
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
        match self.client.export.statfs() {
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
