//! Runs threads that start together, and measures their duration.

use std::{sync::Barrier, thread, time::Instant};

use crate::Result;

/// Runs each job in its own thread, all started together. Returns the seconds from the first start
/// to the last end, and the results in order.
pub fn run<T: Send>(jobs: Vec<impl FnOnce() -> Result<T> + Send>) -> Result<(f64, Vec<T>)> {
    let barrier = &Barrier::new(jobs.len());
    let done = thread::scope(|scope| {
        let running: Vec<_> = jobs
            .into_iter()
            .map(|job| {
                scope.spawn(move || {
                    barrier.wait();
                    // The thread itself reads the clock, because another thread might run only
                    // after this thread has ended.
                    let began = Instant::now();
                    let result = job()?;
                    Ok((began, Instant::now(), result))
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<(Instant, Instant, T)>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let began = done.iter().map(|(began, ..)| *began).min();
    let ended = done.iter().map(|(_, ended, _)| *ended).max();
    let seconds = began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_secs_f64());
    Ok((seconds, done.into_iter().map(|(.., result)| result).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn results_are_in_order_and_a_failure_ends_the_run() {
        let jobs = |bad: usize| {
            let job = move |n| move || if n == bad { Err(Error::Usage("no".into())) } else { Ok(n) };
            (0..5).map(job).collect::<Vec<_>>()
        };
        let (seconds, results) = run(jobs(9)).unwrap();
        assert!(seconds >= 0.0);
        assert_eq!(results, [0, 1, 2, 3, 4]);
        assert_eq!(run(jobs(3)).unwrap_err().to_string(), "no");
        assert_eq!(run(Vec::<fn() -> Result<()>>::new()).unwrap(), (0.0, vec![]));
    }
}
