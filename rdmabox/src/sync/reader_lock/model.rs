//! Loom models of readers and writers. The model checker watches the value for races.

use loom::cell::UnsafeCell as Watched;

use super::*;
use crate::sync::model::{check, go};

/// Returns the slots of a model's threads.
fn slots<const N: usize>() -> std::sync::Arc<[Slot; N]> {
    std::sync::Arc::new(std::array::from_fn(|_| Slot(std::array::from_fn(|_| AtomicUsize::new(0)))))
}

fn lock() -> std::sync::Arc<ReaderLock<Watched<[u32; 2]>>> {
    std::sync::Arc::new(ReaderLock::new(Watched::new([0; 2])))
}

fn change(lock: &ReaderLock<Watched<[u32; 2]>>, slots: &[Slot]) {
    let value = lock.write_in(slots);
    // SAFETY: the lock is held for writing; the model checker reports a race otherwise.
    value.with_mut(|pair| unsafe {
        (*pair)[0] += 1;
        (*pair)[1] += 1;
    });
}

fn look(value: &Watched<[u32; 2]>) -> u32 {
    // SAFETY: the lock is held for reading; the model checker reports a race otherwise.
    let [one, other] = value.with(|pair| unsafe { *pair });
    assert_eq!(one, other);
    one
}

#[test]
fn a_writer_excludes_a_reader_with_a_slot() {
    check(None, || {
        let (lock, slots) = (lock(), slots::<1>());
        let reader = go({
            let (lock, slots) = (lock.clone(), slots.clone());
            move || {
                let first = look(&lock.read_in(Some(&slots[0])));
                assert!(look(&lock.read_in(Some(&slots[0]))) >= first);
            }
        });
        change(&lock, &*slots);
        reader.join().unwrap();
        assert_eq!(look(&lock.read_in(Some(&slots[0]))), 1);
        assert_eq!(slots[0].0[0].load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_writer_excludes_readers_with_and_without_a_slot() {
    check(Some(3), || {
        let (lock, slots) = (lock(), slots::<1>());
        let readers: Vec<_> = [true, false]
            .into_iter()
            .map(|announces| {
                let (lock, slots) = (lock.clone(), slots.clone());
                go(move || look(&lock.read_in(announces.then_some(&slots[0]))))
            })
            .collect();
        change(&lock, &*slots);
        for reader in readers {
            assert!(reader.join().unwrap() <= 1);
        }
    });
}

#[test]
fn two_writers_exclude_each_other_and_a_reader_that_tries() {
    check(Some(3), || {
        let (lock, slots) = (lock(), slots::<1>());
        let reader = go({
            let (lock, slots) = (lock.clone(), slots.clone());
            move || lock.try_read_in(Some(&slots[0])).map(|value| look(&value))
        });
        let writer = go({
            let (lock, slots) = (lock.clone(), slots.clone());
            move || change(&lock, &*slots)
        });
        change(&lock, &*slots);
        writer.join().unwrap();
        assert!(reader.join().unwrap().is_none_or(|seen| seen <= 2));
        assert_eq!(look(&lock.read_in(Some(&slots[0]))), 2);
    });
}

#[test]
fn a_writer_waits_until_earlier_readers_have_finished() {
    // Models the end of a queue pair: the state changes, then the writer waits for executions that
    // have not seen the change.
    check(None, || {
        let (lock, slots) = (lock(), slots::<1>());
        let (ended, used) =
            (std::sync::Arc::new(AtomicBool::new(false)), std::sync::Arc::new(Watched::new(0)));
        let executor = go({
            let (lock, slots, ended, used) = (lock.clone(), slots.clone(), ended.clone(), used.clone());
            move || {
                let _executing = lock.read_in(Some(&slots[0]));
                if !ended.load(Ordering::Acquire) {
                    // SAFETY: no other thread uses the value before the end; the model checker
                    // reports a race otherwise.
                    used.with_mut(|used| unsafe { *used += 1 });
                }
            }
        });
        ended.store(true, Ordering::Release);
        drop(lock.write_in(&*slots));
        // SAFETY: no execution is in progress, and none starts.
        used.with_mut(|used| unsafe { *used += 1 });
        executor.join().unwrap();
    });
}
