//! The program `rfs-flood`: see `rfs-flood --help`.

use std::{error::Error, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use rdmabox::{Address, Key};
use rfs_fuzz::flood::{ATTACKS, Flood, Report, Withstood};

/// Time limit of each operation of the good client.
const SLOWEST_ALLOWED: Duration = Duration::from_secs(2);

/// Floods a server with bad input, and checks a good client and the resource usage of the server.
#[derive(Debug, Parser)]
#[command(name = "rfs-flood", version)]
struct Args {
    /// The server's TCP port
    address: Address,

    /// Process ID of the server
    #[arg(long, value_name = "PID")]
    process: u32,

    /// The server's Unix socket, for the attack with descriptors
    #[arg(long, value_name = "ADDRESS")]
    unix: Option<Address>,

    /// Seconds of each attack by a peer with a key; 0 runs no attacks
    #[arg(long, value_name = "SECONDS", requires = "key", default_value_t = 0)]
    attack_seconds: u64,

    /// The export that members flood
    #[arg(long, value_name = "NAME", default_value = "flooded")]
    export: String,

    /// The export of the good client
    #[arg(long, value_name = "NAME", default_value = "good")]
    good: String,

    /// Key file of the export that members flood
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// Key file of the good client's export
    #[arg(long, value_name = "FILE")]
    good_key: Option<PathBuf>,

    /// Number of unauthenticated connections
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    connections: u64,

    /// Number of messages of members
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    messages: u64,

    /// Seed of the run, to repeat it [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(slowest) if slowest < SLOWEST_ALLOWED => return ExitCode::SUCCESS,
        Ok(slowest) => println!("FAILED: an operation of a good client took {slowest:?}"),
        Err(e) => println!("FAILED: {e}"),
    }
    ExitCode::FAILURE
}

/// Floods the server, then attacks it. Returns the duration of the slowest operation of a good
/// client.
fn run(args: Args) -> Result<Duration, Box<dyn Error>> {
    let load = |file: &Option<PathBuf>| file.as_deref().map(Key::load).transpose();
    let flood = Flood {
        address: args.address,
        unix: args.unix,
        process: Some(args.process),
        keys: [load(&args.key)?, load(&args.good_key)?],
        exports: [args.export, args.good],
        connections: args.connections,
        messages: args.messages,
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1 << 48)),
    };
    println!("seed {}", flood.seed);
    let report = flood.run()?;
    show(&report);
    let (mut slowest, mut failures) = (report.good.slowest, 0);
    // The next attacks run even if an attack fails.
    for attack in ATTACKS.iter().filter(|_| args.attack_seconds > 0) {
        match flood.attack(*attack, Duration::from_secs(args.attack_seconds)) {
            Ok(withstood) => {
                show_attack(&withstood);
                slowest = slowest.max(withstood.slowest);
            }
            Err(e) => {
                println!("FAILED: {e}");
                failures += 1;
            }
        }
    }
    if failures > 0 { Err(format!("{failures} attacks").into()) } else { Ok(slowest) }
}

fn show_attack(attack: &Withstood) {
    let Withstood { attack, taken, refused, clients, slowest, memory: [before, peak] } = attack;
    println!(
        "| {attack:<15} | {taken} steps taken, {refused} refused | {clients} other clients, the slowest in {} ms \
         | memory {} MiB, at most {} |",
        slowest.as_millis(),
        before >> 20,
        peak >> 20
    );
}

fn show(Report { strangers, members, good, usage: [before, after], peak, took }: &Report) {
    let row = |what: &str, value: String| println!("| {what:<48} | {value:>22} |");
    row("connections of strangers", strangers.connections.to_string());
    row("of these answered", strangers.answered.to_string());
    row("messages of members", members.messages.to_string());
    row("of these unreadable, each the end of a session", members.unreadable.to_string());
    row("of these well-formed", (members.messages - members.unreadable).to_string());
    row("and refused with an error", members.refused.to_string());
    row("sessions of members", members.sessions.to_string());
    row("operations of the good client, all successful", good.operations.to_string());
    row("bytes that it has read and checked", good.checked.to_string());
    row("its slowest operation, ms", good.slowest.as_millis().to_string());
    row("the server's memory, MiB", format!("{} -> {}", before.memory >> 20, after.memory >> 20));
    row("and its peak since the start of the server", (peak >> 20).to_string());
    row("its descriptors", format!("{} -> {}", before.descriptors, after.descriptors));
    row("its threads", format!("{} -> {}", before.threads, after.threads));
    row("seconds", format!("{:.1}", took.as_secs_f64()));
}
