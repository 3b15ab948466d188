//! Makes the snapshots of a server: at intervals, when it is asked to, and a last one at the end.
//!
//! Threading: a thread of its own, of low priority, which sleeps until it has something to do. [`Keeper::finish`] makes the last ones on the
//! thread that calls it. Dropping the keeper ends a snapshot that is being made, which is then none, and joins the thread.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Condvar, Mutex};
use rdmabox::{
    failure::{self, contain},
    size,
};
use rfs_proto::Identity;

use super::{
    PersistError,
    directory::Snapshots,
    format::Header,
    write::{Progress, snapshot},
};
use crate::{dispatch::Dispatcher, durable::Shape};

/// How much less of a processor the thread gets than others (nice(2)).
const NICE: i32 = 10;
/// How often the last snapshot says how far it is.
const REPORT: Duration = Duration::from_secs(5);

/// Why a snapshot was not made. Those of before are there.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The files.
    #[error(transparent)]
    Files(#[from] PersistError),
    /// The file that was being written.
    #[error("cannot write it: {0}")]
    Write(#[from] io::Error),
    /// A page of the memory is lost.
    #[error("a page of the memory is lost, as its file was shortened or its file system is full")]
    Lost,
    /// A flaw of the program.
    #[error("the snapshot thread panicked: {0}")]
    Panic(String),
}

impl SnapshotError {
    fn is_interruption(&self) -> bool {
        matches!(self, SnapshotError::Write(e) if e.kind() == io::ErrorKind::Interrupted)
    }
}

/// The last snapshot of an export failed: changes since the snapshot before it are not in any.
#[derive(Debug, thiserror::Error)]
#[error(
    "the last snapshot of export {export} failed: {source}; changes since {} are in no snapshot",
    .newest.as_ref().map_or_else(|| "the start".into(), |path| path.display().to_string())
)]
pub struct LastSnapshotError {
    /// The name of the export.
    pub export: String,
    /// The file of the newest snapshot that there is.
    pub newest: Option<PathBuf>,
    /// The reason.
    pub source: SnapshotError,
}

/// An export whose snapshots are made.
#[derive(Debug)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Its file system.
    pub dispatcher: Arc<Dispatcher>,
    /// How large it is.
    pub shape: Shape,
    /// Where they go.
    pub snapshots: Snapshots,
    /// What nobody has changed since the last one, if that can be known.
    idle_since: Option<u64>,
}

impl Job {
    /// One of which there is no snapshot yet that it is known to be the same as.
    pub fn new(name: String, dispatcher: Arc<Dispatcher>, shape: Shape, snapshots: Snapshots) -> Job {
        Job { name, dispatcher, shape, snapshots, idle_since: None }
    }

    /// Nobody can have changed anything since the last snapshot.
    fn is_idle(&self) -> bool {
        self.idle_since.is_some() && self.idle_since == self.dispatcher.idle_since()
    }

    /// Makes a snapshot and logs the outcome. Earlier snapshots stay if it fails.
    fn make(&mut self, mut go_on: impl FnMut(Progress) -> io::Result<()>) -> Result<(), SnapshotError> {
        let begin = Instant::now();
        let idle_since = self.dispatcher.idle_since();
        // A snapshot that is dropped removes its file, so that the next one starts afresh.
        let made = contain(|| self.try_make(&mut go_on));
        let outcome = made.unwrap_or_else(|panic| Err(SnapshotError::Panic(panic)));
        match &outcome {
            Ok((number, bytes)) => {
                let took = begin.elapsed();
                log::info!("{}: snapshot {number}: {} after {took:.1?}", self.name, size::show(*bytes));
                self.idle_since = idle_since;
            }
            Err(e) if e.is_interruption() => {
                log::info!("{}: snapshot aborted, earlier snapshots stay: {e}", self.name);
            }
            Err(e) => log::error!("{}: snapshot failed, earlier snapshots stay: {e}", self.name),
        }
        outcome.map(drop)
    }

