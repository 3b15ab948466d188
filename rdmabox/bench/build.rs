//! Passes the commit of the source tree to the program.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
    println!("cargo::rustc-env=RDMABOX_BENCH_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    // The log of HEAD changes with every commit and checkout.
    if let Some(path) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={path}");
    }
    for path in ["src", "build.rs", "../src", "../../Cargo.lock"] {
        println!("cargo::rerun-if-changed={path}");
    }
}
