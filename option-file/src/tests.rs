//! Tests of files and command lines together.

use std::{ffi::OsString, fs, path::Path};

use clap::{Arg, ArgAction, Command, value_parser};

use crate::{
    FileForm, LoadError, Rules,
    effective_options::{Origin, changes, show},
    merge::{Loaded, load},
};

fn command() -> Command {
    let text = |name: &'static str| Arg::new(name).long(name);
    let flag = |name: &'static str| text(name).action(ArgAction::SetTrue);
    Command::new("server").args([
        text("config"),
        flag("check-config").requires("config"),
        text("memory").value_name("SIZE").required_unless_present("export"),
        text("export").action(ArgAction::Append).conflicts_with("memory"),
        text("lease").value_parser(value_parser!(u32).range(1..=100)).default_value("20"),
        text("format").value_parser(["text", "json"]),
        text("prefault").num_args(0..=1).require_equals(true).default_missing_value("first"),
        flag("checksum"),
        text("every").requires("memory-dir"),
        text("memory-dir"),
        text("listen").action(ArgAction::Append),
    ])
}

const RULES: Rules<'static> =
    Rules { config: "config", line_only: &["config", "check-config"], form: FileForm::Options };

fn mount_command() -> Command {
    Command::new("mount").args([
        Arg::new("paths").num_args(1..=2).required(true),
        Arg::new("config").long("config"),
        Arg::new("threads").long("threads").value_parser(value_parser!(u16)).default_value("2"),
        Arg::new("key").long("key"),
        Arg::new("quiet").long("quiet").action(ArgAction::SetTrue),
        Arg::new("extra").long("extra").action(ArgAction::Append),
    ])
}

const MOUNT_RULES: Rules<'static> =
    Rules { config: "config", line_only: &["config"], form: FileForm::Mounts { source: "address" } };

struct Files(tempfile::TempDir);

