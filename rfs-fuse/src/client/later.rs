//! Reads that are answered when their bytes come.
//!
//! Who reads alone waits for the bytes himself, and is woken once. Where reads are under way already, or something else is asked for, a read is only started: its
//! bytes are handed on by whoever finds them, and the thread that started it takes the next request meanwhile. So a few
//! threads keep as many reads under way as they are asked for, and those leave and come back together.
//!
//! Who knows that more is asked for may leave a read to be started with the next one ([`Gathered`]): many small requests in one go take the network
//! and the server a fraction of what they take one by one. It is started when so many have gathered, when nothing more is asked for, or when a
//! read that was started before comes back, whichever is first: it does not wait for anything that may not come.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::{Condvar, Mutex};
use rdmabox::RemoteAddr;

use super::{Client, ClientError, ReadData, ReadDone, Remote, inode::Inode, layout::Piece};

/// Larger ones are waited for: to hand on their bytes takes longer than to wake a thread, and one thread would do it for all.
const LARGEST: u64 = 32 << 10;

/// So many, or so many bytes of them, are started at once.
const MOST: usize = 16;
const MOST_BYTES: usize = 64 << 10;

/// What there is to do for a thread after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something else is asked for already.
    Waits,
    /// Nothing is: the thread would wait.
    Nothing,
    /// It has to go back to see.
    Unknown,
}

/// Reads that are to be started together.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    waiting: Mutex<Waiting>,
    /// Those that were started and have not come back.
    started: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    reads: Vec<(RemoteAddr, usize, ReadDone)>,
    bytes: usize,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("reads", &self.reads.len()).field("bytes", &self.bytes).finish()
    }
}

impl Gathered {
    /// One more. Those that have gathered are started now, unless `more` follows and one that was started is to come back.
    fn add(&self, remote: &dyn Remote, read: (RemoteAddr, usize, ReadDone), more: bool) {
        let full = {
            let mut waiting = self.waiting.lock();
            waiting.bytes += read.1;
            waiting.reads.push(read);
            waiting.reads.len() >= MOST || waiting.bytes >= MOST_BYTES
        };
        // After they are there: one that comes back later than this look finds them.
        if full || !more || self.started.load(Ordering::SeqCst) == 0 {
            self.start(remote);
        }
    }

    fn start(&self, remote: &dyn Remote) {
        let mut reads = {
            let mut waiting = self.waiting.lock();
            waiting.bytes = 0;
            std::mem::take(&mut waiting.reads)
        };
        if reads.is_empty() {
            return;
        }
        self.started.fetch_add(reads.len(), Ordering::SeqCst);
        remote.together(&mut || {
            reads.drain(..).for_each(|(from, len, done)| remote.read_then(from, len, done));
        });
    }

    /// One has come back.
    fn came_back(&self, remote: &dyn Remote) {
        self.started.fetch_sub(1, Ordering::SeqCst);
        self.start(remote);
    }
}

/// Reads that are under way, of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct OneRead(Arc<AtomicUsize>);

impl Reads {
    /// Counts one more.
    pub(crate) fn enter(&self) -> OneRead {
        self.0.fetch_add(1, Ordering::Relaxed);
        OneRead(Arc::clone(&self.0))
    }

    fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for OneRead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether reads have been alone lately: then to ask whether something else is asked for is mostly a call in vain.
#[derive(Debug, Default)]
pub(crate) struct Company(AtomicU32);

/// After so many in a row that were alone only each one after as many is asked for.
const ALONE: u32 = 16;

impl Company {
    /// A read comes while no other is under way. Whether something else is asked for, as far as `next` is asked.
    fn of_single(&self, next: impl FnOnce() -> Next) -> bool {
        let row = self.0.fetch_add(1, Ordering::Relaxed);
        let found = (row < ALONE || row.is_multiple_of(ALONE)) && next() == Next::Waits;
        if found {
            self.found();
        }
        found
    }

    /// A read is not alone.
    fn found(&self) {
        // Written only where it changes something: all threads read it.
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

/// Started reads of an inode, which keep its extents in use although no thread holds a lock for them.
#[derive(Debug, Default)]
pub(crate) struct Started {
    count: Mutex<usize>,
    none: Condvar,
}

impl Started {
    /// Waits until there is none. Whoever calls this keeps new ones from being started.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

/// A started read of an inode, until it is dropped.
#[derive(Debug)]
struct OneStarted(Arc<Inode>);

impl OneStarted {
    /// To be called with the inode's `io` and `places` held.
    fn new(inode: &Arc<Inode>) -> OneStarted {
        *inode.started.count.lock() += 1;
        OneStarted(Arc::clone(inode))
    }
}

impl Drop for OneStarted {
    fn drop(&mut self) {
        let mut count = self.0.started.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.started.none.notify_all();
        }
    }
}

/// What a started read was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ino: u64,
    offset: u64,
    len: usize,
}

impl Client {
    /// Reads as [`read`](Self::read) does, and returns before there are bytes: `answer` runs with them on whichever thread finds
    /// them, and must not block. Where waiting is better, or the read takes more than bytes, it gives `answer` back. `next` says whether
    /// something else is asked for already, with which it may be sent; if nothing is, this thread may stay to find bytes, also those of others.
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
        if len as u64 > LARGEST || self.records.is_mapped() || self.sums.is_some() {
            return Err(answer);
        }
        let next = if self.reads.any() {
            self.company.found();
            next()
        } else if self.company.of_single(next) {
            Next::Waits
        } else {
            return Err(answer);
        };
        let Some(inode) = self.inodes.get(ino) else { return Err(answer) };
        let (Some(shared), Some(places)) = (inode.io.try_read(), inode.places.try_read()) else {
            return Err(answer);
        };
        let end = offset.saturating_add(len as u64);
        let known = {
            let size = inode.size.lock();
            size.is_recent() && end <= size.size()
        };
        if len == 0 || !known || !inode.open.load(Ordering::Acquire) {
            return Err(answer);
        }
        // Asked first: places that come after it are refused as ones of this era, at worst.
        let era = inode.layout.read().era();
        // One that fails is made again where there is somebody to tell.
        let remote = match self.readable(&inode, offset, len as u64).as_deref() {
            Ok([Piece::Data { arena, len }]) => self.arena_addr(era, *arena, *len),
            _ => return Err(answer),
        };
        let Ok(remote) = remote else { return Err(answer) };
        self.was_read(&inode);
        let (started, counted) = (OneStarted::new(&inode), self.reads.enter());
        // From now on that count keeps the extents, also while this thread serves others' reads.
        drop((shared, places));
        let (client, asked) = (Arc::downgrade(self), Asked { ino, offset, len });
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
        let read: (_, _, ReadDone) = (remote, len, Box::new(done));
        let add = |read| self.gathered.add(&*self.remote, read, next == Next::Waits);
        match next {
            Next::Waits | Next::Unknown => add(read),
            Next::Nothing => {
                let mut read = Some(read);
                self.remote.serve(&mut || read.take().into_iter().for_each(add));
            }
        }
        Ok(())
    }

    /// A place in the count of reads that are waited for.
    pub(crate) fn one_read(&self) -> OneRead {
        self.reads.enter()
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
        let Asked { ino, offset, len } = asked;
        let tell = |told: Result<ReadData<'_>, ClientError>| {
            let answer = own.lock().take();
            if let Some(answer) = answer {
                answer(told);
            }
        };
        if let Err(e) = client.read(ino, offset, len, &mut Vec::new(), |data| tell(Ok(data))) {
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
