use std::{
    sync::{Arc, atomic::Ordering},
    thread,
};

use super::*;

#[test]
fn a_writer_has_exclusive_access() {
    // The writer keeps two words equal. There are more threads than slots.
    const ROUNDS: u64 = 20;
    let lock = ReaderLock::new([0_u64; 2]);
    thread::scope(|scope| {
        for _ in 0..thread_slot::COUNT + 8 {
            scope.spawn(|| {
                let mut last = 0;
                while last < ROUNDS {
                    let pair = *lock.read();
                    assert_eq!(pair[0], pair[1]);
                    assert!(pair[0] >= last);
                    last = pair[0];
                    thread::yield_now();
                }
            });
        }
        for round in 1..=ROUNDS {
            let mut pair = lock.write();
            pair[0] += 1;
            thread::yield_now();
            pair[1] += 1;
            assert_eq!(*pair, [round; 2]);
        }
    });
}

#[test]
fn no_reader_enters_while_a_writer_holds_the_lock() {
    let lock = ReaderLock::new(());
    let writer = lock.write();
    assert!(lock.try_read().is_none());
    thread::scope(|scope| {
        assert!(scope.spawn(|| lock.try_read().is_none()).join().unwrap());
    });
    drop(writer);
    assert!(lock.try_read().is_some());
    assert!(lock.try_read().is_some());
}

#[test]
fn without_slots_the_lock_behaves_like_an_ordinary_lock() {
    let lock = ReaderLock::new(0);
    let reader = lock.read_in(None);
    assert_eq!(lock.try_read_in(None).map(|value| *value), Some(0));
    thread::scope(|scope| {
        let writer = scope.spawn(|| *lock.write_in(&[]) += 1);
        assert_eq!(*reader, 0);
        drop(reader);
        writer.join().unwrap();
    });
    let writer = lock.write_in(&[]);
    assert_eq!(*writer, 1);
    assert!(lock.try_read_in(None).is_none());
}

#[test]
fn a_thread_may_hold_more_read_locks_than_its_slot_has_entries() {
    let locks: Vec<Arc<ReaderLock<u32>>> =
        (0..2 * DEPTH as u32).map(|number| Arc::new(ReaderLock::new(number))).collect();
    let guards: Vec<_> = locks.iter().map(|lock| lock.read()).collect();
    let writers: Vec<_> = locks
        .iter()
        .map(|lock| {
            let lock = Arc::clone(lock);
            thread::spawn(move || *lock.write() += 100)
        })
        .collect();
    // The writers of locks held through the slot have set `writing`. The other locks are held
    // through `rest`.
    while locks[..DEPTH].iter().any(|lock| !lock.writing.load(Ordering::Relaxed)) {
        thread::yield_now();
    }
    for (number, guard) in (0..).zip(&guards) {
        assert_eq!(**guard, number);
    }
    drop(guards);
    for writer in writers {
        writer.join().unwrap();
    }
    for (number, lock) in (100..).zip(&locks) {
        assert_eq!(*lock.read(), number);
    }
}