impl Files {
    fn with(text: &str) -> Files {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("x.toml"), text).unwrap();
        Files(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn load(&self, (command, rules): (&Command, &Rules<'_>), line: &str) -> Result<Loaded, LoadError> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        load(command, rules, &words, self.path())
    }
}

/// Loads a file of options with a command line after `server --config x.toml`.
fn loaded(text: &str, rest: &str) -> Result<Loaded, LoadError> {
    let line = format!("server --config x.toml {rest}");
    Files::with(text).load((&command(), &RULES), line.trim_end())
}

fn mounted(text: &str, line: &str) -> Result<Loaded, LoadError> {
    Files::with(text).load((&mount_command(), &MOUNT_RULES), line)
}

fn value(loaded: &Loaded, key: &str) -> Option<String> {
    loaded.effective.iter().find(|one| one.key == key).map(|one| one.value.clone())
}

fn error(text: &str) -> String {
    loaded(text, "").unwrap_err().to_string()
}

#[test]
fn a_file_sets_options_of_each_type() {
    let text = "memory = \"4G\"\nlease = 7\nchecksum = true\nlisten = [\"a:1\", \"b:2\"]\nprefault = true\n";
    let all = loaded(text, "").unwrap();
    let matches = &all.matches;
    assert_eq!(matches.get_one::<String>("memory").unwrap(), "4G");
    assert_eq!(matches.get_one::<u32>("lease"), Some(&7));
    assert!(matches.get_flag("checksum"));
    let listen: Vec<_> = matches.get_many::<String>("listen").unwrap().collect();
    assert_eq!(listen, ["a:1", "b:2"]);
    assert_eq!(matches.get_one::<String>("prefault").unwrap(), "first");
    // A list may have one value without brackets, and a flag may be false.
    let one = loaded("memory = 4096\nlisten = \"a:1\"\nchecksum = false", "").unwrap();
    assert_eq!(value(&one, "listen").unwrap(), "[\"a:1\"]");
    assert!(!one.matches.get_flag("checksum"));
}

/// Catches a file that wins over the command line, or a list that is the sum of both.
#[test]
fn the_command_line_wins() {
    let text = "memory = \"4G\"\nlease = 7\nlisten = [\"a:1\", \"b:2\"]\n";
    let all = loaded(text, "--lease 9 --listen=c:3").unwrap();
    assert_eq!(value(&all, "lease").unwrap(), "9");
    assert_eq!(value(&all, "listen").unwrap(), "[\"c:3\"]");
    assert_eq!(value(&all, "memory").unwrap(), "\"4G\"");
    // Also over options of the file that it excludes, in both directions.
    let export = loaded(text, "--export a=1").unwrap();
    assert_eq!((value(&export, "memory"), value(&export, "export").unwrap()), (None, "[\"a=1\"]".into()));
    let memory = loaded("export = [\"a=1\"]", "--memory 1G").unwrap();
    assert_eq!((value(&memory, "export"), value(&memory, "memory").unwrap()), (None, "\"1G\"".into()));
}

#[test]
fn each_option_has_its_origin() {
    let all = loaded("memory = \"4G\"\n\nchecksum = true", "--format json").unwrap();
    let origin = |key: &str| all.effective.iter().find(|one| one.key == key).unwrap().origin.clone();
    let in_file = |line| match origin("memory") {
        Origin::File(path, _) => Origin::File(path, line),
        other => panic!("{other:?}"),
    };
    assert_eq!((origin("memory"), origin("checksum")), (in_file(1), in_file(3)));
    assert_eq!((origin("format"), origin("lease")), (Origin::CommandLine, Origin::Default));
    let text = show(&all.effective);
    assert!(text.contains("#lease = 20") && text.contains("# default"), "{text}");
    // The text is a file with the same meaning.
    let again = loaded(&text, "").unwrap();
    assert_eq!(changes(&all.effective, &again.effective), []);
}

#[test]
fn changes_name_the_options_that_differ() {
    let old = loaded("memory = \"4G\"\nchecksum = true", "").unwrap();
    let new = loaded("memory = \"4G\"\nlease = 7", "").unwrap();
    let said: Vec<_> = changes(&old.effective, &new.effective).iter().map(ToString::to_string).collect();
    assert_eq!(said, ["lease: 20 -> 7", "checksum: true -> unset"]);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    let said = error("memory = \"4G\"\nlaese = 3\n");
    assert!(said.contains("x.toml:2: laese: no such option: did you mean lease?"), "{said}");
    assert!(said.contains("`server --help`"), "{said}");
    let said = error("zzz = 3\n");
    assert!(!said.contains("did you mean"), "{said}");
    // Options that only a command line has, and words that are no options.
    assert!(error("config = \"y\"").contains("belongs on the command line"));
    assert!(error("help = true").contains("no such option"));
}

#[test]
fn a_wrong_type_is_refused_with_the_right_form() {
    for (text, says) in [
        (
            "checksum = \"yes\"",
            "x.toml:1: checksum: expected true or false, found \"yes\": write checksum = true",
        ),
        ("memory = true", "memory: expected a text or a number, found true: write memory = \"SIZE\""),
        ("memory = [1, 2]", "memory: found a list, but the option has one value: write memory = \"SIZE\""),
        ("memory = 0o660", "memory: found a number that is not decimal"),
        ("lease = 1979-05-27", "lease: expected a text or a number, found a date"),
        ("listen = [true]", "listen: expected a text or a number, found true"),
        ("prefault = false", "prefault: expected a text or a number, found false"),
        ("[server]\nmemory = 1", "x.toml:1: [server]: server has no tables"),
    ] {
        let said = error(text);
        assert!(said.contains(says), "{text}: {said}");
    }
}

#[test]
fn an_invalid_value_is_refused_with_its_line() {
    let said = error("memory = 1\n\nlease = 0\n");
    assert!(said.contains("x.toml:3: lease: ") && said.contains("0 is not in 1..=100"), "{said}");
    let said = error("memory = 1\nformat = \"xml\"\n");
    assert!(said.contains("x.toml:2: format: invalid value \"xml\": expected text, json"), "{said}");
}

/// Catches a message that names options, but not where they are.
#[test]
fn options_that_do_not_fit_together_have_their_lines() {
    let said = error("memory = \"4G\"\nevery = 7\nexport = [\"a=1\"]\n");
    assert!(said.contains("x.toml:1: memory") && said.contains("x.toml:3: export"), "{said}");
    let missing = error("memory = \"4G\"\nevery = 7\n");
    assert!(missing.contains("--memory-dir"), "{missing}");
    // In one line of a log.
    let Err(e) = loaded("memory = \"4G\"\nevery = 7\n", "") else { panic!("valid") };
    assert!(!e.one_line().contains('\n') && !e.one_line().contains("Usage"), "{}", e.one_line());
}

#[test]
fn without_a_file_the_command_line_is_parsed_alone() {
    let files = Files::with("");
    let plain = files.load((&command(), &RULES), "server --memory 1G").unwrap();
    assert_eq!((plain.file, plain.matches.get_one::<String>("memory").unwrap().as_str()), (None, "1G"));
    let Err(LoadError::Line { error, .. }) = files.load((&command(), &RULES), "server --config none.toml -h")
    else {
        panic!("no help")
    };
    assert_eq!(error.kind(), clap::error::ErrorKind::DisplayHelp);
    let missing = files.load((&command(), &RULES), "server --config none.toml").unwrap_err().to_string();
    assert!(missing.contains("none.toml: No such file"), "{missing}");
    assert!(files.load((&command(), &RULES), "server --config").is_err());
}

const MOUNTS: &str = "key = \"/k\"\n\n[\"/mnt/a\"]\naddress = \"h:1\"\nthreads = 3\n\n\
                      [\"/mnt/b\"]\naddress = \"h:2\"\nkey = \"/b\"\n";

fn paths(loaded: &Loaded) -> Vec<String> {
    loaded.matches.get_many::<String>("paths").unwrap().cloned().collect()
}

#[test]
fn a_table_has_the_options_of_a_mount_point() {
    let a = mounted(MOUNTS, "mount --config x.toml /mnt/a").unwrap();
    assert_eq!(paths(&a), ["h:1", "/mnt/a"]);
    assert_eq!((value(&a, "threads").unwrap(), value(&a, "key").unwrap()), ("3".into(), "\"/k\"".into()));
    assert_eq!(value(&a, "address").unwrap(), "\"h:1\"");
    // The table wins over the options for all, and the command line over both.
    let b = mounted(MOUNTS, "mount --quiet --config=x.toml --threads 5 h:9 /mnt/b/").unwrap();
    assert_eq!(paths(&b), ["h:9", "/mnt/b/"]);
    assert_eq!((value(&b, "threads").unwrap(), value(&b, "key").unwrap()), ("5".into(), "\"/b\"".into()));
    let only = mounted("[\"/mnt/a\"]\naddress = \"h:1\"", "mount --config x.toml").unwrap();
    assert_eq!(paths(&only), ["h:1", "/mnt/a"]);
}

/// Catches a `false` or an empty list of a table that leaves the value for all mounts in effect.
#[test]
fn a_table_takes_back_flags_and_lists() {
    let text = "quiet = true\nextra = [\"x\", \"y\"]\n\n[\"/mnt/a\"]\naddress = \"h:1\"\n\n\
                [\"/mnt/b\"]\naddress = \"h:2\"\nquiet = false\nextra = []\n";
    let a = mounted(text, "mount --config x.toml /mnt/a").unwrap();
    assert_eq!(
        (value(&a, "quiet"), value(&a, "extra").unwrap()),
        (Some("true".into()), "[\"x\", \"y\"]".into())
    );
    let b = mounted(text, "mount --config x.toml /mnt/b").unwrap();
    assert_eq!((value(&b, "quiet"), value(&b, "extra")), (None, None));
    assert!(!b.matches.get_flag("quiet") && b.matches.get_many::<String>("extra").is_none());
    // The command line still wins over the table.
    let line = mounted(text, "mount --config x.toml --quiet --extra z /mnt/b").unwrap();
    assert!(line.matches.get_flag("quiet"));
    assert_eq!(value(&line, "extra").unwrap(), "[\"z\"]");
}

#[test]
fn a_mount_point_without_a_table_is_refused() {
    for (line, says) in [
        ("mount --config x.toml", "there are several mount points: name one of \"/mnt/a\", \"/mnt/b\""),
        ("mount --config x.toml /mnt/c", "no table for \"/mnt/c\": add [\"/mnt/c\"], or name one of"),
    ] {
        let said = mounted(MOUNTS, line).unwrap_err().to_string();
        assert!(said.contains(says), "{line}: {said}");
    }
    let none = mounted("", "mount --config x.toml").unwrap_err().to_string();
    assert!(none.contains("no mount point is there"), "{none}");
    let relative = mounted("[a]\naddress = \"h:1\"", "mount --config x.toml").unwrap_err().to_string();
    assert!(relative.contains("x.toml:1: [\"a\"]: no absolute path"), "{relative}");
    // A mistake in the table of another mount point is a mistake of the file.
    let other = "[\"/mnt/a\"]\naddress = \"h:1\"\n[\"/mnt/b\"]\nthraeds = 2\n";
    let said = mounted(other, "mount --config x.toml /mnt/a").unwrap_err().to_string();
    assert!(said.contains("x.toml:4: thraeds: no such option: did you mean threads?"), "{said}");
}
