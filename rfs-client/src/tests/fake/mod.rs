//! A server in memory for the client's tests, with regular files in one directory, attribute
//! records and an arena.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rdmabox::{Memory, RequestError};
use rfs_proto::{
    Attached, Attr, BLOCK, DirEntry, DirPage, Errno, Extent, FileKind, Growth, Identity, InUse, Layout,
    Marks, Opened, RegionRef, RenameFlags, Reply, Request, SetAttr, SetTime, checksum,
    record::{self, Space},
};

use crate::remote::address::{Place, Region};

mod interceptor;
mod recalls;
mod remote;
mod sums;

pub(crate) use interceptor::{Interceptor, OpKind};

const ARENA_KEY: u32 = 1;
const TABLE_KEY: u32 = 2;
const SUMS_KEY: u32 = 3;
const SLOTS: usize = 4096;

#[derive(Debug)]
struct File {
    attr: Attr,
    extents: Vec<Extent>,
    version: u64,
    opens: u32,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    names: BTreeMap<Vec<u8>, u64>,
    last_ino: u64,
    next_block: u64,
    clock: i64,
}

/// The server.
#[derive(Debug)]
pub(crate) struct Fake {
    arena: Arc<Memory>,
    table: Arc<Memory>,
    sums: Option<Arc<Memory>>,
    state: Mutex<State>,
    mapped: bool,
    /// Longest contiguous run of blocks that an allocation returns. Small values make files of many
    /// extents.
    pub(crate) run: AtomicU64,
    /// Maximum number of extents in one reply.
    pub(crate) page: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) lists: AtomicU64,
    sessions: AtomicU64,
    connected: AtomicBool,
    keeps: AtomicBool,
    /// Number of other sessions that refuse exclusive use. One of them ends at each attempt to
    /// attach.
    pub(crate) others: AtomicU64,
    /// Number of next writes that arrive damaged.
    pub(crate) damaged_on_the_way: AtomicU64,
    pub(crate) recalls: recalls::Pending,
    /// Attributes of the directory in replies to changes of names.
    pub(crate) directory: Mutex<Option<Attr>>,
}

