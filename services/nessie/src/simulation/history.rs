//! Histories of operations on one key, and the check that they are linearizable.
//!
//! A history is linearizable if each operation can be given one moment between its call and its
//! return. With these moments, all results must be those of a plain map. An operation without a
//! return may have a moment after its call, or none. Keys are independent, so each key is checked
//! by itself.

use std::collections::HashSet;

/// An operation on a key, with the result of a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Put(u64),
    Delete,
    Get(Option<u64>),
}

/// An operation with the times of its call and its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) called: u64,
    /// `None` if the outcome is unknown.
    pub(crate) returned: Option<u64>,
    pub(crate) event: Event,
}

/// Returns true if the operations on one key, in any order, are linearizable.
///
/// # Panics
/// For more than 128 operations.
pub(crate) fn is_linearizable(records: &[Record]) -> bool {
    assert!(records.len() <= 128, "{} operations", records.len());
    let required = (0..records.len()).filter(|at| records[*at].returned.is_some());
    let required = required.fold(0u128, |mask, at| mask | 1 << at);
    let mut visited = HashSet::new();
    let mut stack = vec![(0u128, None)];
    while let Some((done, value)) = stack.pop() {
        if done & required == required {
            return true;
        }
        if !visited.insert((done, value)) {
            continue;
        }
        let open = |at: &usize| done & 1 << *at == 0;
        let first_return =
            (0..records.len()).filter(open).filter_map(|at| records[at].returned).min().unwrap_or(u64::MAX);
        for at in (0..records.len()).filter(open) {
            if records[at].called > first_return {
                continue;
            }
            let next = match records[at].event {
                Event::Put(stored) => Some(stored),
                Event::Delete => None,
                Event::Get(found) if found == value => value,
                Event::Get(_) => continue,
            };
            stack.push((done | 1 << at, next));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(records: &[(u64, u64, Event)]) -> bool {
        let record = |&(called, returned, event): &(u64, u64, Event)| Record {
            called,
            returned: (returned > 0).then_some(returned),
            event,
        };
        is_linearizable(&records.iter().map(record).collect::<Vec<_>>())
    }

    #[test]
    fn results_in_order_are_linearizable() {
        use Event::*;
        assert!(check(&[(1, 2, Put(1)), (3, 4, Get(Some(1))), (5, 6, Delete), (7, 8, Get(None))]));
        assert!(!check(&[(1, 2, Put(1)), (3, 4, Get(None))]));
        assert!(!check(&[(1, 2, Put(1)), (3, 4, Delete), (5, 6, Get(Some(1)))]));
    }

    #[test]
    fn operations_that_overlap_may_be_in_either_order() {
        use Event::*;
        assert!(check(&[(1, 4, Put(1)), (2, 3, Get(None))]));
        assert!(check(&[(1, 4, Put(1)), (2, 3, Get(Some(1)))]));
        // A later GET sees no older value.
        assert!(!check(&[(1, 10, Put(1)), (2, 3, Get(Some(1))), (4, 5, Get(None))]));
    }

    #[test]
    fn an_unknown_operation_may_take_effect_late_or_never() {
        use Event::*;
        assert!(check(&[(1, 0, Put(1)), (2, 3, Get(None)), (4, 5, Get(Some(1)))]));
        assert!(check(&[(1, 0, Put(1)), (2, 3, Get(None)), (4, 5, Get(None))]));
        assert!(!check(&[(1, 0, Put(1)), (2, 3, Get(Some(1))), (4, 5, Get(None))]));
    }
}
