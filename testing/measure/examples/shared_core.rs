//! Measures replies over loopback sockets from one process, and from two that share a core.
//!
//! It is the least that a second store on the machine of the first one costs: no file system, no
//! protocol. The client polls on the first core, and the servers poll in turn on the second one.
//! The client asks a random server for each reply of 4 KiB.
//!
//!     cargo run --release -p measure --example shared_core [SECONDS]
//!
//! # Concurrency
//! One thread; each server is a child process that ends with its connection.

use std::{
    env,
    error::Error,
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_setaffinity, sched_yield};

/// Length of a reply in bytes.
const REPLY: usize = 4096;
/// Length of a request in bytes.
const REQUEST: usize = 8;
/// Rounds. Both numbers of servers are measured in each.
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let first = args.next();
    if first.as_deref() == Some("serve") {
        return Ok(serve(&args.next().ok_or("the address is missing")?)?);
    }
    let seconds = first.map_or(Ok(1.0), |text| text.parse())?;
    let time = Duration::try_from_secs_f64(seconds)?;
    stay_on(0)?;
    let mut medians = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (servers, all) in (1..).zip(&mut medians) {
            all.push(measure(servers, time)?);
        }
    }
    let [one, two] = medians.map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    });
    println!(
        "reply of 4 KiB, median latency: {one:.1} us from one process, {two:.1} us from two on its core"
    );
    println!("ratio: {:.2}", two / one);
    Ok(())
}

/// Binds this process to a core.
fn stay_on(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Returns the median latency of replies in microseconds.
fn measure(servers: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
    let (mut streams, mut children) = (Vec::new(), Vec::new());
    for _ in 0..servers {
        let (stream, child) = start_server()?;
        streams.push(stream);
        children.push(child);
    }
    let (mut latencies, mut reply, mut random) = (Vec::new(), [0; REPLY], 1_u64);
    let begin = Instant::now();
    while begin.elapsed() < time {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let stream = &mut streams[(random >> 33) as usize % servers];
        let asked = Instant::now();
        stream.write_all(&[0; REQUEST])?;
        receive(stream, &mut reply, || ())?;
        latencies.push(asked.elapsed());
    }
    drop(streams);
    for mut child in children {
        child.wait()?;
    }
    latencies.sort_unstable();
    let median = latencies.get(latencies.len() / 2).ok_or("no reply")?;
    Ok(median.as_secs_f64() * 1e6)
}

fn start_server() -> io::Result<(TcpStream, Child)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let child = Command::new(env::current_exe()?).args(["serve", &address]).spawn()?;
    let (stream, _) = listener.accept()?;
    prepare(&stream)?;
    Ok((stream, child))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Answers requests until the client closes the connection.
fn serve(address: &str) -> io::Result<()> {
    stay_on(1)?;
    let mut stream = TcpStream::connect(address)?;
    prepare(&stream)?;
    let mut request = [0; REQUEST];
    loop {
        match receive(&mut stream, &mut request, sched_yield) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            received => received?,
        }
        stream.write_all(&[7; REPLY])?;
    }
}

/// Receives exactly `bytes`, and calls `pause` while there are none.
fn receive(stream: &mut TcpStream, bytes: &mut [u8], pause: impl Fn()) -> io::Result<()> {
    let mut got = 0;
    while got < bytes.len() {
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => got += more,
            Err(e) if e.kind() == ErrorKind::WouldBlock => pause(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
