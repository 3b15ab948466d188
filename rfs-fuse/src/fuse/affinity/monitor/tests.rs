use super::{
    super::fake::{Fake, Schedule, pid, pinned},
    *,
};

const CALLER: u32 = 77;
/// A thread that a session thread has started, and that the monitor does not know.
const STRAY: u32 = 90;

struct Fixture {
    monitor: Monitor<Fake>,
    world: Fake,
    session_threads: Vec<Arc<ThreadStats>>,
}

impl Fixture {
    fn new() -> Fixture {
        let (shared, world) = (Arc::new(AffinityState::default()), Fake::default());
        let session_threads: Vec<_> = [1, 2].map(|tid| Arc::new(ThreadStats::new(pid(tid)))).into();
        shared.session_threads.lock().extend(session_threads.iter().cloned());
        world.0.lock().cores.insert(CALLER, 3);
        Fixture { monitor: Monitor::new(shared, world.clone(), PinPolicy::new(true)), world, session_threads }
    }

    /// Returns a fixture whose threads are pinned for the caller.
    fn pinned() -> Fixture {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.tick(CALLER, 100), PinDecision::Observe);
        assert_eq!(fixture.world.changed(), []);
        assert_eq!(fixture.tick(CALLER, 100), PinDecision::Pin(PinTarget::One(CALLER)));
        assert_eq!(fixture.world.changed(), [(1, pinned(3)), (2, pinned(3))]);
        fixture
    }

    fn requests(&self, caller: u32, count: usize) {
        for (_, stats) in (0..count).zip(self.session_threads.iter().cycle()) {
            stats.record(caller, 0);
        }
    }

    fn tick(&mut self, caller: u32, count: usize) -> PinDecision {
        self.requests(caller, count);
        self.monitor.step(true)
    }

    /// Returns the pinned threads, and the numbers of pins and rescues.
    fn state(&self) -> (Vec<(u32, Schedule)>, u64, u64) {
        let shared = &self.monitor.shared;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (self.world.changed(), count(&shared.pins), count(&shared.rescues))
    }
}

#[test]
fn threads_move_to_the_caller() {
    let mut fixture = Fixture::pinned();
    // A new session thread is pinned where the caller is now. The others follow on their own.
    fixture.world.0.lock().cores.insert(CALLER, 0);
    fixture.monitor.shared.session_threads.lock().push(Arc::new(ThreadStats::new(pid(5))));
    assert_eq!(fixture.tick(CALLER, 100), PinDecision::Pin(PinTarget::One(CALLER)));
    assert_eq!(fixture.world.changed(), [(1, pinned(3)), (2, pinned(3)), (5, pinned(0))]);
    assert_eq!(fixture.monitor.shared.pinned_to.load(Ordering::Relaxed), CALLER);
    // The caller has ended.
    fixture.world.0.lock().cores.clear();
    assert_eq!(fixture.tick(CALLER, 100), PinDecision::Sleep);
    assert_eq!(fixture.state(), (vec![], 1, 0));
    assert_eq!(fixture.monitor.shared.pinned_to.load(Ordering::Relaxed), NO_THREAD);
    assert_eq!(fixture.tick(CALLER, 100), PinDecision::Observe);
}

