//! Tests of the program as a process: its counts, its output files, its error messages, and that no
//! sockets or processes remain after it ends.
//!
//! Own program: the crate has no other, so it is linked once.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use measure::testing::{files, other_processes, text, wait_until};
use serde_json::Value;
use tempfile::TempDir;

/// A temporary directory of a test. Processes that the test started are found by it.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        fs::create_dir(world.tmp()).unwrap();
        world
    }

    fn tmp(&self) -> PathBuf {
        self.0.path().join("tmp")
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmabox-bench"));
        command
            .env("TMPDIR", self.tmp())
            .current_dir(self.0.path())
            .args(args.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn run(&self, args: &str, status: i32) -> Output {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args}: {}", text(&output.stderr));
        output
    }

    /// Runs a load and returns its JSON output.
    #[track_caller]
    fn json(&self, args: &str) -> Value {
        serde_json::from_slice(&self.run(&format!("{args} --json -"), 0).stdout).unwrap()
    }

    /// Asserts that no socket and no process is left.
    #[track_caller]
    fn assert_clean(&self) {
        assert_eq!(files(&self.tmp()), [] as [PathBuf; 0]);
        assert_eq!(self.processes(), [] as [u32; 0]);
    }

    fn processes(&self) -> Vec<u32> {
        let mark = format!("TMPDIR={}", self.tmp().display());
        other_processes()
            .filter(|pid| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            })
            .collect()
    }
}

/// 301 requests by 2 threads in batches of 8: neither divides the other.
const LOAD: &str = "--ops 301 --warmup 0 --threads 2";

