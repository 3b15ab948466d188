//! Prints the public interface of a crate, one item a line. The argument is the file that rustdoc
//! writes with `--output-format json`. `ci/api` compares the lines with a list in the tree.

use std::{env, error::Error, fs, io::Write, process::ExitCode};

use public_api::Builder;

/// Format of rustdoc's output with which the list in the tree was made. A compiler with another
/// format would write other lines for the same interface.
const FORMAT: u64 = 57;

/// Status of a step that the machine cannot run (`ci/lib.sh`).
const NOT_RUN: u8 = 77;

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
    for item in api.items() {
        writeln!(out, "{item}")?;
    }
    Ok(ExitCode::SUCCESS)
}
