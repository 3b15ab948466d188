//! The store as a server process, and its clients.
//!
//! The server is this program with the hidden command `serve`. It ends with its standard input, so
//! it does not outlive the benchmark.
//!
//! # Concurrency
//! Each client thread has a client of its own.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use jakiro::{Client, ClientOptions, ServerOptions, StoreOptions};
use rdmabox::{Address, ProviderKind, Session};

use super::{Connection, Fetches, Server, Setting};
use crate::error::Error;

/// A server process.
pub(super) struct JakiroServer {
    child: Child,
    address: Address,
    options: ClientOptions,
}

impl JakiroServer {
    pub(super) fn start(setting: &Setting) -> Result<JakiroServer, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::peer("jakiro", error);
        let address = match setting.provider {
            ProviderKind::Shm => {
                let number = fastrand::u64(..);
                let name = format!("jakiro-bench-{number:016x}.sock");
                Address::Unix(std::env::temp_dir().join(name))
            }
            _ => "127.0.0.1:0".parse().map_err(|error| failed(&error))?,
        };
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut child = Command::new(program)
            .arg("serve")
            .args([address.to_string(), setting.memory.to_string(), setting.server_threads.to_string()])
            .arg(setting.poll_ms.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or_else(|| failed(&"no output"))?;
        BufReader::new(output).read_line(&mut line).map_err(|error| failed(&error))?;
        let mut options =
            ClientOptions::default().calls(setting.system.calls()).fetch_size(setting.fetch_size);
        options.session.provider = Some(setting.provider);
        // The figures have fixed lengths.
        options.session.adapt_fetch_size = false;
        // The server is dropped, and the child with it, if it has printed no address.
        let mut server = JakiroServer { child, address, options };
        server.address = line.trim().parse().map_err(|_| failed(&"the server did not start"))?;
        Ok(server)
    }
}

impl Drop for JakiroServer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Server for JakiroServer {
    fn connect(&self) -> Result<Box<dyn Connection>, Error> {
        Ok(Box::new(JakiroClient(Client::connect(&self.address, &self.options)?)))
    }
}

/// A client of one thread.
struct JakiroClient(Client);

impl Connection for JakiroClient {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        Ok(self.0.get(key, value)?)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        Ok(self.0.put(key, value)?)
    }

    fn fetches(&self) -> Fetches {
        let of = |session: &Arc<Session>| {
            let stats = session.stats();
            let reads = stats.fetches - stats.fetches_early;
            Fetches { replies: stats.calls_fetched, reads, early: stats.fetches_early }
        };
        self.0.sessions().iter().map(of).fold(Fetches::default(), |sum, session| sum + session)
    }
}

/// Serves a store until the standard input ends. Prints the address.
pub(crate) fn serve(address: &Address, memory: u64, threads: usize, poll: Duration) -> Result<(), Error> {
    let store = StoreOptions::new(memory).partitions(threads);
    let options = ServerOptions::new(store).allow_without_keys(true).poll(Some(poll));
    let server = jakiro::Server::listen(std::slice::from_ref(address), &options)
        .map_err(|error| Error::peer("jakiro", &error))?;
    // The benchmark may have ended: then the standard input has, too.
    let _ = writeln!(std::io::stdout(), "{}", server.addresses()[0]);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}
