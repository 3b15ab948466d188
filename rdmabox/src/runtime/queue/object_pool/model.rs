//! Loom models of the object pool.

use std::sync::Arc;

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::model::{check, go};

/// A value without any protection of its own, so that loom reports a second user.
#[derive(Debug, Default)]
struct Value(UnsafeCell<()>);

/// A value has one user at a time, which sees the last user's changes. Catches a value that is
/// put back while in use, or given to two users.
#[test]
fn a_value_has_one_user_at_a_time() {
    check(None, || {
        let object_pool = Arc::new(ObjectPool::<Value>::default());
        let use_it = |object_pool: Arc<ObjectPool<Value>>| {
            move || {
                for _ in 0..2 {
                    let value = object_pool.take();
                    value.0.with_mut(|_| {});
                    object_pool.put(value);
                }
            }
        };
        let other = go(use_it(Arc::clone(&object_pool)));
        use_it(Arc::clone(&object_pool))();
        other.join().unwrap();
        let kept = object_pool.0.lock().len();
        assert!((1..=2).contains(&kept), "{kept} values kept");
    });
}
