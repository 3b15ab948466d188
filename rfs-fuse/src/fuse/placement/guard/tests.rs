use super::{
    super::fake::{Fake, Schedule, bound, pid},
    *,
};

const CALLER: u32 = 77;
/// A thread that a session thread has started, and that the guard does not know.
const STRAY: u32 = 90;

struct Table {
    guard: Guard<Fake>,
    world: Fake,
    seats: Vec<Arc<Seat>>,
}

impl Table {
    fn new() -> Table {
        let (shared, world) = (Arc::new(Shared::default()), Fake::default());
        let seats: Vec<_> = [1, 2].map(|tid| Arc::new(Seat::new(pid(tid)))).into();
        shared.seats.lock().extend(seats.iter().cloned());
        world.0.lock().cores.insert(CALLER, 3);
        Table { guard: Guard::new(shared, world.clone(), Habit::new(true)), world, seats }
    }

    /// Returns a table whose threads are pinned for the caller.
    fn following() -> Table {
        let mut table = Table::new();
        assert_eq!(table.tick(CALLER, 100), Wish::Watch);
        assert_eq!(table.world.changed(), []);
        assert_eq!(table.tick(CALLER, 100), Wish::Follow(Whom::One(CALLER)));
        assert_eq!(table.world.changed(), [(1, bound(3)), (2, bound(3))]);
        table
    }

    fn requests(&self, caller: u32, count: usize) {
        for (_, seat) in (0..count).zip(self.seats.iter().cycle()) {
            seat.note(caller, 0);
        }
    }

    fn tick(&mut self, caller: u32, count: usize) -> Wish {
        self.requests(caller, count);
        self.guard.step(true)
    }

    /// Returns the pinned threads, and the numbers of pins and rescues.
    fn state(&self) -> (Vec<(u32, Schedule)>, u64, u64) {
        let shared = &self.guard.shared;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (self.world.changed(), count(&shared.follows), count(&shared.rescues))
    }
}

#[test]
fn threads_move_to_the_caller() {
    let mut table = Table::following();
    // A new session thread is pinned where the caller is now. The others follow on their own.
    table.world.0.lock().cores.insert(CALLER, 0);
    table.guard.shared.seats.lock().push(Arc::new(Seat::new(pid(5))));
    assert_eq!(table.tick(CALLER, 100), Wish::Follow(Whom::One(CALLER)));
    assert_eq!(table.world.changed(), [(1, bound(3)), (2, bound(3)), (5, bound(0))]);
    assert_eq!(table.guard.shared.followed.load(Ordering::Relaxed), CALLER);
    // The caller has ended.
    table.world.0.lock().cores.clear();
    assert_eq!(table.tick(CALLER, 100), Wish::Rest);
    assert_eq!(table.state(), (vec![], 1, 0));
    assert_eq!(table.guard.shared.followed.load(Ordering::Relaxed), NOBODY);
    assert_eq!(table.tick(CALLER, 100), Wish::Watch);
}

/// Each session thread serves another caller.
#[test]
fn threads_of_several_callers_stay_on_one_core() {
    let mut table = Table::new();
    table.world.0.lock().cores.insert(CALLER + 1, 4);
    let both = |table: &mut Table| {
        (0..50).for_each(|_| _ = table.seats[0].note(CALLER, 0));
        (0..60).for_each(|_| _ = table.seats[1].note(CALLER + 1, 0));
        table.guard.step(true)
    };
    assert_eq!(both(&mut table), Wish::Watch);
    assert_eq!(both(&mut table), Wish::Follow(Whom::Several));
    assert_eq!(table.world.changed(), [(1, bound(4)), (2, bound(4))]);
    assert_eq!(table.guard.shared.followed.load(Ordering::Relaxed), SEVERAL);
    // The callers move, and a new session thread joins the others.
    table.world.0.lock().cores.extend([(CALLER, 5), (CALLER + 1, 5)]);
    table.guard.shared.seats.lock().push(Arc::new(Seat::new(pid(5))));
    assert_eq!(both(&mut table), Wish::Follow(Whom::Several));
    assert_eq!(table.world.changed(), [(1, bound(4)), (2, bound(4)), (5, bound(4))]);
    // One caller computes while another one waits.
    table.world.0.lock().runnable.extend([2, CALLER]);
    assert_eq!(table.tick(CALLER, 0), Wish::Follow(Whom::Several));
    assert!(matches!(table.tick(CALLER, 0), Wish::Pause(_)));
    assert_eq!(table.state(), (vec![], 1, 1));
    // The next pin is on the callers' current core. An invisible caller does not count.
    table.world.0.lock().runnable.clear();
    table.world.0.lock().cores.remove(&(CALLER + 1));
    while both(&mut table) != Wish::Follow(Whom::Several) {}
    assert_eq!(table.world.changed(), [(1, bound(5)), (2, bound(5)), (5, bound(5))]);
    assert_eq!(table.state().2, 1, "to be left alone for a while is no failure");
}

/// The process that the callers wait for may run on the first core.
#[test]
fn threads_of_several_callers_move_to_another_core_after_harm() {
    let mut table = Table::new();
    table.world.0.lock().cores.insert(CALLER + 1, 4);
    let mut at = Vec::new();
    while at.len() < 3 {
        let each = if at.is_empty() { 100 } else { 40 };
        table.seats.iter().zip(CALLER..).for_each(|(seat, caller)| {
            (0..each + caller).for_each(|_| _ = seat.note(caller, 0));
        });
        match table.guard.step(true) {
            Wish::Pause(_) => at.push(None),
            Wish::Follow(_) => at.push(table.guard.place),
            _ => {}
        }
        at.dedup();
    }
    // Most work came from the core of the second caller.
    assert_eq!(at, [Some(4), None, Some(3)]);
}

