//! The memory of the program in a core dump contains no bytes of files and no keys. Needs root to
//! read it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    process::Command,
};

use measure::testing::{contains, dumped};
use rdmabox::{Address, Key, ProviderKind, Session};
use rfs_proto::{Reply, Request};

use crate::common::{
    Client, attach,
    program::{self, Running, place, read},
};

const SECRET: &str = "31415926535897932384626433832795028841971693993751058209749445923";

#[test]
fn a_core_dump_has_neither_files_nor_keys() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let secret = &SECRET[..64];
    let line = format!("client {secret}");
    for (name, text) in [("keys", format!("{line} rfs rw\n")), ("key", line)] {
        let path = directory.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_rfs-server"));
    program::piped(&mut command);
    let socket = directory.join("socket");
    command.args(["--memory=8M", "--inodes=100"]);
    command.arg("--listen").arg(format!("unix:{}", socket.display()));
    command.arg("--keys").arg(directory.join("keys"));
    command.arg("--memory-dir").arg(directory.join("memory"));
    let server = Running::start(&mut command);

    let key = Some(Key::load(&directory.join("key")).unwrap());
    let session =
        Session::builder().provider(ProviderKind::Shm).key(key).connect(&Address::Unix(socket)).unwrap();
    let Reply::Attached(attached) = attach(&session, "", false) else { panic!("not attached") };
    let client = Client { session, attached };
    // The marker is computed, so it is not in the text of this program.
    let marker: Vec<u8> = (0..4096u32).flat_map(|i| (i * i + 77).to_le_bytes()).collect();
    let attr = client.create(b"file").attr;
    let len = marker.len() as u64;
    let Reply::Layout(layout) = client.ask(Request::Allocate { ino: attr.ino, offset: 0, len }) else {
        panic!("no space")
    };
    client.session.write(place(client.attached.arena, layout.extents[0].arena), &marker).unwrap();
    client.publish(&attr, len);
    let size = rfs_proto::Attr { size: len, ..attr };
    assert_eq!(read(&client, &size), marker);

    let memory = dumped(server.0.id()).unwrap();
    assert!(memory.len() > 100_000, "{} bytes are not all", memory.len());
    let bytes: Vec<u8> =
        (0..32).map(|at| u8::from_str_radix(&secret[2 * at..2 * at + 2], 16).unwrap()).collect();
    assert!(!contains(&memory, &marker[..64]), "bytes of a file");
    assert!(!contains(&memory, &bytes), "the secret");
    assert!(!contains(&memory, secret.as_bytes()), "the secret as the file has it");
    // The search works: the name of the key is no secret.
    assert!(contains(&memory, b"client"));
}