/// Each session thread serves another caller.
#[test]
fn threads_of_several_callers_stay_on_one_core() {
    let mut fixture = Fixture::new();
    fixture.world.0.lock().cores.insert(CALLER + 1, 4);
    let both = |fixture: &mut Fixture| {
        (0..50).for_each(|_| _ = fixture.session_threads[0].record(CALLER, 0));
        (0..60).for_each(|_| _ = fixture.session_threads[1].record(CALLER + 1, 0));
        fixture.monitor.step(true)
    };
    assert_eq!(both(&mut fixture), PinDecision::Observe);
    assert_eq!(both(&mut fixture), PinDecision::Pin(PinTarget::Several));
    assert_eq!(fixture.world.changed(), [(1, pinned(4)), (2, pinned(4))]);
    assert_eq!(fixture.monitor.shared.pinned_to.load(Ordering::Relaxed), SEVERAL);
    // The callers move, and a new session thread joins the others.
    fixture.world.0.lock().cores.extend([(CALLER, 5), (CALLER + 1, 5)]);
    fixture.monitor.shared.session_threads.lock().push(Arc::new(ThreadStats::new(pid(5))));
    assert_eq!(both(&mut fixture), PinDecision::Pin(PinTarget::Several));
    assert_eq!(fixture.world.changed(), [(1, pinned(4)), (2, pinned(4)), (5, pinned(4))]);
    // One caller computes while another one waits.
    fixture.world.0.lock().runnable.extend([2, CALLER]);
    assert_eq!(fixture.tick(CALLER, 0), PinDecision::Pin(PinTarget::Several));
    assert!(matches!(fixture.tick(CALLER, 0), PinDecision::BackOff(_)));
    assert_eq!(fixture.state(), (vec![], 1, 1));
    // The next pin is on the callers' current core. An invisible caller does not count.
    fixture.world.0.lock().runnable.clear();
    fixture.world.0.lock().cores.remove(&(CALLER + 1));
    while both(&mut fixture) != PinDecision::Pin(PinTarget::Several) {}
    assert_eq!(fixture.world.changed(), [(1, pinned(5)), (2, pinned(5)), (5, pinned(5))]);
    assert_eq!(fixture.state().2, 1, "a deferral is no failure");
}

/// The process that the callers wait for may run on the first core.
#[test]
fn threads_of_several_callers_move_to_another_core_after_harm() {
    let mut fixture = Fixture::new();
    fixture.world.0.lock().cores.insert(CALLER + 1, 4);
    let mut at = Vec::new();
    while at.len() < 3 {
        let each = if at.is_empty() { 100 } else { 40 };
        fixture.session_threads.iter().zip(CALLER..).for_each(|(stats, caller)| {
            (0..each + caller).for_each(|_| _ = stats.record(caller, 0));
        });
        match fixture.monitor.step(true) {
            PinDecision::BackOff(_) => at.push(None),
            PinDecision::Pin(_) => at.push(fixture.monitor.shared_core),
            _ => {}
        }
        at.dedup();
    }
    // Most work came from the core of the second caller.
    assert_eq!(at, [Some(4), None, Some(3)]);
}

#[test]
fn threads_are_not_pinned_for_invisible_callers() {
    let mut fixture = Fixture::new();
    fixture.world.0.lock().cores.clear();
    for decision in [PinDecision::Observe, PinDecision::Sleep] {
        fixture.session_threads.iter().zip(CALLER..).for_each(|(stats, caller)| {
            (0..50).for_each(|_| _ = stats.record(caller, 0));
        });
        assert_eq!(fixture.monitor.step(true), decision);
    }
    assert_eq!(fixture.state(), (vec![], 0, 0));
}

/// Two threads that always have requests never sleep. Without a separation they would stay on one
/// core.
#[test]
fn threads_are_separated_before_they_are_unpinned() {
    let mut fixture = Fixture::pinned();
    fixture.monitor.shared.session_threads.lock().push(Arc::new(ThreadStats::new(pid(5))));
    assert_eq!(fixture.tick(CALLER, 100), PinDecision::Pin(PinTarget::One(CALLER)));
    assert_eq!(fixture.world.0.lock().separated, []);
    fixture.tick(CALLER + 1, 1);
    assert_eq!(fixture.world.0.lock().separated, [(pid(2), pinned(3)), (pid(5), pinned(3))]);
    assert_eq!(fixture.world.changed(), []);
    // Only pinned threads are separated.
    fixture.tick(CALLER + 1, 1);
    assert_eq!(fixture.world.0.lock().separated.len(), 2);
}

/// A thread that has followed its caller is not moved back to the core of the first thread.
#[test]
fn threads_on_different_cores_are_not_separated() {
    let mut fixture = Fixture::pinned();
    fixture.world.0.lock().threads.insert(pid(2), pinned(7));
    fixture.tick(CALLER + 1, 1);
    assert_eq!(fixture.world.0.lock().separated, []);
    assert_eq!(fixture.world.changed(), []);
}

/// A thread notices that pinning has ended, and unpins itself while it is being separated.
#[test]
fn a_thread_that_unpins_itself_during_the_separation_is_unpinned() {
    let mut fixture = Fixture::pinned();
    fixture.world.0.lock().meanwhile = Some(Box::new(|world| _ = world.threads.remove(&pid(2))));
    fixture.tick(CALLER + 1, 1);
    assert_eq!(fixture.world.changed(), []);
}

