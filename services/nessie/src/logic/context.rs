//! The surroundings of a state machine: placement, own node, limits and rules.

use super::{placement::Placement, word::Fields};

/// Parts of the protocol that models switch off, to show that the checks find the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// A GET that finds no entry reads all slots again.
    pub(crate) get_verifies: bool,
    /// A PUT reads all slots again before its entry becomes valid.
    pub(crate) put_verifies: bool,
    /// A DELETE that removed no valid entry reads all slots again. The paper does not.
    pub(crate) delete_verifies: bool,
    /// A MIGRATE moves valid entries only. The paper does not say so.
    pub(crate) migrate_needs_valid: bool,
    /// A MIGRATE that could not clear the source clears the destination.
    pub(crate) migrate_reverts: bool,
    /// A PUT that finds its key in a slot of higher rank replaces that entry.
    pub(crate) put_moves_up: bool,
    /// A PUT reads the slot of its own entry after the slots of lower rank, which it then clears.
    pub(crate) put_scans_up: bool,
}

impl Rules {
    pub(crate) const SAFE: Rules = Rules {
        get_verifies: true,
        put_verifies: true,
        delete_verifies: true,
        migrate_needs_valid: true,
        migrate_reverts: true,
        put_moves_up: true,
        put_scans_up: true,
    };
}

/// Everything that a step reads besides its own state and the answer.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) placement: &'a dyn Placement,
    /// Longest path of migrations.
    pub(crate) max_depth: u8,
    /// Number of pauses that a PUT grants an unfinished PUT of its key before it replaces the
    /// entry.
    pub(crate) patience: u16,
    pub(crate) rules: Rules,
}

impl Context<'_> {
    pub(crate) fn fields(&self) -> Fields {
        self.placement.fields()
    }
}
