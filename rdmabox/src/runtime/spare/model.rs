//! Models of working storage that changes hands.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::model::{check, go};

/// Shows a second user to the model checker: it is changed without any protection of its own.
#[derive(Debug, Default)]
struct Value(UnsafeCell<()>);

/// One user at a time, who sees what the last one left. Catches a value that is put back while it is used, or given to two.
#[test]
fn a_value_has_one_user_at_a_time() {
    check(None, || {
        let spare = Arc::new(Spare::<Value>::default());
        let use_it = |spare: Arc<Spare<Value>>| {
            move || {
                for _ in 0..2 {
                    let value = spare.take();
                    value.0.with_mut(|_| {});
                    spare.put(value);
                }
            }
        };
        let other = go(use_it(Arc::clone(&spare)));
        use_it(Arc::clone(&spare))();
        other.join().unwrap();
        let kept = spare.0.lock().len();
        assert!((1..=2).contains(&kept), "{kept} values kept");
    });
}