#[test]
fn a_thread_that_cannot_be_separated_is_unpinned() {
    let mut fixture = Fixture::pinned();
    fixture.world.0.lock().refuses = true;
    fixture.tick(CALLER + 1, 1);
    assert_eq!(fixture.world.0.lock().separated, []);
    assert_eq!(fixture.world.changed(), []);
}

#[test]
fn another_caller_is_noticed_before_the_tick() {
    let mut fixture = Fixture::pinned();
    fixture.requests(CALLER, 3);
    assert_eq!(fixture.monitor.step(false), PinDecision::Pin(PinTarget::One(CALLER)));
    fixture.session_threads[0].record(CALLER + 1, 0);
    assert_eq!(fixture.monitor.step(false), PinDecision::Sleep);
    assert_eq!(fixture.state(), (vec![], 1, 0));
}

#[test]
fn starving_threads_are_unpinned_for_a_pause() {
    let mut fixture = Fixture::pinned();
    fixture.world.0.lock().runnable.insert(2);
    assert_eq!(fixture.tick(CALLER, 1), PinDecision::Pin(PinTarget::One(CALLER)));
    let PinDecision::BackOff(first) = fixture.tick(CALLER, 1) else { panic!("it goes on") };
    assert_eq!(fixture.state(), (vec![], 1, 1));
    for _ in 0..2 {
        fixture.tick(CALLER, 100);
    }
    fixture.tick(CALLER, 0);
    assert_eq!(fixture.tick(CALLER, 0), PinDecision::BackOff(2 * first));
    assert_eq!(fixture.state(), (vec![], 2, 2));
}

#[test]
fn a_caller_that_is_quiet_or_computes_causes_no_rescue() {
    for runnable in [&[][..], &[1, 2, CALLER]] {
        let mut fixture = Fixture::pinned();
        fixture.world.0.lock().runnable.extend(runnable);
        assert_eq!(fixture.tick(CALLER, 0), PinDecision::Pin(PinTarget::One(CALLER)));
        assert_eq!(fixture.tick(CALLER, 0), PinDecision::Sleep);
        assert_eq!(fixture.state(), (vec![], 1, 0));
    }
}

#[test]
fn threads_are_unpinned_when_requests_overlap() {
    let mut fixture = Fixture::pinned();
    fixture.session_threads[1].sample(false);
    assert_eq!(fixture.tick(CALLER, 100), PinDecision::Pin(PinTarget::One(CALLER)));
    // Samples of all threads count, but only since the last tick.
    fixture.session_threads.iter().for_each(|stats| stats.sample(true));
    assert!(matches!(fixture.tick(CALLER, 100), PinDecision::Overlap(_)));
    assert_eq!(fixture.state(), (vec![], 1, 0));
    assert_eq!(fixture.monitor.shared.overlaps.load(Ordering::Relaxed), 1);
    for decision in [PinDecision::Observe, PinDecision::Pin(PinTarget::One(CALLER))] {
        assert_eq!(fixture.tick(CALLER, 100), decision);
    }
}

#[test]
fn a_refusal_leaves_no_thread_pinned() {
    let mut fixture = Fixture::new();
    fixture.world.0.lock().refuses = true;
    fixture.tick(CALLER, 100);
    assert!(matches!(fixture.tick(CALLER, 100), PinDecision::BackOff(_)));
    // Also not the thread whose pin was refused after its policy had changed.
    assert_eq!(fixture.state(), (vec![], 0, 0));
}

#[test]
fn threads_that_session_threads_start_do_not_stay_pinned() {
    let mut fixture = Fixture::pinned();
    fixture.world.0.lock().threads.insert(pid(STRAY), pinned(3));
    for _ in 0..STRAY_SEARCH_TICKS {
        fixture.tick(CALLER, 100);
    }
    assert_eq!(fixture.world.changed(), [(1, pinned(3)), (2, pinned(3))]);
    fixture.world.0.lock().threads.insert(pid(STRAY), pinned(3));
    fixture.tick(CALLER + 1, 1);
    assert_eq!(fixture.world.changed(), []);
}
