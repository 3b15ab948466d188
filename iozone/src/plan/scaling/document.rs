//! The report as a Markdown page with its charts. No I/O, no locks, no clock.

use super::{charts, report::Scaling, series::Series, table};

/// Returns the files of a report: the page, with the given name, and a chart per series, whose name
/// begins with `stem`.
pub fn files(scaling: &Scaling, page: String, stem: &str) -> Vec<(String, String)> {
    let chart = |series: Series| format!("{stem}{}.svg", series.name());
    let mut text = format!("# How rfs scales\n\n{}\n\n", paragraphs(&table::head(scaling)));
    text.push_str(&format!("What printed this page: `{}`\n", scaling.command));
    for series in scaling.series() {
        let name = chart(series);
        text.push_str(&format!(
            "\n## {}\n\n![{}]({name})\n\n{}\n",
            capitalized(series.title()),
            series.title(),
            table::series(scaling, series)
        ));
    }
    text.push_str(&format!("\n## What it comes to\n\n{}\n", table::foot(scaling).replace(":\n", ":\n\n")));
    let mut files = vec![(page, text)];
    files.extend(scaling.series().into_iter().map(|series| (chart(series), charts::svg(scaling, series))));
    files
}

/// Keeps line breaks in Markdown.
fn paragraphs(text: &str) -> String {
    text.replace('\n', "\n\n")
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scaling::report::tests::example;

    #[test]
    fn a_page_shows_its_charts() {
        let files = files(&example(), "README.md".into(), "run-");
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["README.md", "run-threads.svg", "run-count.svg"]);
        let page = &files[0].1;
        for (name, _) in &files[1..] {
            assert!(page.contains(&format!("]({name})")), "{page}");
        }
        for says in [
            "## Threads on one file\n",
            "| BELOW",
            "size 8 GiB is left out",
            "`rfs-iozone scaling --rounds 3`",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
    }
}
