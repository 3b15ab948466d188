//! Prints the public interface of a crate, one item a line. The argument is the file that rustdoc
//! writes with `--output-format json`. `ci/checks/api` compares the lines with a list in the tree.

use std::{env, error::Error, fs, io::Write, process::ExitCode};

use public_api::Builder;

/// Format of rustdoc's output with which the list in the tree was made. A compiler with another
/// format would write other lines for the same interface.
const FORMAT: u64 = 57;

/// Traits that a type has or lacks by its private fields, and that programs do not ask for.
/// `Send` and `Sync` are not among them.
const SKIPPED_TRAITS: [&str; 6] = [
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::Unpin",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::RefUnwindSafe",
    "core::panic::unwind_safe::UnwindSafe",
];

/// Methods of derived traits. The line of the implementation tells enough.
const SKIPPED_METHODS: [&str; 6] = ["clone", "cmp", "eq", "fmt", "hash", "partial_cmp"];

/// Status of a step that the machine cannot run (`ci/lib.sh`).
const NOT_RUN: u8 = 77;

/// Returns true if the line of an item belongs to the list.
fn is_listed(line: &str) -> bool {
    if line.starts_with("impl") {
        return !SKIPPED_TRAITS.iter().any(|name| line.contains(&format!("{name} for ")));
    }
    let path = line.strip_prefix("pub fn ").and_then(|rest| rest.split(['(', '<']).next());
    let method = path.and_then(|path| path.rsplit("::").next());
    !method.is_some_and(|method| SKIPPED_METHODS.contains(&method))
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let path = env::args_os().nth(1).ok_or("usage: api FILE")?;
    let text = fs::read_to_string(&path)?;
    let format = serde_json::from_str::<serde_json::Value>(&text)?["format_version"].as_u64();
    if format != Some(FORMAT) {
        let found = format.map_or("none".to_owned(), |number| number.to_string());
        eprintln!("not run: rustdoc here writes format {found}, and the list is made from format {FORMAT}");
        return Ok(ExitCode::from(NOT_RUN));
    }
    // Which traits of the standard library a type implements by their generic implementations
    // depends on the compiler, not on this crate.
    let api = Builder::from_rustdoc_json(path).omit_blanket_impls(true).build()?;
    let mut out = std::io::stdout().lock();
    for line in api.items().map(|item| item.to_string()).filter(|line| is_listed(line)) {
        writeln!(out, "{line}")?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::is_listed;

    #[test]
    fn what_a_program_can_ask_for_is_listed() {
        for line in [
            "pub fn a::B::read(&self) -> u64",
            "pub fn a::B::fmt_all(&self)",
            "impl core::marker::Send for a::B",
            "impl core::clone::Clone for a::B",
            "impl<T> a::C<T>",
            "pub struct a::Unpin",
        ] {
            assert!(is_listed(line), "{line}");
        }
        for line in [
            "pub fn a::B::clone(&self) -> a::B",
            "pub fn a::B::hash<H: core::hash::Hasher>(&self, &mut H)",
            "impl core::marker::Unpin for a::B",
            "impl !core::panic::unwind_safe::UnwindSafe for a::B",
            "impl<T> core::marker::Freeze for a::C<T> where T: core::marker::Freeze",
        ] {
            assert!(!is_listed(line), "{line}");
        }
    }
}
