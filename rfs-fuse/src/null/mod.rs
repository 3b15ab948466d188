//! A file system in the process's own memory, which measures the cost of FUSE itself.
//!
//! [`NullFs`] supports benchmarks: it has files and directories, but no links and no permissions.
//! It negotiates the same [`Settings`] with the kernel as a real mount.
//!
//! # Concurrency
//! Several session threads. They take the tree's lock, then an inode's. Reads and writes of
//! different chunks run in parallel.

mod file;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    sync::Arc,
    time::SystemTime,
};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, RwLock};

use self::file::File;
use crate::fuse::{
    Filesystem, IO_BLOCK, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, Settings,
};

const GENERATION: Generation = Generation(0);

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
struct Node {
    attr: Mutex<FileAttr>,
    data: File,
}

#[derive(Debug)]
struct Tree {
    nodes: BTreeMap<u64, Arc<Node>>,
    /// Maps (directory, name) to an inode number.
    names: BTreeMap<(u64, OsString), u64>,
    last: u64,
}

/// The null file system.
#[derive(Debug)]
pub struct NullFs {
    settings: Settings,
    tree: RwLock<Tree>,
}

impl NullFs {
    /// Creates an empty file system.
    pub fn new(settings: Settings) -> NullFs {
        let mut tree = Tree { nodes: BTreeMap::new(), names: BTreeMap::new(), last: 0 };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        tree.add(FileType::Directory, 0o755, uid, gid);
        NullFs { settings, tree: RwLock::new(tree) }
    }

    fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        self.tree.read().nodes.get(&ino.0).cloned().ok_or(Errno::ENOENT)
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<FileAttr, Errno> {
        let mut tree = self.tree.write();
        let key = (parent.0, name.to_owned());
        if tree.names.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        let attr = tree.add(kind, mode, request.uid(), request.gid());
        tree.names.insert(key, attr.ino.0);
        Ok(attr)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let mut tree = self.tree.write();
        let key = (parent.0, name.to_owned());
        let ino = *tree.names.get(&key).ok_or(Errno::ENOENT)?;
        if directory && tree.children(ino).next().is_some() {
            return Err(Errno::ENOTEMPTY);
        }
        tree.names.remove(&key);
        tree.nodes.remove(&ino);
        Ok(())
    }

    /// Returns the flags of an open file. Pages survive close and open, because only this mount
    /// changes the file.
    fn open_flags(&self) -> FopenFlags {
        let keeps = if self.settings.keeps { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        self.settings.open_flags() | keeps
    }

    fn entry(&self, made: Result<FileAttr, Errno>, reply: ReplyEntry) {
        let Settings { attr_timeout, entry_timeout, .. } = self.settings;
        match made {
            Ok(attr) => reply.entry_with_ttls(&attr_timeout, &entry_timeout, &attr, GENERATION),
            Err(e) => reply.error(e),
        }
    }
}

impl Tree {
    fn add(&mut self, kind: FileType, mode: u32, uid: u32, gid: u32) -> FileAttr {
        self.last += 1;
        let now = SystemTime::now();
        let attr = FileAttr {
            ino: INodeNo(self.last),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind,
            perm: (mode & 0o7777) as u16,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: IO_BLOCK,
            flags: 0,
        };
        self.nodes.insert(self.last, Arc::new(Node { attr: Mutex::new(attr), data: File::default() }));
        attr
    }

    fn children(&self, ino: u64) -> impl Iterator<Item = (&OsString, u64)> {
        let from = (ino, OsString::new());
        self.names.range(from..).take_while(move |((p, _), _)| *p == ino).map(|((_, n), i)| (n, *i))
    }
}

impl Node {
    fn attr(&self) -> FileAttr {
        let size = self.data.len();
        FileAttr { size, blocks: size.div_ceil(512), ..*self.attr.lock() }
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, config: &mut KernelConfig) {
        self.settings.negotiate(config);
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let tree = self.tree.read();
        let found = tree.names.get(&(parent.0, name.to_owned())).and_then(|ino| tree.nodes.get(ino));
        self.entry(found.map(|node| node.attr()).ok_or(Errno::ENOENT), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, reply: ReplyAttr) {
        match self.node(ino) {
            Ok(node) => reply.attr(&self.settings.attr_timeout, &node.attr()),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        if let Some(size) = size {
            node.data.truncate(size);
        }
        {
            let mut attr = node.attr.lock();
            attr.perm = mode.map_or(attr.perm, |mode| (mode & 0o7777) as u16);
            attr.uid = uid.unwrap_or(attr.uid);
            attr.gid = gid.unwrap_or(attr.gid);
            match mtime {
                Some(TimeOrNow::SpecificTime(time)) => attr.mtime = time,
                Some(TimeOrNow::Now) => attr.mtime = SystemTime::now(),
                None if size.is_some() => attr.mtime = SystemTime::now(),
                None => {}
            }
        }
        reply.attr(&self.settings.attr_timeout, &node.attr());
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        self.entry(self.make(request, parent, name, FileType::Directory, mode), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.remove(parent, name, false), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(self.remove(parent, name, true), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let mut tree = self.tree.write();
        let Some(ino) = tree.names.remove(&(parent.0, name.to_owned())) else {
            return reply.error(Errno::ENOENT);
        };
        if let Some(replaced) = tree.names.insert((newparent.0, newname.to_owned()), ino)
            && replaced != ino
        {
            tree.nodes.remove(&replaced);
        }
        reply.ok();
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.node(ino) {
            Ok(_) => reply.opened(FileHandle(0), self.open_flags()),
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.make(request, parent, name, FileType::RegularFile, mode) {
            Ok(attr) => {
                let ttl = self.settings.attr_timeout.min(self.settings.entry_timeout);
                reply.created(&ttl, &attr, GENERATION, FileHandle(0), self.open_flags());
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        (offset, size): (u64, u32),
        _: OpenFlags,
        reply: ReplyData,
    ) {
        match self.node(ino) {
            Ok(node) => BUFFER.with_borrow_mut(|buffer| {
                node.data.read(offset, size as usize, buffer, |bytes| reply.data(bytes));
            }),
            Err(e) => reply.error(e),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        reply: ReplyWrite,
    ) {
        match self.node(ino) {
            Ok(_) if offset > file::MAX_LEN => reply.error(Errno::EFBIG),
            Ok(node) => {
                node.data.write(offset, data);
                node.attr.lock().mtime = SystemTime::now();
                reply.written(data.len() as u32);
            }
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let tree = self.tree.read();
        let dots = [(ino.0, OsStr::new(".")), (ino.0, OsStr::new(".."))];
        let all = dots.into_iter().chain(tree.children(ino.0).map(|(name, child)| (child, name.as_os_str())));
        for (at, (child, name)) in (1..).zip(all) {
            let kind = tree.nodes.get(&child).map_or(FileType::Directory, |node| node.attr.lock().kind);
            if at > offset && reply.add(INodeNo(child), at, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, reply: ReplyStatfs) {
        let blocks = 1 << 30;
        reply.statfs(blocks, blocks, blocks, blocks, blocks, 4096, 255, 4096);
    }
}

fn done(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}
