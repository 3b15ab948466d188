//! Requests to the server that several operations make, and the rules for caching the replies.
//!
//! Each struct does one job and has the fields that the job needs. A struct refers to structs that
//! stand before it in this list: [`CacheRules`](cache_rules::CacheRules), [`Calls`](calls::Calls),
//! [`RecordReader`](record_reader::RecordReader), [`Layouts`](layouts::Layouts),
//! [`FileTimes`](file_times::FileTimes).
//!
//! # Concurrency
//! Any number of threads.

pub(crate) mod cache_rules;
pub(crate) mod calls;
pub(crate) mod file_times;
pub(crate) mod layouts;
pub(crate) mod recall_guard;
pub(crate) mod record_reader;

/// Number of attempts of an operation while the file's layout keeps changing.
pub(crate) const TRIES: usize = 16;
