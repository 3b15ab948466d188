//! The program: figures on this machine and on modelled cards, and its errors.
//!
//! Own program: the crate has no other, so it is linked once.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jakiro-bench")).args(args).output().expect("the program")
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).expect("text")
}

const SHORT: [&str; 6] = ["--duration", "60", "--rounds", "1", "--keys", "300"];

#[test]
fn figures_are_measured_over_shared_memory_and_tcp() {
    let dir = std::env::temp_dir().join(format!("jakiro-bench-test-{}", std::process::id()));
    let json = dir.with_extension("json");
    let file = json.display().to_string();
    let mut args = vec!["run", "fig4", "fig5", "fig7", "--threads", "1,2", "--json", &file];
    args.extend(SHORT);
    let tables = text(&args);
    for title in ["Fig. 4: client threads", "Fig. 5: latency", "Fig. 7: length of values"] {
        assert_eq!(tables.matches(title).count(), 2, "{tables}");
    }
    assert!(tables.contains("(shm)") && tables.contains("(tcp)"), "{tables}");
    let results = std::fs::read_to_string(&json).expect("the results");
    std::fs::remove_file(json).expect("the file");
    assert!(results.contains("\"device\": \"shm\"") && results.contains("\"system\": \"ServerReply\""));
}

/// The first READ over TCP has room for 32 bytes: a longer value takes one more. READs that come
/// too early, and replies by message, are no part of the count.
#[test]
fn a_value_behind_the_fetch_size_takes_one_more_read() {
    let table = text(&[
        "run",
        "fig8",
        "--provider",
        "tcp",
        "--at",
        "1",
        "--duration",
        "200",
        "--rounds",
        "1",
        "--keys",
        "300",
        "--poll-ms",
        "1000",
    ]);
    let reads = |len: &str| -> f64 {
        let row = table.lines().find(|line| line.starts_with(&format!("| {len} "))).expect("a row");
        row.trim_matches(['|', ' ']).rsplit('|').nth(1).expect("a column").trim().parse().expect("a number")
    };
    // Replies to puts are short: 5 % of the requests.
    assert!((1.0..1.02).contains(&reads("32")) && (1.6..2.02).contains(&reads("1024")), "{table}");
}

#[test]
fn simulated_cards_repeat_all_figures() {
    let tables =
        text(&["run", "--device", "model:cx3", "--keys", "1000", "--requests", "3000", "--server-ns", "300"]);
    for figure in 4..=10 {
        assert!(tables.contains(&format!("Fig. {figure}: ")), "{tables}");
    }
}

#[test]
fn wrong_options_name_the_next_step() {
    for (args, says) in [
        (&["run", "--device", "cx3"][..], "--device cx3: choose model:cx3"),
        (&["run", "--device", "model:none"], "name a file, or the card cx3"),
        (&["run", "fig3"], "possible values: fig4"),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(says), "{error}");
    }
}
