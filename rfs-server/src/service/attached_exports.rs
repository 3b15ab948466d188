//! The exports that connections have chosen. No I/O, no locks, no clock.

use std::collections::HashMap;

use crate::session::mount_registry::Attached;

/// The export of each connection; `None` before its first request. Connections that have ended
/// have no entry.
#[derive(Debug, Default)]
pub(super) struct AttachedExports(HashMap<u64, Option<Attached>>);

impl AttachedExports {
    pub(super) fn begin(&mut self, session: u64) {
        self.0.insert(session, None);
    }

    /// Returns the export of a connection.
    pub(super) fn get(&self, session: u64) -> Option<Attached> {
        self.0.get(&session).copied().flatten()
    }

    /// Selects the export of a connection, by calling `attach`, if it has none. Returns its export,
    /// or `None` if the connection has ended.
    pub(super) fn choose(
        &mut self,
        session: u64,
        wanted: Attached,
        attach: impl FnOnce(),
    ) -> Option<Attached> {
        let choice = self.0.get_mut(&session)?;
        Some(*choice.get_or_insert_with(|| {
            attach();
            wanted
        }))
    }

    /// Removes a connection. Returns its export.
    pub(super) fn end(&mut self, session: u64) -> Option<Attached> {
        self.0.remove(&session).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::access_mode::AccessMode;

    #[test]
    pub(super) fn a_session_chooses_an_export_once_and_only_while_connected() {
        let [first, second] = [0, 1].map(|export| Attached { export, rights: AccessMode::Write, session: 1 });
        let mut choices = AttachedExports::default();
        let mut attached = Vec::new();
        assert_eq!(choices.choose(1, first, || attached.push(1)), None, "it has not begun");
        choices.begin(1);
        choices.begin(2);
        assert_eq!(choices.get(1), None);
        assert_eq!(choices.choose(1, second, || attached.push(1)), Some(second));
        assert_eq!(choices.choose(1, first, || attached.push(1)), Some(second), "the first one counts");
        assert_eq!((choices.get(1), choices.get(2)), (Some(second), None));
        assert_eq!((choices.end(1), choices.end(2), choices.end(1)), (Some(second), None, None));
        assert_eq!(choices.choose(1, first, || attached.push(1)), None, "it has ended");
        assert_eq!(attached, [1]);
        assert!(choices.0.is_empty());
    }
}
