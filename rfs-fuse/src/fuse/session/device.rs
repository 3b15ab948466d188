//! Requests over `/dev/fuse`: adapts a [`Filesystem`] to fuser's trait.
//!
//! Announces the receive buffer of fuser's threads to the client, which registers it once.
//!
//! # Concurrency
//! fuser's session threads. The first request of a thread takes the lock of the list in
//! [`threads`](super::threads), for a moment.

use std::{
    ffi::OsStr,
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, TimeOrNow,
    WriteFlags,
};

use rfs_client::announce_receive_buffer;

use super::{
    Filesystem, Lock, LockedBy, RequestKind, core_dump,
    lock_flags::LockFlags,
    reply::Traced,
    thread_end,
    trace::{Details, HandledRequest, Trace},
};
use crate::fuse::affinity::{Placement, RequestLog, Unanswered};

/// Bytes of fuser's receive buffer from the beginning of a WRITE's data on, at least.
const RECEIVE_BUFFER: usize = 16 << 20;

/// Result of the negotiation with the kernel.
#[derive(Debug)]
pub struct Negotiation<F> {
    /// The file system, which serves requests from now on.
    pub filesystem: Arc<F>,
    /// True if the kernel expects a ring. It sends no request until the ring is registered.
    pub ring: bool,
}

/// Where [`Device`] leaves the result of the negotiation.
pub type Started<F> = Arc<OnceLock<Negotiation<F>>>;

/// Forwards requests of `/dev/fuse`, and reports their callers to a [`Placement`].
#[derive(Debug)]
pub struct Device<F> {
    /// The file system, until `init` has moved it to `started`.
    fresh: Option<F>,
    started: Started<F>,
    wants_ring: bool,
    request_log: RequestLog,
    lock_flags: LockFlags,
    device: Arc<OwnedFd>,
    trace: Arc<Trace>,
}

impl<F> Device<F> {
    /// Creates the adapter. The session threads read requests from `device`. `ring` is true if
    /// threads for a ring are ready. Requests are reported to `trace`.
    pub fn new(
        inner: F,
        placement: &Placement,
        device: &Arc<OwnedFd>,
        ring: bool,
        trace: &Arc<Trace>,
    ) -> Device<F> {
        Device {
            fresh: Some(inner),
            started: Started::default(),
            wants_ring: ring,
            request_log: placement.request_log(device),
            lock_flags: LockFlags::new(),
            device: Arc::clone(device),
            trace: Arc::clone(trace),
        }
    }

    /// Reports a request to the trace, which is on.
    #[cold]
    fn arrive(&self, request: &fuser::Request, name: &'static str, details: Details) -> Traced {
        self.trace.arrive(request.unique().0, name, Details { caller: request.pid(), ..details })
    }

    /// Records a request of a caller, and watches the session thread from its first request on.
    fn record(&self, caller: u32, bytes: usize) -> Unanswered {
        thread_end::watch(&self.device);
        self.request_log.record(caller, bytes)
    }

    /// Returns the place where the result of the negotiation will be.
    pub fn started(&self) -> Started<F> {
        self.started.clone()
    }

    /// Returns the file system. It exists from `init` on, which fuser calls first.
    fn inner(&self) -> Option<&F> {
        self.started.get().map(|agreed| &*agreed.filesystem)
    }

    fn locked_by(&self, request: &fuser::Request, handle: FileHandle, owner: LockOwner) -> LockedBy {
        LockedBy { handle, owner, class: self.lock_flags.class(request, handle.0, owner.0) }
    }
}

/// Marks the work of this thread as part of a request, if a trace reports it.
#[inline(always)]
fn begin_work(traced: &Traced) -> Option<Box<HandledRequest>> {
    traced.as_ref().map(|traced| traced.handle())
}

/// Counts a request.
fn count(filesystem: &impl Filesystem, kind: RequestKind) {
    if let Some(counts) = filesystem.counts() {
        counts.count(kind);
    }
}

/// Announces the receive buffer of the calling thread, from the payload of a WRITE on.
fn announce(payload: &[u8]) {
    // SAFETY: fuser (its version is fixed in Cargo.toml) receives all requests of a thread in one
    // buffer of `RECEIVE_BUFFER` bytes and a page, from the beginning to the end of its loop. The
    // headers before the data of a WRITE are shorter than that page.
    unsafe { announce_receive_buffer(payload.as_ptr().cast_mut(), RECEIVE_BUFFER) };
}

