//! A master and stores as child processes.
//!
//! # Concurrency
//! One thread.

use std::{
    error::Error,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rdmabox::{Address, ProviderKind};
use rstore::{Client, ClientOptions};
use tempfile::TempDir;

/// Time for the stores to register.
const LIMIT: Duration = Duration::from_secs(60);

/// A pool that ends when it is dropped.
pub(super) struct Pool {
    tcp: bool,
    pub(super) master: Address,
    children: Vec<Child>,
    _dir: TempDir,
}

impl Pool {
    pub(super) fn start(tcp: bool, stores: usize, chunk: u64, memory: u64) -> Result<Pool, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let listen = |name: &str| match tcp {
            true => "127.0.0.1:0".to_owned(),
            false => format!("unix:{}/{name}.sock", dir.path().display()),
        };
        let mut children = Vec::new();
        let chunk = chunk.to_string();
        let arguments = ["master", "--listen", &listen("master"), "--chunk", &chunk, "--allow-without-keys"];
        let (child, master) = spawn(&arguments)?;
        children.push(child);
        for store in 0..stores {
            let (listen, memory) = (listen(&store.to_string()), memory.to_string());
            let master = master.to_string();
            let arguments = ["store", "--master", &master, "--memory", &memory, "--listen", &listen];
            children.push(spawn(&[&arguments[..], &["--allow-without-keys"]].concat())?.0);
        }
        let pool = Pool { tcp, master, children, _dir: dir };
        if !pool.client()?.wait_for_stores(stores, LIMIT)? {
            return Err("the stores do not register".into());
        }
        Ok(pool)
    }

    pub(super) fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::default();
        options.session.provider = Some(if self.tcp { ProviderKind::Tcp } else { ProviderKind::Shm });
        options
    }

    pub(super) fn client(&self) -> Result<Client, rstore::Error> {
        Client::connect(&self.master, self.options())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn(arguments: &[&str]) -> Result<(Child, Address), Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().ok_or("no output of a child")?;
    BufReader::new(output).read_line(&mut line)?;
    Ok((child, line.trim().parse()?))
}
