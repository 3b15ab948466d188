//! Carries out the plan of a round, and writes the answers of its connections.
//!
//! A round has one part for each connection that has sent commands. If the answers reach a limit,
//! the round pauses. The caller can then send the answers, and leave the rest of a connection that
//! does not take them.
//!
//! # Concurrency
//! A plain value of a thread.

use std::ops::Range;

use super::{
    answer,
    plan::{Plan, Step},
};
use crate::store::Store;

/// The steps and requests of a connection in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) steps: Range<usize>,
    pub(super) requests: Range<usize>,
}

/// Answers of a part in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) part: usize,
    pub(super) output: Range<usize>,
    /// Steps of the part that are left.
    pub(super) left: usize,
}

/// The place in a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    part: usize,
    step: usize,
    request: usize,
}

impl Round {
    /// Returns true if all parts are done.
    pub(super) fn is_done(&self, parts: &[Part]) -> bool {
        self.part == parts.len()
    }

    /// Carries requests out until the output has `limit` bytes. Appends to `answered`.
    pub(super) fn advance(
        &mut self,
        (plan, parts): (&Plan<'_>, &[Part]),
        (store, limit): (&Store, usize),
        output: &mut Vec<u8>,
        answered: &mut Vec<Answered>,
    ) {
        let mut begin = output.len();
        while let Some(part) = parts.get(self.part) {
            if self.step == part.steps.end {
                answered.push(Answered { part: self.part, output: begin..output.len(), left: 0 });
                begin = output.len();
                self.part += 1;
                continue;
            }
            if output.len() >= limit {
                let left = part.steps.end - self.step;
                answered.push(Answered { part: self.part, output: begin..output.len(), left });
                return;
            }
            match plan.steps[self.step] {
                Step::Say(text) => output.extend_from_slice(text.as_bytes()),
                step => {
                    answer::write(store, step, &plan.requests[self.request], output);
                    self.request += 1;
                }
            }
            self.step += 1;
        }
    }

    /// Drops the rest of a part that [`advance`](Round::advance) has left in its midst.
    pub(super) fn skip(&mut self, parts: &[Part]) {
        if let Some(part) = parts.get(self.part) {
            (self.step, self.request) = (part.steps.end, part.requests.end);
            self.part += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        store::{MAX_VALUE, StoreOptions},
        text::{moment::Moment, protocol::Parser},
    };

    /// Runs inputs of several connections. Returns the answers of each, and the number of pauses.
    fn run(inputs: &[&[u8]], limit: usize, slow: Option<usize>) -> (Vec<String>, usize) {
        let (mut plan, mut parts) = (Plan::default(), Vec::new());
        for input in inputs {
            let (steps, requests) = (plan.steps.len(), plan.requests.len());
            plan.add(&mut Parser::default(), input, (Moment::default(), MAX_VALUE), |_| true);
            parts.push(Part { steps: steps..plan.steps.len(), requests: requests..plan.requests.len() });
        }
        let store = Store::new(&StoreOptions::new(4 << 20)).expect("a store");
        let mut answers = vec![Vec::new(); inputs.len()];
        let (mut round, mut pauses) = (Round::default(), 0);
        while !round.is_done(&parts) {
            let (mut output, mut answered) = (Vec::new(), Vec::new());
            round.advance((&plan, &parts), (&store, limit), &mut output, &mut answered);
            pauses += 1;
            for Answered { part, output: range, left } in answered {
                answers[part].extend_from_slice(&output[range]);
                if left > 0 && slow == Some(part) {
                    round.skip(&parts);
                }
            }
        }
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (answers.into_iter().map(text).collect(), pauses)
    }

    const INPUTS: [&[u8]; 4] = [
        b"set a 0 0 3\r\nabc\r\nget a a a\r\nversion\r\n",
        b"",
        b"version\r\nget a b a\r\nget a\r\n",
        b"delete a\r\ndelete a\r\n",
    ];

    fn wanted() -> Vec<String> {
        let value = "VALUE a 0 3\r\nabc\r\n";
        let version = format!("VERSION {}\r\n", env!("CARGO_PKG_VERSION"));
        vec![
            format!("STORED\r\n{value}{value}{value}END\r\n{version}"),
            String::new(),
            format!("{version}{value}{value}END\r\n{value}END\r\n"),
            "DELETED\r\nNOT_FOUND\r\n".into(),
        ]
    }

    #[test]
    fn each_connection_gets_its_answers_in_order() {
        assert_eq!(run(&INPUTS, usize::MAX, None), (wanted(), 1));
    }

    #[test]
    fn a_limit_changes_no_answer() {
        let (answers, pauses) = run(&INPUTS, 5, None);
        assert_eq!(answers, wanted());
        assert!(pauses >= 3, "{pauses}");
        assert_eq!(run(&INPUTS, 1, None).0, wanted());
    }

    #[test]
    fn a_slow_connection_does_not_stop_others() {
        let mut wanted = wanted();
        wanted[0] = "STORED\r\n".into();
        assert_eq!(run(&INPUTS, 5, Some(0)).0, wanted);
    }
}
