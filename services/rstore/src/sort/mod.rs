//! RSort: a sort of records in two phases, on several workers.
//!
//! In the first phase each worker classifies its input into buckets by key range. It writes each
//! bucket to a namespace of its own, `worker_I_bucket_J`, so no two workers write to one namespace.
//! In the second phase a worker gets key ranges. For range J it joins all `worker_I_bucket_J`,
//! reads them into one buffer, sorts it, and writes it to the namespace `final_J`. A barrier starts
//! the phases.
//!
//! # Concurrency
//! Each worker is a thread with a client of its own. Workers share nothing but namespaces.

mod job;
mod local;
mod records;
mod worker;

pub use self::{
    job::{SortJob, SortReport, sort},
    local::sort_locally,
    records::{Digest, RECORD_BYTES},
};
