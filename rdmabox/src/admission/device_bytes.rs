//! The bytes in flight of all sessions of this process on one device.
//!
//! The window of the RDMAbox paper belongs to a card (section IV-A), because too many requests
//! exhaust the card's caches. Sessions with the scope of the device share the bytes in flight, and
//! each has its own policy. Invariants:
//! - a session without bytes in flight is always admitted. So no session waits for the completions
//!   of another one;
//! - the share of a session is the window divided by the sessions with bytes in flight. While a
//!   session waits, no other one takes more than its share;
//! - a session gets its share even if others hold the window, whose peers may be stopped. Beyond
//!   the window there are one share at most, and one request of each session.
//!
//! # Concurrency
//! Any thread may call every method. The counters are atomics. The registry has a lock, which only
//! the begin of a session takes.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use super::in_flight::InFlight;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// Identifies a device of this process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeviceKey {
    /// The name of an RDMA device, or of a software provider.
    Named(String),
    /// The address of a modelled card. Its sessions keep the card.
    #[cfg(feature = "model")]
    Card(usize),
}

/// The devices with sessions.
static DEVICES: Mutex<Option<HashMap<DeviceKey, Weak<DeviceBytes>>>> = Mutex::new(None);

/// The bytes in flight on a device, and the sessions that have some.
#[derive(Debug, Default)]
pub(crate) struct DeviceBytes {
    pub(crate) in_flight: InFlight,
    /// Number of sessions with bytes in flight.
    active: AtomicUsize,
    /// Number of sessions whose last request was refused.
    waiting: AtomicUsize,
}

impl DeviceBytes {
    /// Returns the counters of a device, which its sessions share.
    pub(crate) fn of(key: DeviceKey) -> Arc<DeviceBytes> {
        let mut devices = DEVICES.lock();
        let devices = devices.get_or_insert_default();
        devices.retain(|_, device| device.strong_count() > 0);
        let found = devices.get(&key).and_then(Weak::upgrade);
        found.unwrap_or_else(|| {
            let device = Arc::new(DeviceBytes::default());
            devices.insert(key, Arc::downgrade(&device));
            device
        })
    }

    /// Returns the number of sessions with bytes in flight, at least 1.
    pub(crate) fn active(&self) -> u64 {
        self.active.load(Ordering::Relaxed).max(1) as u64
    }

    /// Returns true if another session waits. `is_waiting` says that the session itself does.
    pub(crate) fn has_waiting_beside(&self, is_waiting: bool) -> bool {
        self.waiting.load(Ordering::Relaxed) > usize::from(is_waiting)
    }

    /// Notes that a session has bytes in flight now, or none any more.
    pub(crate) fn set_active(&self, is_active: bool) {
        count(&self.active, is_active);
    }

    /// Notes that a session waits for room now, or waits no more.
    pub(crate) fn set_waiting(&self, waits: bool) {
        count(&self.waiting, waits);
    }
}

