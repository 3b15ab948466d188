//! Tests of requests on files and names.

mod births;
mod checksums;
mod data;
mod eviction;
mod extents;
mod limits;
mod locks;
mod names;
mod xattr;

use super::*;
