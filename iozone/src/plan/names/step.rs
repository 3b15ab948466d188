//! The steps and their requirements. No I/O, no locks, no clock.

use serde::Serialize;

pub use crate::load::files::{Action, Shape};

/// A timed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Action on each file.
    pub action: Action,
    /// Layout of the directories.
    pub shape: Shape,
    /// True for a fresh mount.
    pub fresh: bool,
}

/// Steps on files that are created and removed, in order; then steps on the large directory.
pub const STEPS: [Step; 10] = {
    const fn of(action: Action, shape: Shape, fresh: bool) -> Step {
        Step { action, shape, fresh }
    }
    use Action::{Create, List, Stat, Unlink};
    use Shape::{Flat, Tree};
    [
        of(Create, Flat, false),
        of(Stat, Flat, true),
        of(Stat, Flat, false),
        of(Unlink, Flat, false),
        of(Create, Tree, false),
        of(Stat, Tree, true),
        of(Stat, Tree, false),
        of(Unlink, Tree, false),
        of(List, Flat, true),
        of(List, Flat, false),
    ]
};

/// A requirement of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needed {
    /// At least this multiple of GlusterFS's rate.
    Times(f64),
    /// At most this number of seconds.
    Within(f64),
    /// No requests to the server: answered by the kernel's cache.
    NoCall,
}

impl Step {
    /// Returns the name in tables.
    pub fn name(self) -> String {
        let what = match (self.action, self.fresh) {
            (Action::Create, _) => "create",
            (Action::Stat, true) => "first stat",
            (Action::Stat, false) => "stat again",
            (Action::Unlink, _) => "unlink",
            (Action::List, true) => return "ls -l".into(),
            (Action::List, false) => return "ls -l again".into(),
        };
        match self.shape {
            Shape::Flat => format!("{what}, one directory"),
            Shape::Tree => format!("{what}, tree"),
        }
    }

    /// Returns the requirement for a target.
    pub fn needed(self, target: &str) -> Option<Needed> {
        let times = match target {
            "shm" => 15.0,
            "tcp" => 8.0,
            _ => return None,
        };
        match self.action {
            Action::List => Some(Needed::Within(2.0)),
            Action::Stat if !self.fresh => Some(Needed::NoCall),
            Action::Create | Action::Stat | Action::Unlink => Some(Needed::Times(times)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_a_unique_name_and_a_requirement_for_rfs() {
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|step| step.name()).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| step.needed("shm").is_some() && step.needed("tmpfs").is_none()));
        assert_eq!(STEPS[0].needed("tcp"), Some(Needed::Times(8.0)));
        assert_eq!(STEPS[8].needed("tcp"), Some(Needed::Within(2.0)));
        let warm = STEPS.iter().filter(|step| step.needed("shm") == Some(Needed::NoCall));
        assert_eq!(warm.count(), 2);
    }
}
