//! The rounds of a plan. All targets are stopped before [`run`] returns, also after a failure or a
//! signal.

use std::time::{Duration, Instant};

use measure::progress::Progress;

use super::{
    Measured, Meter, Plan, Site, Start, TargetInfo, Turn,
    order::turns,
    pace::{Pace, show_seconds},
    usage::{Idle, Programs},
};
use crate::{
    Error, Result,
    interrupt::Interrupt,
    target::{Running, Side},
};

/// Runs all rounds.
pub fn run<M: Meter>(
    plan: &Plan<M::Test>,
    meter: &M,
    interrupt: &Interrupt,
) -> Result<Measured<M::Column, M::Reading>> {
    let began = Instant::now();
    let mut rounds = Rounds::new(plan, meter, interrupt);
    for round in 0..plan.rounds {
        if round > 0 && plan.limit.is_some_and(|limit| began.elapsed() > limit) {
            break;
        }
        rounds.round(round)?;
        rounds.measured.rounds = round + 1;
    }
    Ok(rounds.measured)
}

/// The running targets, by index.
type Started = Vec<Option<Box<dyn Running>>>;

struct Rounds<'a, M: Meter> {
    plan: &'a Plan<M::Test>,
    meter: &'a M,
    interrupt: &'a Interrupt,
    /// Tests of each target.
    tests: Vec<Vec<M::Test>>,
    pace: Pace<M::Test>,
    progress: Progress,
    measured: Measured<M::Column, M::Reading>,
}

impl<'a, M: Meter> Rounds<'a, M> {
    fn new(plan: &'a Plan<M::Test>, meter: &'a M, interrupt: &'a Interrupt) -> Self {
        let mut targets: Vec<TargetInfo> = Vec::new();
        for entrant in &plan.entrants {
            if targets.iter().all(|info| info.name != entrant.name) {
                let left_out = match plan.start {
                    Start::EachTest => None,
                    Start::SideBySide(_) => entrant.target.missing(),
                };
                let (name, title, side) = (entrant.name.clone(), entrant.title.clone(), entrant.side);
                targets.push(TargetInfo { name, title, side, left_out, ..TargetInfo::default() });
            }
        }
        let tests: Vec<_> = plan.entrants.iter().map(|entrant| entrant.tests.clone()).collect();
        let turns = turns(0, &plan.tests, &tests).len() as u64 * u64::from(plan.rounds);
        Self {
            plan,
            meter,
            interrupt,
            tests,
            pace: Pace::default(),
            progress: Progress::new(turns),
            measured: Measured { series: Vec::new(), targets, rounds: 0, log: String::new() },
        }
    }

    fn round(&mut self, round: u32) -> Result<()> {
        let mut started: Started = self.plan.entrants.iter().map(|_| None).collect();
        if let Start::SideBySide(_) = self.plan.start {
            self.progress.begin(format!("round {}/{}: starting", round + 1, self.plan.rounds));
            for index in 0..started.len() {
                self.start(index, &mut started)?;
            }
        }
        let turns = turns(round, &self.plan.tests, &self.tests);
        for (n, turn) in turns.iter().enumerate() {
            self.progress.at((round as usize * turns.len() + n) as u64);
            if self.info(turn.target).left_out.is_some() {
                continue;
            }
            let later = (round + 1..self.plan.rounds).flat_map(|_| &turns);
            let left = self.left(turns[n..].iter().chain(later));
            let (name, test) = (&self.plan.entrants[turn.target].name, self.meter.describe(turn.test));
            let label = format!("round {}/{}, {test}, {name}", round + 1, self.plan.rounds);
            self.progress.begin(format!("{label}{left}"));
            self.take(*turn, &label, &mut started)?;
        }
        if let Start::SideBySide(time) = self.plan.start {
            self.watch_idle(&started, time)?;
            for index in 0..started.len() {
                self.stop(index, &mut started)?;
            }
        }
        Ok(())
    }