#[test]
fn threads_are_not_pinned_for_invisible_callers() {
    let mut table = Table::new();
    table.world.0.lock().cores.clear();
    for wish in [Wish::Watch, Wish::Rest] {
        table.seats.iter().zip(CALLER..).for_each(|(seat, caller)| {
            (0..50).for_each(|_| _ = seat.note(caller, 0));
        });
        assert_eq!(table.guard.step(true), wish);
    }
    assert_eq!(table.state(), (vec![], 0, 0));
}

/// Two threads that always have requests never sleep. Without a separation they would stay on one
/// core.
#[test]
fn threads_are_separated_before_they_are_unpinned() {
    let mut table = Table::following();
    table.guard.shared.seats.lock().push(Arc::new(Seat::new(pid(5))));
    assert_eq!(table.tick(CALLER, 100), Wish::Follow(Whom::One(CALLER)));
    assert_eq!(table.world.0.lock().parted, []);
    table.tick(CALLER + 1, 1);
    assert_eq!(table.world.0.lock().parted, [(pid(2), bound(3)), (pid(5), bound(3))]);
    assert_eq!(table.world.changed(), []);
    // Only pinned threads are separated.
    table.tick(CALLER + 1, 1);
    assert_eq!(table.world.0.lock().parted.len(), 2);
}

/// A thread that has followed its caller is not moved back to the core of the first thread.
#[test]
fn threads_on_different_cores_are_not_separated() {
    let mut table = Table::following();
    table.world.0.lock().threads.insert(pid(2), bound(7));
    table.tick(CALLER + 1, 1);
    assert_eq!(table.world.0.lock().parted, []);
    assert_eq!(table.world.changed(), []);
}

/// A thread notices that pinning has ended, and unpins itself while it is being separated.
#[test]
fn a_thread_that_unpins_itself_during_the_separation_is_unpinned() {
    let mut table = Table::following();
    table.world.0.lock().meanwhile = Some(Box::new(|world| _ = world.threads.remove(&pid(2))));
    table.tick(CALLER + 1, 1);
    assert_eq!(table.world.changed(), []);
}

#[test]
fn a_thread_that_cannot_be_separated_is_unpinned() {
    let mut table = Table::following();
    table.world.0.lock().refuses = true;
    table.tick(CALLER + 1, 1);
    assert_eq!(table.world.0.lock().parted, []);
    assert_eq!(table.world.changed(), []);
}

#[test]
fn another_caller_is_noticed_before_the_tick() {
    let mut table = Table::following();
    table.requests(CALLER, 3);
    assert_eq!(table.guard.step(false), Wish::Follow(Whom::One(CALLER)));
    table.seats[0].note(CALLER + 1, 0);
    assert_eq!(table.guard.step(false), Wish::Rest);
    assert_eq!(table.state(), (vec![], 1, 0));
}

#[test]
fn starving_threads_are_unpinned_for_a_pause() {
    let mut table = Table::following();
    table.world.0.lock().runnable.insert(2);
    assert_eq!(table.tick(CALLER, 1), Wish::Follow(Whom::One(CALLER)));
    let Wish::Pause(first) = table.tick(CALLER, 1) else { panic!("it goes on") };
    assert_eq!(table.state(), (vec![], 1, 1));
    for _ in 0..2 {
        table.tick(CALLER, 100);
    }
    table.tick(CALLER, 0);
    assert_eq!(table.tick(CALLER, 0), Wish::Pause(2 * first));
    assert_eq!(table.state(), (vec![], 2, 2));
}

#[test]
fn a_caller_that_is_quiet_or_computes_causes_no_rescue() {
    for runnable in [&[][..], &[1, 2, CALLER]] {
        let mut table = Table::following();
        table.world.0.lock().runnable.extend(runnable);
        assert_eq!(table.tick(CALLER, 0), Wish::Follow(Whom::One(CALLER)));
        assert_eq!(table.tick(CALLER, 0), Wish::Rest);
        assert_eq!(table.state(), (vec![], 1, 0));
    }
}

#[test]
fn threads_are_unpinned_when_requests_overlap() {
    let mut table = Table::following();
    table.seats[1].sample(false);
    assert_eq!(table.tick(CALLER, 100), Wish::Follow(Whom::One(CALLER)));
    // Samples of all threads count, but only since the last tick.
    table.seats.iter().for_each(|seat| seat.sample(true));
    assert!(matches!(table.tick(CALLER, 100), Wish::Overlap(_)));
    assert_eq!(table.state(), (vec![], 1, 0));
    assert_eq!(table.guard.shared.overlaps.load(Ordering::Relaxed), 1);
    for wish in [Wish::Watch, Wish::Follow(Whom::One(CALLER))] {
        assert_eq!(table.tick(CALLER, 100), wish);
    }
}

#[test]
fn a_refusal_leaves_no_thread_pinned() {
    let mut table = Table::new();
    table.world.0.lock().refuses = true;
    table.tick(CALLER, 100);
    assert!(matches!(table.tick(CALLER, 100), Wish::Pause(_)));
    // Also not the thread whose pin was refused after its policy had changed.
    assert_eq!(table.state(), (vec![], 0, 0));
}

#[test]
fn threads_that_session_threads_start_do_not_stay_pinned() {
    let mut table = Table::following();
    table.world.0.lock().threads.insert(pid(STRAY), bound(3));
    for _ in 0..STRAYS {
        table.tick(CALLER, 100);
    }
    assert_eq!(table.world.changed(), [(1, bound(3)), (2, bound(3))]);
    table.world.0.lock().threads.insert(pid(STRAY), bound(3));
    table.tick(CALLER + 1, 1);
    assert_eq!(table.world.changed(), []);
}
