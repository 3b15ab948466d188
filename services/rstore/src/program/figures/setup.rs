//! The cost of reserve, alloc and map, cold and cached (the paper's Figures 3 and 4).
//!
//! # Concurrency
//! One thread.

use std::{
    error::Error,
    io::{Write, stdout},
    time::{Duration, Instant},
};

use measure::interrupt::Interrupt;
use rstore::AllocFlags;

use super::{
    pool::Pool,
    tables::{median, table},
};

/// Times of the calls.
struct Times {
    reserve: Duration,
    alloc: Duration,
    map: Duration,
}

/// The time of one call.
type Column = fn(&Times) -> Duration;

pub(super) fn measure(pool: &Pool, bytes: u64, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
    let client = pool.client()?;
    let run = |name: &str| -> Result<Times, rstore::Error> {
        let namespace = client.create(name)?;
        let begun = Instant::now();
        namespace.reserve(bytes)?;
        let reserve = begun.elapsed();
        let begun = Instant::now();
        let region = namespace.alloc(bytes, AllocFlags::InPlace)?;
        let alloc = begun.elapsed();
        let begun = Instant::now();
        let mapping = region.map_all()?;
        let map = begun.elapsed();
        drop(mapping);
        region.free()?;
        namespace.delete()?;
        Ok(Times { reserve, alloc, map })
    };
    let cold = run("cold")?;
    let mut cached: Vec<Times> = Vec::new();
    for round in 0..21 {
        interrupt.check()?;
        cached.push(run(&format!("cached {round}"))?);
    }
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    writeln!(stdout(), "## Control path: {} on 4 stores\n", byte_size::show(bytes))?;
    writeln!(
        stdout(),
        "Paper: cached reserve and map are three orders of magnitude below cold ones (IV-B).\n"
    )?;
    let mut table = table(&["call", "cold us", "cached us", "cold / cached"]);
    let columns: [(&str, Column); 3] =
        [("reserve", |t| t.reserve), ("alloc", |t| t.alloc), ("map", |t| t.map)];
    for (name, of) in columns {
        let (cold, cached) = (micros(of(&cold)), median(cached.iter().map(|t| micros(of(t))).collect()));
        table.add_row([
            name.into(),
            format!("{cold:.0}"),
            format!("{cached:.1}"),
            format!("{:.0}", cold / cached),
        ]);
    }
    writeln!(stdout(), "{table}\n")?;
    Ok(())
}