fn count(counter: &AtomicUsize, up: bool) {
    if up {
        counter.fetch_add(1, Ordering::Relaxed);
    } else {
        counter.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::{ADMISSION_PAGE, Admission, StaticWindow};

    const PAGE: u64 = ADMISSION_PAGE;

    /// Returns sessions of a new device with a window of `pages`.
    fn sessions(count: usize, pages: u64) -> Vec<Admission> {
        let device = Arc::new(DeviceBytes::default());
        let policy = Arc::new(StaticWindow::new(pages * PAGE));
        (0..count).map(|_| Admission::on_device(policy.clone(), Arc::clone(&device))).collect()
    }

    #[test]
    fn a_session_gets_its_share_beyond_a_window_that_another_one_holds() {
        let [a, b] = &sessions(2, 4)[..] else { panic!("two sessions") };
        assert!((0..4).all(|_| a.try_admit(PAGE)) && !a.try_admit(PAGE));
        assert!(b.try_admit(PAGE) && b.try_admit(PAGE) && !b.try_admit(PAGE));
        assert_eq!((a.in_flight(), b.in_flight(), b.counted(), b.free()), (4 * PAGE, 2 * PAGE, 6 * PAGE, 0));
        (0..2).for_each(|_| b.release(PAGE));
        assert!(b.try_admit(3 * PAGE), "with nothing in flight any request is admitted");
        assert_eq!(a.counted_peak(), 7 * PAGE);
    }

    #[test]
    fn while_a_session_waits_the_others_take_no_more_than_their_share() {
        let [a, b] = &sessions(2, 8)[..] else { panic!("two sessions") };
        assert!((0..8).all(|_| a.try_admit(PAGE)));
        assert!((0..4).all(|_| b.try_admit(PAGE)) && !b.try_admit(PAGE));
        // The room that this session returns is not for itself.
        (0..5).for_each(|_| a.release(PAGE));
        assert!(a.try_admit(PAGE) && !a.try_admit(PAGE), "half of the window");
        assert_eq!((a.in_flight(), a.counted()), (4 * PAGE, 8 * PAGE));
        // Nothing waits any more.
        (0..4).for_each(|_| b.release(PAGE));
        assert!(a.try_admit(4 * PAGE));
    }

    #[test]
    fn a_session_that_ends_gives_its_bytes_back() {
        let mut sessions = sessions(2, 4);
        let (a, b) = (sessions.remove(0), sessions.remove(0));
        assert!(a.try_admit(4 * PAGE) && !a.try_admit(1) && b.try_admit(1));
        drop(a);
        assert_eq!(b.counted(), PAGE);
        assert!(b.try_admit(3 * PAGE), "the other one does not wait any more");
    }

    proptest! {
        /// A session alone is admitted. The sum exceeds the window by at most a share and one
        /// request of each session. In the end nothing is left.
        #[test]
        fn the_sum_keeps_to_the_window(
            pages in 1..12u64,
            steps in prop::collection::vec((0..4usize, 0..4 * PAGE, any::<bool>()), 0..300),
        ) {
            let sessions = sessions(4, pages);
            let mut held: Vec<Vec<u64>> = vec![Vec::new(); 4];
            for (at, bytes, finishes) in steps {
                if finishes && !held[at].is_empty() {
                    sessions[at].release(held[at].remove(0));
                } else {
                    let was_idle = sessions[at].in_flight() == 0;
                    let admitted = sessions[at].try_admit(bytes);
                    prop_assert!(admitted || !was_idle);
                    if admitted {
                        held[at].push(bytes);
                    }
                }
                let sum: u64 = sessions.iter().map(Admission::in_flight).sum();
                prop_assert_eq!(sessions[0].counted(), sum);
                prop_assert!(sum <= (pages + pages / 2 + 4 * 4) * PAGE);
            }
            for (session, held) in sessions.iter().zip(held) {
                held.into_iter().for_each(|bytes| session.release(bytes));
                prop_assert_eq!(session.in_flight(), 0);
            }
            prop_assert_eq!(sessions[0].counted(), 0);
            // Nothing waits and nothing is active any more: one session gets the whole window.
            prop_assert!((0..pages).all(|_| sessions[1].try_admit(PAGE)));
        }
    }

    #[test]
    fn sessions_of_a_device_share_its_counters_as_long_as_one_lives() {
        let key = || DeviceKey::Named("a device of this test".into());
        let first = DeviceBytes::of(key());
        assert!(first.in_flight.try_add(7, |_| true));
        assert_eq!(DeviceBytes::of(key()).in_flight.bytes(), 7);
        assert_eq!(DeviceBytes::of(DeviceKey::Named("another one".into())).in_flight.bytes(), 0);
        drop(first);
        assert_eq!(DeviceBytes::of(key()).in_flight.bytes(), 0);
    }
}