#[test]
fn every_operation_makes_exactly_the_given_number_of_requests() {
    every_operation(&["shm", "tcp"]);
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_operation_over_rdma_does_exactly_what_was_asked() {
    every_operation(&["rdma"]);
}

fn every_operation(providers: &[&str]) {
    let world = World::new();
    for provider in providers {
        for (op, options, counter, bytes) in [
            ("read", "--size 4k --depth 8", "read_requests", 301 * 4096),
            ("write", "--size 4k --depth 8", "write_requests", 301 * 4096),
            ("read", "--size 4k --depth 8 --submit vectored", "read_requests", 301 * 4096),
            ("write", "--size 4k --depth 8 --submit vectored", "write_requests", 301 * 4096),
            ("write", "--size 4k --depth 1 --submit started", "write_requests", 301 * 4096),
            ("read", "--size 8k --depth 5 --reg registered", "read_requests", 301 * 8192),
            ("write", "--size 100 --blocking", "write_requests", 301 * 100),
            (
                "write",
                "--size 4k --depth 8 --pattern bursts --burst 50 --gap 1us",
                "write_requests",
                301 * 4096,
            ),
            ("read", "--size 64k --depth 3 --pattern mixed --cursor own", "read_requests", 301 << 16),
            ("cas", "--words 3 --depth 2", "atomic_requests", 301 * 8),
            ("send", "--size 100 --reply 5000", "calls", 301 * 5100),
        ] {
            let report = world.json(&format!("{op} --provider {provider} {options} {LOAD}"));
            let what = format!("{op} {options} over {provider}");
            let is_software = *provider != "rdma";
            assert_eq!(report["software_provider"], is_software, "{what}");
            let carrier = if is_software { format!("software provider {provider}") } else { "RDMA".into() };
            assert_eq!(report["title"], format!("rdmabox-bench: {op} on {carrier}"), "{what}");
            let result = &report["results"][0];
            assert_eq!(result["options"]["op"], op, "{what}");
            assert_eq!(result["options"]["provider"], **provider, "{what}");
            let sample = &result["rounds"][0];
            assert_eq!(sample["ops"], 301, "{what}");
            assert_eq!(sample["bytes"], bytes, "{what}");
            assert_eq!(sample["counters"][counter], 301, "{what}");
            assert_eq!(sample["counters"]["errors"], 0, "{what}");
            assert!(sample["latency"]["p50_us"].as_f64().unwrap() > 0.0, "{what}");
            let kind = counter.trim_end_matches("_requests").trim_end_matches('s');
            let recorded = sample["runtime_latency"][kind]["count"].as_u64().unwrap();
            // Requests that are submitted together have one latency. Of requests that the caller
            // executes itself, every 64th is timed.
            let direct = sample["counters"]["direct"].as_u64().unwrap();
            let together = options.contains("vectored") || op == "cas" || direct > 0;
            assert!(recorded == 301 || together && (1..301).contains(&recorded), "{what}: {recorded}");
            assert!(sample["runtime_latency"][kind]["p50_us"].as_f64().unwrap() > 0.0, "{what}");
            assert_eq!(sample["runtime_latency"].as_object().unwrap().len(), 1, "{what}");
            let chains = sample["chain_lengths"].as_array().unwrap();
            let posts: u64 = chains.iter().map(|class| class.as_u64().unwrap()).sum();
            assert_eq!(sample["counters"]["doorbells"], posts, "{what}");
            // Only posted and admitted requests are in flight.
            if *provider != "shm" {
                let peak = sample["in_flight_peak"].as_u64().unwrap();
                assert!(peak.is_multiple_of(4096) && (peak > 0) == (op != "send"), "{what}: {peak}");
            }
            assert!(sample["server"].is_object(), "{what}");
            assert_eq!(sample["swapped"].is_number(), op == "cas", "{what}");
            assert_eq!(result["median"]["ops"], 301.0, "{what}");
        }
    }
    world.assert_clean();
}

#[test]
fn several_servers_share_the_requests_and_may_be_threads_of_the_client() {
    let world = World::new();
    for place in ["", "--in-process"] {
        let report =
            world.json(&format!("write --provider tcp --peers 3 --depth 4 --reg registered {place} {LOAD}"));
        let sample = &report["results"][0]["rounds"][0];
        assert_eq!(sample["counters"]["bytes_written"], 301 * 4096);
        assert_eq!(sample["server"].is_null(), !place.is_empty());
    }
    world.assert_clean();
}

#[test]
fn modes_differ_as_they_should() {
    let world = World::new();
    // With one thread, merging does not depend on the scheduler.
    let counted = |mode: &str| {
        let report = world.json(&format!(
            "write --submit vectored --mode {mode} --depth 10 --threads 1 --ops 300 --warmup 0"
        ));
        let counters = &report["results"][0]["rounds"][0]["counters"];
        ["work_requests", "doorbells", "merged"].map(|name| counters[name].as_u64().unwrap())
    };
    assert_eq!(counted("single"), [300, 300, 0]);
    assert_eq!(counted("merge"), [30, 30, 270]);
    assert_eq!(counted("doorbell"), [300, 30, 0]);
    assert_eq!(counted("hybrid"), [30, 30, 270]);
}

#[test]
fn a_sweep_prints_a_table_and_writes_json_and_a_chart() {
    let world = World::new();
    let mut command = world.command("write --ops 50 --warmup 0 --rounds 2 --out out --sweep");
    let output = command.arg("threads=1,2 mode=single,hybrid size=1k").output().unwrap();
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(stdout.contains("software provider"), "{stdout}");
    assert!(stdout.contains("medians of 2 interleaved rounds"), "{stdout}");
    assert!(stdout.contains("|       2 | hybrid |   1k |"), "{stdout}");
    let files = files(&world.out());
    let extensions: Vec<_> = files.iter().map(|path| path.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(extensions, ["json", "svg"]);
    let report: Value = serde_json::from_slice(&fs::read(&files[0]).unwrap()).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        let rounds = result["rounds"].as_array().unwrap();
        assert_eq!(rounds.iter().map(|round| round["ops"].as_u64().unwrap()).collect::<Vec<_>>(), [50, 50]);
    }
    let svg = fs::read_to_string(&files[1]).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("software provider"), "{svg}");
    world.assert_clean();
}

#[test]
fn an_experiment_reports_the_paper_and_the_run_separately() {
    let world = World::new();
    let output =
        world.run("experiment table1 --quick --submit vectored --ops 2000 --out out --json own.json", 0);
    let stdout = text(&output.stdout);
    for says in ["table1 on software provider tcp", "The paper: Table I", "Here (software provider"] {
        assert!(stdout.contains(says), "{says}: {stdout}");
    }
    assert!(!stdout.contains("DOES NOT HOLD"), "{stdout}");
    assert_eq!(files(&world.out()).len(), 2);
    let own: Value = serde_json::from_slice(&fs::read(world.0.path().join("own.json")).unwrap()).unwrap();
    assert_eq!(own["experiment"]["name"], "table1");
    let list = text(&world.run("experiment list", 0).stdout);
    assert_eq!(list.lines().count(), 8);
    world.assert_clean();
}

