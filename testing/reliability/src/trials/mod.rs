//! The trials: each starts a testbed, causes its faults while users work, and reports.

pub(crate) mod clients;
pub(crate) mod cut;
pub(crate) mod full_server;
pub(crate) mod killed_clients;
pub(crate) mod killed_server;
pub(crate) mod packets;
pub(crate) mod pool;
pub(crate) mod stopped;
pub(crate) mod takeover;
mod workload;
