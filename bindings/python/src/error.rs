//! Exceptions of failed calls.

use pyo3::{PyErr, exceptions::PyOSError};

/// Returns an exception with an error number, which selects the subclass of OSError.
pub(crate) fn raised(errno: i32, text: String) -> PyErr {
    PyOSError::new_err((errno, text))
}

/// Returns the exception of a failed call.
pub(crate) fn failed(error: rfs_native::Error) -> PyErr {
    raised(error.errno(), error.to_string())
}
