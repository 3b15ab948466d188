//! What a trial found beside what is required.

use std::fmt;

#[derive(Debug)]
struct Line {
    what: String,
    found: String,
    required: String,
    holds: bool,
}

/// The table at the end of a trial.
#[derive(Debug, Default)]
pub(crate) struct Report {
    title: String,
    lines: Vec<Line>,
}

impl Report {
    /// An empty one.
    pub(crate) fn new(title: impl Into<String>) -> Report {
        Report { title: title.into(), lines: Vec::new() }
    }

    /// Something that is required to be as it is.
    pub(crate) fn check(&mut self, what: &str, found: impl ToString, required: &str, holds: bool) {
        let (what, required) = (what.to_owned(), required.to_owned());
        self.lines.push(Line { what, found: found.to_string(), required, holds });
    }

    /// Something that is required where `counts`, and only worth knowing elsewhere.
    pub(crate) fn check_if(
        &mut self,
        counts: bool,
        what: &str,
        found: impl ToString,
        required: &str,
        holds: bool,
    ) {
        match counts {
            true => self.check(what, found, required, holds),
            false => self.note(what, found),
        }
    }

    /// Something that is only worth knowing.
    pub(crate) fn note(&mut self, what: &str, found: impl ToString) {
        self.check(what, found, "", true);
    }

    /// True if all that is required holds.
    pub(crate) fn holds(&self) -> bool {
        self.lines.iter().all(|line| line.holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |of: fn(&Line) -> &str| self.lines.iter().map(|line| of(line).len()).max().unwrap_or(0);
        let (what, found) = (width(|line| &line.what), width(|line| &line.found));
        writeln!(f, "{}", self.title)?;
        for line in &self.lines {
            let verdict = match (line.required.as_str(), line.holds) {
                ("", _) => String::new(),
                (required, true) => format!("{required}: yes"),
                (required, false) => format!("{required}: NO"),
            };
            writeln!(f, "| {:what$} | {:>found$} | {verdict}", line.what, line.found)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_that_does_not_hold_is_enough() {
        let mut report = Report::new("a trial");
        report.note("rounds", 3);
        report.check("errors", 0, "none", true);
        assert!(report.holds());
        report.check("longest", "3 s", "below 2 s", false);
        assert!(!report.holds());
        let text = report.to_string();
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("| longest | 3 s | below 2 s: NO\n"), "{text}");
    }
}
