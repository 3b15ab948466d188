//! Values of `--socket-mode` and `--socket-group`.
//!
//! # Concurrency
//! The main thread, before the server starts. Reads `/etc/group`, and asks getent(1) for groups
//! that are not listed there.

use std::{
    fs,
    process::{Command, Stdio},
};

/// The list of groups of this machine.
const GROUPS: &str = "/etc/group";

/// Parses the permissions of a socket.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "expected octal permissions such as 0660".into())
}

/// Returns the number of a group by its name or number.
pub(super) fn parse_group(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let listed = fs::read_to_string(GROUPS).ok().and_then(|groups| number_of(&groups, text));
    listed.or_else(|| ask(text)).ok_or_else(|| {
        format!("there is no group {text:?}: give the name or the number of a group (getent group)")
    })
}

/// Returns the number of a group in a list as in group(5).
fn number_of(groups: &str, name: &str) -> Option<u32> {
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    groups.lines().find_map(number)
}

/// Asks the name services of this machine, such as LDAP.
fn ask(name: &str) -> Option<u32> {
    let mut command = Command::new("getent");
    command.args(["group", "--", name]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok()?;
    number_of(&String::from_utf8(output.stdout).ok()?, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_names_and_numbers() {
        let groups = "root:x:0:\nbroken\nrfs:x:117:ann,bob\nrfs2:x:118:\n";
        assert_eq!(number_of(groups, "rfs"), Some(117));
        assert_eq!((number_of(groups, "broken"), number_of(groups, "rf")), (None, None));
        assert_eq!((parse_group("root"), parse_group("4711")), (Ok(0), Ok(4711)));
        let refused = parse_group("no such group").unwrap_err();
        assert!(refused.contains("there is no group \"no such group\""), "{refused}");
    }

    #[test]
    fn modes_are_octal_permissions() {
        assert_eq!((parse_mode("0660"), parse_mode("777")), (Ok(0o660), Ok(0o777)));
        for wrong in ["", "0880", "1777", "rw", "-1"] {
            assert!(parse_mode(wrong).is_err(), "{wrong}");
        }
    }
}