    /// Describes the remaining time of these turns.
    fn left<'t>(&self, turns: impl Iterator<Item = &'t Turn<M::Test>>) -> String
    where
        M::Test: 't,
    {
        let turns = turns.filter(|turn| self.info(turn.target).left_out.is_none());
        let left = self.pace.left(turns.map(|turn| (*turn, self.meter.cost(turn.test))));
        left.map_or_else(String::new, |left| format!(" ({} left)", show_seconds(left)))
    }

    fn info(&self, index: usize) -> &TargetInfo {
        &self.measured.targets[self.position(index)]
    }

    /// Returns the index of an entrant's target in the results.
    fn position(&self, index: usize) -> usize {
        let name = &self.plan.entrants[index].name;
        self.measured.targets.iter().position(|info| info.name == *name).unwrap_or(0)
    }

    /// Starts a target, unless it is left out.
    fn start(&mut self, index: usize, started: &mut Started) -> Result<()> {
        self.interrupt.check()?;
        if self.info(index).left_out.is_some() {
            return Ok(());
        }
        match self.plan.entrants[index].target.start(self.interrupt) {
            Ok(running) => {
                let position = self.position(index);
                self.measured.targets[position].commands = running.commands();
                started[index] = Some(running);
                Ok(())
            }
            Err(error) => self.leave_out(index, error),
        }
    }

    /// Takes one measurement. Starts the target if it does not run, and then stops it, too.
    fn take(&mut self, turn: Turn<M::Test>, label: &str, started: &mut Started) -> Result<()> {
        let began = Instant::now();
        let each = self.plan.start == Start::EachTest;
        if each {
            self.start(turn.target, started)?;
        }
        self.interrupt.check()?;
        // Before the measurement: the log shows which one ended a peer that is then left out.
        self.measured.log.push_str(&format!("== {label}\n"));
        let start = began.elapsed();
        let Some(running) = started[turn.target].as_deref_mut() else { return Ok(()) };
        let (name, interrupt) = (&self.plan.entrants[turn.target].name, self.interrupt);
        let progress = &mut self.progress;
        let mut site = Site { name, running, start, interrupt, progress, label };
        let outcome = match self.meter.measure(turn.test, &mut site) {
            Ok(outcome) => outcome,
            Err(error) => {
                let error = match error {
                    Error::Interrupted(_) => error,
                    _ => running.explain(error),
                };
                // Drop stops the target in any state.
                started[turn.target] = None;
                return self.leave_out(turn.target, error);
            }
        };
        let position = self.position(turn.target);
        let mut commands: Vec<String> = outcome.command.into_iter().collect();
        if each {
            let all = &mut self.measured.targets[position].commands;
            all.append(&mut commands);
            commands.clone_from(all);
        }
        commands.iter().for_each(|command| self.measured.log.push_str(&format!("$ {command}\n")));
        self.measured.log.push_str(&outcome.said);
        for (column, reading) in outcome.readings {
            self.measured.add(name, column, reading);
        }
        if each {
            self.stop(turn.target, started)?;
            self.measured.log.push('\n');
        }
        self.pace.took(turn, self.meter.cost(turn.test), began.elapsed().as_secs_f64());
        Ok(())
    }

    fn stop(&mut self, index: usize, started: &mut Started) -> Result<()> {
        match started[index].take().map(|running| running.stop()) {
            Some(Ok(said)) => self.measured.log.push_str(&said),
            Some(Err(error)) => self.leave_out(index, error)?,
            None => {}
        }
        Ok(())
    }

    /// Observes all idle targets at the same time.
    fn watch_idle(&mut self, started: &Started, time: Duration) -> Result<()> {
        let programs: Vec<Option<Programs>> = started
            .iter()
            .map(|running| running.as_ref().map(|running| Programs::of(&running.processes())))
            .collect();
        let cpu =
            || programs.iter().map(|programs| programs.as_ref().map(Programs::cpu_s)).collect::<Vec<_>>();
        let (before, began) = (cpu(), Instant::now());
        self.interrupt.wait(time, || Ok(None::<()>))?;
        let seconds = began.elapsed().as_secs_f64();
        for (index, after) in cpu().into_iter().enumerate() {
            if let (Some(programs), Some(before), Some(after)) = (&programs[index], before[index], after)
                && programs.exist()
            {
                let (client, servers) = programs.memory();
                let cpu_percent = 100.0 * (after - before).max(0.0) / seconds;
                let position = self.position(index);
                self.measured.targets[position].idle.push(Idle { cpu_percent, client, servers });
            }
        }
        Ok(())
    }

    /// Skips a peer that failed. Returns the error if the plan needs the target, or a signal caused
    /// it.
    fn leave_out(&mut self, index: usize, error: Error) -> Result<()> {
        let optional = self.plan.start != Start::EachTest && self.plan.entrants[index].side == Side::Peer;
        if !optional || matches!(error, Error::Interrupted(_) | Error::LeftBehind(_)) {
            return Err(error);
        }
        eprintln!("{} is left out: {error}", self.plan.entrants[index].name);
        let position = self.position(index);
        self.measured.targets[position].left_out = Some(error.to_string());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
