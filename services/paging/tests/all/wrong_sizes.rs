//! Sizes that are out of range are errors of the command line. The status is 2, and a message names
//! the option and the size to give instead.

use std::process::Command;

/// Runs the program, which has to refuse its options. Returns its errors.
fn refused(options: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-paging"));
    let output = command.args(options.split_whitespace()).output().expect("the program");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{options}: {text}");
    assert!(output.stdout.is_empty(), "{options}");
    text
}

#[test]
fn sizes_out_of_range_are_refused_with_the_size_to_give() {
    // No lender is there, so a size that is refused too late is another error.
    let pager = "--server unix:/nonexistent/lend.sock";
    let run = format!("run {pager} --local 1m");
    let nbd = format!("nbd {pager} --listen unix:/nonexistent/nbd.sock");
    let swap = "swapon --server unix:/nonexistent/rfs.sock";
    let listen = "lend --listen unix:/nonexistent/lend.sock";
    for (options, option, hint) in [
        (format!("run {pager} --local 64k -- true"), "--local", "give at least 128 KiB"),
        (format!("run {pager} --local 131071 -- true"), "--local", "give at least 128 KiB"),
        (format!("run {pager} --local 0 -- true"), "--local", "such as 64k, 1.5m or 4g"),
        (format!("run {pager} --local all -- true"), "--local", "such as 64k, 1.5m or 4g"),
        (format!("{run} --small 1m -- true"), "--small", "give at least 64 MiB"),
        (format!("{run} --min-size 4k -- true"), "--min-size", "give at least 64 KiB"),
        (format!("{run} --read-ahead 1k -- true"), "--read-ahead", "give at least 4 KiB"),
        (format!("{run} --read-ahead 2m -- true"), "--read-ahead", "give at most 1 MiB"),
        (format!("{nbd} --size 1m --local 64k"), "--local", "give at least 128 KiB"),
        (format!("{nbd} --size 0 --local 1m"), "--size", "such as 64k, 1.5m or 4g"),
        (format!("{swap} --size 60k"), "--size", "give at least 64 KiB"),
        (format!("{swap} --size 17t"), "--size", "give at most 16 TiB"),
        (format!("{listen} --memory 1023k"), "--memory", "give at least 1 MiB"),
    ] {
        let text = refused(&options);
        let first = text.lines().next().unwrap_or_default();
        assert!(first.contains(&format!("for '{option} <SIZE>'")), "{options}: {text}");
        assert!(first.ends_with(hint), "{options}: {text}");
    }
}

/// Catches a bound that is off by one: these get as far as the server that is not there.
#[test]
fn the_least_sizes_are_accepted() {
    let server = "--server unix:/nonexistent/lend.sock";
    for options in [
        format!("run {server} --local 128k --small 64m --min-size 64k --read-ahead 4k -- true"),
        format!("nbd {server} --local 128k --size 1 --listen unix:/nonexistent/nbd.sock"),
        "lend --memory 1m --listen unix:/nonexistent/lend.sock".to_owned(),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-paging"));
        let output = command.args(options.split_whitespace()).output().expect("the program");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{options}: {text}");
    }
}
