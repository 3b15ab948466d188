//! What is measured, and what it has to reach. Pure.

use clap::ValueEnum;

/// Where the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// In one directory.
    Flat,
    /// In a hundred directories, ten in each of ten.
    Tree,
}

/// What is done with the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// `open` with `O_CREAT` and `O_EXCL`, and `close`.
    Create,
    /// `lstat`.
    Stat,
    /// `unlink`.
    Unlink,
    /// `ls -l` of the directory.
    List,
}

/// One thing that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Where.
    pub shape: Shape,
    /// On a mount that has just been made.
    pub fresh: bool,
}

/// Steps on the files that are created and removed, in order; then those on the large directory.
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

/// What is asked of a target at a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needed {
    /// So many times the rate of GlusterFS.
    Times(f64),
    /// No longer, in seconds.
    Within(f64),
    /// At the speed of the kernel: without a call.
    NoCall,
}

impl Step {
    /// Its name in tables.
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

    /// What is asked of the target of that name.
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
    fn every_step_has_its_own_name_and_rfs_has_to_reach_something_in_each() {
        let names: std::collections::BTreeSet<_> = STEPS.iter().map(|step| step.name()).collect();
        assert_eq!(names.len(), STEPS.len());
        assert!(STEPS.iter().all(|step| step.needed("shm").is_some() && step.needed("tmpfs").is_none()));
        assert_eq!(STEPS[0].needed("tcp"), Some(Needed::Times(8.0)));
        assert_eq!(STEPS[8].needed("tcp"), Some(Needed::Within(2.0)));
        let warm = STEPS.iter().filter(|step| step.needed("shm") == Some(Needed::NoCall));
        assert_eq!(warm.count(), 2);
    }
}
