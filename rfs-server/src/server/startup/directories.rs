//! The directories of memory objects and of snapshots, and the memory that exports need.
//!
//! # Concurrency
//! The thread that starts the server. No locks.

use std::{path::PathBuf, sync::Arc};

use rdmabox::memory::{MemoryBound, available_memory};

use crate::{
    memory_object::object::{Object, ObjectStore, file_name},
    server::{
        config::{Config, Persist},
        error::StartError,
        export_builder::reserve,
        export_config::ExportConfig,
        running_export::check_limits,
    },
    snapshots::directory::{SnapshotDirectory, Snapshots},
};

/// Memory object and snapshots of an export, if there are any.
pub(in crate::server) type ExportSource = (Option<Arc<Object>>, Option<Snapshots>);

/// Opens the directories of memory objects and of snapshots, and checks that they fit the exports.
/// Checks that there is enough memory for all that is in no memory object.
pub(in crate::server) fn open_directories(
    config: &Config,
    asked: &[&str],
) -> Result<(Option<ObjectStore>, Option<SnapshotDirectory>), StartError> {
    let store = config.memory_dir.as_deref().map(ObjectStore::open).transpose()?;
    check_memory(config, available_memory())?;
    let largest = config.exports().iter().map(ExportConfig::arena_len).max().unwrap_or_default();
    check_limits(largest).map_err(|bound| StartError::NotEnough { asked: largest, bound })?;
    let open = |persist: &Persist| SnapshotDirectory::open(&persist.dir);
    let snapshots = config.persist.as_ref().map(open).transpose()?;
    check_names(config, asked, (store.as_ref(), snapshots.as_ref()))?;
    Ok((store, snapshots))
}

/// Checks that the names of exports are no misspelt names of exports in the directories. A new name
/// is refused if a directory has another one that is not asked for.
fn check_names(
    config: &Config,
    asked: &[&str],
    (store, snapshots): (Option<&ObjectStore>, Option<&SnapshotDirectory>),
) -> Result<(), StartError> {
    let check = |option, path: Option<&PathBuf>, there: Vec<String>| {
        let is_there = |name: &&&str| there.contains(&file_name(name));
        let is_asked = |name: &String| asked.iter().any(|asked| file_name(asked) == *name);
        let missing = asked.iter().find(|name| !is_there(name)).map(|name| (*name).to_owned());
        let left: Vec<String> = there.iter().filter(|name| !is_asked(name)).cloned().collect();
        match (missing, path) {
            (Some(missing), Some(path)) if !left.is_empty() => {
                Err(StartError::OtherNames { option, path: path.clone(), missing, there: left })
            }
            _ => {
                let unserved = |name| log::warn!("{option}: the export {name:?} is there, and not served");
                left.iter().for_each(unserved);
                Ok(())
            }
        }
    };
    let objects = store.map(ObjectStore::names).transpose()?.unwrap_or_default();
    check("--memory-dir", config.memory_dir.as_ref(), objects)?;
    let snapshots = snapshots.map(SnapshotDirectory::names).transpose()?.unwrap_or_default();
    check("--persist", config.persist.as_ref().map(|persist| &persist.dir), snapshots)
}

/// Opens or creates the memory objects of all exports, and opens their snapshots. Also reserves the
/// space of the objects, because a restored snapshot writes to it.
pub(in crate::server) fn open_sources(
    config: &Config,
    exports: &[ExportConfig],
    store: Option<&ObjectStore>,
    directory: Option<&SnapshotDirectory>,
) -> Result<Vec<ExportSource>, StartError> {
    let keep = config.persist.as_ref().map_or(0, |persist| persist.keep);
    let mut found = Vec::new();
    for export in exports {
        let snapshots = directory.map(|directory| directory.export(&export.name, keep));
        let object =
            store.map(|store| store.object(&export.name, export.shape(config.checksum)).map(Arc::new));
        found.push((object.transpose()?, snapshots.transpose()?));
    }
    if let Some(path) = &config.memory_dir {
        let objects = found.iter().zip(exports);
        let objects = objects.filter_map(|((object, _), export)| Some((object.as_deref()?, export)));
        reserve(path, &objects.collect::<Vec<_>>())?;
    }
    Ok(found)
}

/// Checks that memory is available for all exports without memory objects, and for pagers. The
/// space of memory objects is reserved in their directory.
///
/// # Errors
/// It is not.
pub(crate) fn check_memory(config: &Config, bound: Option<MemoryBound>) -> Result<(), StartError> {
    let each = |export: &ExportConfig| {
        let sums = if config.checksum { export.sums_len() } else { 0 };
        export.size().saturating_add(export.table_len()).saturating_add(sums)
    };
    let exports = if config.memory_dir.is_some() { Vec::new() } else { config.exports() };
    let asked = exports.iter().map(each).fold(config.lent_to_pagers, u64::saturating_add);
    match bound {
        Some(bound) if bound.bytes < asked => Err(StartError::NotEnough { asked, bound }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_with_the_table() {
        let config = Config { inodes: Some(8), ..Config::new(1 << 20) };
        let bound = |bytes| Some(MemoryBound { bytes, what: "the purse".into() });
        let needed = (1 << 20) + 8 * 128;
        assert!(check_memory(&config, None).is_ok());
        assert!(check_memory(&config, bound(needed)).is_ok());
        let error = check_memory(&config, bound(needed - 1)).unwrap_err();
        assert_eq!(error.to_string(), "cannot lend 1.0 MiB: only 1.0 MiB of the purse is available");
        // All exports together.
        let twice = Config { exports: [config.exports(), config.exports()].concat(), ..config };
        assert!(check_memory(&twice, bound(2 * needed)).is_ok());
        assert!(check_memory(&twice, bound(2 * needed - 1)).is_err());
        // And the memory of pagers, also if the files are in memory objects.
        let lent = Config { lent_to_pagers: 1 << 20, ..twice };
        assert!(check_memory(&lent, bound(2 * needed + (1 << 20))).is_ok());
        assert!(check_memory(&lent, bound(2 * needed + (1 << 20) - 1)).is_err());
        let objects = Config { memory_dir: Some("/m".into()), ..lent };
        assert!(check_memory(&objects, bound(1 << 20)).is_ok());
        assert!(check_memory(&objects, bound((1 << 20) - 1)).is_err());
    }
}
