//! Every interleaving of readers and a writer. The value is a cell that the model checker watches.

use loom::cell::UnsafeCell as Watched;

use super::*;
use crate::sync::model::{check, go};

/// As the table, of the threads of a model.
fn slots<const N: usize>() -> std::sync::Arc<[Slot; N]> {
    std::sync::Arc::new(std::array::from_fn(|_| Slot(std::array::from_fn(|_| AtomicUsize::new(0)))))
}

fn lock() -> std::sync::Arc<ReaderLock<Watched<[u32; 2]>>> {
    std::sync::Arc::new(ReaderLock::new(Watched::new([0; 2])))
}

fn change(lock: &ReaderLock<Watched<[u32; 2]>>, slots: &[Slot]) {
    let value = lock.write_in(slots);
    // SAFETY: the lock is held for writing; the model checker says if that is not enough.
    value.with_mut(|pair| unsafe {
        (*pair)[0] += 1;
        (*pair)[1] += 1;
    });
}

fn look(value: &Watched<[u32; 2]>) -> u32 {
    // SAFETY: as above, for reading.
    let [one, other] = value.with(|pair| unsafe { *pair });
    assert_eq!(one, other);
    one
}

#[test]
fn an_announced_reader_and_a_writer() {
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
fn readers_of_both_kinds_and_a_writer() {
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
fn a_reader_that_only_tries_and_two_writers() {
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
fn what_a_thread_did_before_the_writer_came_is_over_when_that_has_it() {
    // As the end of a queue pair uses it: the state changes, then executions that have not seen it are waited for.
    check(None, || {
        let (lock, slots) = (lock(), slots::<1>());
        let (ended, used) =
            (std::sync::Arc::new(AtomicBool::new(false)), std::sync::Arc::new(Watched::new(0)));
        let executor = go({
            let (lock, slots, ended, used) = (lock.clone(), slots.clone(), ended.clone(), used.clone());
            move || {
                let _executing = lock.read_in(Some(&slots[0]));
                if !ended.load(Ordering::Acquire) {
                    // SAFETY: nobody else uses it before the end; the model checker says if that is not so.
                    used.with_mut(|used| unsafe { *used += 1 });
                }
            }
        });
        ended.store(true, Ordering::Release);
        drop(lock.write_in(&*slots));
        // SAFETY: no execution is under way, and none begins.
        used.with_mut(|used| unsafe { *used += 1 });
        executor.join().unwrap();
    });
}