/// Defines methods that only forward their arguments. `moves` is the number of data bytes in the
/// request or the reply, if it can be large. `hides` are bytes of the request that a core dump must
/// not contain. `announces` is the payload of a WRITE, in the receive buffer of the thread. `at` is
/// the place of a read or a write in its file.
macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*; $reply:ty) => ($($passed:expr),*) $(moves $bytes:expr)? $(, at ($file:ident, $offset:ident))? $(, hides $data:ident)? $(, announces $payload:ident)?;)*) => {$(
        fn $method(&self, request: &fuser::Request, $($argument: $type,)* reply: $reply) {
            let unanswered = self.record(request.pid(), 0 $(+ $bytes)?);
            $(core_dump::exclude($data);)?
            let traced = match self.trace.is_on() {
                true => {
                    let place = [$(($file.0, $offset))?].first().copied();
                    let bytes = 0 $(+ $bytes as u64)?;
                    self.arrive(request, stringify!($method), Details { bytes, place, ..Details::default() })
                }
                false => None,
            };
            let _handled = begin_work(&traced);
            match self.inner() {
                Some(inner) => {
                    count(inner, const { RequestKind::named(stringify!($method)) });
                    $(announce($payload);)?
                    let _turn = inner.threads().map(|threads| threads.begin(false));
                    inner.$method(&request.into(), $($passed,)* (reply, unanswered, traced).into());
                }
                None => reply.error(Errno::EIO),
            }
        }
    )*};
}

/// Forwards all requests of a [`Filesystem`]. fuser forwards a BATCH_FORGET, whose type is
/// private, as single FORGETs.
impl<F: Filesystem> fuser::Filesystem for Device<F> {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut filesystem = self.fresh.take().ok_or(io::ErrorKind::AlreadyExists)?;
        filesystem.init(config);
        // The kernel offers this only if root has enabled it.
        let ring = self.wants_ring && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
        let agreed = Negotiation { filesystem: Arc::new(filesystem), ring };
        self.started.set(agreed).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    fn forget(&self, request: &fuser::Request, ino: INodeNo, nlookup: u64) {
        self.record(request.pid(), 0);
        let traced = match self.trace.is_on() {
            true => self.arrive(request, "forget", Details::default()),
            false => None,
        };
        let _handled = begin_work(&traced);
        if let Some(inner) = self.inner() {
            count(inner, const { RequestKind::named("forget") });
            let _turn = inner.threads().map(|threads| threads.begin(false));
            inner.forget(&request.into(), ino, nlookup);
        }
    }

    fn getlk(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let unanswered = self.record(request.pid(), 0);
        let traced = match self.trace.is_on() {
            true => self.arrive(request, "getlk", Details::default()),
            false => None,
        };
        let _handled = begin_work(&traced);
        let Some(inner) = self.inner() else { return reply.error(Errno::EIO) };
        count(inner, const { RequestKind::named("getlk") });
        let _turn = inner.threads().map(|threads| threads.begin(false));
        let by = self.locked_by(request, handle, owner);
        inner.getlk(
            &request.into(),
            ino,
            by,
            Lock { start, end, typ, pid },
            (reply, unanswered, traced).into(),
        );
    }

    fn setlk(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let unanswered = self.record(request.pid(), 0);
        let traced = match self.trace.is_on() {
            true => self.arrive(request, "setlk", Details::default()),
            false => None,
        };
        let _handled = begin_work(&traced);
        let Some(inner) = self.inner() else { return reply.error(Errno::EIO) };
        count(inner, const { RequestKind::named("setlk") });
        let _turn = inner.threads().map(|threads| threads.begin(false));
        let by = self.locked_by(request, handle, owner);
        inner.setlk(
            &request.into(),
            ino,
            by,
            Lock { start, end, typ, pid },
            sleep,
            (reply, unanswered, traced).into(),
        );
    }

    fn release(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let unanswered = self.record(request.pid(), 0);
        let traced = match self.trace.is_on() {
            true => self.arrive(request, "release", Details::default()),
            false => None,
        };
        let _handled = begin_work(&traced);
        let Some(inner) = self.inner() else { return reply.error(Errno::EIO) };
        count(inner, const { RequestKind::named("release") });
        inner.will_release();
        let _turn = inner.threads().map(|threads| threads.begin(false));
        inner.release(&request.into(), ino, handle, (reply, unanswered, traced).into());
    }

