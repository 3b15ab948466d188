//! Runs the examples, alone and with a separate host, over shared memory and TCP, and checks the
//! output that their headers show.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use rdmabox::{Address, HostHandle, MemoryServer, Session, SessionOptions};
use rustix::process::{Pid, Signal, kill_process};

const PROVIDERS: [&str; 2] = ["shared memory", "TCP"];

/// Returns an example that `cargo test` and `cargo nextest run` build beside the tests.
fn program(name: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let path: PathBuf = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: cargo build -p rdmabox --examples", path.display());
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

#[track_caller]
fn run(name: &str, args: &[&str]) -> Vec<String> {
    let output = program(name).args(args).output().unwrap();
    assert!(output.status.success(), "{name} {args:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Returns addresses for both providers: of a socket in `dir`, and a free port.
fn addresses(dir: &tempfile::TempDir) -> [Address; 2] {
    [Address::Unix(dir.path().join("socket")), Address::Tcp { host: "127.0.0.1".into(), port: 0 }]
}

/// Runs an example of a client with a host of this process on each provider.
fn on_each_provider(name: &str, check: impl Fn(&str, Vec<String>)) {
    on_each_provider_with(4 << 20, name, check);
}

/// Runs an example of a client on each provider, twice, with a host of this process that lends
/// `len` bytes.
fn on_each_provider_with(len: usize, name: &str, check: impl Fn(&str, Vec<String>)) {
    let dir = tempfile::tempdir().unwrap();
    for (provider, address) in PROVIDERS.into_iter().zip(addresses(&dir)) {
        let host: HostHandle = MemoryServer::listen(&[address], len).unwrap();
        // Twice: the memory is not as it was.
        for _ in 0..2 {
            check(provider, run(name, &["--connect", &host.addresses()[0].to_string()]));
        }
    }
}

/// Parses a number of any value.
fn number(text: &str) -> f64 {
    text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// A child that ends with the test.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(name: &str, args: &[&str], before_address: &str) -> Serving {
        let mut child = program(name).args(args).spawn().unwrap();
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let address = line.trim_end().strip_prefix(before_address).map(str::to_owned);
        let serving = Serving { child, address: address.unwrap_or_default() };
        assert!(read.is_ok() && !serving.address.is_empty(), "{line:?}");
        serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host that the default action of SIGTERM ends leaves its socket behind, and reports a signal.
#[test]
fn lend_stops_in_order_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let [Address::Unix(socket), _] = addresses(&dir) else { unreachable!("the first is a socket") };
        let args = [socket.to_str().unwrap()];
        let mut host = Serving::start("lend", &args, "lending 16777216 bytes at ");
        let session = Session::connect(&host.address.parse().unwrap(), &SessionOptions::default()).unwrap();
        kill_process(Pid::from_child(&host.child), signal).unwrap();
        let ended = host.child.wait().unwrap();
        assert!(ended.success(), "{signal:?}: {ended}");
        assert!(!socket.exists(), "{signal:?}");
        drop(session);
    }
}

#[test]
fn ping_pong_prints_a_table() {
    let check = |provider: &str, lines: Vec<String>| {
        assert!(
            lines[0].starts_with(&format!("1000 of each, one at a time, through {provider}")),
            "{lines:?}"
        );
        assert_eq!(lines[1], "|                        | median us | 99 % us |");
        let names: Vec<&str> = lines[3..]
            .iter()
            .map(|line| {
                let cells: Vec<&str> = line.split('|').collect();
                let [_, name, median, most, _] = cells[..] else { panic!("{line:?}") };
                assert!(0.0 < number(median) && number(median) <= number(most), "{line:?}");
                name.trim()
            })
            .collect();
        assert_eq!(
            names,
            [
                "read 8 bytes",
                "write 8 bytes",
                "read 4 KiB",
                "write 4 KiB",
                "fetch and add",
                "call",
                "there and back"
            ]
        );
    };
    check("shared memory", run("ping_pong", &[]));
    on_each_provider("ping_pong", check);
}

#[test]
fn remote_vec_counts_its_requests() {
    let check = |_: &str, lines: Vec<String>| {
        assert_eq!(
            lines,
            [
                "1000 pushes: 2001 work requests, 1001 doorbells",
                "99000 more at once: 2 work requests, 1 doorbells",
                "opened, 100000 elements: 1 work requests, 1 doorbells",
                "iterated, the ids sum up to 4999950000: 98 work requests, 98 doorbells",
                "set and get, Some(Point { id: 7, x: 777.0, y: 0.5 }): 2 work requests, 2 doorbells",
            ]
        );
    };
    check("", run("remote_vec", &[]));
    on_each_provider("remote_vec", check);
}

#[test]
fn kv_cache_finds_everything_without_a_call_and_never_half_a_value() {
    let check = |lines: Vec<String>| {
        assert_eq!(lines[0], "2000 gets: 1000 hits, 2000 reads, 0 calls");
        let rest = lines[1].strip_prefix("2000 puts meanwhile: ").unwrap();
        let (gets, torn) = rest.split_once(" gets, none of them mixed, ").unwrap();
        number(gets);
        number(torn.strip_suffix(" torn reads repeated").unwrap());
        assert_eq!(lines.len(), 2);
    };
    check(run("kv_cache", &[]));
    let dir = tempfile::tempdir().unwrap();
    for address in addresses(&dir) {
        let server = Serving::start("kv_cache", &["--listen", &address.to_string()], "serving at ");
        check(run("kv_cache", &["--connect", &server.address]));
    }
}

#[test]
fn work_queue_does_each_job_once() {
    let check = |lines: Vec<String>| {
        assert_eq!(lines, ["2000 jobs of 2 producers, each done once by 3 workers"]);
    };
    check(run("work_queue", &[]));
    let dir = tempfile::tempdir().unwrap();
    for address in addresses(&dir) {
        let server = Serving::start("work_queue", &["--listen", &address.to_string()], "serving at ");
        // Twice: the second run finds the marks of the first one.
        check(run("work_queue", &["--connect", &server.address]));
        check(run("work_queue", &["--connect", &server.address]));
    }
}

#[test]
fn bulk_copy_neither_copies_nor_registers_per_request() {
    let check = |provider: &str, lines: Vec<String>| {
        let title = format!("10000000 bytes there and back, through {provider}");
        assert!(lines[0].starts_with(&title), "{lines:?}");
        let counters = match provider {
            "TCP" => {
                "20 requests: copied 0 bytes, registered 8 buffers, moved 20000000 bytes in registered memory"
            }
            _ => "executed 20 requests in place",
        };
        assert_eq!(lines[1..], [counters]);
    };
    check("TCP", run("bulk_copy", &[]));
    on_each_provider_with(10 << 20, "bulk_copy", check);
}

#[test]
fn replicated_register_is_whole_and_outlives_a_host() {
    let check_writes = |line: &str| {
        let rest = line.strip_prefix("1000 writes to 2 hosts; each of ").unwrap();
        let (reads, rest) = rest.split_once(" reads ").unwrap();
        number(reads);
        assert_eq!(rest, "found a whole value, and none older than before");
    };
    let lines = run("replicated_register", &[]);
    check_writes(&lines[0]);
    assert_eq!(lines[1..], ["one host stopped: the next write has 1 copy, and is read back"]);
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (one, two) in addresses(&dirs[0]).into_iter().zip(addresses(&dirs[1])) {
        let hosts = [one, two].map(|address| MemoryServer::listen(&[address], 16 << 10).unwrap());
        let [one, two] = hosts.each_ref().map(|host| host.addresses()[0].to_string());
        // Twice: the second run finds the versions of the first one.
        for _ in 0..2 {
            let lines = run("replicated_register", &["--connect", &one, &two]);
            check_writes(&lines[0]);
            assert_eq!(lines.len(), 1);
        }
    }
}

#[test]
fn pipeline_merges_what_it_starts_at_once() {
    let check = |provider: &str, lines: Vec<String>| {
        assert!(lines[0].starts_with(&format!("64 pieces of 1 MiB, through {provider}")), "{lines:?}");
        let rows: Vec<_> = lines[3..]
            .iter()
            .map(|line| {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                let ["", way, rate, merged, work_requests, doorbells, ""] = cells[..] else {
                    panic!("{line:?}")
                };
                assert!(number(rate) > 0.0, "{line:?}");
                (way, [merged, work_requests, doorbells].map(number))
            })
            .collect();
        assert_eq!(rows[..2], [("one at a time", [0.0, 64.0, 64.0]), ("started", [48.0, 16.0, 16.0])]);
        // The number of callbacks of one poll depends on time.
        let (way, [merged, work_requests, doorbells]) = rows[2];
        assert_eq!((rows.len(), way, merged + work_requests), (3, "callbacks", 64.0));
        assert!(doorbells <= work_requests, "{lines:?}");
    };
    check("TCP", run("pipeline", &[]));
    on_each_provider_with(64 << 20, "pipeline", check);
}

#[test]
fn async_service_finds_its_records() {
    let check = |provider: &str, lines: Vec<String>| {
        assert!(lines[0].starts_with(&format!("256 lookups through {provider}")), "{lines:?}");
        assert!(lines[1].starts_with("one after another: ") && lines[2].starts_with("joined: "), "{lines:?}");
        assert_eq!(lines[3..], [r#"the third says "record 2!!""#]);
    };
    check("TCP", run("async_service", &[]));
    on_each_provider("async_service", check);
}

#[test]
fn call_rate_prints_a_row_for_each_combination() {
    let args = [
        "--calls",
        "200",
        "--rounds",
        "1",
        "--polling",
        "event,adaptive",
        "--pause",
        "0,1",
        "--answers",
        "reply,fetch",
    ];
    let lines = run("call_rate", &args);
    assert_eq!(lines[0], "200 calls of 64 bytes, medians of 1 interleaved rounds");
    let rows: Vec<String> = lines[3..]
        .iter()
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let ["", provider, answers, polling, threads, pause, rate, cpu, reads, early, rung, ""] =
                cells[..]
            else {
                panic!("{line:?}")
            };
            assert!(number(rate) > 0.0, "{line:?}");
            assert!([cpu, reads, early, rung].into_iter().all(|cell| number(cell) >= 0.0), "{line:?}");
            format!("{provider} {polling} {answers} {threads} {pause}")
        })
        .collect();
    let expected: Vec<String> = ["shm", "tcp"]
        .iter()
        .flat_map(|provider| ["event", "adaptive"].map(|polling| format!("{provider} {polling}")))
        .flat_map(|row| ["reply", "fetch"].map(|answers| format!("{row} {answers}")))
        .flat_map(|row| ["1 0", "1 1", "4 0", "4 1"].map(|rest| format!("{row} {rest}")))
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn across_prints_a_row_for_each_way() {
    for (provider, shown) in [("shm", "shared memory"), ("tcp", "TCP")] {
        let lines = run("two_hosts", &[provider, "65536", "40"]);
        assert!(
            lines[0].starts_with(&format!("40 rounds of 65536 bytes per host, through {shown}")),
            "{lines:?}"
        );
        let rows = lines[3..].iter().map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let ["", name, median, rate, of_one, ""] = cells[..] else { panic!("{line:?}") };
            assert!(number(median) > 0.0 && number(rate) > 0.0 && number(of_one) > 0.0, "{line:?}");
            name
        });
        assert_eq!(rows.collect::<Vec<_>>(), ["one host", "two, one by one", "two, across"]);
    }
}

#[test]
fn lend_lends() {
    let dir = tempfile::tempdir().unwrap();
    for address in addresses(&dir) {
        let host = Serving::start("lend", &[&address.to_string()], "lending 16777216 bytes at ");
        let session = Session::connect(&host.address.parse().unwrap(), &SessionOptions::default()).unwrap();
        let memory = MemoryServer::locate(&session).unwrap();
        assert_eq!(memory.len(), 16 << 20);
        let last = memory.for_write(memory.len() - 4, 4).unwrap();
        session.write(last, b"last").unwrap();
        let mut back = [0; 4];
        session.read(last, &mut back).unwrap();
        assert_eq!(&back, b"last");
    }
}