#[test]
fn an_experiment_on_a_modelled_card_can_have_a_provider_beside_it() {
    let world = World::new();
    let args = "experiment table1 --device model:cx3 --dilation 20 --quick --ops 400 --warmup 0 --beside tcp \
                --json own.json --check known";
    // Merging depends on the threads, so its rows may fail in a run as short as this one.
    let lists = ["read", "write"].map(|op| ["16k", "1m"].map(|list| format!("{op}, mixed, {list}")));
    let programs = ["etc", "sys"].map(|load| ["25", "50"].map(|local| format!("{load} {local} %")));
    let merging: String = [lists, programs]
        .iter()
        .flatten()
        .flatten()
        .flat_map(|load| {
            ["work requests, merge", "work requests, hybrid", "doorbells, doorbell", "doorbells, hybrid"]
                .map(|what| format!("table1: {load}: {what} over single\n"))
        })
        .collect();
    fs::write(world.0.path().join("known"), merging).unwrap();
    let out = world.run(args, 0);
    assert!(text(&out.stdout).contains("| shape on tcp"), "{}", text(&out.stdout));
    let own: Value = serde_json::from_slice(&fs::read(world.0.path().join("own.json")).unwrap()).unwrap();
    let rows = own["experiment"]["rows"].as_array().unwrap();
    let doorbell =
        rows.iter().find(|row| row["what"] == "read, mixed, 1m: work requests, doorbell over single");
    // Counts do not depend on the provider.
    assert_eq!(doorbell.unwrap()["beside"]["value"], "1.00", "{rows:?}");
}

#[test]
fn an_experiment_on_a_modelled_card_prints_the_papers_values() {
    let world = World::new();
    let args =
        "experiment table1 --device model:cx3 --dilation 20 --quick --ops 400 --warmup 0 --json own.json";
    let stdout = text(&world.run(args, 0).stdout);
    for says in
        ["table1 on the modelled card cx3", "modelled card cx3, dilation 20", "| quantity", "load chosen"]
    {
        assert!(stdout.contains(says), "{says}: {stdout}");
    }
    let own: Value = serde_json::from_slice(&fs::read(world.0.path().join("own.json")).unwrap()).unwrap();
    assert_eq!(own["model"], "cx3, dilation 20");
    // Merging depends on the threads; chaining never changes the number of work requests.
    let rows = own["experiment"]["rows"].as_array().unwrap().iter();
    let chained =
        |row: &&Value| row["what"].as_str().unwrap().contains("work requests, doorbell over single");
    let chained: Vec<&Value> = rows.filter(chained).collect();
    // READs and WRITEs, each with two limits of a list, and four programs.
    assert_eq!(chained.len(), 8, "{own}");
    for row in chained {
        assert_eq!(row["model"], "1.00", "{row}");
        assert!(row["shape"] == "in_range" || row["shape"] == "holds", "{row}");
    }
    for result in own["results"].as_array().unwrap() {
        let counters = &result["rounds"][0]["counters"];
        let count = |name: &str| counters[name].as_u64().unwrap();
        assert!(count("work_requests") > 0, "{counters}");
        assert!(count("card_work_requests") >= count("work_requests"), "{counters}");
    }
    world.assert_clean();
}

#[test]
fn a_card_without_time_counts() {
    let world = World::new();
    let args = "write --device model:cx3 --dilation 0 --submit vectored --mode doorbell --depth 10 --threads 1 --qps 1";
    let report = world.json(&format!("{args} --ops 300 --warmup 0 --direct off"));
    assert!(report["model"].as_str().unwrap().contains("counts only"), "{}", report["model"]);
    let counters = &report["results"][0]["rounds"][0]["counters"];
    assert_eq!((&counters["work_requests"], &counters["doorbells"]), (&300.into(), &30.into()));
    // The card also has the session's own requests.
    assert!(counters["card_doorbells"].as_u64().unwrap() >= 30, "{counters}");
    // Catches requests that callbacks lose, repeat or leave under way at the end.
    let args = "write --device model:cx3 --dilation 0 --submit callback --pollers stand --mode single --depth 10 --threads 2";
    for polling in ["busy", "event-batch", "adaptive"] {
        let report =
            world.json(&format!("{args} --polling {polling} --ops 300 --warmup 0 --direct off --qps 1"));
        let round = &report["results"][0]["rounds"][0];
        let count = |name: &str| &round["counters"][name];
        assert_eq!((&round["ops"], count("work_requests")), (&300.into(), &300.into()), "{polling}");
        assert_eq!((count("doorbells"), count("write_requests")), (&300.into(), &300.into()), "{polling}");
        assert!(polling != "busy" || count("sleeps").as_u64() == Some(0), "{round}");
    }
    let refused = world.run("experiment fig1 --device model:cx3 --dilation 0", 2);
    assert!(text(&refused.stderr).contains("needs model time"));
    world.assert_clean();
}

