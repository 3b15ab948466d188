//! Random operations on a partition and on a model: a list of items in the order of use.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{memory::blocks_of, *};

const MAX_LEN: usize = 600;

#[derive(Clone, Debug)]
struct ModelItem {
    id: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    version: u64,
    expires: u64,
}

impl ModelItem {
    fn blocks(&self) -> usize {
        blocks_of(self.key.len() + self.value.len())
    }
}

#[derive(Debug)]
struct Model {
    /// The oldest first.
    items: Vec<ModelItem>,
    total: usize,
    /// Blocks of the items that are held, by their ids, with the number of holds.
    held: BTreeMap<u64, (usize, u32)>,
    last_id: u64,
    last_version: u64,
    flushed: u64,
    flush_at: u64,
}

impl Model {
    fn new(total: usize) -> Model {
        let (items, held) = (Vec::new(), BTreeMap::new());
        Model { items, total, held, last_id: 0, last_version: 0, flushed: 0, flush_at: NEVER }
    }

    fn free(&self) -> usize {
        let linked: usize = self.items.iter().map(ModelItem::blocks).sum();
        let is_linked = |id: &u64| self.items.iter().any(|item| item.id == *id);
        let apart: usize = self.held.iter().filter(|(id, _)| !is_linked(id)).map(|(_, held)| held.0).sum();
        self.total - linked - apart
    }

    fn hold(&mut self, id: u64, blocks: usize) {
        self.held.entry(id).or_insert((blocks, 0)).1 += 1;
    }

    fn unhold(&mut self, id: u64) {
        let held = self.held.get_mut(&id).unwrap();
        held.1 -= 1;
        if held.1 == 0 {
            self.held.remove(&id);
        }
    }

    fn live(&mut self, key: &[u8], now: u64) -> Option<usize> {
        if self.flush_at <= now {
            (self.flush_at, self.flushed) = (NEVER, self.last_version);
        }
        let at = self.items.iter().position(|item| item.key == key)?;
        let item = &self.items[at];
        if item.version <= self.flushed || item.expires <= now {
            self.items.remove(at);
            return None;
        }
        Some(at)
    }

    /// Makes the item the newest. Returns it.
    fn refresh(&mut self, at: usize) -> &mut ModelItem {
        let item = self.items.remove(at);
        self.items.push(item);
        self.items.last_mut().unwrap()
    }

    /// Evicts until there is room for an item.
    fn make(
        &mut self,
        key: &[u8],
        value: Vec<u8>,
        flags: u32,
        expires: u64,
    ) -> Result<ModelItem, StoreError> {
        let blocks = blocks_of(key.len() + value.len());
        if blocks > self.total - self.held.values().map(|held| held.0).sum::<usize>() {
            return Err(StoreError::Full);
        }
        while self.free() < blocks {
            self.items.remove(0);
        }
        self.last_id += 1;
        Ok(ModelItem { id: self.last_id, key: key.into(), value, flags, version: 0, expires })
    }

    fn link(&mut self, mut item: ModelItem) -> StoreOutcome {
        self.last_version += 1;
        item.version = self.last_version;
        self.items.push(item);
        StoreOutcome::Stored(self.last_version)
    }

    fn refusal(&self, mode: StoreMode, old: Option<usize>) -> Option<StoreOutcome> {
        match (mode, old) {
            (StoreMode::Set, _) | (StoreMode::Add, None) => None,
            (StoreMode::CompareVersion(_), None) => Some(StoreOutcome::NotFound),
            (StoreMode::CompareVersion(version), Some(at)) => {
                (self.items[at].version != version).then_some(StoreOutcome::OtherVersion)
            }
            (StoreMode::Add, Some(_)) | (_, None) => Some(StoreOutcome::NotStored),
            _ => None,
        }
    }

    fn store(
        &mut self,
        key: &[u8],
        change: &Change,
        value: &[u8],
        now: u64,
    ) -> Result<StoreOutcome, StoreError> {
        if value.len() > MAX_LEN {
            return Err(StoreError::ValueTooLong);
        }
        let old = self.live(key, now);
        if let Some(refusal) = self.refusal(change.mode, old) {
            return Ok(refusal);
        }
        let old = old.map(|at| self.items[at].clone());
        let joined = match (change.mode, &old) {
            (StoreMode::Append, Some(old)) => [&old.value, value].concat(),
            (StoreMode::Prepend, Some(old)) => [value, &old.value].concat(),
            _ => {
                self.items.retain(|item| item.key != key);
                let item = self.make(key, value.to_vec(), change.flags, change.expires)?;
                return Ok(self.link(item));
            }
        };
        if joined.len() > MAX_LEN {
            return Err(StoreError::ValueTooLong);
        }
        let old = old.unwrap();
        let at = self.items.iter().position(|item| item.id == old.id).unwrap();
        self.refresh(at);
        self.hold(old.id, old.blocks());
        let made = self.make(key, joined, old.flags, old.expires);
        self.unhold(old.id);
        let item = made?;
        self.items.retain(|item| item.id != old.id);
        Ok(self.link(item))
    }

