use proptest::prelude::*;

use super::*;

fn want(need: u64) -> Want {
    Want { need, ahead: 0, hint: None, file: 0, shift: 0 }
}

fn range(start: u64, len: u64) -> Range {
    Range { start, len }
}

#[test]
fn continues_at_the_hint() {
    let mut arena = Arena::new(100);
    assert_eq!(arena.allocate(&[want(10)]), Ok(vec![vec![range(0, 10)]]));
    assert_eq!(arena.allocate(&[want(10)]), Ok(vec![vec![range(10, 10)]]));
    assert_eq!(
        arena.allocate(&[Want { need: 10, ahead: 5, hint: Some(20), file: 0, shift: 0 }]),
        Ok(vec![vec![range(20, 15)]])
    );
    // The range behind the first one is taken, so the rest lies elsewhere.
    assert_eq!(
        arena.allocate(&[Want { need: 5, ahead: 0, hint: Some(10), file: 0, shift: 0 }]),
        Ok(vec![vec![range(35, 5)]])
    );
}

#[test]
fn a_hint_that_is_too_short_is_used_and_the_rest_goes_elsewhere() {
    let mut arena = Arena::new(30);
    arena.allocate(&[want(30)]).unwrap();
    for freed in [range(10, 5), range(20, 10)] {
        arena.free(freed);
        let dirty = arena.take_dirty(u64::MAX).unwrap();
        arena.zeroed(dirty);
    }
    assert_eq!(
        arena.allocate(&[Want { need: 8, ahead: 0, hint: Some(10), file: 0, shift: 0 }]),
        Ok(vec![vec![range(10, 5), range(20, 3)]])
    );
}

#[test]
fn all_or_nothing() {
    let mut arena = Arena::new(10);
    assert_eq!(arena.allocate(&[want(6), want(5)]), Err(Short::Full));
    assert_eq!(arena.allocate(&[want(u64::MAX), want(u64::MAX)]), Err(Short::Full));
    assert_eq!(arena.totals().clean, 10);
    assert_eq!(
        arena.allocate(&[Want { need: 1, ahead: 100, hint: None, file: 0, shift: 0 }, want(5)]),
        Ok(vec![vec![range(0, 5)], vec![range(5, 5)]])
    );
    arena.free(range(0, 5));
    assert_eq!(arena.allocate(&[want(5)]), Err(Short::Dirty));
    assert_eq!(arena.allocate(&[want(6)]), Err(Short::Full));
    let dirty = arena.take_dirty(2).unwrap();
    assert_eq!(arena.allocate(&[want(5)]), Err(Short::Dirty));
    arena.zeroed(dirty);
    assert_eq!(arena.allocate(&[want(2)]), Ok(vec![vec![range(0, 2)]]));
}

#[test]
fn quarantine_ends_with_the_last_holder() {
    let mut arena = Arena::new(10);
    arena.allocate(&[want(10)]).unwrap();
    arena.quarantine((7, 1), range(0, 4), &[1, 2]);
    arena.quarantine((7, 1), range(4, 2), &[2]);
    arena.quarantine((7, 1), range(6, 1), &[]);
    assert_eq!(arena.totals(), Totals { len: 10, clean: 0, dirty: 1, quarantined: 6 });
    arena.note_last_close(8, 1);
    arena.note_last_close(7, 1);
    assert_eq!(arena.totals().quarantined, 6);
    arena.note_last_close(7, 2);
    assert_eq!(arena.totals(), Totals { len: 10, clean: 0, dirty: 7, quarantined: 0 });
}

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Clean,
    Used,
    Dirty,
    Zeroing,
    Quarantined(u64, Vec<u64>),
    Withdrawn,
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { wants: Vec<(u64, u64, Option<u64>)> },
    Free { pick: usize, holders: Vec<u64>, ino: u64 },
    LeaseEnded { ino: u64, session: u64 },
    TakeDirty { max: u64 },
    Zeroed { pick: usize },
    Resize { to: u64 },
}

const CELLS: u64 = 200;

fn step() -> impl Strategy<Value = Step> {
    let wish = (0..40u64, 0..40u64, proptest::option::of(0..CELLS));
    prop_oneof![
        4 => proptest::collection::vec(wish, 1..3).prop_map(|wants| Step::Allocate { wants }),
        3 => (any::<usize>(), proptest::collection::vec(1..4u64, 0..3), 1..3u64)
            .prop_map(|(pick, holders, ino)| Step::Free { pick, holders, ino }),
        2 => (1..3u64, 1..4u64).prop_map(|(ino, session)| Step::LeaseEnded { ino, session }),
        3 => (1..50u64).prop_map(|max| Step::TakeDirty { max }),
        3 => any::<usize>().prop_map(|pick| Step::Zeroed { pick }),
        2 => (0..=CELLS).prop_map(|to| Step::Resize { to }),
    ]
}

