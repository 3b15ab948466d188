//! Measures a server that has just started: the time until it can be used, and the cost of the
//! first use of its memory.
//!
//! In every round each provider gets a new server of the full size and a mount. A file is written
//! twice, beginning when the mount is ready; the server meanwhile allocates memory in the
//! background. The first pass writes to unused memory, the second to the same memory.

pub mod cli;
pub mod run;
pub mod table;
