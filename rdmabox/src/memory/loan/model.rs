//! Models of loans.

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::model::{check, go};

/// The lent memory as the model checker sees it: a change that does not happen before the owner's next use is a race.
fn memory() -> Arc<UnsafeCell<u8>> {
    Arc::new(UnsafeCell::new(0))
}

fn fill(memory: &UnsafeCell<u8>) {
    memory.with_mut(|_| {});
}

/// A scope ends when the last loan is back, and what requests did with the memory is seen then. Catches a count that is
/// given back before the last use, or without order.
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

/// A lent buffer is given back after the last use, and its count is free for the next. Catches the same for buffers that
/// outlive the call.
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
                // Shared between the pieces' users, who only look.
                cell.with(|_| {});
                drop(loan);
            })
        });
        let (buf, count) = lent.take();
        fill(&cell);
        assert_eq!((buf.map(|buf| buf.len()), count.load(Ordering::Relaxed)), (Some(2), 0));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
