//! The file of `--config`: start, precedence, `--check-config`, and SIGHUP.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ChildStderr, Command, Output},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use crate::common::program::{Running, piped, text};

/// A directory with the files of a server.
struct Files(tempfile::TempDir);

impl Files {
    /// Returns a directory with this file of options. SOCKET stands for the path of the socket, and
    /// DIR for the directory.
    fn with(options: &str) -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        files.write(options);
        files
    }

    fn write(&self, options: &str) {
        let dir = self.0.path().to_str().unwrap();
        let socket = format!("unix:{dir}/rfs.sock");
        fs::write(self.path("server.toml"), options.replace("SOCKET", &socket).replace("DIR", dir)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, rest: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        piped(&mut command);
        command.arg("--config").arg(self.path("server.toml")).args(rest);
        command
    }

    fn start(&self, rest: &[&str]) -> (Running, Log) {
        let mut running = Running::start(&mut self.command(rest));
        let log = Log::of(running.0.stderr.take().unwrap());
        (running, log)
    }

    fn check(&self, rest: &[&str]) -> Output {
        self.command(rest).arg("--check-config").output().unwrap()
    }
}

/// The log lines of a server.
struct Log(Receiver<String>);

impl Log {
    fn of(stderr: ChildStderr) -> Log {
        let (send, lines) = channel();
        thread::spawn(move || {
            BufReader::new(stderr).lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
        });
        Log(lines)
    }

