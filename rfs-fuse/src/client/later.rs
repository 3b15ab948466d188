//! Small reads and writes that are answered when their bytes have come, or are in place.
//!
//! Who reads or writes alone waits himself, and is woken once. Where others are under way already, or something else is asked for, one is only
//! started: its answer is handed on by whoever finds it, and the thread that started it takes the next request meanwhile. So a few
//! threads keep as many under way as they are asked for, and those leave and come back together.
//!
//! Who knows that more is asked for may leave one to be started with the next ([`Gathered`]): many small requests in one go take the network
//! and the server a fraction of what they take one by one. It is started when so many have gathered, when nothing more is asked for, or when
//! one that was started before comes back, whichever is first: it does not wait for anything that may not come.
//!
//! A write is one that changes nothing but bytes: inside the file, where there is space. Its bytes are copied, as the request that brought them
//! does not stay; its time is noted before, as elsewhere in a kernel. One that fails is repeated on a thread that may wait, for as long as any
//! write may take, and meanwhile nobody can take the place that it writes to, as it may still take effect.

mod company;
mod gathered;
mod repeats;

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    thread,
};

use parking_lot::Mutex;
use rdmabox::{RemoteAddr, RequestError, Until};

use super::{
    Client, ClientError, ReadData,
    inode::Inode,
    layout::Piece,
    size::{KnownSize, LayoutId},
};
pub(crate) use company::{Company, Started, Transfers};
use company::{One, OneStarted};
pub(crate) use gathered::Gathered;
use gathered::Request;
pub(crate) use repeats::Repeats;

/// Larger ones are waited for: to hand on their bytes takes longer than to wake a thread, and one thread would do it for all.
const LARGEST: u64 = 32 << 10;

/// What there is to do for a thread after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something else is asked for already.
    Waits,
    /// Nothing is: the thread would wait.
    Nothing,
    /// Nothing is, but many wait for answers, which leave only when it goes back: it may stay until there are some.
    Answers,
    /// It has to go back to see.
    Unknown,
}

/// What a started read was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ino: u64,
    offset: u64,
    len: usize,
    /// In this era.
    since: u32,
}

