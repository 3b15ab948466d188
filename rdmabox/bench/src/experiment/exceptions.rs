//! The rows of the paper's figures that are known not to hold. No locks, no clock.
//!
//! A file has a row in each line, as `NAME: quantity`, with the name of the experiment. Empty lines
//! and lines that begin with `#` are ignored.

use std::{collections::BTreeSet, fs, path::Path};

use crate::{
    Result,
    report::{About, Shape},
};

/// Rows that may fail.
#[derive(Clone, Debug, Default)]
pub struct Exceptions(BTreeSet<String>);

impl Exceptions {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> Result<Exceptions> {
        Ok(Exceptions::parse(&fs::read_to_string(path).map_err(measure::Error::io(path))?))
    }

    fn parse(text: &str) -> Exceptions {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Exceptions(lines.map(str::to_owned).collect())
    }

    /// Returns the rows of an experiment that do not hold and are no exceptions, as lines of such a
    /// file. Also returns the exceptions that are no rows of the experiment.
    pub fn unexpected(&self, about: &About) -> Vec<String> {
        let line = |what: &str| format!("{}: {what}", about.name);
        let failed = about.rows.iter().filter(|row| row.shape == Shape::Fails);
        let failed = failed.map(|row| line(&row.what)).filter(|line| !self.0.contains(line));
        let rows: BTreeSet<String> = about.rows.iter().map(|row| line(&row.what)).collect();
        let own = self.0.iter().filter(|known| known.starts_with(&line("")) && !rows.contains(*known));
        failed.chain(own.map(|known| format!("{known} (listed, but there is no such row)"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Basis, Row};

    #[test]
    fn a_row_that_fails_and_is_not_listed_is_unexpected() {
        let row = |what: &str, shape| {
            let (what, paper, model) = (what.to_owned(), "more".to_owned(), "-1 %".to_owned());
            Row { what, paper, model, basis: Basis::Predicted, shape, beside: None }
        };
        let rows = vec![
            row("a, b: c", Shape::Fails),
            row("known", Shape::Fails),
            row("good", Shape::Holds),
            row("other", Shape::Differs),
        ];
        let about = About {
            name: "fig0".into(),
            what: String::new(),
            paper: String::new(),
            measured: Vec::new(),
            rows,
            beside: None,
        };
        let exceptions = Exceptions::parse("# why\n\n  fig0: known \nfig9: a, b: c\n");
        assert_eq!(exceptions.unexpected(&about), ["fig0: a, b: c"]);
        let exceptions = Exceptions::parse("fig0: a, b: c\nfig0: known\nfig0: unknown\nfig9: x");
        assert_eq!(exceptions.unexpected(&about), ["fig0: unknown (listed, but there is no such row)"]);
        let err = Exceptions::read(Path::new("/nowhere/at/all")).unwrap_err();
        assert!(err.to_string().contains("/nowhere/at/all"), "{err}");
    }
}
