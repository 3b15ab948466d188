//! Runs programs on mounts, and checks each round against the model.
//!
//! # Concurrency
//!
//! Each task of a stage runs on a thread of its own. The calling thread starts, kills
//! and mounts clients, and searches for orders.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use super::{
    model::State,
    operation::{Op, Outcome},
    program::{Program, Task},
    serialization::{Call, Mismatch, Names, serialize},
    view::View,
    worker::Worker,
};
use crate::{
    error::{Error, Result},
    testbed::{Host, Mount, Testbed, unmount},
};

/// Time in which a mount drops a name that was recalled while it changed the directory.
const DROP_LIMIT: Duration = Duration::from_secs(1);

/// Errors of operations on a client that was killed.
const KILLED: [i32; 8] = [
    libc::ENOTCONN,
    libc::ECONNABORTED,
    libc::ECONNRESET,
    libc::EIO,
    libc::EHOSTDOWN,
    libc::EINTR,
    libc::ENODEV,
    // Of a mount over io_uring, whose entries the kernel cancels.
    libc::ECANCELED,
];

/// Kernel caching of the mounts, and the required correctness of their reads.
#[derive(Clone, Debug)]
pub(crate) struct Caches {
    /// The argument of `--cache` for each mount.
    pub(crate) of: Vec<String>,
    /// Reads from pages see each write that returned before.
    pub(crate) coherent: bool,
}

/// A server and its mounts.
#[derive(Debug)]
struct Mounted<'a> {
    testbed: Testbed<'a>,
    mounts: Vec<Mount>,
}

/// Directories that programs run in: mounts, or one directory that stands for all of them.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    mounted: Option<Mounted<'a>>,
    points: Vec<PathBuf>,
    caches: Caches,
    workers: usize,
    runs: u32,
    clock: Instant,
}

/// A result that the model does not allow.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) round: usize,
    pub(crate) reason: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) start: State,
}

/// The outcome of a round.
struct Checked {
    outcome: std::result::Result<State, Mismatch>,
    /// True if the tree was read more than once.
    is_late: bool,
    /// Whether names were current.
    names: Names,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) operations: usize,
    pub(crate) rounds: usize,
    pub(crate) kills: usize,
    pub(crate) undecided: usize,
    /// Rounds after which a mount showed an earlier name at first.
    pub(crate) late: usize,
    /// Rounds in which a call used an earlier name.
    pub(crate) earlier: usize,
    pub(crate) failure: Option<Failure>,
}

impl<'a> Field<'a> {
    /// Mounts once for each entry of `caches`.
    pub(crate) fn start(mut testbed: Testbed<'a>, caches: Caches, workers: usize) -> Result<Field<'a>> {
        let mounts = caches.of.iter().map(|cache| mount(&mut testbed, cache)).collect::<Result<Vec<_>>>()?;
        let points = mounts.iter().map(|mount| mount.point.clone()).collect();
        let mounted = Some(Mounted { testbed, mounts });
        Ok(Field { mounted, points, caches, workers, runs: 0, clock: Instant::now() })
    }

    /// Has a directory of this host testbed for all mounts: the model has to allow its behaviour.
    pub(crate) fn local(directory: &Path, caches: Caches, workers: usize) -> Field<'a> {
        let points = caches.of.iter().map(|_| directory.to_owned()).collect();
        Field { mounted: None, points, caches, workers, runs: 0, clock: Instant::now() }
    }

    /// Ends all mounts and the server. Returns an error if one does not end cleanly.
    pub(crate) fn stop(self) -> Result<()> {
        let Some(Mounted { testbed, mounts }) = self.mounted else { return Ok(()) };
        mounts.into_iter().try_for_each(Mount::unmount)?;
        testbed.stop()
    }

