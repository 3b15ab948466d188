//! Waits for several things at once: requests and calls, of one or several sessions.
//!
//! The thread takes the lead of each completion queue that it waits for, and polls the queues in
//! turn. All of them so make progress, and no other thread is started. When the polling modes say
//! so, it sleeps in one `poll(2)` for all queues.
//!
//! If another thread has the lead of a queue, that thread dispatches its completions and unparks
//! this thread, but cannot end a `poll(2)`. Such sleeps are therefore short.
//!
//! # Concurrency
//! Leads are only tried. A thread that holds some of them never blocks for another one.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::cq_wait::{CqWaiters, Lead, POLLS_PER_YIELD, remaining};
use crate::{
    stats::Stats,
    sync::{now, park_timeout, spin_loop, yield_now},
    verbs::{VerbsError, WorkCompletion},
};

/// Longest sleep while another thread polls one of the queues, or a request is not posted.
const SHORT_SLEEP: Duration = Duration::from_millis(1);
/// Longest sleep otherwise. Another thread may meanwhile post a part of a request on a queue that
/// this thread does not poll.
const LONG_SLEEP: Duration = Duration::from_millis(20);
/// Time between two attempts to end an overdue request.
const RETRY_ABANDON: Duration = Duration::from_millis(10);

/// A completion queue, with its user.
#[derive(Clone, Copy)]
pub(crate) struct CqSource<'a> {
    pub(crate) cq_waiters: &'a CqWaiters,
    pub(crate) stats: &'a Stats,
    pub(crate) user: &'a dyn CqUser,
}

/// The user of a completion queue.
pub(crate) trait CqUser {
    fn dispatch(&self, wcs: &[WorkCompletion]);
    /// Ends the user's requests, because the queue is unusable.
    fn cq_broken(&self, error: &VerbsError);
}

/// Something to wait for.
pub(crate) trait Waitable {
    fn is_done(&self) -> bool;
    /// Prepares the wait of the calling thread. Returns the time at which the request is overdue.
    fn begin_wait(&mut self) -> Instant;
    /// Ends the wait of the calling thread.
    fn end_wait(&mut self);
    /// Ends an overdue request. Called repeatedly until it is done.
    fn abandon(&mut self);
    /// Passes the queues that can complete it to `visit`. Returns false if it is not posted.
    fn sources<'a>(&'a self, visit: &mut dyn FnMut(CqSource<'a>)) -> bool;
}

struct Item<'a, 'b> {
    waits: &'a mut (dyn Waitable + 'b),
    overdue: Instant,
}

/// Waits until all of `things` are done, or any of them, at most until `deadline`. Returns false
/// if the time is over, after at least one poll. Overdue requests are ended meanwhile.
pub(crate) fn wait_many<'a, 'b: 'a>(
    things: impl Iterator<Item = &'a mut (dyn Waitable + 'b)>,
    all: bool,
    deadline: Option<Instant>,
) -> bool {
    let begin = |waits: &'a mut (dyn Waitable + 'b)| {
        let overdue = waits.begin_wait();
        Item { waits, overdue }
    };
    let mut items: SmallVec<[Item<'_, '_>; 8]> = things.map(begin).collect();
    let mut has_polled = false;
    let enough = loop {
        let done = items.iter().filter(|item| item.waits.is_done()).count();
        if done == items.len() || (!all && done > 0) {
            break true;
        }
        let time = now();
        if has_polled && deadline.is_some_and(|deadline| time >= deadline) {
            break false;
        }
        has_polled = true;
        let mut until = deadline;
        for item in items.iter_mut().filter(|item| !item.waits.is_done()) {
            if time >= item.overdue {
                item.waits.abandon();
                item.overdue = time + RETRY_ABANDON;
            }
            until = Some(until.map_or(item.overdue, |until| until.min(item.overdue)));
        }
        let until = until.unwrap_or(time + LONG_SLEEP);
        let is_same = || items.iter().filter(|item| item.waits.is_done()).count() == done;
        make_progress(&items, until, &is_same);
    };
    items.iter_mut().for_each(|item| item.waits.end_wait());
    enough
}

/// The queues that the thread polls.
type Leads<'a> = SmallVec<[(CqSource<'a>, Lead<'a>); 8]>;

/// Polls and sleeps until a completion is found, `is_same` is false, or `until` has passed. May
/// return earlier.
fn make_progress(items: &[Item<'_, '_>], until: Instant, is_same: &dyn Fn() -> bool) {
    let mut leads = Leads::new();
    let mut longest = LONG_SLEEP;
    for item in items.iter().filter(|item| !item.waits.is_done()) {
        let posted = item.waits.sources(&mut |source| {
            if leads.iter().any(|(_, lead)| lead.is_of(source.cq_waiters)) {
                return;
            }
            match source.cq_waiters.try_lead() {
                Some(lead) => leads.push((source, lead)),
                None => longest = SHORT_SLEEP,
            }
        });
        if !posted {
            longest = SHORT_SLEEP;
        }
    }
    if leads.is_empty() {
        // The threads that poll unpark this thread.
        return park_timeout(remaining(until).unwrap_or_default().min(longest));
    }
    let mut empty = 0;
    while is_same() {
        match poll_each(&mut leads) {
            Ok(0) => {}
            Ok(_) | Err(()) => return,
        }
        if leads.iter().all(|(_, lead)| lead.may_sleep()) {
            let Some(left) = remaining(until) else { return };
            return sleep(&mut leads, left.min(longest));
        }
        empty += 1;
        if empty % POLLS_PER_YIELD != 0 {
            spin_loop();
        } else if remaining(until).is_none() {
            return;
        } else {
            yield_now();
        }
    }
}

/// Polls each queue once. Returns the number of completions, or an error if a queue is unusable.
fn poll_each(leads: &mut Leads<'_>) -> Result<usize, ()> {
    let mut found = 0;
    for (source, lead) in leads {
        let user = source.user;
        match lead.poll(source.stats, &|wcs| user.dispatch(wcs)) {
            Ok(count) => found += count,
            Err(e) => {
                user.cq_broken(&e);
                return Err(());
            }
        }
    }
    Ok(found)
}

/// Sleeps until one of the queues has an event, at most for `limit`.
fn sleep(leads: &mut Leads<'_>, limit: Duration) {
    let Some((first, _)) = leads.first() else { return };
    first.stats.sleeps.inc();
    let all_fds = leads.iter().all(|(_, lead)| lead.cq().event_fds()[0].is_some());
    if leads.len() > 1 && all_fds {
        let fds = leads.iter().flat_map(|(_, lead)| lead.cq().event_fds()).flatten();
        let mut fds: SmallVec<[PollFd<'_>; 16]> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(limit).ok();
        // An error is reported again by the wait below.
        let _ = poll(&mut fds, timeout.as_ref());
    }
    // Only one queue, or a queue that cannot be waited for with others: the thread polls the
    // others after a short sleep.
    let mut left = match (leads.len(), all_fds) {
        (1, _) => limit,
        (_, true) => Duration::ZERO,
        (_, false) => limit.min(SHORT_SLEEP),
    };
    for (source, lead) in leads {
        match lead.cq().wait(Some(left)) {
            Ok(true) => source.stats.events.inc(),
            Ok(false) => {}
            Err(e) => return source.user.cq_broken(&e),
        }
        lead.after_wake();
        left = Duration::ZERO;
    }
}
