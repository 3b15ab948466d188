//! The extension module of the Python package `rfs`: mounts, open files and views.
//!
//! Each call releases the interpreter's lock while it waits. Data goes between a Python buffer and
//! the server's memory without a copy in between.
//!
//! # Concurrency
//! Any number of Python threads.

mod error;
mod file;
mod mount;
mod stat;
mod view;

use pyo3::prelude::*;

/// Files in the memory of an rfs-server: mounts, open files and views.
#[pymodule]
fn _rfs(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<mount::Mount>()?;
    module.add_class::<file::File>()?;
    module.add_class::<view::View>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
