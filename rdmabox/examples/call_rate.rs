//! Measures calls per second: 64 bytes there and 64 back, by one and by four threads, over shared
//! memory and TCP. Host and clients are in one process.
//!
//! ```text
//! call_rate [--calls N] [--rounds N] [--threads N[,N...]] [--provider P[,P...]]
//!           [--polling MODE[,MODE...]] [--pause MICROSECONDS[,...]] [--idle SECONDS]
//!           [--answers reply|fetch|auto[,...]] [--fetch-size BYTES] [--poll MILLISECONDS]
//!           [--dilation N]
//! ```
//!
//! Each combination of the options is a row. `--answers` selects sent replies (`reply`) or
//! fetched ones. `--fetch-size` is the length of the first READ of an answer in unmapped memory.
//! Rounds are interleaved, and a row shows the median of its rounds. The processor time is that
//! of both sides. With `--pause` each thread waits between two calls, so that waiting threads may
//! fall asleep. `--idle` leaves each session idle for SECONDS after a round, and prints the
//! processor time of the idle time. `--poll` is the time for which the host polls for fetched
//! calls after the last one, in place of a learned time. With `--dilation` (feature `model`) the
//! requests take N times the time of the modelled card cx3, and rates are in time of the model.
//!
//! Of each fetched call the table has the READs, and of these the ones that came too early. "rung"
//! is the percentage of calls that sent a message, because the host was asleep or slow.
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
    Address, CallError, CallsBy, Host, HostHandle, Limits, Peer, PollingMode, ProviderKind, Reply,
    RequestError, Service, Session, SessionBuilder, SessionOptions,
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
    poll: Option<Duration>,
    #[cfg(feature = "model")]
    dilation: Option<u32>,
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
            poll: None,
            #[cfg(feature = "model")]
            dilation: None,
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
                "--poll" => plan.poll = Some(Duration::from_millis(value.parse()?)),
                #[cfg(feature = "model")]
                "--dilation" => plan.dilation = Some(value.parse()?),
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
    /// Calls, READs, early READs and rung calls of all rounds.
    counts: [u64; 4],
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
        let (before, began, used) = (self.session.stats(), Instant::now(), processor_time()?);
        self.calls(plan.calls)?;
        let took = began.elapsed().as_secs_f64();
        #[cfg(feature = "model")]
        let took = took / f64::from(plan.dilation.unwrap_or(1));
        self.rates.push(plan.calls as f64 / took);
        let made = self.session.stats().since(&before);
        for (sum, count) in
            self.counts.iter_mut().zip([made.calls, made.fetches, made.fetches_early, made.calls_rung])
        {
            *sum += count;
        }
        self.cpu.push((processor_time()? - used).as_secs_f64() * 1e6 / plan.calls as f64);
        if !plan.idle.is_zero() {
            let used = processor_time()?;
            std::thread::sleep(plan.idle);
            self.idle = (processor_time()? - used).as_secs_f64() / plan.idle.as_secs_f64() * 100.0;
        }
        Ok(())
    }
}

/// Returns the user and system time of this process, in steps of the kernel's clock tick (10 ms).
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

/// Returns the options of a row's sessions.
fn options(plan: &Plan, provider: ProviderKind, polling: PollingMode, answers: CallsBy) -> SessionBuilder {
    let builder = Session::builder()
        .provider(provider)
        .polling(polling)
        .calls(answers)
        .fetch_size(plan.fetch_size)
        .operation_timeout(Duration::from_secs(60));
    #[cfg(feature = "model")]
    if let Some(dilation) = plan.dilation {
        use rdmabox::provider::model::{CardParameters, ModelledCard, Timing};
        return builder.card(ModelledCard::new(CardParameters::cx3(), Timing::Dilated(dilation)));
    }
    builder
}

fn main() -> Result<(), Box<dyn Error>> {
    let plan = Plan::from_args()?;
    let socket = std::env::temp_dir().join(format!("call-rate-{}.sock", std::process::id()));
    let listen = [Address::Unix(socket), Address::Tcp { host: "127.0.0.1".into(), port: 0 }];
    let mut limits = Limits::default();
    limits.call_poll = plan.poll;
    let host: HostHandle = Host::new()?.limits(limits).listen(&listen, Arc::new(Echo))?;
    let mut rows = Vec::new();
    for &provider in &plan.providers {
        let address = host.addresses().iter().find(|address| address.provider() == provider);
        let address = address.ok_or_else(|| format!("no {provider} here"))?;
        for (&polling, &answers) in
            plan.polling.iter().flat_map(|polling| plan.answers.iter().map(move |answers| (polling, answers)))
        {
            let session = options(&plan, provider, polling, answers).connect(address)?;
            for &threads in &plan.threads {
                for &pause in &plan.pauses {
                    let (session, pause) = (Arc::clone(&session), Duration::from_micros(pause));
                    let (threads, rates, cpu, idle) = (threads.max(1), Vec::new(), Vec::new(), 0.0);
                    let counts = [0; 4];
                    let row =
                        Row { session, provider, answers, polling, threads, pause, rates, cpu, idle, counts };
                    row.calls(WARM_UP.min(plan.calls))?;
                    rows.push(row);
                }
            }
        }
    }
    for _ in 0..plan.rounds {
        rows.iter_mut().try_for_each(|row| row.round(&plan))?;
    }
    print(&plan, rows);
    Ok(())
}

fn print(plan: &Plan, rows: Vec<Row>) {
    println!("{} calls of {LENGTH} bytes, medians of {} interleaved rounds", plan.calls, plan.rounds);
    println!(
        "| provider | answers | polling     | threads | pause us |  calls/s | CPU us/call | READs |  early | rung % |"
    );
    println!(
        "|----------|---------|-------------|--------:|---------:|---------:|------------:|------:|-------:|-------:|"
    );
    for row in rows {
        let (provider, answers, polling) = (row.provider.to_string(), row.answers.to_string(), row.polling);
        let (threads, pause, idle) = (row.threads, row.pause.as_micros(), row.idle);
        let (rate, cpu) = (median(row.rates), median(row.cpu));
        let [calls, fetches, early, rung] = row.counts.map(|count| count as f64);
        let (reads, early, rung) = (fetches / calls, early / calls, rung / calls * 100.0);
        print!(
            "| {provider:<8} | {answers:<7} | {polling:<11} | {threads:>7} | {pause:>8} | {rate:>8.0} | {cpu:>11.1} | {reads:>5.3} | {early:>6.4} | {rung:>6.2} |"
        );
        if plan.idle.is_zero() { println!() } else { println!(" idle: {idle:.2} % of a core") }
    }
}