impl Client {
    /// Reads as [`read`](Self::read) does, and returns before there are bytes: `answer` runs with them on whichever thread finds
    /// them, and must not block. Where waiting is better, or the read takes more than bytes, it gives `answer` back. `next` says
    /// what else there is to do: with something that is asked for already it may be sent; if there is nothing, this thread may stay to find bytes, also those of others.
    pub fn read_later<A>(
        self: &Arc<Self>,
        ino: u64,
        offset: u64,
        len: usize,
        next: impl FnOnce() -> Next,
        answer: A,
    ) -> Result<(), A>
    where
        A: FnOnce(Result<ReadData<'_>, ClientError>) + Send + 'static,
    {
        if !self.is_for_later(len) {
            return Err(answer);
        }
        let since = self.remote.era_in_use();
        let Some(next) = self.in_company(next) else { return Err(answer) };
        let Some(inode) = self.inodes.get(ino) else { return Err(answer) };
        let (Some(shared), Some(places)) = (inode.io.try_read(), inode.places.try_read()) else {
            return Err(answer);
        };
        let known = *inode.size.lock();
        if !self.is_inside(&inode, known, inode.layout.read().id(), (offset, len)) {
            return Err(answer);
        }
        // One that fails is made again where there is somebody to tell.
        let remote = match self.readable(&inode, offset, len as u64) {
            Ok((pieces, layout)) if self.is_inside(&inode, known, layout, (offset, len)) => {
                match pieces[..] {
                    [Piece::Data { arena, len }] => self.arena_addr(layout.era, arena, len),
                    _ => return Err(answer),
                }
            }
            _ => return Err(answer),
        };
        let Ok(remote) = remote else { return Err(answer) };
        self.was_read(&inode);
        let (started, counted) = (OneStarted::new(&inode), self.transfers.enter());
        // From now on that count keeps the extents, also while this thread serves others' reads.
        drop((shared, places));
        let (client, asked) = (Arc::downgrade(self), Asked { ino, offset, len, since });
        let done = move |got: Result<&[u8], rdmabox::RequestError>| {
            // The bytes are here. Who is answered may ask for the next ones at once, alone.
            drop((started, counted));
            match got {
                Ok(bytes) => answer(Ok(ReadData::Bytes(bytes))),
                Err(e) => again(&client, asked, e.into(), answer),
            }
            if let Some(client) = client.upgrade() {
                client.gathered.came_back(&*client.remote);
            }
        };
        self.start_later(Request::Read(remote, len, Box::new(done)), next);
        Ok(())
    }

    /// A write as [`write`](Self::write) does it, that has only to be started and is answered when the bytes are in place; `None` where waiting is better, or it
    /// takes more than to place them. `next` is asked as by [`read_later`](Self::read_later).
    pub fn write_later<'a>(
        self: &'a Arc<Self>,
        ino: u64,
        offset: u64,
        data: &'a [u8],
        next: impl FnOnce() -> Next,
    ) -> Option<LaterWrite<'a>> {
        if !self.is_for_later(data.len()) {
            return None;
        }
        let since = self.remote.era_in_use();
        let inode = self.inodes.get(ino)?;
        let (shared, places) = (inode.io.try_read()?, inode.places.try_read()?);
        // Before the kernel is asked what else there is: a write that makes the file longer would ask in vain.
        let known = *inode.size.lock();
        if !self.is_inside(&inode, known, inode.layout.read().id(), (offset, data.len())) {
            return None;
        }
        let next = self.in_company(next)?;
        let (place, layout) = match self.targets(&inode, offset, data) {
            Ok(Some((parts, layout))) if parts.len() == 1 => (parts[0].0, layout),
            _ => return None,
        };
        if !self.is_inside(&inode, known, layout, (offset, data.len())) {
            return None;
        }
        self.stamp(&inode).ok()?;
        let (started, counted) = (OneStarted::new(&inode), self.transfers.enter());
        drop((shared, places));
        let client = Arc::downgrade(self);
        let writing = Writing { client, inode, offset, len: data.len(), since, layout, place, started };
        Some(LaterWrite { client: self, data, next, writing, counted })
    }

    /// Whether so many bytes may be read or written later at all.
    pub fn is_for_later(&self, len: usize) -> bool {
        len as u64 <= LARGEST && !self.records.is_mapped() && !self.writes_by_server()
    }

    /// What there is to do next for a thread with a request that is not alone.
    fn in_company(&self, next: impl FnOnce() -> Next) -> Option<Next> {
        if self.transfers.any() {
            self.company.found();
            return Some(next());
        }
        self.company.of_single(next).then_some(Next::Waits)
    }

    fn start_later(&self, request: Request, next: Next) {
        let add = |request| self.gathered.add(&*self.remote, request, next == Next::Waits);
        let until = match next {
            Next::Waits | Next::Unknown => return add(request),
            Next::Nothing => Until::AllDone,
            Next::Answers => Until::AnyDone,
        };
        let mut request = Some(request);
        self.remote.serve(until, &mut || request.take().into_iter().for_each(add));
    }

    /// Returns true if an open file with this layout has these bytes for certain, without another look.
    fn is_inside(
        &self,
        inode: &Inode,
        known: KnownSize,
        layout: LayoutId,
        (offset, len): (u64, usize),
    ) -> bool {
        let end = offset.saturating_add(len as u64);
        len > 0
            && inode.open.load(Ordering::Acquire)
            && known.reaches(layout, end, self.inodes.recalls().now())
    }

    /// A place in the count of reads and writes that are waited for.
    pub(crate) fn one_transfer(&self) -> One {
        self.transfers.enter()
    }
}

/// A write that is to be started.
#[derive(Debug)]
pub struct LaterWrite<'a> {
    client: &'a Arc<Client>,
    data: &'a [u8],
    next: Next,
    writing: Writing,
    counted: One,
}

