//! A hung FUSE mount: closing a descriptor of its file blocks.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

use fuser::{
    BackgroundSession, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

const NAME: &str = "file";
const FOR_EVER: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open));
    }
}

/// A file system with one file. A FLUSH of the file blocks until the gate opens.
#[derive(Debug)]
struct Dead(Arc<Gate>);

fn attr(ino: INodeNo) -> FileAttr {
    let kind = if ino == INodeNo::ROOT { FileType::Directory } else { FileType::RegularFile };
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Dead {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&FOR_EVER, &attr(INodeNo(2)), Generation(0)),
            false => reply.error(fuser::Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOR_EVER, &attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.0.pass();
        reply.ok();
    }
}

/// The mount, with its file open. Its drop opens the gate and unmounts the file system.
#[derive(Debug)]
pub(super) struct DeadMount {
    gate: Arc<Gate>,
    file: Option<File>,
    session: Option<BackgroundSession>,
    _place: tempfile::TempDir,
}

impl DeadMount {
    pub(super) fn new() -> io::Result<DeadMount> {
        let place = tempfile::tempdir()?;
        let gate = Arc::new(Gate::default());
        let session = fuser::spawn_mount(Dead(Arc::clone(&gate)), place.path(), &Config::default())?;
        let file = File::open(place.path().join(NAME))?;
        Ok(DeadMount { gate, file: Some(file), session: Some(session), _place: place })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_ref().expect("open until the drop").as_fd()
    }
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        self.gate.open();
        self.file = None;
        self.session = None;
    }
}
