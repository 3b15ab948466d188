//! Tests of recalls, and of concurrent requests.

mod caching;
mod caching_model;
mod concurrent;

use super::*;
