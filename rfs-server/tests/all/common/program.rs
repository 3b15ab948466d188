//! The program in its own process, and one-sided access to files, as clients have it.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Output, Stdio},
};

use rdmabox::RemoteAddr;
use rfs_proto::{Attr, RegionRef, Reply, Request, record};

use super::Client;

/// Connects the output of the program to pipes.
pub fn piped(command: &mut Command) {
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
}

/// Returns the standard output of a program that has ended.
pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Checks that a command fails with one line on stderr that begins and contains so.
pub fn fails(output: &Output, start: &str, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with(start), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is not in {stderr:?}");
    }
}

/// A running server. Dropping it kills the server.
pub struct Running(pub Child);

impl Running {
    /// Starts the program, and blocks until it is ready.
    pub fn start(command: &mut Command) -> Running {
        let mut running = Running(command.spawn().unwrap());
        let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("ready:")), "it has not started");
        running
    }

    /// Waits for the end of the program, and returns its status.
    pub fn end(mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that the program does not start, and that its message contains these words.
pub fn refuses(command: &mut Command, words: &[&str]) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(words.iter().all(|word| last.contains(word)), "{words:?} are not in {last:?}");
}

pub fn place(region: RegionRef, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: region.addr + offset, rkey: region.rkey }
}

pub fn read(client: &Client, attr: &Attr) -> Vec<u8> {
    let Reply::Opened(opened) = client.ask(Request::Open { ino: attr.ino, write: false }) else {
        panic!("not open")
    };
    let mut data = vec![0; attr.size as usize];
    for extent in opened.layout.extents {
        let at = extent.file as usize;
        let end = data.len().min(at + extent.len as usize);
        client.session.read(place(client.attached.arena, extent.arena), &mut data[at..end]).unwrap();
    }
    client.ask(Request::Close { ino: attr.ino });
    data
}

impl Client {
    /// Publishes the size of a file, as a client does after a write.
    pub fn publish(&self, attr: &Attr, size: u64) {
        let record = u64::from(attr.slot) * record::LEN as u64;
        let field = |field: usize| place(self.attached.table, record + field as u64);
        self.session.write(field(record::SIZE), &size.to_le_bytes()).unwrap();
        self.session.write(field(record::WRITE_TIME), &77u64.to_le_bytes()).unwrap();
    }
}
