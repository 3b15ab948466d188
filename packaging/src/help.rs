//! The text that a program's help has behind its options, in the sections of a manual page.
//!
//! # Concurrency
//! Plain values.

use clap::Command;

const EXAMPLES: &str = "Examples:\n";
const EXIT_STATUS: &str = "Exit status: ";

/// The text behind the options of a program's help, by paragraphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HelpEnd {
    /// The paragraph that begins with "Examples:", without that line.
    pub(crate) examples: Option<String>,
    /// The paragraph that begins with "Exit status:".
    pub(crate) exit_status: Option<String>,
    /// All other paragraphs.
    pub(crate) notes: Vec<String>,
}

impl HelpEnd {
    /// Returns the parts of the help of `command`.
    pub(crate) fn of(command: &Command) -> HelpEnd {
        let text = command.get_after_long_help().or(command.get_after_help());
        text.map(|text| HelpEnd::parse(&text.to_string())).unwrap_or_default()
    }

    fn parse(text: &str) -> HelpEnd {
        let mut end = HelpEnd::default();
        for paragraph in text.split("\n\n").map(str::trim_end) {
            if let Some(examples) = paragraph.strip_prefix(EXAMPLES) {
                end.examples = Some(examples.to_owned());
            } else if let Some(codes) = paragraph.strip_prefix(EXIT_STATUS) {
                end.exit_status = Some(codes.to_owned());
            } else {
                end.notes.push(paragraph.to_owned());
            }
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_go_to_their_sections() {
        let end = HelpEnd::parse("Examples:\n  a b\n    c\n\nNote.\n\nExit status: 0 or 1.\n\nMore.");
        assert_eq!(end.examples.as_deref(), Some("  a b\n    c"));
        assert_eq!(end.exit_status.as_deref(), Some("0 or 1."));
        assert_eq!(end.notes, ["Note.", "More."]);
    }
}
