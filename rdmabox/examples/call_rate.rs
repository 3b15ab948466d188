//! Measures calls per second: 64 bytes there and 64 back, by one and by four threads, over shared
//! memory and TCP. Host and clients are in one process.
//!
//! ```text
//! call_rate [--calls N] [--rounds N] [--threads N[,N...]] [--provider P[,P...]]
//!           [--polling MODE[,MODE...]] [--pause MICROSECONDS[,...]] [--idle SECONDS]
//!           [--answers reply|fetch|auto[,...]] [--fetch-size BYTES]
//! ```
//!
//! Each combination of the options is a row. `--answers` selects sent replies (`reply`) or
//! fetched ones. `--fetch-size` is the length of the first READ of an answer in unmapped memory.
//! Rounds are interleaved, and a row shows the median of its rounds. The processor time is that
//! of both sides. With `--pause` each thread waits between two calls, so that waiting threads may
//! fall asleep. `--idle` leaves each session idle for SECONDS after a round, and prints the
//! processor time of the idle time.
//!
//! ```text
//! $ cargo run --release -p rdmabox --example call_rate
//! 40000 calls of 64 bytes, medians of 5 interleaved rounds
//! | provider | answers | polling     | threads | pause us |  calls/s | CPU us/call |
//! |----------|---------|-------------|--------:|---------:|---------:|------------:|
//! | shm      | reply   | adaptive    |       1 |        0 |    99801 |        17.2 |
//! ```

use std::{
    error::Error,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use rdmabox::{
    Address, CallError, CallsBy, Host, HostHandle, Peer, PollingMode, ProviderKind, Reply, RequestError,
    Service, Session, SessionOptions,
};

/// Bytes of a request and of its reply.
const LENGTH: usize = 64;
/// Unmeasured calls before the measurement.
const WARM_UP: usize = 2000;

/// Answers each request with itself.
struct Echo;

impl Service for Echo {
    fn call(&self, _: &Peer, request: &[u8], reply: &mut Reply<'_>) -> Result<(), CallError> {
        reply.extend_from_slice(request);
        Ok(())
    }
}

/// The command line.
struct Plan {
    calls: usize,
    rounds: usize,
    threads: Vec<usize>,
    providers: Vec<ProviderKind>,
    polling: Vec<PollingMode>,
    pauses: Vec<u64>,
    idle: Duration,
    answers: Vec<CallsBy>,
    fetch_size: usize,
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, Box<dyn Error>>
where
    T::Err: ToString,
{
    text.split(',').map(|one| one.parse().map_err(|e: T::Err| e.to_string().into())).collect()
}

impl Plan {
    fn from_args() -> Result<Plan, Box<dyn Error>> {
        let mut plan = Plan {
            calls: 40_000,
            rounds: 5,
            threads: vec![1, 4],
            providers: vec![ProviderKind::Shm, ProviderKind::Tcp],
            polling: vec![PollingMode::Adaptive],
            pauses: vec![0],
            idle: Duration::ZERO,
            answers: vec![CallsBy::Auto],
            fetch_size: SessionOptions::default().fetch_size,
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} has no value"))?;
            match &name[..] {
                "--calls" => plan.calls = value.parse()?,
                "--rounds" => plan.rounds = value.parse::<usize>()?.max(1),
                "--threads" => plan.threads = list(&value)?,
                "--provider" => plan.providers = list(&value)?,
                "--polling" => plan.polling = list(&value)?,
                "--pause" => plan.pauses = list(&value)?,
                "--answers" => plan.answers = list(&value)?,
                "--fetch-size" => plan.fetch_size = value.parse()?,
                "--idle" => plan.idle = Duration::from_secs(value.parse()?),
                _ => return Err(format!("there is no option {name}").into()),
            }
        }
        Ok(plan)
    }
}

/// A combination of options, and its measurements.
struct Row {
    session: Arc<Session>,
    provider: ProviderKind,
    answers: CallsBy,
    polling: PollingMode,
    threads: usize,
    pause: Duration,
    rates: Vec<f64>,
    cpu: Vec<f64>,
    idle: f64,
}

impl Row {
    /// Makes the calls of a round.
    fn calls(&self, calls: usize) -> Result<(), RequestError> {
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..self.threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut reply = Vec::new();
                        (0..calls / self.threads).try_for_each(|_| {
                            if !self.pause.is_zero() {
                                std::thread::sleep(self.pause);
                            }
                            self.session.call(&[1; LENGTH], &mut reply)
                        })
                    })
                })
                .collect();
            callers
                .into_iter()
                .try_for_each(|caller| caller.join().unwrap_or(Err(RequestError::Disconnected)))
        })
    }

    fn round(&mut self, plan: &Plan) -> Result<(), Box<dyn Error>> {
        let (began, used) = (Instant::now(), processor_time()?);
        self.calls(plan.calls)?;
        self.rates.push(plan.calls as f64 / began.elapsed().as_secs_f64());
        self.cpu.push((processor_time()? - used).as_secs_f64() * 1e6 / plan.calls as f64);
        if !plan.idle.is_zero() {
            let used = processor_time()?;
            std::thread::sleep(plan.idle);
            self.idle = (processor_time()? - used).as_secs_f64() / plan.idle.as_secs_f64() * 100.0;
        }
        Ok(())
    }
}