    fn change_number(&mut self, key: &[u8], delta: Delta, now: u64) -> Result<Option<u64>, StoreError> {
        let Some(at) = self.live(key, now) else { return Ok(None) };
        let old = self.items[at].clone();
        let text = std::str::from_utf8(&old.value).map_err(|_| StoreError::NotANumber)?;
        let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = text.parse().ok().filter(|_| is_digits).ok_or(StoreError::NotANumber)?;
        let number = delta.apply(number);
        self.items.remove(at);
        let item = self.make(key, number.to_string().into_bytes(), old.flags, old.expires)?;
        self.link(item);
        Ok(Some(number))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Store(u8, StoreMode, usize, u64),
    /// Compares with the version of the present item, plus a number.
    Compare(u8, usize, u64),
    Number(u8, u64),
    Change(u8, Delta),
    Delete(u8),
    Touch(u8, u64),
    Flush(u64),
    Time(u64),
    BeginUpload(u8, StoreMode, usize),
    EndUpload(bool),
    BeginDownload(u8),
    EndDownload(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        4 => Just(StoreMode::Set),
        1 => Just(StoreMode::Add),
        1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Append),
        1 => Just(StoreMode::Prepend),
    ];
    let whole = prop_oneof![Just(StoreMode::Set), Just(StoreMode::Add), Just(StoreMode::Replace)];
    let len = prop_oneof![0..MAX_LEN + 3, 0..100_usize];
    let expires = prop_oneof![3 => Just(NEVER), 1 => 0..200_u64];
    let delta = prop_oneof![(0..200_u64).prop_map(Delta::Up), (0..200_u64).prop_map(Delta::Down)];
    prop_oneof![
        4 => (0..9_u8).prop_map(Step::Get),
        6 => (0..9_u8, mode, len.clone(), expires.clone()).prop_map(|(k, m, l, e)| Step::Store(k, m, l, e)),
        1 => (0..9_u8, len.clone(), 0..2_u64).prop_map(|(k, l, o)| Step::Compare(k, l, o)),
        1 => (0..9_u8, any::<u64>()).prop_map(|(k, n)| Step::Number(k, n)),
        1 => (0..9_u8, delta).prop_map(|(k, d)| Step::Change(k, d)),
        1 => (0..9_u8).prop_map(Step::Delete),
        1 => (0..9_u8, expires).prop_map(|(k, e)| Step::Touch(k, e)),
        1 => (0..200_u64).prop_map(Step::Flush),
        2 => (0..9_u64).prop_map(Step::Time),
        1 => (0..9_u8, whole, len).prop_map(|(k, m, l)| Step::BeginUpload(k, m, l)),
        2 => any::<bool>().prop_map(Step::EndUpload),
        1 => (0..9_u8).prop_map(Step::BeginDownload),
        2 => any::<bool>().prop_map(Step::EndDownload),
    ]
}

/// Returns the name of a key: 1, 32, 63, ... bytes.
fn name(number: u8) -> Vec<u8> {
    vec![b'a' + number; 1 + 31 * usize::from(number)]
}

fn bytes(len: usize, salt: u64) -> Vec<u8> {
    (0..len).map(|i| (i as u64 * 7 + salt) as u8).collect()
}

struct Pair {
    partition: Partition,
    model: Model,
    now: u64,
    uploads: Vec<(Upload, ModelItem, StoreMode)>,
    downloads: Vec<(Download, ModelItem)>,
    steps: u64,
}

impl Pair {
    fn new() -> Pair {
        let partition = Partition::new(&Limits { memory: 24 * 132, max_value: MAX_LEN }).unwrap();
        let model = Model::new(partition.items.counts().0);
        let (uploads, downloads) = (Vec::new(), Vec::new());
        Pair { partition, model, now: 0, uploads, downloads, steps: 0 }
    }

    fn store(&mut self, name: &[u8], change: &Change, value: &[u8]) -> Result<(), TestCaseError> {
        let key = Key::new(name, 0).unwrap();
        let found = self.partition.store(&key, change, value, self.now);
        prop_assert_eq!(found, self.model.store(name, change, value, self.now));
        Ok(())
    }

    fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        self.steps += 1;
        let now = self.now;
        match step {
            Step::Get(number) => {
                let name = name(number);
                let found = self.partition.get(&Key::new(&name, 0).unwrap(), now).map(|item| {
                    let mut value = Vec::new();
                    item.append_to(&mut value);
                    (value, item.flags(), item.version(), item.expires())
                });
                let at = self.model.live(&name, now);
                let item = at.map(|at| self.model.refresh(at).clone());
                prop_assert_eq!(found, item.map(|item| (item.value, item.flags, item.version, item.expires)));
            }
            Step::Store(number, mode, len, expires) => {
                let change = Change { mode, flags: self.steps as u32, expires };
                self.store(&name(number), &change, &bytes(len, self.steps))?;
            }
            Step::Compare(number, len, offset) => {
                let name = name(number);
                let item = self.model.items.iter().find(|item| item.key == name);
                let version = item.map_or(0, |item| item.version) + offset;
                let change = Change::new(StoreMode::CompareVersion(version));
                self.store(&name, &change, &bytes(len, self.steps))?;
            }
            Step::Number(number, value) => {
                let change = Change { mode: StoreMode::Set, flags: 3, expires: NEVER };
                self.store(&name(number), &change, value.to_string().as_bytes())?;
            }
            Step::Change(number, delta) => {
                let name = name(number);
                let found = self.partition.change_number(&Key::new(&name, 0).unwrap(), delta, now);
                prop_assert_eq!(found, self.model.change_number(&name, delta, now));
            }
            Step::Delete(number) => {
                let name = name(number);
                let found = self.partition.delete(&Key::new(&name, 0).unwrap(), now);
                let at = self.model.live(&name, now);
                prop_assert_eq!(found, at.map(|at| self.model.items.remove(at)).is_some());
            }
            Step::Touch(number, expires) => {
                let name = name(number);
                let found = self.partition.touch(&Key::new(&name, 0).unwrap(), expires, now);
                let at = self.model.live(&name, now);
                let item = at.map(|at| self.model.refresh(at));
                prop_assert_eq!(found, item.map(|item| item.expires = expires).is_some());
            }
            Step::Flush(at) => {
                self.partition.flush(at, now);
                self.model.flush_at = at;
                self.model.live(b"no such key", now);
            }
            Step::Time(by) => self.now += by,
            other => self.transfer(other)?,
        }
        self.compare()
    }

    fn transfer(&mut self, step: Step) -> Result<(), TestCaseError> {
        let now = self.now;
        match step {
            Step::BeginUpload(number, mode, len) => {
                let (name, change) = (name(number), Change { mode, flags: 9, expires: NEVER });
                let upload = self.partition.begin_upload(&Key::new(&name, 0).unwrap(), &change, len, now);
                if len > MAX_LEN {
                    prop_assert_eq!(upload.unwrap_err(), StoreError::ValueTooLong);
                    return Ok(());
                }
                match self.model.make(&name, bytes(len, self.steps), 9, NEVER) {
                    Err(refusal) => prop_assert_eq!(upload.unwrap_err(), refusal),
                    Ok(item) => {
                        self.model.hold(item.id, item.blocks());
                        self.uploads.push((upload.unwrap(), item, mode));
                    }
                }
            }
            Step::EndUpload(finish) if !self.uploads.is_empty() => {
                let (mut upload, item, mode) = self.uploads.swap_remove(0);
                self.model.unhold(item.id);
                if !finish {
                    self.partition.abort_upload(upload);
                    return Ok(());
                }
                for part in item.value.chunks(150) {
                    prop_assert!(self.partition.continue_upload(&mut upload, part));
                }
                prop_assert!(!self.partition.continue_upload(&mut upload, b"x"));
                let found = self.partition.finish_upload(upload, now);
                let old = self.model.live(&item.key, now);
                let wanted = self.model.refusal(mode, old).unwrap_or_else(|| {
                    self.model.items.retain(|other| other.key != item.key);
                    self.model.link(item)
                });
                prop_assert_eq!(found, wanted);
            }
            Step::BeginDownload(number) => {
                let name = name(number);
                let download = self.partition.begin_download(&Key::new(&name, 0).unwrap(), now);
                let item = self.model.live(&name, now).map(|at| self.model.items[at].clone());
                prop_assert_eq!(download.is_some(), item.is_some());
                if let (Some(download), Some(item)) = (download, item) {
                    self.model.hold(item.id, item.blocks());
                    self.downloads.push((download, item));
                }
            }
            Step::EndDownload(read) if !self.downloads.is_empty() => {
                let (mut download, item) = self.downloads.swap_remove(0);
                let mut value = Vec::new();
                while read && download.left() > 0 {
                    self.partition.continue_download(&mut download, 90, &mut value);
                }
                prop_assert!(!read || value == item.value);
                self.partition.end_download(download);
                self.model.unhold(item.id);
            }
            _ => {}
        }
        Ok(())
    }

    /// Compares the order of use, the values and the free memory.
    fn compare(&self) -> Result<(), TestCaseError> {
        let newest_first = self.partition.items.check();
        prop_assert_eq!(newest_first.len(), self.model.items.len());
        for (item, wanted) in newest_first.iter().zip(self.model.items.iter().rev()) {
            let mut key = [0; MAX_KEY];
            prop_assert_eq!(self.partition.items.key_of(*item, &mut key).bytes(), &wanted.key);
            let mut value = Vec::new();
            self.partition.items.view(*item).append_to(&mut value);
            prop_assert_eq!(&value, &wanted.value);
        }
        prop_assert_eq!(self.partition.items.counts().1, self.model.free());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_partition_is_a_map_that_forgets_what_was_used_longest_ago(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut pair = Pair::new();
        for step in steps {
            pair.run(step)?;
        }
    }
}
