//! The table of results and requirements of a trial.

use std::fmt;

#[derive(Debug)]
struct Line {
    what: String,
    found: String,
    required: String,
    holds: bool,
}

/// The table of a trial.
#[derive(Debug, Default)]
pub(crate) struct Report {
    title: String,
    lines: Vec<Line>,
}

impl Report {
    /// Returns an empty table.
    pub(crate) fn new(title: impl Into<String>) -> Report {
        Report { title: title.into(), lines: Vec::new() }
    }

    /// Adds a result with a requirement.
    pub(crate) fn check(&mut self, what: &str, found: impl ToString, required: &str, holds: bool) {
        let (what, required) = (what.to_owned(), required.to_owned());
        self.lines.push(Line { what, found: found.to_string(), required, holds });
    }

    /// Adds a result with a requirement if `counts` is true. Otherwise adds it without a
    /// requirement.
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

    /// Adds a result without a requirement.
    pub(crate) fn note(&mut self, what: &str, found: impl ToString) {
        self.check(what, found, "", true);
    }

    /// Returns true if all requirements are met.
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
    fn one_unmet_requirement_fails_the_report() {
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