/// User and system time of this process, in steps of the kernel's clock tick (10 ms).
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in brackets may contain spaces. The text behind it starts with the third field.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |field: usize| fields.get(field - 3).copied().unwrap_or_default().parse::<u32>();
    Ok(TICK * (ticks(14)? + ticks(15)?))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let plan = Plan::from_args()?;
    let socket = std::env::temp_dir().join(format!("call-rate-{}.sock", std::process::id()));
    let listen = [Address::Unix(socket), Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
    let host: HostHandle = Host::new()?.listen(&listen, Arc::new(Echo))?;
    let mut rows = Vec::new();
    for &provider in &plan.providers {
        let address = host.addresses().iter().find(|address| address.provider() == provider);
        let address = address.ok_or_else(|| format!("no {provider} here"))?;
        for (&polling, &answers) in
            plan.polling.iter().flat_map(|polling| plan.answers.iter().map(move |answers| (polling, answers)))
        {
            let session = Session::builder()
                .provider(provider)
                .polling(polling)
                .calls(answers)
                .fetch_size(plan.fetch_size)
                .connect(address)?;
            for &threads in &plan.threads {
                for &pause in &plan.pauses {
                    let (session, pause) = (Arc::clone(&session), Duration::from_micros(pause));
                    let (threads, rates, cpu, idle) = (threads.max(1), Vec::new(), Vec::new(), 0.0);
                    let row = Row { session, provider, answers, polling, threads, pause, rates, cpu, idle };
                    row.calls(WARM_UP.min(plan.calls))?;
                    rows.push(row);
                }
            }
        }
    }
    for _ in 0..plan.rounds {
        rows.iter_mut().try_for_each(|row| row.round(&plan))?;
    }
    println!("{} calls of {LENGTH} bytes, medians of {} interleaved rounds", plan.calls, plan.rounds);
    println!("| provider | answers | polling     | threads | pause us |  calls/s | CPU us/call |");
    println!("|----------|---------|-------------|--------:|---------:|---------:|------------:|");
    for row in rows {
        let (provider, answers, polling) = (row.provider.to_string(), row.answers.to_string(), row.polling);
        let (threads, pause, idle) = (row.threads, row.pause.as_micros(), row.idle);
        let (rate, cpu) = (median(row.rates), median(row.cpu));
        print!(
            "| {provider:<8} | {answers:<7} | {polling:<11} | {threads:>7} | {pause:>8} | {rate:>8.0} | {cpu:>11.1} |"
        );
        if plan.idle.is_zero() { println!() } else { println!(" idle: {idle:.2} % of a core") }
    }
    Ok(())
}
