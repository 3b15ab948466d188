//! Loom models of loans.

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::model::{check, go};

/// Returns lent memory as the model checker sees it. An access that does not happen before the
/// owner's next access is a race.
fn memory() -> Arc<UnsafeCell<u8>> {
    Arc::new(UnsafeCell::new(0))
}

fn fill(memory: &UnsafeCell<u8>) {
    memory.with_mut(|_| {});
}

/// The scope ends after the last loan is dropped and sees the writes of all requests. Fails if a
/// loan is counted as returned before its last use, or without release order.
#[test]
fn a_scope_waits_for_its_loans() {
    check(None, || {
        static DATA: [u8; 2] = [0; 2];
        let cells = [memory(), memory()];
        let threads = scope(|scope| {
            [0, 1].map(|place| {
                let loan = scope.lend(&DATA[place..=place]);
                let cell = Arc::clone(&cells[place]);
                go(move || {
                    fill(&cell);
                    drop(loan);
                })
            })
        });
        cells.iter().for_each(|cell| fill(cell));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// The buffer returns after its last use, and its counter can be reused. Fails if a loan of a
/// [`Lent`] is counted as returned too early or without release order.
#[test]
fn a_lent_buffer_comes_back_after_its_last_use() {
    check(None, || {
        let mut lent = Lent::new(vec![0u8; 2], LoanCount::default());
        let cell = memory();
        let mut loans: Vec<Loan> = lent.lend_mut(1).collect();
        let last = loans.pop();
        let threads = [last, loans.pop()].map(|loan| {
            let cell = Arc::clone(&cell);
            go(move || {
                // The pieces' users share the cell and only read it.
                cell.with(|_| {});
                drop(loan);
            })
        });
        let (buf, count) = lent.take();
        fill(&cell);
        assert_eq!((buf.map(|buf| buf.len()), count.outstanding.load(Ordering::Relaxed)), (Some(2), 0));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
