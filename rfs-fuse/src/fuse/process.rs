//! Reads facts about a caller from `/proc` that the kernel does not send with a request.
//!
//! All answers concern the moment of the call. An invisible process (ended, or of another PID
//! namespace) has none of the properties.
//!
//! # Concurrency
//! Any thread. Takes no locks.

use std::fs;

/// Returns true if a group is among the supplementary groups of a thread.
pub(crate) fn has_group(tid: u32, group: u32) -> bool {
    status(tid).is_some_and(|status| in_groups(&status, group))
}

/// Capabilities, by their numbers in linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    /// The right to give files to other users.
    Chown = 0,
    /// The rights of a file's owner.
    Fowner = 3,
    /// The right to leave set-group-ID on a file of another group.
    Fsetid = 4,
}

/// Returns true if a thread has a capability in this process's user namespace. Capabilities in
/// another user namespace, where every user can have all of them, do not count.
pub(crate) fn has_capability(tid: u32, capability: Capability) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let is_ours = || namespace("self").is_some_and(|ours| namespace(&tid.to_string()) == Some(ours));
    status(tid).is_some_and(|status| is_capable(&status, capability)) && is_ours()
}

/// Detects pending signals of a thread, over several polls.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// True if the process had a pending signal at the last poll, which any of its threads may
    /// handle.
    shared_before: bool,
}

impl Signals {
    /// Returns true if the thread has to stop waiting. It has a signal, its process has a signal at
    /// two polls in a row, or it has ended. A process's signal that another thread handles is gone
    /// at the second poll.
    pub(crate) fn interrupt(&mut self, tid: u32) -> bool {
        // The kernel sends 0 for a process of another PID namespace, which is invisible here.
        if tid == 0 {
            return false;
        }
        let Some(status) = status(tid) else { return true };
        let (own, shared) = pending(&status);
        let before = std::mem::replace(&mut self.shared_before, shared);
        own || shared && before
    }
}

/// Parses a set of bits in hexadecimal.
fn set(status: &str, name: &str) -> u64 {
    field(status, name).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

fn is_capable(status: &str, capability: Capability) -> bool {
    set(status, "CapEff") & 1 << capability as u32 != 0
}

/// Returns whether signals are pending for the thread, and for its process.
fn pending(status: &str) -> (bool, bool) {
    let set = |name| set(status, name);
    let open = !(set("SigBlk") | set("SigIgn"));
    (set("SigPnd") & open != 0, set("ShdPnd") & open != 0)
}

fn status(tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{tid}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn in_groups(status: &str, group: u32) -> bool {
    field(status, "Groups").is_some_and(|groups| groups.split_whitespace().any(|g| g.parse() == Ok(group)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tGroups: 9\nUmask:\t0022\nGroups:\t4 24 1000 \nSigQ:\t0/5\n";

    #[test]
    fn pending_signals_are_detected() {
        let status = |own: &str, shared: &str, blocked: &str, ignored: &str| {
            format!("SigQ:\t0/5\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n")
        };
        let (none, one) = ("0000000000000000", "0000000000004000");
        assert_eq!(pending(&status(none, none, none, none)), (false, false));
        assert_eq!(pending(&status(one, none, none, one.replace('4', "2").as_str())), (true, false));
        assert_eq!(pending(&status(none, one, none, none)), (false, true));
        assert_eq!(pending(&status(one, one, one, none)), (false, false));
        assert_eq!(pending(&status(one, one, none, one)), (false, false));
        assert!(Signals::default().interrupt(u32::MAX), "it is gone");
        assert!(!Signals::default().interrupt(0), "nothing is known of it");
        let (own, shared) = pending(&super::status(std::process::id()).expect("this process"));
        assert!(!own && !shared);
    }

    #[test]
    fn capabilities_are_read_from_procfs() {
        let status = |bits: u64| format!("CapPrm:\tffffffffffffffff\nCapEff:\t{bits:016x}\n");
        use Capability::{Chown, Fowner, Fsetid};
        for (capability, bit) in [(Chown, 1), (Fowner, 8), (Fsetid, 16)] {
            assert!(is_capable(&status(bit), capability) && is_capable(&status(u64::MAX), capability));
            assert!(!is_capable(&status(!bit), capability) && !is_capable("", capability));
        }
        assert!(!has_capability(0, Fowner), "there is no such process");
    }

    #[test]
    fn groups_are_read_from_procfs() {
        assert!(in_groups(STATUS, 24) && in_groups(STATUS, 1000));
        assert!(!in_groups(STATUS, 9) && !in_groups(STATUS, 2) && !in_groups("", 24));
        assert!(!has_group(0, 0), "there is no such process");
    }
}