    fn try_make(
        &mut self,
        go_on: &mut impl FnMut(Progress) -> io::Result<()>,
    ) -> Result<(u64, u64), SnapshotError> {
        let (number, out) = self.snapshots.begin()?;
        let Shape { arena, inodes, .. } = self.shape;
        let Identity(identity) = self.dispatcher.identity();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let header = Header { arena, inodes, identity: u128::from_be_bytes(identity), number, time };
        let out = snapshot(&self.dispatcher, &header, out, go_on)?;
        // Zeros may have been copied in the place of lost pages.
        if rdmabox::memory::is_lost() {
            return Err(SnapshotError::Lost);
        }
        Ok((number, self.snapshots.finish(out)?))
    }
}

/// What the thread is told.
#[derive(Debug, Default)]
struct Orders {
    now: bool,
    over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
}

/// The thread.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Vec<Job>>>,
}

impl Keeper {
    /// Starts it. Between two snapshots it waits for `every`, or until it is asked to make them.
    pub fn start(jobs: Vec<Job>, every: Option<Duration>) -> io::Result<Keeper> {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let work = move || work(&own, jobs, every);
        let thread = std::thread::Builder::new().name("rfs-persist".into()).spawn(work)?;
        Ok(Keeper { shared, thread: Some(thread) })
    }

    /// Asks for a snapshot of each export. Those that are being made are not meant: they were begun before.
    pub fn ask(&self) {
        self.shared.orders.lock().now = true;
        self.shared.changed.notify_all();
    }

    /// Makes the last snapshots, of exports that no session changes any more. `cut_short` aborts them.
    ///
    /// # Errors
    /// The exports whose last snapshot failed.
    pub fn finish(mut self, cut_short: &AtomicBool) -> Vec<LastSnapshotError> {
        let mut failed = Vec::new();
        for mut job in self.stop() {
            if job.is_idle() {
                log::info!("{}: nothing has changed since the last snapshot", job.name);
                continue;
            }
            let mut next = Instant::now() + REPORT;
            let name = job.name.clone();
            let made = job.make(|Progress { done, all }| {
                if cut_short.load(Ordering::Relaxed) {
                    return Err(io::Error::new(io::ErrorKind::Interrupted, "a second signal came"));
                }
                if Instant::now() >= next {
                    log::info!("{name}: the last snapshot: {} of {}", size::show(done), size::show(all));
                    next = Instant::now() + REPORT;
                }
                Ok(())
            });
            if let Err(source) = made {
                let newest = job.snapshots.newest_file().ok().flatten();
                failed.push(LastSnapshotError { export: job.name, newest, source });
            }
        }
        failed
    }

    /// Ends the thread.
    fn stop(&mut self) -> Vec<Job> {
        self.shared.orders.lock().over = true;
        self.shared.changed.notify_all();
        let Some(thread) = self.thread.take() else { return Vec::new() };
        // Snapshots contain their panics, and the thread does little else.
        thread.join().unwrap_or_else(|_| {
            failure::report("the thread that makes snapshots panicked: there is no last snapshot");
            Vec::new()
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(shared: &Shared, mut jobs: Vec<Job>, every: Option<Duration>) -> Vec<Job> {
    if let Err(e) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
        log::debug!("the thread that makes snapshots has the priority of others: {e}");
    }
    while let Some(asked) = wait(shared, every) {
        for job in &mut jobs {
            if asked || !job.is_idle() {
                // The log has the outcome, and the next interval brings another attempt.
                let _ = job.make(|_| match shared.orders.lock().over {
                    true => Err(io::Error::new(io::ErrorKind::Interrupted, "the server ends")),
                    false => Ok(()),
                });
            }
        }
    }
    jobs
}

/// Waits until there is something to do: whether somebody has asked for it. `None` at the end.
fn wait(shared: &Shared, every: Option<Duration>) -> Option<bool> {
    let deadline = every.and_then(|every| Instant::now().checked_add(every));
    let mut orders = shared.orders.lock();
    loop {
        if orders.over {
            return None;
        }
        if std::mem::take(&mut orders.now) {
            return Some(true);
        }
        match deadline {
            Some(deadline) if shared.changed.wait_until(&mut orders, deadline).timed_out() => {
                return (!orders.over).then(|| std::mem::take(&mut orders.now));
            }
            Some(_) => {}
            None => shared.changed.wait(&mut orders),
        }
    }
}