struct Model {
    cells: Vec<Cell>,
    used: Vec<Range>,
    zeroing: Vec<Range>,
}

impl Model {
    fn paint(&mut self, range: Range, from: &Cell, to: &Cell) {
        for at in range.start..range.end() {
            assert_eq!(&self.cells[at as usize], from, "cell {at} of {range:?}");
            self.cells[at as usize] = to.clone();
        }
    }

    fn count(&self, matches: impl Fn(&Cell) -> bool) -> u64 {
        self.cells.iter().filter(|cell| matches(cell)).count() as u64
    }

    /// Returns the maximal runs of clean cells.
    fn clean_runs(&self) -> Vec<Range> {
        let mut runs: Vec<Range> = Vec::new();
        for at in (0..CELLS).filter(|&at| self.cells[at as usize] == Cell::Clean) {
            match runs.last_mut() {
                Some(last) if last.end() == at => last.len += 1,
                _ => runs.push(range(at, 1)),
            }
        }
        runs
    }
}

/// Allocates, and checks the outcome and the granted ranges.
fn allocate(arena: &mut Arena, model: &mut Model, wants: Vec<(u64, u64, Option<u64>)>) {
    let wants: Vec<Want> =
        wants.into_iter().map(|(need, ahead, hint)| Want { need, ahead, hint, file: 0, shift: 0 }).collect();
    let need: u64 = wants.iter().map(|w| w.need).sum();
    let clean = model.count(|c| *c == Cell::Clean);
    let dirty = model.count(|c| matches!(c, Cell::Dirty | Cell::Zeroing));
    let before = model.clean_runs();
    let granted = match arena.allocate(&wants) {
        Err(Short::Full) => return assert!(need > clean + dirty),
        Err(Short::Dirty) => return assert!(need > clean && need <= clean + dirty),
        Ok(granted) => granted,
    };
    assert_eq!(granted.len(), wants.len());
    let first = &wants[0];
    if let (Some(at), true) = (first.hint, first.need > 0)
        && model.cells[at as usize] == Cell::Clean
    {
        assert_eq!(granted[0][0].start, at, "the hint was free");
    } else if before.iter().any(|run| run.len >= first.need + first.ahead) && first.need > 0 {
        assert_eq!(granted[0].len(), 1, "one piece would have done");
    }
    for (ranges, want) in granted.into_iter().zip(&wants) {
        let got: u64 = ranges.iter().map(|r| r.len).sum();
        assert!(got >= want.need && got <= want.need + want.ahead);
        for range in ranges {
            model.paint(range, &Cell::Clean, &Cell::Used);
            model.used.push(range);
        }
    }
}

/// Gives the arena another size. Shrinking takes clean cells, the highest first; growing gives back
/// the lowest withdrawn cells.
fn resize(arena: &mut Arena, model: &mut Model, to: u64) {
    let len = arena.own_len();
    let expected = |model: &Model, kind: &Cell| -> Vec<u64> {
        (0..CELLS).filter(|&at| model.cells[at as usize] == *kind).collect()
    };
    let cells = |ranges: &[Range]| -> Vec<u64> {
        let mut all: Vec<u64> = ranges.iter().flat_map(|range| range.start..range.end()).collect();
        all.sort_unstable();
        all
    };
    if let Some(more) = to.checked_sub(len) {
        let ranges = arena.lowest_withdrawn(more).expect("no more than there is");
        assert_eq!(cells(&ranges), expected(model, &Cell::Withdrawn)[..more as usize]);
        assert_eq!(arena.lowest_withdrawn(CELLS - len + 1), None);
        arena.give_back(&ranges);
        ranges.iter().for_each(|&range| model.paint(range, &Cell::Withdrawn, &Cell::Clean));
        return;
    }
    let clean = expected(model, &Cell::Clean);
    match arena.withdraw(len - to) {
        None => assert!(len - to > clean.len() as u64),
        Some(ranges) => {
            assert_eq!(cells(&ranges), clean[clean.len() - (len - to) as usize..]);
            ranges.iter().for_each(|&range| model.paint(range, &Cell::Clean, &Cell::Withdrawn));
        }
    }
}

