//! Views as Python buffers: `memoryview(view)` has the bytes in place.

use std::{ffi::c_int, sync::Mutex};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

/// Bytes of a file. `memoryview(view)` refers to them without a copy, and is read-only.
///
/// A truncation by any mount waits until the view and its memoryviews are freed.
#[pyclass(frozen, module = "rfs._rfs")]
pub(crate) struct View(Mutex<Exported>);

struct Exported {
    view: Option<rfs_native::View>,
    /// Number of buffers that refer to the view.
    buffers: usize,
}

impl View {
    pub(crate) fn new(view: rfs_native::View) -> View {
        View(Mutex::new(Exported { view: Some(view), buffers: 0 }))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Exported) -> PyResult<T>) -> PyResult<T> {
        let mut exported = self.0.lock().map_err(|_| PyBufferError::new_err("the view is unusable"))?;
        work(&mut exported)
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> PyResult<usize> {
        self.with(|exported| Ok(exported.view.as_ref().map_or(0, rfs_native::View::len)))
    }

    /// Returns True if the bytes are in the server's memory, and False if the view has a copy.
    #[getter]
    fn is_in_place(&self) -> PyResult<bool> {
        self.with(|exported| Ok(exported.view.as_ref().is_some_and(rfs_native::View::is_in_place)))
    }

    /// Frees the bytes. BufferError if a memoryview refers to them.
    fn release(&self) -> PyResult<()> {
        let view = self.with(|exported| match exported.buffers {
            0 => Ok(exported.view.take()),
            _ => Err(PyBufferError::new_err("a memoryview refers to the view")),
        })?;
        drop(view);
        Ok(())
    }

    /// Fills in a buffer that refers to the bytes.
    ///
    /// # Safety
    /// The interpreter calls it with memory for a buffer.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        this.with(|exported| {
            let view =
                exported.view.as_ref().ok_or_else(|| PyBufferError::new_err("the view is released"))?;
            let (start, len) = (view.as_ptr().cast_mut().cast(), view.len() as ffi::Py_ssize_t);
            // SAFETY: the interpreter passes memory for a buffer. The buffer refers to this object,
            // which keeps the bytes until `__releasebuffer__`. It is read-only.
            if unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, len, 1, flags) } != 0 {
                return Err(PyErr::fetch(slf.py()));
            }
            exported.buffers += 1;
            Ok(())
        })
    }

    /// Notes that a buffer is freed.
    ///
    /// # Safety
    /// The interpreter calls it once for each buffer.
    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.with(|exported| {
            exported.buffers -= 1;
            Ok(())
        })
        .ok();
    }
}
