//! The tree as one mount shows it while no operation runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::{
    model::{Handle, State},
    operation::{Attr, DIRS, FILES, Outcome, Runs},
    worker::{self, Worker},
};

/// Where an object was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Name(&'static str),
    Handle(Handle),
}

/// A file or directory, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) place: Where,
    pub(crate) number: u64,
    pub(crate) attr: Attr,
    pub(crate) attribute: Option<u64>,
    /// Its content, where it has to be right.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// All objects of one mount.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) mount: usize,
    pub(crate) objects: Vec<Object>,
    /// Names in each directory.
    pub(crate) lists: BTreeMap<&'static str, BTreeSet<String>>,
    /// Errors that nothing explains.
    pub(crate) errors: Vec<String>,
}

/// Turns "there is no such name" into `None`.
fn optional<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

impl View {
    /// Reads the tree through one mount and through the open files of its workers.
    pub(crate) fn take(mount: usize, root: &Path, workers: &[Worker]) -> View {
        let (objects, lists, errors) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut view = View { mount, objects, lists, errors };
        for path in FILES.into_iter().chain(DIRS) {
            match optional(fs::symlink_metadata(root.join(path))).and_then(|found| match found {
                None => Ok(None),
                Some(found) => Object::named(path, &root.join(path), &found).map(Some),
            }) {
                Ok(object) => view.objects.extend(object),
                Err(e) => view.errors.push(format!("mount {mount}, {path}: {e}")),
            }
        }
        for path in DIRS {
            match optional(worker::list(&root.join(path))) {
                Ok(names) => view.lists.extend(names.map(|names| (path, names))),
                Err(e) => view.errors.push(format!("mount {mount}, list {path}: {e}")),
            }
        }
        for (number, worker) in workers.iter().enumerate().filter(|(_, worker)| worker.mount == mount) {
            for (slot, file, readable) in worker.open_files() {
                match Object::open((number, slot), file, readable) {
                    Ok(object) => view.objects.push(object),
                    Err(e) => view.errors.push(format!("mount {mount}, worker {number}, slot {slot}: {e}")),
                }
            }
        }
        view
    }

    /// Returns the first difference between the model and this view. Does not compare bytes.
    pub(crate) fn difference(&self, state: &State) -> Option<String> {
        let mount = self.mount;
        if let Some(error) = self.errors.first() {
            return Some(error.clone());
        }
        for path in FILES.into_iter().chain(DIRS) {
            let seen = self.objects.iter().any(|object| object.place == Where::Name(path));
            if seen != state.lookup(path).is_some() {
                let is = if seen { "is" } else { "is not" };
                return Some(format!("{path} {is} there on mount {mount}"));
            }
        }
        for (path, seen) in &self.lists {
            let id = state.lookup(path);
            let model =
                state.names.keys().filter(|(dir, _)| Some(*dir) == id).map(|(_, leaf)| (*leaf).to_owned());
            let model: BTreeSet<_> = model.collect();
            if *seen != model {
                return Some(format!("list of {path} on mount {mount} is {seen:?}, has to be {model:?}"));
            }
        }
        let mut numbers = BTreeMap::new();
        self.objects.iter().find_map(|object| {
            let id = object.place.find(state);
            let Some((id, inode)) = id.and_then(|id| Some((id, state.inodes.get(&id)?))) else {
                return Some(format!("{:?} on mount {mount} is there", object.place));
            };
            let attr = state.attr(id);
            if attr != object.attr || inode.attribute != object.attribute {
                return Some(format!(
                    "{:?} on mount {mount} has {:?} and attribute {:?}, has to have {attr:?} and {:?}",
                    object.place, object.attr, object.attribute, inode.attribute
                ));
            }
            let known = *numbers.entry(id).or_insert(object.number);
            (known != object.number).then(|| format!("{:?} on mount {mount} is another file", object.place))
        })
    }

    /// Returns the first object that a later view shows at the same place with another content.
    /// Places that show another object do not count.
    pub(crate) fn change(&self, later: &View) -> Option<String> {
        self.objects.iter().find_map(|object| {
            let is_same = |other: &&Object| other.place == object.place && other.number == object.number;
            let other = later.objects.iter().find(is_same)?;
            (other != object).then(|| {
                format!(
                    "{:?} on mount {} has changed while no operation ran, from {object} to {other}",
                    object.place, self.mount
                )
            })
        })
    }

    /// Returns the first difference between the bytes that two mounts show.
    pub(crate) fn disagreement(&self, other: &View) -> Option<String> {
        for object in &self.objects {
            let Some(twin) = other.objects.iter().find(|twin| twin.number == object.number) else { continue };
            let (Some(bytes), Some(twin_bytes)) = (&object.bytes, &twin.bytes) else { continue };
            let common = bytes.len().min(twin_bytes.len());
            if let Some(at) = (0..common).find(|&at| bytes[at] != twin_bytes[at]) {
                return Some(format!(
                    "byte {at} of {:?} on mount {} and of {:?} on mount {} differ: {} and {}",
                    object.place,
                    self.mount,
                    twin.place,
                    other.mount,
                    Runs(bytes),
                    Runs(twin_bytes)
                ));
            }
        }
        None
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, attribute {:?}", Outcome::Attr(self.attr), self.attribute)?;
        self.bytes.as_ref().map_or(Ok(()), |bytes| write!(f, ", {}", Runs(bytes)))
    }
}

impl Object {
    fn named(path: &'static str, full: &Path, found: &fs::Metadata) -> io::Result<Object> {
        let mut bytes = None;
        if found.is_file() {
            let mut content = Vec::new();
            File::open(full)?.read_to_end(&mut content)?;
            bytes = Some(content);
        }
        Ok(Object {
            place: Where::Name(path),
            number: worker::number(found),
            attr: worker::attr(found),
            attribute: worker::attribute(full)?,
            bytes,
        })
    }

    fn open(handle: Handle, file: &File, readable: bool) -> io::Result<Object> {
        let found = file.metadata()?;
        let bytes = readable.then(|| worker::read_all(file, found.len())).transpose()?;
        Ok(Object {
            place: Where::Handle(handle),
            number: worker::number(&found),
            attr: worker::attr(&found),
            attribute: worker::attribute_of(file)?,
            bytes,
        })
    }
}