    /// Runs a program in a directory of its own, which is removed if all went well.
    pub(crate) fn run(&mut self, program: &Program) -> Result<Run> {
        self.runs += 1;
        let name = format!("run{}", self.runs);
        fs::create_dir(self.points[0].join(&name)).map_err(Error::io("mkdir"))?;
        let count = self.points.len();
        let mut workers: Vec<_> =
            (0..self.workers).map(|worker| self.worker(worker % count, &name)).collect();
        let all = self.workers;
        let of_mount = |mount| (0..all).filter(move |worker| worker % count == mount);
        let (mut run, mut state) = (Run::default(), State::empty());
        for (number, round) in program.rounds.iter().enumerate() {
            // The locks of a killed client are freed soon, but not at once. The trial
            // `killed-clients` tests them.
            let kill =
                round.kill.filter(|&(mount, _)| !of_mount(mount).any(|worker| state.has_locks(worker)));
            let killed: Vec<_> = kill.into_iter().flat_map(|(mount, _)| of_mount(mount)).collect();
            let calls = self.perform(&round.stages, kill, &mut workers, (&name, &mut run))?;
            let checked = self.check(&state, &calls, &killed, (&name, &workers));
            run.late += usize::from(checked.is_late);
            run.earlier += usize::from(checked.names == Names::Earlier);
            match checked.outcome {
                Ok(next) => state = next,
                Err(Mismatch::Undecided) => {
                    // The following rounds have no state to start from.
                    run.undecided += 1;
                    break;
                }
                Err(Mismatch::Wrong(reason)) => {
                    run.failure = Some(Failure { round: number, reason, calls, start: state });
                    return Ok(run);
                }
            }
        }
        drop(workers);
        let removed = fs::remove_dir_all(self.points[count - 1].join(&name));
        if let (Err(e), 0) = (&removed, run.undecided) {
            let (calls, start) = (Vec::new(), state);
            let reason = format!("the tree cannot be removed: {e}");
            run.failure = Some(Failure { round: program.rounds.len(), reason, calls, start });
        }
        Ok(run)
    }

    fn worker(&self, mount: usize, name: &str) -> Worker {
        let cached = self.caches.of[mount] != "none";
        let coherent = self.caches.coherent || !cached;
        Worker::new(mount, self.points[mount].join(name), (cached, coherent))
    }

    /// Performs all stages of a round.
    fn perform(
        &mut self,
        stages: &[Vec<Task>],
        kill: Option<(usize, u64)>,
        workers: &mut [Worker],
        (name, run): (&str, &mut Run),
    ) -> Result<Vec<Call>> {
        let mut calls = Vec::new();
        for (number, stage) in stages.iter().enumerate() {
            let kill = kill.filter(|_| number + 1 == stages.len());
            self.mounted.as_ref().map_or(Ok(()), |mounted| mounted.testbed.interrupted())?;
            let (mut done, killed) = self.perform_stage(stage, workers, kill);
            if let Some((mount, _)) = kill {
                let since = killed?;
                run.kills += 1;
                self.replace(mount, workers, name)?;
                let ended = |call: &&mut Call| call.mount == mount && call.to >= since;
                done.iter_mut().filter(ended).for_each(forget);
            }
            calls.extend(done);
        }
        run.rounds += 1;
        run.operations += calls.len();
        Ok(calls)
    }

    /// Performs a stage, and kills a client in it. Returns the calls, and the time of the kill.
    fn perform_stage(
        &mut self,
        stage: &[Task],
        workers: &mut [Worker],
        kill: Option<(usize, u64)>,
    ) -> (Vec<Call>, Result<u64>) {
        let clock = self.clock;
        let tasks_of = |number: usize| -> Vec<Task> {
            stage.iter().filter(|task| task.worker == number).copied().collect()
        };
        let busy: Vec<_> = (workers.iter_mut().enumerate())
            .map(|(number, worker)| (worker, tasks_of(number)))
            .filter(|(_, tasks)| !tasks.is_empty())
            .collect();
        let barrier = Barrier::new(busy.len() + usize::from(kill.is_some()));
        let mut killed = Ok(0);
        let mut calls = thread::scope(|scope| {
            let barrier = &barrier;
            let start = |(worker, tasks): (_, Vec<Task>)| {
                scope.spawn(move || {
                    let worker: &mut Worker = worker;
                    barrier.wait();
                    tasks.into_iter().map(|task| call(worker, task, clock)).collect::<Vec<_>>()
                })
            };
            let running: Vec<_> = busy.into_iter().map(start).collect();
            if let Some((mount, after)) = kill {
                barrier.wait();
                thread::sleep(Duration::from_micros(after));
                let since = clock.elapsed().as_nanos() as u64;
                let kill = |mounted: &mut Mounted<'_>| mounted.mounts[mount].kill();
                killed = self.mounted.as_mut().map_or(Ok(()), kill).map(|()| since);
            }
            running.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect::<Vec<_>>()
        });
        calls.sort_by_key(|call| call.from);
        (calls, killed)
    }

