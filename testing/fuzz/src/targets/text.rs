//! Fuzzes text from users: options, command lines, key files.

use std::{
    ffi::OsString,
    fs::{File, Permissions},
    io::{self, Write},
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::PathBuf,
};

use clap::{CommandFactory, Parser};
use rdmabox::{Address, BatchMode, Key, PollingMode, PreMrThreshold, ProviderKind};
use rfs_fuse::mount8;
use rfs_server::{export::ExportArg, keys};

const SECRET: &str = "00112233445566778899aabbccddeeff";

/// Runs an input: an option value. An address that parses must survive formatting and parsing.
pub(super) fn values(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse(), Ok(address));
    }
    if let Ok(bytes) = byte_size::parse(&text) {
        // A size is shown with one decimal, so it cannot be compared.
        let _ = byte_size::show(bytes);
    }
    let _ = text.parse::<BatchMode>();
    let _ = text.parse::<PollingMode>();
    let _ = text.parse::<PreMrThreshold>();
    let _ = text.parse::<ProviderKind>();
    let _ = ExportArg::parse(&text);
    if let Ok(key) = keys::NewKey::parse(&text) {
        assert!(!key.export.contains(char::is_whitespace), "an export name with white space");
    }
}

/// Returns valid values.
pub(super) fn values_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "unix:/run/rfs.sock",
        "/run/rfs.sock",
        "tcp:host.example:7440",
        "[::1]:7440",
        "rdma:[fe80::1]:7441",
        "1.5m",
        "2 GiB",
        "18446744073709551615",
        "shared-cq:4",
        "hybrid",
        "auto",
        "home=8G,inodes=1000,root-mode=1777",
        "laptop.1,export=home,ro",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Runs an input: a key file, read as client and as server. Error messages must not contain the
/// secret.
pub(super) fn keys(bytes: &[u8]) {
    let file = own_file(bytes).unwrap_or_else(|e| panic!("no file for keys: {e}"));
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let errors = [
        keys::read(&path, &["rfs", "scratch"]).err().map(|e| e.to_string()),
        Key::load(&path).err().map(|e| e.to_string()),
    ];
    assert!(errors.iter().flatten().all(|text| !text.contains(SECRET)), "{errors:?}");
}

/// Creates an anonymous file of mode 600.
fn own_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("keys", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Returns valid files.
pub(super) fn keys_seeds() -> Vec<Vec<u8>> {
    let other = "ffeeddccbbaa99887766554433221100".repeat(2);
    let texts = [
        format!("laptop {SECRET} rfs rw\n"),
        format!("# keys\n\n  laptop  {SECRET} scratch ro\nserver_2 {other} rfs rw\n"),
        format!("laptop.home-1 {other}\n"),
        format!("a {SECRET} rfs rw\nb {SECRET} rfs ro\nc {SECRET} scratch rw"),
    ];
    texts.map(String::into_bytes).to_vec()
}

/// Runs an input: a command line, one word per line. Arguments of mount(8) must convert to a
/// command line of rfs-fuse.
pub(super) fn command_lines(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let words = || text.split('\n').map(OsString::from);
    let _ = rfs_server::cli::Cli::try_parse_from(words());
    let options = rfs_fuse::cli::Args::command();
    let known = |name: &str| options.get_arguments().any(|option| option.get_long() == Some(name));
    match mount8::parse(words(), &known) {
        Ok(mount8::Invocation::Plain(arguments)) => drop(rfs_fuse::cli::Args::try_parse_from(arguments)),
        Ok(mount8::Invocation::Mount(arguments) | mount8::Invocation::Remount { arguments, .. }) => {
            let place = arguments.iter().position(|argument| argument == "--");
            assert!(place.is_some_and(|at| at + 3 <= arguments.len()), "{arguments:?}");
            let _ = rfs_fuse::cli::Args::try_parse_from(arguments);
        }
        Ok(mount8::Invocation::Nothing) | Err(_) => {}
    }
}

/// Returns valid command lines.
pub(super) fn command_lines_seeds() -> Vec<Vec<u8>> {
    let lines = [
        "rfs-server --memory 4G --listen tcp:10.0.0.7:7440 --keys /etc/rfs/keys --lease 20",
        "rfs-server --export home=8G --export scratch=2G,inodes=100000,root-mode=1777 --prefault=first",
        "rfs-fuse -o ro,attr_timeout=0 --threads 4 --polling shared-cq:2 a:1 /m",
        "mount.fuse.rfs /run/rfs.sock /mnt -s -o rw,noatime,provider=tcp,x-systemd.automount -t fuse.rfs",
        "mount.fuse.rfs a:1 /m -o remount,ro,max_write=1M",
    ];
    lines.map(|line| line.replace(' ', "\n").into_bytes()).to_vec()
}