    /// Reads up to a line with these words.
    fn until(&self, words: &str) -> String {
        let mut all = String::new();
        while let Ok(line) = self.0.recv_timeout(Duration::from_secs(20)) {
            all += &format!("{line}\n");
            if line.contains(words) {
                return all;
            }
        }
        panic!("{words:?} is not in the log: {all}");
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn private(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_server_starts_with_the_options_of_a_file() {
    let files = Files::with("memory = \"4M\"\ninodes = 100\nlisten = [\"SOCKET\"]\n");
    let ready = |rest: &[&str]| {
        let mut child = files.command(rest).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready = lines.into_iter().find(|line| line.starts_with("ready:")).unwrap();
        drop(Running(child));
        ready
    };
    assert_eq!(ready(&[]), "ready: lending 4 MiB (100 inodes)");
    // An option of the command line wins, and so does one that excludes options of the file.
    assert_eq!(ready(&["--inodes", "50"]), "ready: lending 4 MiB (50 inodes)");
    assert_eq!(ready(&["--export=a=8M,inodes=70"]), "ready: lending 8 MiB (70 inodes)");
}

#[test]
fn a_mistake_in_the_file_is_an_invalid_command_line() {
    for (options, says) in [
        ("memory = \"4M\"\nlaese = 3\n", "server.toml:2: laese: no such option: did you mean lease?"),
        ("memory = \"4M\"\nchecksum = 1\n", "server.toml:2: checksum: expected true or false"),
        (
            "memory = \"4M\"\nroot-mode = 0o700\n",
            "server.toml:2: root-mode: found a number that is not decimal",
        ),
        ("memory = \"4X\"\n", "server.toml:1: memory: "),
        ("memory = \"4M\"\nlisten = [\"h\"]\n", "server.toml:2: listen: "),
        ("memory = \"4M\"\npersist-every = 9\n", "--persist <DIR>"),
        ("memory = \n", "server.toml:1: no valid TOML"),
        ("new-key = \"x\"\n", "belongs on the command line"),
    ] {
        let files = Files::with(options);
        for output in [files.command(&[]).output().unwrap(), files.check(&[])] {
            assert_eq!(output.status.code(), Some(2), "{options}: {}", stderr(&output));
            assert!(stderr(&output).contains(says), "{options}: {}", stderr(&output));
            assert!(output.stdout.is_empty());
        }
    }
}

#[test]
fn check_config_prints_the_options_in_effect() {
    let files = Files::with("memory = \"4M\"\n\nlisten = [\"SOCKET\"]\nchecksum = true\n");
    let output = files.check(&["--lease", "9"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = text(&output);
    let line =
        |start: &str| shown.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
    assert!(line("memory = \"4M\"").ends_with("server.toml:1"), "{shown}");
    assert!(line("listen = [").ends_with("server.toml:3"), "{shown}");
    assert!(line("lease = 9 ").ends_with("# command line"), "{shown}");
    assert!(line("#prefault = ").ends_with("# default"), "{shown}");
    assert!(!files.path("rfs.sock").exists());
    // Its output is a file with the same options.
    files.write(&shown);
    let again = files.check(&[]);
    let options = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('#').next().unwrap_or_default().trim().to_owned()).collect()
    };
    assert_eq!(options(&text(&again)), options(&shown));
}

#[test]
fn check_config_finds_what_a_start_would_find() {
    let start = "memory = \"4M\"\nlisten = [\"SOCKET\"]\n";
    for (rest, says) in [
        ("keys = \"DIR/none\"\n", "none"),
        ("lease = 5\nrecall-timeout = 5\n", "--recall-timeout"),
        ("memory-dir = \"DIR/a/b\"\n", "--memory-dir"),
        ("persist = \"DIR/server.toml\"\n", "--persist"),
        ("memory-dir = \"DIR/a\"\npersist = \"DIR/a\"\n", "need a directory each"),
        ("pool = \"DIR/none\"\npool-key = \"DIR/none\"\n", "none"),
        (
            "lend = \"2M\"\nlend-listen = [\"tcp:127.0.0.1:0\"]\n",
            "--lend: tcp:127.0.0.1:0 is a network address",
        ),
        (
            "lend = \"2M\"\nlend-listen = [\"SOCKET\"]\n",
            ": --listen has this address: pagers need one of their own",
        ),
        ("lend = 7\nlend-listen = [\"unix:DIR/l\"]\n", "--lend: cannot lend 7 bytes"),
        ("lend = \"2M\"\nlend-listen = [\"unix:DIR/l\"]\nlend-key = [\"DIR/none\"]\n", "--lend-key: "),
    ] {
        let files = Files::with(&format!("{start}{rest}"));
        let output = files.check(&[]);
        assert_eq!(output.status.code(), Some(2), "{rest}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{rest}: {}", stderr(&output));
        // It makes no directory.
        assert!(!files.path("a").exists());
    }
    let tls = "memory = \"4M\"\nlisten = [\"tcp:127.0.0.1:0\"]\nallow-without-keys = true\n\
               tls-cert = \"DIR/none\"\ntls-key = \"DIR/none\"\n";
    let output = Files::with(tls).check(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot use TLS"), "{}", stderr(&output));
    // A server that runs with the file does not disturb the check.
    let files = Files::with(start);
    let (_running, _log) = files.start(&[]);
    assert_eq!(files.check(&[]).status.code(), Some(0));
}

/// Catches a reload that applies a part of a broken file, and a reload that does not report options
/// that need a restart. Also catches a broken file that keeps revoked keys in use.
#[test]
fn sighup_applies_what_can_change() {
    let secret = "0123456789abcdef0123456789abcdef";
    let start = "memory = \"4M\"\nlisten = [\"SOCKET\"]\nkeys = \"DIR/keys\"\npersist = \"DIR/snapshots\"\n";
    let files = Files::with(start);
    private(&files.path("keys"), &format!("one {secret} rfs rw\n"));
    private(&files.path("more"), &format!("one {secret} rfs rw\ntwo {secret} rfs ro\n"));
    let (running, log) = files.start(&[]);
    running.signal("HUP");
    log.until("no option has changed");
    log.until("reloaded 1 keys");
    files.write(&format!("{}persist-every = 60\nlease = 9\n", start.replace("DIR/keys", "DIR/more")));
    running.signal("HUP");
    let said = log.until("reloaded 2 keys");
    for words in ["/more\": applied", "persist-every: 300 -> 60: applied", "lease: 20 -> 9: needs a restart"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    // An option that waits for a restart is named again, and one that was applied is not.
    running.signal("HUP");
    let said = log.until("reloaded 2 keys");
    assert!(said.contains("lease: 20 -> 9: needs a restart") && !said.contains("persist-every"), "{said}");
    // A broken file changes nothing, not even by the lines before the mistake.
    files.write(&format!("{start}log-format = \"json\"\nlaese = 3\n"));
    running.signal("HUP");
    let said = log.until("the options stay as they were");
    assert!(said.contains("server.toml:6: laese: no such option") && !said.contains("reloaded"), "{said}");
    log.until("reloaded 2 keys");
    // And one whose options do not fit together.
    files.write(&format!("{start}lease = 5\nrecall-timeout = 5\n"));
    running.signal("HUP");
    let said = log.until("the options stay as they were");
    assert!(said.contains("read again: --recall-timeout"), "{said}");
    // The keys are read again nevertheless, from the file that the server uses.
    private(
        &files.path("more"),
        &format!("one {secret} rfs rw\ntwo {secret} rfs ro\nthree {secret} rfs ro\n"),
    );
    running.signal("HUP");
    log.until("reloaded 3 keys");
    files.write(&format!("{start}log-format = \"json\"\n"));
    running.signal("HUP");
    let said = log.until("\"reloaded 1 keys\"");
    assert!(said.contains("log-format: \\\"text\\\" -> \\\"json\\\": applied"), "{said}");
}

/// Catches a size that is reported as applied but is not, and a size that is forced on files that
/// need more. Also catches the silent loss of a change of another option.
#[test]
fn sighup_applies_the_sizes_of_exports() {
    let options = |sizes: [&str; 2], rest: &str| {
        let [a, b] = sizes;
        format!("export = [\"a={a},max=64M{rest}\", \"b={b}\"]\nlisten = [\"SOCKET\"]\n")
    };
    let files = Files::with(&options(["8M", "4M"], ""));
    let (running, log) = files.start(&[]);
    let sizes = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
        piped(command.args(["status", "--json"]).arg(files.path("rfs.sock")));
        let status = text(&command.output().unwrap());
        let status: rfs_server::server::ServerStatus = serde_json::from_str(&status).unwrap();
        status.exports.iter().map(|export| export.size_bytes >> 20).collect::<Vec<_>>()
    };
    assert_eq!(sizes(), [8, 4]);
    let hup = |options: &str, words: &str| {
        files.write(options);
        running.signal("HUP");
        log.until(words)
    };
    let said = hup(&options(["32M", "4M"], ""), ": applied");
    assert!(said.contains("export \"a\": 8 MiB -> 32 MiB"), "{said}");
    assert_eq!(sizes(), [32, 4]);
    let said = hup(&options(["32M", "4M"], ""), "no option has changed");
    assert!(!said.contains("MiB"), "{said}");
    hup(&options(["2M", "4M"], ""), ": applied");
    assert_eq!(sizes(), [2, 4]);
    for wrong in [options(["2M", "5M"], ""), options(["4M", "4M"], ",inodes=7")] {
        hup(&wrong, ": needs a restart");
    }
    hup(&options(["64M", "4M"], ",ttl=9"), ": needs a restart");
    assert_eq!(sizes(), [2, 4]);
}

/// Catches an example with an option that does not exist any more, or with another type.
#[test]
fn the_example_is_valid_with_and_without_its_comments() {
    let example = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/server.toml")).unwrap();
    let example = example.replace("unix:/run/rfs/rfs.sock", "SOCKET");
    let output = Files::with(&example).check(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Options that are there twice: the commented ones.
    let is_option = |line: &&str| line.starts_with('#') && line.contains(" = ") && line.as_bytes()[1] != b' ';
    let options: Vec<_> = example.lines().filter(is_option).map(|line| &line[1..]).collect();
    assert!(options.len() > 8, "{options:?}");
    let output = Files::with(&options.join("\n")).check(&[]);
    // None of these files is there.
    assert!(stderr(&output).contains("/etc/rfs/"), "{}", stderr(&output));
}
