//! The page traffic that a pager makes of a key-value load, without memory, kernel and servers.
//!
//! [`Trace`] lets the threads of a program make queries in turn. The pager's own logic answers
//! their page faults: the states of pages, the clock, batches and read-ahead. Each fault that moves
//! pages is a [`Step`]. A benchmark plays the steps against a server. So a modelled card can have
//! the load of a paged program, although a program runs by the machine's clock.
//!
//! Invariants: no more pages than the local budget are resident. Equal options give equal steps.
//!
//! # Concurrency
//! Plain values. No I/O, no locks, no clock.

mod pages;
mod queries;
#[cfg(test)]
mod tests;

pub use self::queries::KeyValueLoad;
use self::{
    pages::Pages,
    queries::{Access, Queries},
};
use crate::{error::PagingError, logic, options::MIN_BUDGET_PAGES};

/// Length of a page in bytes.
pub const PAGE: usize = logic::PAGE;

/// The events of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceOptions {
    /// The queries.
    pub load: KeyValueLoad,
    /// Pages of the program's memory, which records fill.
    pub pages: usize,
    /// Percentage of the pages that may be resident, 1 to 90.
    pub local: u32,
    /// Threads of the program.
    pub threads: usize,
    /// Seed of the random choices.
    pub seed: u64,
}

/// The pages that one fault of a thread moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The thread that faults.
    pub thread: usize,
    /// Queries that the thread has made since its last step.
    pub queries: u32,
    /// Dirty pages that leave, in the order of the clock. They are written together before
    /// [`reads`](Self::reads) begin, and have left before the thread's next step.
    pub writes: Vec<usize>,
    /// The page that the thread waits for, and pages that are read ahead. Adjacent, and read
    /// together.
    pub reads: Vec<usize>,
}

/// An endless sequence of steps.
#[derive(Debug)]
pub struct Trace {
    pages: Pages,
    queries: Queries,
    threads: Vec<Program>,
    next: usize,
}

/// A thread of the program.
#[derive(Debug, Default)]
struct Program {
    /// Accesses of the present query, the next one last.
    rest: Vec<Access>,
    queries: u32,
}

impl Trace {
    /// Stores all records, then makes queries until the resident pages are those of the load.
    ///
    /// # Errors
    /// [`PagingError::InvalidOption`] if there are no threads, or if the share of resident pages is
    /// no share or too few pages.
    pub fn new(options: &TraceOptions) -> Result<Trace, PagingError> {
        let invalid = |option, value: usize, allowed| {
            Err(PagingError::InvalidOption { option, value: value as u64, allowed })
        };
        if !(1..=90).contains(&options.local) {
            return invalid("the share of local pages", options.local as usize, "1 to 90 percent");
        }
        if options.threads == 0 {
            return invalid("the number of threads", 0, "1 or more");
        }
        let budget = options.pages.saturating_mul(options.local as usize) / 100;
        if (budget as u64) < MIN_BUDGET_PAGES {
            return invalid("the number of local pages", budget, "at least 32");
        }
        let threads = std::iter::repeat_with(Program::default).take(options.threads).collect();
        let queries = Queries::new(options.load, options.pages, options.seed);
        let mut trace = Trace { pages: Pages::new(options.pages, budget), queries, threads, next: 0 };
        for page in 0..options.pages {
            trace.pages.access(0, Access { page, store: true });
        }
        trace.pages.end_writes(0);
        let mut made = 0;
        while made < trace.queries.records() {
            made += trace.step().queries as usize;
        }
        Ok(trace)
    }

    /// Lets the next thread make queries until one of its accesses moves pages.
    fn step(&mut self) -> Step {
        let thread = self.next;
        self.next = (self.next + 1) % self.threads.len();
        self.pages.end_writes(thread);
        let program = &mut self.threads[thread];
        loop {
            let Some(access) = program.rest.pop() else {
                self.queries.next(&mut program.rest);
                program.queries += 1;
                continue;
            };
            if let Some((writes, reads)) = self.pages.access(thread, access) {
                return Step { thread, queries: std::mem::take(&mut program.queries), writes, reads };
            }
        }
    }
}

impl Iterator for Trace {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        Some(self.step())
    }
}
