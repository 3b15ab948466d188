//! Writes the manual pages and the completions of all programs into a directory.
//!
//! Usage: `packaging DIR`. `DIR/PROGRAM/` has the files of a program, at their places below the
//! root of an installed system. `ci/product/package` puts them into the packages.
//!
//! # Concurrency
//! The main thread.
#![forbid(unsafe_code)]

mod help;
mod page;
mod programs;

use std::{
    fs::{self, File},
    io,
    path::Path,
    process::ExitCode,
};

use clap_complete::Shell;

use self::{
    page::Page,
    programs::{Program, programs},
};

fn main() -> ExitCode {
    let Some(out) = std::env::args_os().nth(1) else {
        eprintln!("usage: packaging DIR");
        return ExitCode::from(2);
    };
    for program in programs() {
        if let Err(e) = write_files(&program, &Path::new(&out).join(program.name())) {
            eprintln!("packaging: {}: {e}", program.name());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Writes the files of a program below `root`.
fn write_files(program: &Program, root: &Path) -> io::Result<()> {
    let manuals = root.join(format!("usr/share/man/man{}", program.section));
    fs::create_dir_all(&manuals)?;
    for page in Page::all(program) {
        fs::write(manuals.join(page.file_name()), page.text()?)?;
    }
    for (shell, folder, name) in [
        (Shell::Bash, "bash-completion/completions", program.name().to_owned()),
        (Shell::Zsh, "zsh/vendor-completions", format!("_{}", program.name())),
        (Shell::Fish, "fish/vendor_completions.d", format!("{}.fish", program.name())),
    ] {
        let folder = root.join("usr/share").join(folder);
        fs::create_dir_all(&folder)?;
        let mut file = File::create(folder.join(name))?;
        clap_complete::generate(shell, &mut program.command.clone(), program.name(), &mut file);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_has_a_page_and_three_completions() {
        let out = tempfile::tempdir().expect("a directory");
        for program in programs() {
            let root = out.path().join(program.name());
            write_files(&program, &root).expect("files");
            let read = |path: String| fs::read_to_string(root.join(&path)).expect(&path);
            let (name, section) = (program.name(), program.section);
            let page = read(format!("usr/share/man/man{section}/{name}.{section}"));
            for heading in
                ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
            {
                let found = page.lines().filter(|line| line.starts_with(".SH") && line.contains(heading));
                assert_eq!(found.count(), 1, "{name}: {heading}");
            }
            for path in [
                format!("usr/share/bash-completion/completions/{name}"),
                format!("usr/share/zsh/vendor-completions/_{name}"),
                format!("usr/share/fish/vendor_completions.d/{name}.fish"),
            ] {
                let text = read(path.clone());
                assert!(text.contains("--help") || text.contains("-l help"), "{path}");
            }
        }
    }

    #[test]
    fn commands_have_pages_of_their_own() {
        let out = tempfile::tempdir().expect("a directory");
        let fuse = programs().into_iter().find(|program| program.name() == "rfs-fuse").expect("rfs-fuse");
        write_files(&fuse, out.path()).expect("files");
        let read = |name: &str| {
            fs::read_to_string(out.path().join("usr/share/man/man8").join(name)).expect("a page")
        };
        let scrub = read("rfs-fuse-scrub.8");
        assert!(scrub.contains("rfs\\-fuse scrub [OPTIONS] ADDRESS"), "{scrub}");
        assert!(scrub.contains("full\\-speed") && scrub.contains("3 if the scrub"), "{scrub}");
        assert!(read("rfs-fuse.8").contains("rfs\\-fuse\\-scrub(8)"));
    }
}
