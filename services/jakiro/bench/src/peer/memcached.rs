//! memcached of the system, and a client of its text protocol.
//!
//! # Concurrency
//! Each client thread has a connection of its own.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::{Connection, START, Server, Setting, memcached_program};
use crate::error::Error;

/// A process of memcached.
pub(super) struct Memcached {
    child: Child,
    port: u16,
}

fn failed(error: &dyn std::fmt::Display) -> Error {
    Error::peer("memcached", error)
}

impl Memcached {
    pub(super) fn start(setting: &Setting) -> Result<Memcached, Error> {
        let program = memcached_program().ok_or_else(|| failed(&"the program is not installed"))?;
        // memcached does not report a port of its own choice.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.map_err(|error| failed(&error))?.port();
        let (memory, threads) = (setting.memory >> 20, setting.server_threads);
        let child = Command::new(program)
            .args(["-l", "127.0.0.1", "-U", "0", "-u", "nobody"])
            .args(["-p", &port.to_string(), "-m", &memory.to_string(), "-t", &threads.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| failed(&error))?;
        let server = Memcached { child, port };
        let began = Instant::now();
        while let Err(error) = TcpStream::connect(("127.0.0.1", port)) {
            if began.elapsed() > START {
                return Err(failed(&error));
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server for Memcached {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        Ok(Box::new(TextClient { stream: BufReader::new(stream), request: Vec::new(), line: Vec::new() }))
    }
}

/// A client of the text protocol.
struct TextClient {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    line: Vec<u8>,
}

impl TextClient {
    /// Sends the request and reads a line.
    fn exchange(&mut self) -> std::io::Result<()> {
        self.stream.get_mut().write_all(&self.request)?;
        self.read_line()
    }

    fn read_line(&mut self) -> std::io::Result<()> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line).map(drop)
    }

    /// Reads a value behind its line, and the line behind the value.
    fn read_value(&mut self, value: &mut Vec<u8>) -> std::io::Result<()> {
        let len = self.line.trim_ascii_end().rsplit(|byte| *byte == b' ').next();
        let len = len.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        value.resize(len.ok_or(std::io::ErrorKind::InvalidData)?, 0);
        self.stream.read_exact(value)?;
        // The end of the value, and END.
        self.read_line()?;
        self.read_line()
    }
}

impl Connection for TextClient {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.request.clear();
        self.request.extend_from_slice(b"get ");
        self.request.extend_from_slice(key);
        self.request.extend_from_slice(b"\r\n");
        self.exchange().map_err(|error| failed(&error))?;
        let is_found = self.line.starts_with(b"VALUE ");
        if is_found {
            self.read_value(value).map_err(|error| failed(&error))?;
        }
        match &self.line[..] {
            b"END\r\n" => Ok(is_found),
            other => Err(failed(&String::from_utf8_lossy(other))),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.request.clear();
        self.request.extend_from_slice(b"set ");
        self.request.extend_from_slice(key);
        self.request.extend_from_slice(format!(" 0 0 {}\r\n", value.len()).as_bytes());
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
        self.exchange().map_err(|error| failed(&error))?;
        match &self.line[..] {
            b"STORED\r\n" => Ok(()),
            other => Err(failed(&String::from_utf8_lossy(other))),
        }
    }
}
