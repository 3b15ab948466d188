//! Random histories of one page. In every order of faults, visits, write-outs and losses a load
//! returns the last store, or the page is lost and says so.
//!
//! # Concurrency
//! Plain values.

use proptest::prelude::*;

use super::page::{MissingFault, Page, StoreFault, Visit, Written};

/// The page as kernel and lender see it.
#[derive(Debug, Default)]
struct World {
    page: Page,
    /// Bytes of the resident page, and its protection.
    local: Option<(u32, bool)>,
    /// Bytes of the stored copy.
    remote: Option<u32>,
    /// Bytes that a write-out carries.
    sent: Option<u32>,
    /// The value that a load has to return; none after the loss.
    expected: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Load,
    Store(u32),
    Visit,
    /// A write-out ends, with or without success.
    Written(bool),
    /// A write-out ends with success, and the server is lost before the page is dropped.
    WrittenThenLost,
    LoseServer,
    Discard,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Load),
        4 => (0..3_u32).prop_map(Step::Store),
        8 => Just(Step::Visit),
        4 => proptest::bool::weighted(0.8).prop_map(Step::Written),
        1 => Just(Step::WrittenThenLost),
        1 => Just(Step::LoseServer),
        1 => Just(Step::Discard),
    ]
}

impl World {
    /// Resolves a missing fault. Returns false if the page is lost.
    fn bring(&mut self, store: bool) -> bool {
        match self.page.missing_fault() {
            MissingFault::Present => panic!("the kernel reports a resident page as missing"),
            MissingFault::Zero => {
                self.local = Some((0, false));
                self.page.fill(false, true);
            }
            MissingFault::Load => {
                self.local = Some((self.remote.expect("a stored copy"), !store));
                self.page.fill(!store, true);
            }
            MissingFault::Lost => return false,
        }
        true
    }

    fn load(&mut self) {
        if self.local.is_none() && !self.bring(false) {
            assert_eq!(self.expected, None, "lost without a loss");
            return;
        }
        assert_eq!(self.local.map(|(bytes, _)| bytes), self.expected);
    }

    fn store(&mut self, value: u32) {
        if self.local.is_none() && !self.bring(true) {
            assert_eq!(self.expected, None, "lost without a loss");
            return;
        }
        if let Some((_, true)) = self.local {
            assert_eq!(self.page.store_fault(), StoreFault::Unprotect);
        }
        self.local = Some((value, false));
        self.expected = Some(value);
    }

    fn leave(&mut self) {
        let (bytes, protected) = self.local.take().expect("a resident page");
        assert!(protected, "a store could have been lost");
        if bytes == 0 {
            self.page.drop_zero();
            self.remote = None;
        } else {
            self.page.drop_clean();
        }
    }

    fn visit(&mut self) {
        match self.page.visit() {
            Visit::Pass => {}
            Visit::Age { .. } => self.protect(),
            Visit::Drop => self.leave(),
            Visit::Clean { .. } => {
                self.protect();
                let (bytes, _) = self.local.expect("a resident page");
                if bytes == 0 {
                    self.leave();
                } else {
                    self.page.begin_write();
                    self.sent = Some(bytes);
                }
            }
        }
    }

    fn protect(&mut self) {
        self.local.as_mut().expect("a resident page").1 = true;
    }

    fn written(&mut self, success: bool) {
        if self.end_write(success) {
            self.drop_written();
        }
    }

    /// Ends a write-out. Returns true if the page is to be dropped.
    fn end_write(&mut self, success: bool) -> bool {
        let Some(bytes) = self.sent.take() else { return false };
        if success {
            self.remote = Some(bytes);
        }
        self.page.end_write(success) == Written::Drop
    }

    /// Drops a page whose write-out ended, unless something came in between.
    fn drop_written(&mut self) {
        if self.page.is_clean() {
            self.leave();
        }
    }

    fn written_then_lost(&mut self) {
        let drops = self.end_write(true);
        self.lose_server();
        if drops {
            self.drop_written();
        }
    }

    fn lose_server(&mut self) {
        // A write-out fails with its server.
        self.written(false);
        self.remote = None;
        if self.page.lose_copies() {
            self.expected = None;
        }
    }

    fn discard(&mut self) {
        self.written(false);
        self.page.discard();
        (self.local, self.remote, self.expected) = (None, None, Some(0));
    }
}

proptest! {
    #[test]
    fn a_load_returns_the_last_store(steps in proptest::collection::vec(step(), 1..200)) {
        let mut world = World { expected: Some(0), ..World::default() };
        for step in steps {
            match step {
                Step::Load => world.load(),
                Step::Store(value) => world.store(value),
                Step::Visit => world.visit(),
                Step::Written(success) => world.written(success),
                Step::WrittenThenLost => world.written_then_lost(),
                Step::LoseServer => world.lose_server(),
                Step::Discard => world.discard(),
            }
            prop_assert_eq!(world.page.is_resident(), world.local.is_some());
            prop_assert_eq!(world.page.is_writing(), world.sent.is_some());
        }
    }
}