impl Fake {
    /// Creates a server with `blocks` blocks. With `mapped`, clients map its memory.
    pub(crate) fn new(blocks: u64, mapped: bool) -> Arc<Fake> {
        Arc::new(Fake {
            arena: Arc::new(Memory::private((blocks * BLOCK) as usize).expect("memory")),
            table: Arc::new(Memory::private(SLOTS * record::LEN).expect("memory")),
            sums: None,
            state: Mutex::new(State { last_ino: 1, ..State::default() }),
            mapped,
            run: AtomicU64::new(u64::MAX),
            page: AtomicU64::new(u64::MAX),
            calls: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            connected: AtomicBool::new(true),
            keeps: AtomicBool::new(false),
            others: AtomicU64::new(0),
            damaged_on_the_way: AtomicU64::new(0),
            recalls: recalls::Pending::default(),
            directory: Mutex::default(),
        })
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of opens of an inode that are not closed.
    pub(crate) fn opens(&self, ino: u64) -> u32 {
        self.state.lock().files[&ino].opens
    }

    /// Returns the size and write time in the record.
    pub(crate) fn size_and_time(&self, ino: u64) -> (u64, i64) {
        let base = ino as usize * record::LEN;
        (self.table.load_u64(base + record::SIZE), self.table.load_u64(base + record::WRITE_TIME) as i64)
    }

    /// Returns the append lock's word, 0 if it is free.
    pub(crate) fn appender(&self, ino: u64) -> u64 {
        self.table.load_u64(ino as usize * record::LEN + record::APPENDER)
    }

    /// Sets the append lock's word.
    pub(crate) fn set_appender(&self, ino: u64, word: u64) {
        self.table.write(ino as usize * record::LEN + record::APPENDER, &word.to_le_bytes());
    }

    /// Begins a new layout generation of the same size, as for a hole behind the end.
    pub(crate) fn begin_generation(&self, ino: u64) {
        let mut state = self.state.lock();
        let file = state.files.get_mut(&ino).expect("a file");
        self.fold(file);
        file.attr.layout_generation += 2;
        self.publish(file);
    }

    /// Gives an inode's slot to another inode.
    pub(crate) fn reuse_slot(&self, ino: u64) {
        self.table.write(ino as usize * record::LEN + record::INO, &u64::MAX.to_le_bytes());
    }

    fn region(&self, region: Region) -> &Arc<Memory> {
        match region {
            Region::Arena => &self.arena,
            Region::Table => &self.table,
            Region::Sums => self.sums.as_ref().expect("checksums"),
        }
    }

    fn memory(
        &self,
        Place { region, offset, .. }: Place,
        len: usize,
    ) -> Result<(&Arc<Memory>, usize), RequestError> {
        let (memory, offset) = (self.region(region), offset as usize);
        match offset + len <= memory.len() {
            true => Ok((memory, offset)),
            false => Err(RequestError::Completion(rdmabox::WcStatus::RemAccessErr)),
        }
    }

    fn alive(&self) -> Result<(), RequestError> {
        if self.connected.load(Ordering::Relaxed) { Ok(()) } else { Err(RequestError::Disconnected) }
    }

    /// Creates a regular file, also as a whiteout.
    fn make(&self, state: &mut State, name: &[u8], perm: u32) -> u64 {
        state.last_ino += 1;
        let ino = state.last_ino;
        state.names.insert(name.to_vec(), ino);
        let mut file = File { attr: new_attr(ino, perm), extents: vec![], version: 0, opens: 0 };
        self.publish(&mut file);
        state.files.insert(ino, file);
        ino
    }

    fn publish(&self, file: &mut File) {
        let base = file.attr.ino as usize * record::LEN;
        file.version += 2;
        self.table.write(base + record::VERSION, &(file.version - 1).to_le_bytes());
        self.table.write(base + record::INO, &file.attr.ino.to_le_bytes());
        self.table.write(base + record::SIZE, &file.attr.size.to_le_bytes());
        self.table.write(
            base + record::MTIME,
            &record::encode_server_part(&file.attr, &Space::contiguous(file.attr.blocks), file.version),
        );
        self.table.write(base + record::VERSION, &file.version.to_le_bytes());
    }

    /// Takes in the client's writes to the record.
    fn fold(&self, file: &mut File) {
        let (size, time) = self.size_and_time(file.attr.ino);
        file.attr.size = size;
        (file.attr.mtime, file.attr.ctime) = record::effective_times(file.attr.mtime, file.attr.ctime, time);
    }

    fn layout(&self, file: &File, offset: u64) -> Layout {
        let page = self.page.load(Ordering::Relaxed) as usize;
        let mut extents: Vec<Extent> =
            file.extents.iter().copied().filter(|e| e.file_end() > offset).collect();
        let complete = extents.len() <= page;
        extents.truncate(page);
        Layout { generation: file.attr.layout_generation, extents, complete }
    }

    fn allocate(&self, state: &mut State, ino: u64, offset: u64, len: u64) -> Result<(), Errno> {
        let run = self.run.load(Ordering::Relaxed);
        let file = state.files.get_mut(&ino).ok_or(Errno::ESTALE)?;
        let has = |at: u64| file.extents.iter().any(|e| e.file <= at && at < e.file_end());
        let missing: Vec<u64> = (offset / BLOCK..(offset + len).div_ceil(BLOCK))
            .map(|b| b * BLOCK)
            .filter(|at| !has(*at))
            .collect();
        let available = self.arena.len() as u64 / BLOCK;
        let gaps = missing.len() as u64 / run;
        if state.next_block + missing.len() as u64 + gaps > available {
            return Err(Errno::ENOSPC);
        }
        for (i, at) in missing.iter().enumerate() {
            if (i as u64).is_multiple_of(run) && i > 0 {
                state.next_block += 1;
            }
            file.extents.push(Extent { file: *at, arena: state.next_block * BLOCK, len: BLOCK });
            state.next_block += 1;
        }
        file.extents.sort_by_key(|e| e.file);
        file.attr.blocks = file.extents.len() as u64 * (BLOCK / 512);
        Ok(())
    }

    fn truncate(&self, file: &mut File, size: u64) {
        if size < file.attr.size {
            let keep = size.next_multiple_of(BLOCK);
            file.extents.retain(|e| e.file < keep);
            file.attr.layout_generation += 2;
            file.attr.blocks = file.extents.len() as u64 * (BLOCK / 512);
            if let Some(last) = file.extents.iter().find(|e| e.file < size && size < e.file_end()) {
                let at = last.arena + (size - last.file);
                self.put(at, &vec![0; (last.file_end() - size) as usize]);
            }
        }
        file.attr.size = size;
    }

    fn handle(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        let mut state = self.state.lock();
        state.clock += 1;
        let state = &mut *state;
        match *request {
            Request::Attach { keeps, alone, .. } => self.handle_attach(keeps, alone),
            Request::Lookup { name, .. } => {
                let ino = *state.names.get(name).ok_or(Errno::ENOENT)?;
                self.handle_attr(state, ino)
            }
            Request::GetAttr { ino } => self.handle_attr(state, ino),
            Request::SetAttr { ino, changes } => self.handle_setattr(state, ino, &changes),
            Request::Create { name, perm, exclusive, .. } => {
                let ino = match state.names.get(name) {
                    Some(_) if exclusive => return Err(Errno::EEXIST),
                    Some(ino) => *ino,
                    None => self.make(state, name, perm),
                };
                self.handle_open(state, ino)
            }
            Request::Open { ino, .. } => self.handle_open(state, ino),
            Request::Close { ino } => {
                let file = state.files.get_mut(&ino).ok_or(Errno::EBADF)?;
                file.opens = file.opens.checked_sub(1).ok_or(Errno::EBADF)?;
                Ok(Reply::Done)
            }
            Request::Layout { ino, offset } => {
                Ok(Reply::Layout(self.layout(state.files.get(&ino).ok_or(Errno::EBADF)?, offset)))
            }
            Request::Allocate { ino, offset, len } => {
                self.allocate(state, ino, offset, len)?;
                let file = state.files.get_mut(&ino).ok_or(Errno::EBADF)?;
                self.fold(file);
                self.publish(file);
                Ok(Reply::Layout(self.layout(file, offset)))
            }
            Request::Write { ino, offset, check, growth, data } => {
                self.handle_write(state, ino, offset, (check, growth, data))
            }
            Request::Accessed { ino, at } => {
                let file = state.files.get_mut(&ino).ok_or(Errno::ENOENT)?;
                file.attr.atime = file.attr.atime.max(at);
                self.publish(file);
                Ok(Reply::Done)
            }
            Request::Unlink { name, .. } => {
                state.names.remove(name).map(|_| Reply::Done).ok_or(Errno::ENOENT)
            }
            Request::Link { ino, name, .. } => {
                state.names.insert(name.to_vec(), ino);
                self.handle_attr(state, ino)
            }
            Request::Rename { name, new_name, flags, whiteout, .. } => {
                self.handle_rename(state, (name, new_name), flags, whiteout.is_some())
            }
            Request::ReadDir { cookie, max_entries, .. } => Ok(self.page(state, cookie, max_entries)),
            Request::LookupAhead { name, max_entries, .. } => {
                self.handle_lookup_ahead(state, name, max_entries)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Attaches a session.
    fn handle_attach(&self, keeps: bool, alone: bool) -> Result<Reply, Errno> {
        let sessions = self.others.load(Ordering::Relaxed);
        if alone && sessions > 0 {
            self.others.store(sessions - 1, Ordering::Relaxed);
            return Ok(Reply::InUse(InUse { sessions, alone: false }));
        }
        self.keeps.store(keeps, Ordering::Relaxed);
        let region = |m: &Memory, rkey| RegionRef { addr: m.addr(), len: m.len() as u64, rkey };
        Ok(Reply::Attached(Attached {
            arena: region(&self.arena, ARENA_KEY),
            table: region(&self.table, TABLE_KEY),
            sums: self.sums.as_ref().map(|sums| region(sums, SUMS_KEY)),
            now: crate::remote::clock::local_now(),
            session: 1 + self.sessions.fetch_add(1, Ordering::Relaxed),
            read_only: false,
            memory: Identity([3; 16]),
            starts: 1,
            resumed: false,
            confined: false,
        }))
    }

    /// Changes attributes.
    fn handle_setattr(&self, state: &mut State, ino: u64, changes: &SetAttr) -> Result<Reply, Errno> {
        let now = state.clock;
        let file = state.files.get_mut(&ino).ok_or(Errno::ESTALE)?;
        self.fold(file);
        if let Some(size) = changes.size {
            self.truncate(file, size);
        }
        file.attr.perm = changes.perm.unwrap_or(file.attr.perm);
        match changes.mtime {
            Some(SetTime::At(time)) => file.attr.mtime = time,
            Some(SetTime::Now) => file.attr.mtime = now,
            None => {}
        }
        file.attr.ctime = changes.ctime.unwrap_or(file.attr.ctime);
        let base = ino as usize * record::LEN;
        self.table.write(base + record::WRITE_TIME, &[0; 8]);
        self.publish(file);
        Ok(Reply::Attr(self.marked(file)))
    }

    /// Writes data that came with a checksum.
    fn handle_write(
        &self,
        state: &mut State,
        ino: u64,
        offset: u64,
        (check, growth, data): (u32, Growth, &[u8]),
    ) -> Result<Reply, Errno> {
        let damaged = self.damaged_on_the_way.load(Ordering::Relaxed);
        if checksum::check_data(data) != check || damaged > 0 {
            self.damaged_on_the_way.store(damaged.saturating_sub(1), Ordering::Relaxed);
            return Err(Errno::EBADMSG);
        }
        let end = offset + data.len() as u64;
        let size = self.size_and_time(ino).0;
        if matches!(growth, Growth::From(was) if was != size) {
            return Err(Errno::EAGAIN);
        }
        self.allocate(state, ino, offset, data.len() as u64)?;
        let file = state.files.get_mut(&ino).ok_or(Errno::EBADF)?;
        self.fold(file);
        let first = file.extents.iter().find(|e| e.file <= offset && offset < e.file_end());
        if let Some(place) = first.map(|e| e.arena + offset - e.file)
            && !offset.is_multiple_of(BLOCK)
            && !self.word(place).fits(&self.bytes(place / BLOCK * BLOCK, BLOCK as usize))
        {
            return Err(Errno::EIO);
        }
        for (at, &byte) in (offset..).zip(data) {
            let extent = file.extents.iter().find(|e| e.file <= at && at < e.file_end());
            let extent = extent.ok_or(Errno::EIO)?;
            self.put(extent.arena + at - extent.file, &[byte]);
        }
        if growth != Growth::Stay {
            file.attr.size = file.attr.size.max(end);
        }
        self.publish(file);
        Ok(Reply::Done)
    }

    /// Renames a file, and leaves a whiteout if asked to.
    fn handle_rename(
        &self,
        state: &mut State,
        (name, new_name): (&[u8], &[u8]),
        flags: RenameFlags,
        whiteout: bool,
    ) -> Result<Reply, Errno> {
        let source = *state.names.get(name).ok_or(Errno::ENOENT)?;
        match state.names.get(new_name) {
            Some(_) if flags == RenameFlags::NOREPLACE => return Err(Errno::EEXIST),
            Some(target) if *target == source => {}
            _ => {
                state.names.remove(name);
                state.names.insert(new_name.to_vec(), source);
                if whiteout {
                    self.make(state, name, 0);
                }
            }
        }
        Ok(Reply::Done)
    }

    /// Returns the entries from a name on.
    fn handle_lookup_ahead(&self, state: &State, name: &[u8], max_entries: u32) -> Result<Reply, Errno> {
        let ino = *state.names.get(name).ok_or(Errno::ENOENT)?;
        let mut page = self.page(state, ino - 1, max_entries.max(2));
        if let Reply::Dir(page) = &mut page {
            // Another name of the same inode may precede it.
            let others = page.entries.iter().take_while(|entry| entry.name != name).count();
            page.entries.drain(..others);
        }
        Ok(page)
    }

    fn handle_attr(&self, state: &mut State, ino: u64) -> Result<Reply, Errno> {
        let file = state.files.get_mut(&ino).ok_or(Errno::ENOENT)?;
        self.fold(file);
        Ok(Reply::Attr(self.marked(file)))
    }

    /// Returns a file's attributes, marked as cacheable if the client caches.
    fn marked(&self, file: &File) -> Attr {
        let keep = if self.keeps.load(Ordering::Relaxed) { Marks::KEEP } else { Marks::empty() };
        Attr { marks: file.attr.marks | keep, ..file.attr }
    }

    /// Returns the entries behind a cookie. Cookies are inode numbers.
    fn page(&self, state: &State, cookie: u64, max: u32) -> Reply {
        let mut inodes: Vec<(u64, &Vec<u8>)> = state.names.iter().map(|(name, ino)| (*ino, name)).collect();
        inodes.sort_unstable();
        let mut entries: Vec<DirEntry> = inodes
            .into_iter()
            .filter(|(ino, _)| *ino > cookie)
            .map(|(ino, name)| DirEntry {
                cookie: ino,
                name: name.clone(),
                attr: self.marked(&state.files[&ino]),
            })
            .collect();
        let end = entries.len() <= max as usize;
        entries.truncate(max as usize);
        Reply::Dir(DirPage { entries, parent: 1, end })
    }

    fn handle_open(&self, state: &mut State, ino: u64) -> Result<Reply, Errno> {
        let file = state.files.get_mut(&ino).ok_or(Errno::ENOENT)?;
        file.opens += 1;
        self.fold(file);
        Ok(Reply::Opened(Opened { attr: self.marked(file), layout: self.layout(file, 0) }))
    }
}

/// Returns the attributes of a new regular file.
pub(crate) fn new_attr(ino: u64, perm: u32) -> Attr {
    Attr {
        ino,
        kind: FileKind::Regular,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: 1,
        mtime: 1,
        ctime: 1,
        layout_generation: 2,
        slot: ino as u32,
        marks: Marks::empty(),
    }
}

impl Fake {
    /// Ends all connections.
    pub(crate) fn die(&self) {
        self.connected.store(false, Ordering::Relaxed);
    }
}