    /// Mounts anew for a client that was killed.
    fn replace(&mut self, mount: usize, workers: &mut [Worker], name: &str) -> Result<()> {
        workers.iter_mut().filter(|worker| worker.mount == mount).for_each(Worker::close_all);
        let Some(mounted) = &mut self.mounted else { return Ok(()) };
        unmount(&self.points[mount])?;
        mounted.mounts[mount] = self::mount(&mut mounted.testbed, &self.caches.of[mount])?;
        self.points[mount].clone_from(&mounted.mounts[mount].point);
        for worker in workers.iter_mut().filter(|worker| worker.mount == mount) {
            worker.root = self.points[mount].join(name);
        }
        Ok(())
    }

    /// Reads the whole tree through all mounts and compares it with the model. A mount that changed
    /// a directory meanwhile drops its names right after that. So the tree is read again if it does
    /// not fit. An object that is seen twice at one place has to be the same each time.
    fn check(
        &self,
        start: &State,
        calls: &[Call],
        killed: &[usize],
        (name, workers): (&str, &[Worker]),
    ) -> Checked {
        let view = |(mount, at): (usize, &PathBuf)| View::take(mount, &at.join(name), workers);
        let take = || -> Vec<View> { self.points.iter().enumerate().map(view).collect() };
        let give_up = Instant::now() + DROP_LIMIT;
        let first = take();
        let mut checked = compare(start, calls, &first, killed);
        while matches!(checked.outcome, Err(Mismatch::Wrong(_))) && Instant::now() < give_up {
            thread::sleep(Duration::from_millis(1));
            let now = take();
            let change = first.iter().zip(&now).find_map(|(first, now)| first.change(now));
            if let Some(change) = change {
                let outcome = Err(Mismatch::Wrong(change));
                return Checked { outcome, is_late: true, names: Names::Current };
            }
            checked = Checked { is_late: true, ..compare(start, calls, &now, killed) };
        }
        checked
    }
}

/// Compares the trees of all mounts with the model.
fn compare(start: &State, calls: &[Call], views: &[View], killed: &[usize]) -> Checked {
    let checked = |outcome, names| Checked { outcome, is_late: false, names };
    if let Some(difference) = views[1..].iter().find_map(|other| views[0].disagreement(other)) {
        return checked(Err(Mismatch::Wrong(difference)), Names::Current);
    }
    let current = serialize(start, calls, views, killed, Names::Current);
    if !matches!(current, Err(Mismatch::Wrong(_))) {
        return checked(current, Names::Current);
    }
    match serialize(start, calls, views, killed, Names::Earlier) {
        // The reason without earlier names is easier to understand.
        Err(Mismatch::Wrong(_)) => checked(current, Names::Current),
        outcome => checked(outcome, Names::Earlier),
    }
}

fn mount(testbed: &mut Testbed<'_>, cache: &str) -> Result<Mount> {
    // A client that is killed leaves a mount that fails, not the directory below it. Emulated
    // processors of a busy machine take their time for a connection.
    let more = ["--cache", cache, "--leave-dead-mount", "--connect-timeout", "30"].map(str::to_owned);
    testbed.mount_at(Host::Server, &more)
}

fn call(worker: &mut Worker, task: Task, clock: Instant) -> Call {
    let Task { worker: number, id, op } = task;
    let now = || clock.elapsed().as_nanos() as u64;
    let (checked, paged) = (worker.is_checked(&op), worker.is_paged(&op));
    let from = now();
    let outcome = worker.perform(&op, id);
    Call {
        worker: number,
        mount: worker.mount,
        id,
        op,
        from,
        to: now(),
        outcome,
        checked,
        paged,
        killed: false,
    }
}

/// Marks an operation whose client was killed before it returned. If it failed for that, it may
/// take effect at any time.
fn forget(call: &mut Call) {
    call.killed = true;
    if matches!(call.outcome, Outcome::Failed(error) if KILLED.contains(&error)) {
        call.outcome = Outcome::Unknown;
        call.to = u64::MAX;
    }
    // Closing fails for it silently.
    if matches!(call.op, Op::Close { .. }) {
        call.outcome = Outcome::Unknown;
    }
}
