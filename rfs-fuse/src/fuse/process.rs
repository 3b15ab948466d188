//! What the kernel does not say about the process behind a request, but /proc does. All of it is about the moment of
//! asking; a process that is not to be seen (gone, or of another pid namespace) is answered for as one without the property.

use std::fs;

/// True if a group is among the supplementary groups of a thread.
pub(crate) fn has_group(tid: u32, group: u32) -> bool {
    status(tid).is_some_and(|status| in_groups(&status, group))
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
    fn groups() {
        assert!(in_groups(STATUS, 24) && in_groups(STATUS, 1000));
        assert!(!in_groups(STATUS, 9) && !in_groups(STATUS, 2) && !in_groups("", 24));
        assert!(!has_group(0, 0), "there is no such process");
    }
}