fn apply(arena: &mut Arena, model: &mut Model, step: Step) {
    match step {
        Step::Resize { to } => resize(arena, model, to),
        Step::Allocate { wants } => allocate(arena, model, wants),
        Step::Free { pick, mut holders, ino } => {
            if model.used.is_empty() {
                return;
            }
            holders.sort_unstable();
            holders.dedup();
            let range = model.used.swap_remove(pick % model.used.len());
            arena.quarantine((ino, 1), range, &holders);
            let to = if holders.is_empty() { Cell::Dirty } else { Cell::Quarantined(ino, holders) };
            model.paint(range, &Cell::Used, &to);
        }
        Step::LeaseEnded { ino, session } => {
            arena.note_last_close(ino, session);
            for cell in &mut model.cells {
                if let Cell::Quarantined(of, holders) = cell
                    && *of == ino
                {
                    holders.retain(|&h| h != session);
                    if holders.is_empty() {
                        *cell = Cell::Dirty;
                    }
                }
            }
        }
        Step::TakeDirty { max } => match arena.take_dirty(max) {
            None => assert_eq!(model.count(|c| *c == Cell::Dirty), 0),
            Some(range) => {
                assert!(range.len > 0 && range.len <= max);
                model.paint(range, &Cell::Dirty, &Cell::Zeroing);
                model.zeroing.push(range);
            }
        },
        Step::Zeroed { pick } => {
            if model.zeroing.is_empty() {
                return;
            }
            let range = model.zeroing.swap_remove(pick % model.zeroing.len());
            arena.zeroed(range);
            model.paint(range, &Cell::Zeroing, &Cell::Clean);
        }
    }
}

fn agree(arena: &Arena, model: &Model) {
    assert_eq!(arena.clean.ranges().collect::<Vec<_>>(), model.clean_runs());
    assert_eq!(
        arena.totals(),
        Totals {
            len: CELLS - model.count(|c| *c == Cell::Withdrawn),
            clean: model.count(|c| *c == Cell::Clean),
            dirty: model.count(|c| matches!(c, Cell::Dirty | Cell::Zeroing)),
            quarantined: model.count(|c| matches!(c, Cell::Quarantined(..))),
        }
    );
    let own = arena.own_space();
    assert_eq!(own.len, arena.totals().len);
    assert_eq!(own.dirty + own.zeroing, arena.totals().dirty);
    assert_eq!((own.clean, own.quarantined), (arena.totals().clean, arena.totals().quarantined));
    let free = |at: u64| matches!(model.cells[at as usize], Cell::Clean | Cell::Withdrawn);
    let not_clean: Vec<u64> =
        arena.not_clean(range(0, CELLS)).iter().flat_map(|range| range.start..range.end()).collect();
    assert_eq!(not_clean, (0..CELLS).filter(|&at| !free(at)).collect::<Vec<_>>());
    let not_zero = |at: &u64| match &model.cells[*at as usize] {
        Cell::Dirty | Cell::Zeroing => true,
        Cell::Quarantined(_, holders) => !holders.contains(&1),
        Cell::Clean | Cell::Used | Cell::Withdrawn => false,
    };
    let mut found: Vec<u64> = arena.not_zero(1).iter().flat_map(|range| range.start..range.end()).collect();
    found.sort_unstable();
    assert_eq!(found, (0..CELLS).filter(not_zero).collect::<Vec<_>>());
}

proptest! {
    /// Every cell is in exactly one state, as in the model, and free runs are maximal. A size below
    /// the space in use changes nothing. When all space is freed and the size is the largest, the
    /// arena is one clean range.
    #[test]
    fn agrees_with_a_model_cell_by_cell(steps in proptest::collection::vec(step(), 1..120)) {
        let mut arena = Arena::new(CELLS);
        let mut model =
            Model { cells: vec![Cell::Clean; CELLS as usize], used: Vec::new(), zeroing: Vec::new() };
        for step in steps {
            apply(&mut arena, &mut model, step);
            agree(&arena, &model);
        }
        for range in model.used.drain(..) {
            arena.free(range);
        }
        for (ino, session) in (1..3).flat_map(|ino| (1..4).map(move |session| (ino, session))) {
            arena.note_last_close(ino, session);
        }
        for range in model.zeroing.drain(..) {
            arena.zeroed(range);
        }
        while let Some(range) = arena.take_dirty(7) {
            arena.zeroed(range);
        }
        let withdrawn = arena.lowest_withdrawn(CELLS - arena.own_len()).expect("all of it");
        arena.give_back(&withdrawn);
        prop_assert_eq!(arena.clean.ranges().collect::<Vec<_>>(), vec![range(0, CELLS)]);
    }
}

/// Catches a size of the own arena that counts the memory of stores, or takes theirs.
#[test]
fn only_the_own_arena_is_resized() {
    let mut arena = Arena::new(100);
    assert!(arena.add_store(1, 50, 10));
    assert_eq!((arena.own_len(), arena.withdraw(101)), (100, None));
    assert_eq!(arena.withdraw(100), Some(vec![range(0, 100)]));
    assert_eq!((arena.own_len(), arena.totals().len, arena.totals().clean), (0, 50, 50));
    assert_eq!(arena.given(range(0, 100)), []);
    arena.give_back(&[range(0, 30)]);
    assert_eq!((arena.own_len(), arena.totals().clean), (30, 80));
    assert_eq!(arena.given(range(0, 100)), [range(0, 30)]);
}