#[test]
fn a_server_of_its_own_serves_many_runs_and_ends_on_a_signal() {
    let world = World::new();
    let mut server = world.command("serve --memory 1m").spawn().unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let announced: Vec<String> = lines.take(3).collect();
    assert_eq!(announced[2], "ready: lending 1 MiB");
    for line in &announced[..2] {
        let address = line.strip_prefix("listening on ").unwrap();
        let provider = if address.starts_with("unix:") { "shm" } else { "tcp" };
        // The second run finds the words as the first run left them.
        for _ in 0..2 {
            let report = world.json(&format!("cas --words 5 --connect {address} {LOAD}"));
            assert_eq!(report["results"][0]["options"]["provider"], provider);
        }
        let refused = world.run(&format!("read --connect {address} --area 2m"), 2);
        assert!(text(&refused.stderr).contains("lends 1 MiB, this load wants 2 MiB"));
    }
    assert!(Command::new("kill").arg(server.id().to_string()).status().unwrap().success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
    world.assert_clean();
}

#[test]
fn a_signal_ends_the_program_and_nothing_is_left() {
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let world = World::new();
        let mut child = world.command("write --duration 1h --peers 2 --threads 2 --out out").spawn().unwrap();
        wait_until("two servers", &mut child, || files(&world.tmp()).len() == 2);
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "SIG{signal}");
        assert!(text(&output.stderr).ends_with("rdmabox-bench: interrupted\n"), "{}", text(&output.stderr));
        world.assert_clean();
        assert_eq!(files(&world.out()), [] as [PathBuf; 0]);
    }
}

#[test]
fn a_server_that_dies_is_named() {
    let world = World::new();
    let mut child = world.command("write --duration 1h").spawn().unwrap();
    // The child of the program has the same environment.
    let program = child.id();
    let server = || world.processes().into_iter().find(|pid| *pid != program);
    wait_until("a server", &mut child, || !files(&world.tmp()).is_empty() && server().is_some());
    assert!(Command::new("kill").args(["-KILL", &server().unwrap().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("killed by signal 9"), "{}", text(&output.stderr));
    assert_eq!(world.processes(), [] as [u32; 0]);
}

#[test]
fn bad_input_gets_one_line_and_starts_nothing() {
    let world = World::new();
    for (args, says) in [
        ("", "no command given"),
        ("read --size x", "\"x\" is not a size"),
        ("read --thread 3", "(tip: a similar argument exists: '--threads')"),
        ("experiment", "were not provided: <NAME>"),
        ("experiment fig3", "there is no experiment \"fig3\""),
        ("experiment fig6 --mode merge", "leave --mode out"),
        ("send --depth 4", "give more --threads"),
        ("write --reg registered --submit vectored", "only started requests"),
        ("write --sweep threads=1,0", "0 is not in 1..=1024"),
        ("write --threads 3 --sweep threads=1", "leave --threads out"),
        ("read --area 90000t", "are available"),
        ("read --device model:cx9", "--device model:cx9: cannot read cx9"),
        ("read --device model:cx3 --provider rdma", "works over shm or tcp"),
        ("read --dilation 100", "--dilation is for a modelled card"),
        ("experiment fig1 --beside tcp", "--beside is for a modelled card"),
        ("experiment fig1 --check x", "--check is for a modelled card"),
        ("experiment fig2 --think 1us", "--think is for a modelled card"),
        ("write --sweep think=1us,2us", "--think is for a modelled card"),
        ("read --device model:cx3 --think 24h", "takes 17280000s of this machine"),
        ("serve --device model:cx3", "a server has no modelled card"),
        ("serve --device model:nonsense --listen rdma:127.0.0.1:0", "a server has no modelled card"),
        ("serve --memory 90000t", "are available"),
    ] {
        let output = world.run(args, 2);
        let stderr = text(&output.stderr);
        assert!(stderr.starts_with("rdmabox-bench: ") && stderr.contains(says), "{args}: {stderr}");
        assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{args}: {stderr}");
    }
    let unwritable = world.run("read --json /nonexistent/x", 1);
    assert_eq!(text(&unwritable.stderr).lines().count(), 1);
    assert!(text(&world.run("--help", 0).stdout).contains("Examples:"));
    world.assert_clean();
}

#[test]
fn the_table_of_options_names_the_counters_that_change() {
    let world = World::new();
    let output = world.run("options", 0);
    let table = text(&output.stdout);
    let row = |option: &str, value: &str| {
        let start = format!("| {option} | {value} | ");
        let found = table.lines().find_map(|line| line.strip_prefix(&start));
        found.unwrap_or_else(|| panic!("no {start} in {table}"))
    };
    assert!(row("mode", "single").contains("doorbells 100 -> 1600"), "{table}");
    assert!(row("reg", "dyn").contains("registrations"), "{table}");
    assert!(row("submit", "started").contains("gathered 0 -> "), "{table}");
    world.assert_clean();
}