    forward! {
        lookup(parent: INodeNo, name: &OsStr; ReplyEntry) => (parent, name);
        getattr(ino: INodeNo, _handle: Option<FileHandle>; ReplyAttr) => (ino);
        setattr(
            ino: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, size: Option<u64>,
            atime: Option<TimeOrNow>, mtime: Option<TimeOrNow>, ctime: Option<SystemTime>, handle: Option<FileHandle>,
            _crtime: Option<SystemTime>, _chgtime: Option<SystemTime>, _bkuptime: Option<SystemTime>,
            _flags: Option<BsdFileFlags>; ReplyAttr
        ) => (ino, mode, uid, gid, size, atime, mtime, ctime, handle);
        readlink(ino: INodeNo; ReplyData) => (ino);
        mknod(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32; ReplyEntry)
            => (parent, name, mode, umask, rdev);
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, umask: u32; ReplyEntry) => (parent, name, mode, umask);
        unlink(parent: INodeNo, name: &OsStr; ReplyEmpty) => (parent, name);
        rmdir(parent: INodeNo, name: &OsStr; ReplyEmpty) => (parent, name);
        symlink(parent: INodeNo, name: &OsStr, target: &Path; ReplyEntry) => (parent, name, target);
        rename(parent: INodeNo, name: &OsStr, newparent: INodeNo, newname: &OsStr, flags: RenameFlags; ReplyEmpty)
            => (parent, name, newparent, newname, flags);
        link(ino: INodeNo, newparent: INodeNo, newname: &OsStr; ReplyEntry) => (ino, newparent, newname);
        open(ino: INodeNo, flags: OpenFlags; ReplyOpen) => (ino, flags);
        read(
            ino: INodeNo, handle: FileHandle, offset: u64, size: u32, flags: OpenFlags, _owner: Option<LockOwner>;
            ReplyData
        ) => (ino, handle, (offset, size), flags) moves size as usize, at (ino, offset);
        write(
            ino: INodeNo, handle: FileHandle, offset: u64, data: &[u8], write_flags: WriteFlags, flags: OpenFlags,
            _owner: Option<LockOwner>; ReplyWrite
        ) => (ino, handle, offset, data, write_flags, flags) moves data.len(), at (ino, offset), hides data, announces data;
        flush(ino: INodeNo, handle: FileHandle, owner: LockOwner; ReplyEmpty) => (ino, handle, owner);
        fsync(ino: INodeNo, handle: FileHandle, _datasync: bool; ReplyEmpty) => (ino, handle);
        opendir(ino: INodeNo, flags: OpenFlags; ReplyOpen) => (ino, flags);
        readdir(ino: INodeNo, handle: FileHandle, offset: u64; ReplyDirectory) => (ino, handle, offset);
        readdirplus(ino: INodeNo, handle: FileHandle, offset: u64; ReplyDirectoryPlus) => (ino, handle, offset);
        releasedir(ino: INodeNo, handle: FileHandle, _flags: OpenFlags; ReplyEmpty) => (ino, handle);
        fsyncdir(ino: INodeNo, _handle: FileHandle, _datasync: bool; ReplyEmpty) => (ino);
        statfs(_ino: INodeNo; ReplyStatfs) => ();
        setxattr(ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32; ReplyEmpty)
            => (ino, name, value, flags) moves value.len(), hides value;
        getxattr(ino: INodeNo, name: &OsStr, size: u32; ReplyXattr) => (ino, name, size);
        listxattr(ino: INodeNo, size: u32; ReplyXattr) => (ino, size);
        removexattr(ino: INodeNo, name: &OsStr; ReplyEmpty) => (ino, name);
        create(parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32; ReplyCreate)
            => (parent, name, mode, umask, flags);
        fallocate(ino: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32; ReplyEmpty)
            => ((ino, handle), offset, length, mode);
        lseek(ino: INodeNo, _handle: FileHandle, offset: i64, whence: i32; ReplyLseek) => (ino, offset, whence);
        copy_file_range(
            ino_in: INodeNo, handle_in: FileHandle, offset_in: u64, ino_out: INodeNo, handle_out: FileHandle,
            offset_out: u64, len: u64, _flags: CopyFileRangeFlags; ReplyWrite
        ) => ((ino_in, handle_in, offset_in), (ino_out, handle_out, offset_out), len);
    }
}
