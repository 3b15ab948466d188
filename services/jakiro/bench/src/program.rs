//! Measures the figures of a command line, on this machine or on modelled cards.
//!
//! # Concurrency
//! The main thread starts servers and loads, one at a time.

use std::{io::Write, path::Path, time::Duration};

use clap::ValueEnum;
use rdmabox::{ProviderKind, provider::model::CardParameters};

use crate::{
    cli::{Cli, Command, RunArgs},
    error::Error,
    figure::{Figure, Outcome, Point, Table},
    peer::{self, Setting, System, memcached_program, serve, start},
    run::{fill, measure},
    simulation::{Plan, measure_server_ns, simulate},
};

/// Client threads and server threads on modelled cards, as in the paper.
const CARD_THREADS: [usize; 8] = [7, 14, 21, 28, 35, 56, 84, 112];
const CARD_AT: usize = 35;
const CARD_SERVER_THREADS: usize = 4;
/// The same on this machine.
const HERE_THREADS: [usize; 4] = [1, 2, 4, 8];
const HERE_AT: usize = 2;

/// Runs a command.
pub(crate) fn run(cli: Cli) -> Result<(), Error> {
    let args = match cli.command {
        Command::Serve { address, memory, threads, poll_ms } => {
            return serve(&address, memory, threads, Duration::from_millis(poll_ms.into()));
        }
        Command::Run(args) => args,
    };
    let figures = match args.figures.is_empty() {
        true => Figure::value_variants().to_vec(),
        false => args.figures.clone(),
    };
    let mut outcomes = Vec::new();
    match &args.device {
        Some(device) => on_cards(device, &args, &figures, &mut outcomes)?,
        None => {
            for provider in &args.provider {
                for figure in &figures {
                    on_this_machine(*provider, *figure, &args, &mut outcomes)?;
                }
            }
        }
    }
    args.json.as_deref().map_or(Ok(()), |path| write(path, &outcomes))
}

/// Returns the points of a figure, with the client threads of the command line.
fn points(figure: Figure, systems: &[System], args: &RunArgs, fig4: &[usize], at: usize) -> Vec<Point> {
    let given: Vec<usize> = args.threads.iter().copied().map(usize::from).collect();
    let threads = if given.is_empty() { fig4 } else { &given };
    figure.points(systems, threads, args.at.map_or(at, usize::from), args.keys)
}

fn on_cards(
    device: &str,
    args: &RunArgs,
    figures: &[Figure],
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Error> {
    let card = device.strip_prefix("model:").ok_or_else(|| Error::Device(device.into()))?;
    let card = CardParameters::open(card)?;
    let systems = [System::Jakiro, System::ServerReply, System::ServerWrite];
    let server_threads = args.server_threads.map_or(CARD_SERVER_THREADS, usize::from);
    let load = Figure::Fig5.points(&systems, &[], 1, args.keys)[0].load;
    let server_ns = args.server_ns.unwrap_or_else(|| measure_server_ns(&load));
    let name = card.name();
    say(&format!("card {name}: {server_threads} server threads, {server_ns} ns of each for a request\n"));
    let plan = Plan { card, server_threads, server_ns, requests: args.requests };
    for figure in figures {
        let from = outcomes.len();
        for point in points(*figure, &systems, args, &CARD_THREADS, CARD_AT) {
            let sample = simulate(&plan, &point);
            outcomes.extend(Outcome::of_rounds(device, &point, vec![sample]));
        }
        say(&Table(&outcomes[from..]).text());
    }
    Ok(())
}

/// Prints a line. Without a reader, the figures are still measured and written.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn on_this_machine(
    provider: ProviderKind,
    figure: Figure,
    args: &RunArgs,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Error> {
    let mut systems = vec![System::Jakiro, System::ServerReply, System::ServerWrite];
    // memcached has its own protocol over TCP only.
    if provider == ProviderKind::Tcp && memcached_program().is_some() {
        systems.push(System::Memcached);
    }
    let points = points(figure, &systems, args, &HERE_THREADS, HERE_AT);
    let mut rounds = vec![Vec::new(); points.len()];
    for _ in 0..args.rounds {
        for (point, samples) in points.iter().zip(&mut rounds) {
            let server = server_of(provider, point, args)?;
            fill(&*server, &point.load)?;
            samples.push(measure(
                &*server,
                &point.load,
                point.threads,
                Duration::from_millis(args.duration),
            )?);
        }
    }
    let from = outcomes.len();
    let of = |(point, samples)| Outcome::of_rounds(&provider.to_string(), point, samples);
    outcomes.extend(points.iter().zip(rounds).filter_map(of));
    say(&Table(&outcomes[from..]).text());
    Ok(())
}

/// Starts a server for a point.
fn server_of(provider: ProviderKind, point: &Point, args: &RunArgs) -> Result<Box<dyn peer::Server>, Error> {
    let longest = (0..args.keys).map(|number| point.load.lengths.of(number) as u64).max().unwrap_or(0);
    // Room for twice the items, so that no system evicts.
    let memory = (64 << 20) + 2 * args.keys * (longest + 256);
    start(&Setting {
        system: point.system,
        provider,
        server_threads: args.server_threads.map_or(1, usize::from),
        fetch_size: point.fetch_size,
        memory,
        poll_ms: args.poll_ms,
    })
}

fn write(path: &Path, outcomes: &[Outcome]) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(outcomes).map_err(std::io::Error::other);
    text.and_then(|text| std::fs::write(path, text))
        .map_err(|source| Error::Write { path: path.display().to_string(), source })
}
