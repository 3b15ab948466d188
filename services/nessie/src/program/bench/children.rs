//! Processes of the benchmark: servers and hogs, and the lists of nodes that they share.

use std::{
    error::Error,
    hint::black_box,
    io::{BufRead, BufReader, Read, Write, stdout},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use nessie::{Members, Node, NodeOptions};
use rdmabox::{Address, Session};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cli::{Cli, Over, Serve};

/// A thread that is pinned, until this is dropped.
pub(crate) struct Pinned {
    before: Option<CpuSet>,
}

/// Pins the calling thread, and threads and processes that it starts meanwhile, to a processor.
/// Without that processor the thread is not pinned.
pub(crate) fn pin(processor: usize) -> Pinned {
    let before = sched_getaffinity(None).ok();
    let mut set = CpuSet::new();
    set.set(processor);
    let _ = sched_setaffinity(None, &set);
    Pinned { before }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The processors may have gone meanwhile.
        let _ = self.before.map(|before| sched_setaffinity(None, &before));
    }
}

/// Computes until the standard input ends, so that it does not outlive the benchmark.
pub(crate) fn hog(processor: usize) -> Result<(), Box<dyn Error>> {
    let _pinned = pin(processor);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut state = 1u64;
    loop {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Returns the options of a node of the benchmark.
pub(crate) fn options(serve: &Serve) -> Result<NodeOptions, Box<dyn Error>> {
    let mut options = NodeOptions::new(serve.id, Members::load(&serve.nodes)?);
    options.provider = Some(serve.over.provider());
    // The paper's load: a fifth of the slots are in use.
    options.index_bytes = u64::from(serve.keys) * 5 * 8 / options.members.count() as u64;
    options.allow_without_keys = true;
    options.max_key = 16;
    options.max_value = serve.value;
    // PUTs of a cell find unused entries, as in the paper.
    options.data_bytes = (u64::from(serve.keys) * 2 + 60_000) * options.stride_bytes();
    options.filter_bits = serve.filter_bits;
    options.server_driven = serve.server_driven;
    options.lease = Duration::from_secs(10);
    options.patience = Duration::from_secs(30);
    options.reuse_delay = Duration::from_millis(300);
    Ok(options)
}

/// Runs a node until the standard input ends.
pub(crate) fn serve(serve: &Serve) -> Result<(), Box<dyn Error>> {
    let _pinned = serve.processor.map(pin);
    let node = Node::start(options(serve)?)?;
    writeln!(stdout(), "{}", node.addresses()[0])?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A process that is killed when this is dropped.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts processes that compute on processor 1.
pub(crate) fn hogs(count: usize) -> Result<Vec<Process>, Box<dyn Error>> {
    let start = |_| -> Result<Process, Box<dyn Error>> {
        Ok(Process(Command::new(std::env::current_exe()?).args(["hog", "1"]).stdin(Stdio::piped()).spawn()?))
    };
    (0..count).map(start).collect()
}

/// Nodes on this machine, with their list.
pub(crate) struct Deployment {
    _dir: tempfile::TempDir,
    pub(crate) members: Members,
    template: Serve,
}

impl Deployment {
    pub(crate) fn new(cli: &Cli, nodes: usize) -> Result<Deployment, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let listeners =
            (0..nodes).map(|_| std::net::TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let mut text = String::new();
        for (node, listener) in listeners.iter().enumerate() {
            let address = match cli.over {
                Over::Tcp => listener.local_addr()?.to_string(),
                Over::Shm => format!("unix:{}", dir.path().join(format!("{node}.sock")).display()),
            };
            text += &format!("{node} {address}\n");
        }
        let nodes: PathBuf = dir.path().join("nodes");
        std::fs::write(&nodes, text)?;
        let template = Serve {
            nodes: nodes.clone(),
            id: 0,
            keys: cli.keys,
            value: cli.value,
            filter_bits: 15,
            server_driven: false,
            over: cli.over,
            processor: None,
        };
        Ok(Deployment { members: Members::load(&nodes)?, _dir: dir, template })
    }

    pub(crate) fn filter_bits(mut self, filter_bits: u32) -> Deployment {
        self.template.filter_bits = filter_bits;
        self
    }

    pub(crate) fn server_driven(mut self) -> Deployment {
        self.template.server_driven = true;
        self
    }

    pub(crate) fn address(&self, node: u16) -> Result<&Address, Box<dyn Error>> {
        Ok(self.members.address(node).ok_or("no such node")?)
    }

    /// Connects a client program to a node.
    pub(crate) fn session(&self, node: u16) -> Result<Arc<Session>, Box<dyn Error>> {
        let provider = self.template.over.provider();
        Ok(Session::builder().provider(provider).connect(self.address(node)?)?)
    }

    /// Starts a node in this process.
    pub(crate) fn start(&self, node: u16, cache: usize) -> Result<Node, Box<dyn Error>> {
        let mut options = options(&Serve { id: node, ..self.template.clone() })?;
        options.cache_entries = cache;
        Ok(Node::start(options)?)
    }

    /// Starts a node in a process of its own, on processor 1.
    pub(crate) fn spawn(&self, node: u16) -> Result<Process, Box<dyn Error>> {
        let serve = &self.template;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .args(["--nodes", &serve.nodes.display().to_string(), "--id", &node.to_string()])
            .args(["--keys", &serve.keys.to_string(), "--value", &serve.value.to_string()])
            .args(["--filter-bits", &serve.filter_bits.to_string(), "--processor", "1"])
            .args(["--over", if serve.over == Over::Shm { "shm" } else { "tcp" }]);
        if serve.server_driven {
            command.arg("--server-driven");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let process = Process(child);
        if line.is_empty() {
            return Err(format!("node {node} has not started").into());
        }
        Ok(process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmark is pinned when it starts the servers and the hogs, which have another one.
    #[test]
    fn a_pinned_thread_can_be_pinned_to_another_processor() {
        let all = sched_getaffinity(None).expect("the processors");
        if !all.is_set(0) || !all.is_set(1) {
            println!("not run: this machine has one processor");
            return;
        }
        let _first = pin(0);
        let _second = pin(1);
        let now = sched_getaffinity(None).expect("the processors");
        assert!(now.is_set(1) && now.count() == 1);
    }

    #[test]
    fn a_thread_is_pinned_for_a_figure_only() {
        let before = sched_getaffinity(None).expect("the processors");
        let pinned = pin(0);
        assert_eq!(sched_getaffinity(None).expect("the processors").count(), 1);
        drop(pinned);
        assert!(sched_getaffinity(None).expect("the processors") == before);
    }
}
