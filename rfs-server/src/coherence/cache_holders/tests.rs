//! Compares the cache holders with a plain table of holders and parts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn one_holder_is_small() {
    assert_eq!(size_of::<(u64, List)>(), 24);
}

#[derive(Clone, Debug)]
enum Step {
    Add(u64, u64, Part),
    Take(u64, Part, u64),
    TakeContents(u64, u64),
    TakeFrom(u64, u64, Part),
    NameChanged(u64, u64),
    Unnamed(u64, u64),
    Gone(u64, u64),
    ForgetOne(u64, u64),
    End(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let part = || {
        let parts = [Part::Attr, Part::Names, Part::Owner, Part::Number, Part::Pages];
        (0..parts.len()).prop_map(move |at| parts[at])
    };
    prop_oneof![
        8 => (1..5u64, 1..4u64, part()).prop_map(|(s, i, p)| Step::Add(s, i, p)),
        4 => (1..4u64, part(), 1..5u64).prop_map(|(i, p, s)| Step::Take(i, p, s)),
        2 => (1..4u64, 1..5u64).prop_map(|(i, s)| Step::TakeContents(i, s)),
        2 => (1..5u64, 1..4u64, part()).prop_map(|(s, i, p)| Step::TakeFrom(s, i, p)),
        4 => (1..4u64, 1..5u64).prop_map(|(i, s)| Step::NameChanged(i, s)),
        2 => (1..4u64, 1..5u64).prop_map(|(i, s)| Step::Unnamed(i, s)),
        1 => (1..4u64, 1..5u64).prop_map(|(i, s)| Step::Gone(i, s)),
        2 => (1..4u64, 1..5u64).prop_map(|(i, s)| Step::ForgetOne(i, s)),
        1 => (1..5u64).prop_map(Step::End),
    ]
}

/// Session, then whether it holds attributes, names, owner, number and pages.
type Row = (u64, bool, bool, bool, bool, bool);

/// A plain table of holders and parts, in the order of registration.
#[derive(Default)]
struct Table(BTreeMap<u64, Vec<Row>>);

impl Table {
    fn rows(&mut self, ino: u64) -> &mut Vec<Row> {
        self.0.entry(ino).or_default()
    }

    /// Returns the rows of an inode but for a session.
    fn others(&mut self, ino: u64, but: u64) -> impl Iterator<Item = &mut Row> {
        self.rows(ino).iter_mut().filter(move |holder| holder.0 != but)
    }

    fn add(&mut self, session: u64, ino: u64, part: Part) {
        let list = self.rows(ino);
        let at = list.iter().position(|holder| holder.0 == session).unwrap_or_else(|| {
            list.push((session, false, false, false, false, false));
            list.len() - 1
        });
        match part {
            Part::Attr => (list[at].1, list[at].3) = (true, true),
            Part::Names => list[at].2 = true,
            Part::Owner => list[at].3 = true,
            Part::Number => list[at].4 = true,
            Part::Pages => list[at].5 = true,
        }
    }

    /// Removes a part from all rows but one. Returns the sessions that held it.
    fn take(&mut self, ino: u64, part: Part, but: u64) -> Vec<u64> {
        let take = |holder: &mut Row| {
            let had = match part {
                Part::Attr => std::mem::take(&mut holder.1),
                Part::Names => std::mem::take(&mut holder.2),
                Part::Owner => {
                    holder.1 = false;
                    std::mem::take(&mut holder.3)
                }
                Part::Number => std::mem::take(&mut holder.4),
                Part::Pages => std::mem::take(&mut holder.5),
            };
            had.then_some(holder.0)
        };
        self.others(ino, but).filter_map(take).collect()
    }

    /// Removes attributes and pages from all rows but one. Returns the sessions that held any.
    fn take_contents(&mut self, ino: u64, but: u64) -> Vec<u64> {
        let take = |holder: &mut Row| {
            let had = [std::mem::take(&mut holder.1), std::mem::take(&mut holder.5)];
            had.contains(&true).then_some(holder.0)
        };
        self.others(ino, but).filter_map(take).collect()
    }

