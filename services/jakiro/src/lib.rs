#![doc = include_str!("../README.md")]

pub mod store;

pub use self::store::{
    Counters, Delta, MAX_KEY, MAX_VALUE, Store, StoreError, StoreMode, StoreOptions, StoreOutcome,
};
