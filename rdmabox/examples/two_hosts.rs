//! Measures the rate of one thread to two hosts at once (`across`), against one host.
//!
//! `cargo run --release -p rdmabox --example two_hosts [-- [tcp|shm] [BYTES [ROUNDS]]]` starts the
//! hosts in processes of their own. A round writes BYTES to each host. The table has the rate of
//! each host, and that rate against the rate of one host. An unoptimized build on a loaded machine
//! with two cores printed:
//!
//! ```text
//! 600 rounds of 1048576 bytes per host, through TCP via tcp:127.0.0.1:42207
//! |                     | median us | MiB/s per host | of one host |
//! |---------------------|----------:|---------------:|------------:|
//! | one host            |       227 |           4407 |        1.00 |
//! | two, one by one     |       497 |           2011 |        0.46 |
//! | two, across         |       513 |           1950 |        0.44 |
//! ```

use std::{
    error::Error,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use rdmabox::{Address, MemoryServer, Op, ProviderKind, RemoteAddr, RequestError, Session, across};

const BATCHES: usize = 20;

/// A host in a process of its own, which ends with this one.
struct HostProcess {
    child: Child,
    address: Address,
}

impl HostProcess {
    fn start(provider: ProviderKind, number: usize, len: usize) -> Result<HostProcess, Box<dyn Error>> {
        let address = match provider {
            ProviderKind::Shm => {
                let name = format!("across-{}-{number}.sock", std::process::id());
                Address::Unix(std::env::temp_dir().join(name))
            }
            _ => "127.0.0.1:0".parse()?,
        };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--host", &address.to_string(), &len.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output of the host")?).read_line(&mut line)?;
        Ok(HostProcess { child, address: line.trim().parse()? })
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        // The host ends with its standard input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn serve(address: &str, len: &str) -> Result<(), Box<dyn Error>> {
    let host = MemoryServer::listen(&[address.parse()?], len.parse()?)?;
    println!("{}", host.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A session and the address of its host's memory.
struct Store {
    session: Arc<Session>,
    base: RemoteAddr,
}

impl Store {
    fn connect(host: &HostProcess, provider: ProviderKind) -> Result<Store, Box<dyn Error>> {
        let session = Session::builder().provider(provider).connect(&host.address)?;
        let base = MemoryServer::locate(&session)?.base();
        Ok(Store { session, base })
    }
}

/// The ways to write to hosts.
type Way<'a> = (&'a str, Box<dyn Fn() -> Result<(), RequestError> + 'a>);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (provider, rest) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--host", address, len] => return serve(address, len),
        ["shm", ref rest @ ..] => (ProviderKind::Shm, rest.to_vec()),
        ["tcp", ref rest @ ..] | ref rest => (ProviderKind::Tcp, rest.to_vec()),
    };
    let (len, rounds): (usize, usize) = match rest[..] {
        [] => (1 << 20, 1000),
        [len] => (len.parse()?, 1000),
        [len, rounds] => (len.parse()?, rounds.parse()?),
        _ => return Err("usage: two_hosts [tcp|shm] [BYTES [ROUNDS]]".into()),
    };
    let hosts = [HostProcess::start(provider, 0, len)?, HostProcess::start(provider, 1, len)?];
    let stores = [Store::connect(&hosts[0], provider)?, Store::connect(&hosts[1], provider)?];
    let data = vec![7; len];
    let [one, two] = &stores;
    let ways: [Way<'_>; 3] = [
        ("one host", Box::new(|| one.session.write(one.base, &data))),
        (
            "two, one by one",
            Box::new(|| stores.iter().try_for_each(|store| store.session.write(store.base, &data))),
        ),
        (
            "two, across",
            Box::new(|| {
                let mut first = [Op::Write { remote: one.base, data: &data }];
                let mut second = [Op::Write { remote: two.base, data: &data }];
                across(&mut [(&one.session, &mut first), (&two.session, &mut second)]).into_iter().collect()
            }),
        ),
    ];
    // In turn, so that a change of the machine's load concerns all ways.
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..BATCHES {
        for ((_, way), times) in ways.iter().zip(&mut times) {
            for _ in 0..rounds.div_ceil(BATCHES) {
                let begun = Instant::now();
                way()?;
                times.push(begun.elapsed());
            }
        }
    }
    println!("{rounds} rounds of {len} bytes per host, through {}", one.session.description());
    println!("| {:<19} | median us | MiB/s per host | of one host |", "");
    println!("|{}|----------:|---------------:|------------:|", "-".repeat(21));
    let medians = times.map(|mut times| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    });
    for ((name, _), median) in ways.iter().zip(medians) {
        let rate = len as f64 / f64::from(1 << 20) / median;
        println!("| {name:<19} | {:>9.0} | {rate:>14.0} | {:>11.2} |", median * 1e6, medians[0] / median);
    }
    Ok(())
}