impl LaterWrite<'_> {
    /// Copies the bytes, and starts it. `answer` runs when they are in place, or cannot be placed, on whichever thread finds that, and must not block. If
    /// there is nothing else to do, this thread may stay meanwhile, to find what has come back.
    pub fn start(self, answer: impl FnOnce(Result<(), ClientError>) + Send + 'static) {
        let LaterWrite { client, data, next, writing, counted } = self;
        let place = writing.place;
        let done = move |placed: Result<(), RequestError>, data: Vec<u8>| {
            // Who is answered may ask for the next one at once, alone.
            drop(counted);
            let client = writing.client.upgrade();
            if placed.is_ok() && client.as_deref().is_some_and(|client| writing.is_part(client)) {
                drop(writing);
                answer(Ok(()));
            } else {
                writing.repeat(placed, data, answer);
            }
            if let Some(client) = client {
                client.gathered.came_back(&*client.remote);
            }
        };
        client.start_later(Request::Write(place, data.to_vec(), Box::new(done)), next);
    }
}

/// A started write. Until it is dropped nobody takes its place.
#[derive(Debug)]
struct Writing {
    client: Weak<Client>,
    inode: Arc<Inode>,
    offset: u64,
    len: usize,
    since: u32,
    layout: LayoutId,
    place: RemoteAddr,
    started: OneStarted,
}

impl Writing {
    /// Returns true if bytes that are in place are part of the file for certain, without another look.
    fn is_part(&self, client: &Client) -> bool {
        let (known, layout) = (*self.inode.size.lock(), self.inode.layout.read().id());
        layout == self.layout && client.is_inside(&self.inode, known, layout, (self.offset, self.len))
    }

    /// Repeats it if it has failed, and looks whether it is part of the file, on a thread that may wait.
    fn repeat<A>(self, placed: Result<(), RequestError>, data: Vec<u8>, answer: A)
    where
        A: FnOnce(Result<(), ClientError>) + Send + 'static,
    {
        let Some(client) = self.client.upgrade() else {
            return answer(Err(RequestError::Disconnected.into()));
        };
        client.repeats.add(Box::new(move || answer(self.until_done(placed, &data))));
    }

    fn until_done(self, placed: Result<(), RequestError>, data: &[u8]) -> Result<(), ClientError> {
        let client = self.client.upgrade().ok_or(RequestError::Disconnected)?;
        let outcome = match placed {
            // What was known of the file is not enough.
            Ok(()) => Ok(false),
            // The failed one may still take effect: not after this one.
            Err(_) => client.remote.write_vectored(&[(self.place, data)]).map(|()| self.is_part(&client)),
        };
        let Writing { inode, offset, since, layout, started, .. } = self;
        drop(started);
        let write = || client.write_since(since, inode.ino, offset, data);
        match outcome {
            // It was noted before what may have been a long time.
            Ok(true) => client.stamp(&inode),
            // With a look at the record.
            Ok(false) => write(),
            // The place is none any more.
            Err(RequestError::Disconnected) if layout.era != client.remote.era() => write(),
            Err(e) => Err(e.into()),
        }
    }
}

/// Makes a read that failed again, on a thread that may wait: a request that was flushed says nothing of the next one.
fn again<A>(client: &Weak<Client>, asked: Asked, error: ClientError, answer: A)
where
    A: FnOnce(Result<ReadData<'_>, ClientError>) + Send + 'static,
{
    let Some(client) = client.upgrade() else { return answer(Err(error)) };
    let answer = Arc::new(Mutex::new(Some(answer)));
    let own = Arc::clone(&answer);
    let read = move || {
        let Asked { ino, offset, len, since } = asked;
        let tell = |told: Result<ReadData<'_>, ClientError>| {
            let answer = own.lock().take();
            if let Some(answer) = answer {
                answer(told);
            }
        };
        let read = client.read_since(since, (ino, offset, len), &mut Vec::new(), |data| tell(Ok(data)));
        if let Err(e) = read {
            tell(Err(e));
        }
    };
    if thread::Builder::new().name("rfs-read".into()).spawn(read).is_err() {
        let answer = answer.lock().take();
        if let Some(answer) = answer {
            answer(Err(error));
        }
    }
}
