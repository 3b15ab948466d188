#![doc = include_str!("../README.md")]

mod engine;
mod error;
mod kernel;
mod lender;
mod logic;
pub mod nbd;
mod options;
mod pager;
mod program;
mod remote;
pub mod trace;

pub use engine::stats::PagerStats;
pub use error::{PagerEvent, PagingError};
pub use lender::{Lender, LenderError, LenderOptions, LenderStatus, PROTOCOL};
pub use logic::redundancy::{ParseRedundancyError, Redundancy};
#[cfg(feature = "model")]
pub use options::CardSwitch;
pub use options::{PagerOptions, ParseSwitchesError, Switches};
pub use pager::{
    PagedMemory, RemotePager,
    status::{PagerReport, running_pagers},
};
pub use program::cli;
pub use remote::lender_status;
pub use rfs_status::control::AskError;
