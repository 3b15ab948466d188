//! The stores of a server in its status: values, table and metrics. No I/O, no locks, no clock.

mod registry;
mod store;

use std::fmt::Write;

use rfs_status::{
    metrics::Exposition,
    text::{Table, percent},
};
use serde::{Deserialize, Serialize};

pub use registry::{RegistryState, RegistryStatus};
pub use store::{DrainStatus, LostFileStatus, LostStatus, StoreState, StoreStatus};

/// Stores whose memory a server uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolStatus {
    /// Number of the last change of the pool.
    pub view: u64,
    /// The file that has the stores; none if the command line has them.
    pub file: Option<String>,
    /// The registry that has the stores, with `--registry`.
    pub registry: Option<RegistryStatus>,
    /// Length of the pieces of a file that stores take in turn.
    pub stripe_unit_bytes: u64,
    /// The server's own memory, which has the number 0, and the stores.
    pub stores: Vec<StoreStatus>,
}

/// The most files that a table shows. JSON has more.
const MAX_SHOWN: usize = 20;

impl PoolStatus {
    /// Returns the tables of stores and of lost files.
    pub fn render(&self) -> String {
        let mut text = self.table().to_string();
        if let Some(registry) = &self.registry {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", registry.line());
        }
        for store in self.stores.iter().filter(|store| store.registered == Some(false)) {
            let _ = writeln!(text, "store {} is not registered", store.number);
        }
        for store in self.stores.iter().filter(|store| store.state == StoreState::Draining) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "store {}: {}", store.number, store.drain_line());
        }
        for store in &self.stores {
            let Some(lost) = store.lost.as_ref().filter(|lost| lost.files > 0) else { continue };
            // Writing to a string cannot fail.
            let _ = write!(text, "\nFiles with lost data in store {}\n{}", store.number, lost_table(lost));
            if lost.files > MAX_SHOWN as u64 {
                let more = lost.files - MAX_SHOWN as u64;
                let _ = writeln!(text, "and {more} more files: --json lists up to a thousand");
            }
        }
        text
    }

    /// Returns the table of stores.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(&[
            ">store",
            "address",
            "state",
            ">size",
            ">used",
            ">fill",
            ">free",
            ">sessions",
            ">lost files",
        ]);
        for store in &self.stores {
            let is_own = store.number == 0;
            table.row([
                store.number.to_string(),
                if is_own { "this server".into() } else { store.address.clone() },
                store.state.name().into(),
                byte_size::show(store.size_bytes),
                byte_size::show(store.used_bytes),
                percent(store.used_bytes, store.size_bytes),
                byte_size::show(store.free_bytes),
                if is_own { "-".into() } else { store.sessions.to_string() },
                store.lost.as_ref().map_or_else(|| "-".into(), |lost| lost.files.to_string()),
            ]);
        }
        table
    }

    /// Adds the metrics of the stores. A label has the number of a store, another one its address.
    pub(super) fn add_metrics(&self, metrics: &mut Exposition) {
        if let Some(registry) = &self.registry {
            let help = "1 if the registry of the pool answers and this server has the pool, else 0.";
            let is_up = registry.state == RegistryState::Up;
            metrics.gauge("registry_up", help, f64::from(u8::from(is_up)));
        }
        let labels: Vec<(String, &str)> =
            self.stores.iter().map(|store| (store.number.to_string(), store.address.as_str())).collect();
        let mut add = |name: &str, help: &str, value: fn(&StoreStatus) -> u64| {
            let rows = labels.iter().zip(&self.stores);
            let rows =
                rows.map(|((number, address), store)| (vec![number.as_str(), *address], value(store) as f64));
            metrics.gauges(name, help, &["store", "address"], rows);
        };
        add("store_size_bytes", "Bytes that a store lends.", |store| store.size_bytes);
        add("store_used_bytes", "Bytes that files have in a store.", |store| store.used_bytes);
        add("store_free_bytes", "Bytes of a store without data.", |store| store.free_bytes);
        add("store_sessions", "Sessions of clients at a store.", |store| store.sessions);
        add("store_up", "1 if the store answers, else 0.", |store| {
            u64::from(!matches!(store.state, StoreState::Unreachable | StoreState::Lost))
        });
        let help = "Files that had data in a store when its memory was lost.";
        add("store_lost_files", help, |store| store.lost.as_ref().map_or(0, |lost| lost.files));
    }
}

fn lost_table(lost: &LostStatus) -> Table {
    let mut table = Table::new(&[">inode", ">lost", "path"]);
    for file in lost.listed.iter().take(MAX_SHOWN) {
        table.row([
            file.inode.to_string(),
            byte_size::show(file.bytes),
            file.path.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(lost_files: u64) -> PoolStatus {
        let listed = |inode| LostFileStatus { inode, bytes: 4096, path: Some(format!("/d/{inode}\u{1b}")) };
        let lost =
            LostStatus { files: lost_files, bytes: 4096, listed: (1..=lost_files).map(listed).collect() };
        let own = StoreStatus { size_bytes: 1 << 30, free_bytes: 1 << 30, ..StoreStatus::default() };
        let store = StoreStatus {
            number: 1,
            address: "tcp:b:7450".into(),
            state: StoreState::Lost,
            size_bytes: 1 << 30,
            used_bytes: 1 << 29,
            sessions: 3,
            lost: Some(lost),
            ..StoreStatus::default()
        };
        PoolStatus { stores: vec![own, store], ..PoolStatus::default() }
    }

    #[test]
    fn tables_have_stores_and_lost_files() {
        let text = pool(2).render();
        for words in ["this server", "tcp:b:7450", "lost", "50 %", "Files with lost data in store 1"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.contains("/d/2\\u{1b}"), "a terminal would obey: {text}");
        assert!(!pool(0).render().contains("Files with lost data"));
        let text = pool(25).render();
        assert!(text.contains("/d/20") && !text.contains("/d/21"), "{text}");
        assert!(text.contains("and 5 more files"), "{text}");
    }

    #[test]
    fn the_registry_has_a_line() {
        let registry = |state, reason: Option<&str>| RegistryStatus {
            place: "etcd at http://a:1, pool p".into(),
            state,
            away_seconds: Some(12.0),
            reason: reason.map(Into::into),
        };
        let render = |registry| PoolStatus { registry: Some(registry), ..pool(0) }.render();
        let up = render(registry(RegistryState::Up, None));
        assert!(up.contains("\nregistry: etcd at http://a:1, pool p\n"), "{up}");
        let away = render(registry(RegistryState::Away, Some("refused\u{1b}")));
        assert!(away.contains("pool p: away for 12 s (refused\\u{1b}): reads and writes go on"), "{away}");
        let taken = render(registry(RegistryState::Taken, Some("process 7 on b")));
        assert!(taken.contains("another server has taken the pool, process 7 on b\n"), "{taken}");
        let mut silent = pool(0);
        silent.stores[1].registered = Some(false);
        assert!(silent.render().contains("store 1 is not registered"), "{}", silent.render());
    }

    #[test]
    fn json_is_read_back() {
        let text = serde_json::to_string(&pool(1)).unwrap();
        assert_eq!(serde_json::from_str::<PoolStatus>(&text).unwrap(), pool(1));
        assert!(text.contains("\"state\":\"lost\""), "{text}");
    }
}
