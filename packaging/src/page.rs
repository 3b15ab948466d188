//! The manual page of a program or of one of its commands.
//!
//! NAME, DESCRIPTION, OPTIONS and SUBCOMMANDS come from the command line. EXIT STATUS and EXAMPLES
//! come from the end of the help, else from the table of programs. FILES and SEE ALSO are there.
//!
//! # Concurrency
//! Plain values.

use std::io;

use clap::Command;
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, roman},
};

use crate::{help::HelpEnd, programs::Program};

/// A manual page.
pub(crate) struct Page<'a> {
    program: &'a Program,
    command: Command,
    /// True for the page of the program itself.
    is_main: bool,
}

impl<'a> Page<'a> {
    /// Returns the pages of a program: its own, then those of its commands.
    pub(crate) fn all(program: &'a Program) -> Vec<Page<'a>> {
        let mut command = program.command.clone().disable_help_subcommand(true);
        command.build();
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        let commands: Vec<_> = commands.map(|command| Page { program, command, is_main: false }).collect();
        let mut pages = vec![Page { program, command, is_main: true }];
        pages.extend(commands);
        pages
    }

    fn name(&self) -> &str {
        match self.is_main {
            true => self.program.name(),
            false => self.command.get_display_name().unwrap_or(self.command.get_name()),
        }
    }

    /// Returns the name of the file.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.{}", self.name(), self.program.section)
    }

    /// Returns the page in the language of troff.
    ///
    /// # Errors
    /// None: the text goes to memory.
    pub(crate) fn text(&self) -> io::Result<Vec<u8>> {
        let manual = Man::new(self.command.clone())
            .title(self.name())
            .section(self.program.section)
            .source(format!("rfs {}", env!("CARGO_PKG_VERSION")))
            .manual("rfs");
        let end = HelpEnd::of(&self.command);
        let mut out = Vec::new();
        manual.render_title(&mut out)?;
        manual.render_name_section(&mut out)?;
        preformatted("SYNOPSIS", &self.synopsis()).to_writer(&mut out)?;
        manual.render_description_section(&mut out)?;
        if self.command.get_arguments().any(|argument| !argument.is_hide_set()) {
            manual.render_options_section(&mut out)?;
        }
        if self.command.has_subcommands() {
            manual.render_subcommands_section(&mut out)?;
        }
        let own = |text: &'static str| (self.is_main && !text.is_empty()).then(|| text.to_owned());
        if let Some(text) = end.exit_status.or_else(|| own(self.program.exit_status)) {
            paragraphs("EXIT STATUS", &[text]).to_writer(&mut out)?;
        }
        if self.is_main && !self.program.files.is_empty() {
            definitions("FILES", self.program.files).to_writer(&mut out)?;
        }
        if !end.notes.is_empty() {
            paragraphs("NOTES", &end.notes).to_writer(&mut out)?;
        }
        if let Some(text) = end.examples.or_else(|| own(self.program.examples)) {
            preformatted("EXAMPLES", &text).to_writer(&mut out)?;
        }
        self.see_also().to_writer(&mut out)?;
        Ok(out)
    }

    /// Returns the usage of the help, without its label.
    fn synopsis(&self) -> String {
        let usage = self.command.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).trim_end();
        usage.lines().map(str::trim).collect::<Vec<_>>().join("\n")
    }

    /// Returns SEE ALSO. The page of a command names the program first.
    fn see_also(&self) -> Roff {
        let main = (!self.is_main).then(|| format!("{}({})", self.program.name(), self.program.section));
        let names = main.into_iter().chain(self.program.see_also.iter().map(|&name| name.to_owned()));
        let mut line: Vec<Inline> = Vec::new();
        for name in names {
            if !line.is_empty() {
                line.push(roman(", "));
            }
            let (page, section) = name.split_once('(').unwrap_or((&name, ""));
            line.extend([bold(page), roman(format!("({section}"))]);
        }
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text(line);
        roff
    }
}

fn paragraphs(heading: &str, texts: &[String]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for text in texts {
        roff.control("PP", []);
        for line in text.lines() {
            roff.text([roman(line.trim())]);
        }
    }
    roff
}

fn preformatted(heading: &str, text: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}

fn definitions(heading: &str, entries: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (term, text) in entries {
        roff.control("TP", []).text([bold(*term)]).text([roman(*text)]);
    }
    roff
}
