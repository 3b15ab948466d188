//! Targets of the services on rdmabox.

pub(super) mod jakiro;
pub(super) mod nbd;
pub(super) mod rstore;