    /// Removes a part from the row of a session. Returns true if the session held it.
    fn take_from(&mut self, session: u64, ino: u64, part: Part) -> bool {
        let row = self.rows(ino).iter_mut().find(|holder| holder.0 == session);
        row.is_some_and(|holder| match part {
            Part::Attr => std::mem::take(&mut holder.1),
            Part::Names => std::mem::take(&mut holder.2),
            Part::Owner => {
                holder.1 &= !holder.3;
                std::mem::take(&mut holder.3)
            }
            Part::Number => std::mem::take(&mut holder.4),
            Part::Pages => std::mem::take(&mut holder.5),
        })
    }

    fn name_changed(&mut self, ino: u64, but: u64) -> Vec<u64> {
        let change = |holder: &mut Row| {
            holder.2.then(|| {
                holder.1 = false;
                holder.0
            })
        };
        self.others(ino, but).filter_map(change).collect()
    }

    fn unnamed(&mut self, ino: u64, but: u64) -> FinalHolders {
        let mut expected = FinalHolders::default();
        for holder in self.rows(ino) {
            if holder.0 != but && std::mem::take(&mut holder.2) {
                expected.names.push(holder.0);
            }
            expected.numbers.extend(std::mem::take(&mut holder.4).then_some(holder.0));
        }
        expected
    }

    fn gone(&mut self, ino: u64, but: u64) -> FinalHolders {
        let rows = self.0.remove(&ino).unwrap_or_default();
        let others = || rows.iter().filter(|holder| holder.0 != but);
        FinalHolders {
            names: others().filter(|holder| holder.2).map(|holder| holder.0).collect(),
            attrs: others().filter(|holder| holder.1).map(|holder| holder.0).collect(),
            numbers: Sessions::new(),
        }
    }

    fn end_session(&mut self, session: u64) {
        self.0.values_mut().for_each(|list| list.retain(|holder| holder.0 != session));
    }

    /// Removes rows that hold nothing, and inodes without rows.
    fn tidy(&mut self) {
        self.0.values_mut().for_each(|list| list.retain(|k| k.1 || k.2 || k.3 || k.4 || k.5));
        self.0.retain(|_, list| !list.is_empty());
    }
}

/// Performs a step with both, and compares the sessions that they return.
fn perform(holders: &mut CacheHolders, table: &mut Table, step: &Step) -> Result<(), TestCaseError> {
    match *step {
        Step::Add(session, ino, part) => {
            holders.add(session, ino, part);
            table.add(session, ino, part);
        }
        Step::Take(ino, part, but) => {
            prop_assert_eq!(holders.take(ino, part, but), table.take(ino, part, but));
        }
        Step::TakeContents(ino, but) => {
            prop_assert_eq!(holders.take_contents(ino, but), table.take_contents(ino, but));
        }
        Step::TakeFrom(session, ino, part) => {
            let had = table.take_from(session, ino, part);
            prop_assert_eq!(holders.take_from(session, ino, part), had);
        }
        Step::NameChanged(ino, but) => {
            prop_assert_eq!(holders.name_changed(ino, but), table.name_changed(ino, but));
        }
        Step::Unnamed(ino, but) => {
            prop_assert_eq!(holders.unnamed(ino, but), table.unnamed(ino, but));
        }
        Step::Gone(ino, but) => prop_assert_eq!(holders.gone(ino, but), table.gone(ino, but)),
        Step::ForgetOne(ino, session) => {
            holders.forget_one(ino, session);
            table.rows(ino).retain(|holder| holder.0 != session);
        }
        Step::End(session) => {
            holders.end_session(session);
            table.end_session(session);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn agrees_with_a_table(steps in proptest::collection::vec(step(), 1..100)) {
        let (mut holders, mut table) = (CacheHolders::default(), Table::default());
        for step in steps {
            perform(&mut holders, &mut table, &step)?;
            table.tidy();
            prop_assert!(holders.0.len() == table.0.len(), "no entry without holders");
        }
    }
}
