//! Open files: reads into Python buffers, and writes from them.

use std::sync::Mutex;

use pyo3::{
    buffer::PyBuffer,
    exceptions::{PyBufferError, PyValueError},
    prelude::*,
    types::PyBytes,
};
use rfs_native::LockMode;

use crate::{
    error::failed,
    stat::{StatTuple, tuple},
    view::View,
};

/// An open file. It is closed when it is freed, or by close().
#[pyclass(frozen, module = "rfs._rfs")]
pub(crate) struct File(Mutex<Option<rfs_native::File>>);

/// The memory of a Python buffer, which the buffer's owner keeps while it is exported.
struct Bytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: the exported buffer keeps the memory in place. Another Python thread that uses the buffer
// meanwhile may see some of the bytes, as with any other reader of files.
unsafe impl Send for Bytes {}

impl Bytes {
    /// Returns the memory of a contiguous buffer.
    fn of(buffer: &PyBuffer<u8>, to_write: bool) -> PyResult<Bytes> {
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        if to_write && buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        Ok(Bytes { start: buffer.buf_ptr().cast(), len: buffer.len_bytes() })
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The buffer stays exported while the slice is used.
    unsafe fn slice(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller vouches for the buffer, which is contiguous.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Returns the bytes of a writable buffer.
    ///
    /// # Safety
    /// As [`slice`](Self::slice).
    unsafe fn room(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller vouches for the buffer, which is contiguous and writable.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl File {
    pub(crate) fn new(file: rfs_native::File) -> File {
        File(Mutex::new(Some(file)))
    }

    fn get(&self) -> PyResult<rfs_native::File> {
        let file = self.0.lock().map_err(|_| PyValueError::new_err("the file is unusable"))?;
        file.clone().ok_or_else(|| PyValueError::new_err("I/O operation on closed file"))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&rfs_native::File) -> rfs_native::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.get()?;
        // The file is dropped without the lock, too: that may close it.
        py.detach(move || call(&file)).map_err(failed)
    }
}

#[pymethods]
impl File {
    /// Reads into a buffer at an offset, without a copy in between. Returns the number of bytes.
    fn pread_into(&self, py: Python<'_>, buffer: PyBuffer<u8>, offset: u64) -> PyResult<usize> {
        let mut bytes = Bytes::of(&buffer, true)?;
        // SAFETY: `buffer` lives until the call has ended.
        self.call(py, move |file| file.read_at(unsafe { bytes.room() }, offset))
    }

    /// Returns up to `length` bytes at an offset.
    fn pread<'py>(&self, py: Python<'py>, length: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let size = self.call(py, rfs_native::File::stat)?.size;
        let length = length.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut read = 0;
        let bytes = PyBytes::new_with(py, length, |out| {
            let mut bytes = Bytes { start: out.as_mut_ptr(), len: out.len() };
            // SAFETY: `out` lives until the call has ended.
            read = self.call(py, move |file| file.read_at(unsafe { bytes.room() }, offset))?;
            Ok(())
        })?;
        // The file may have become shorter.
        Ok(if read == length { bytes } else { PyBytes::new(py, &bytes.as_bytes()[..read]) })
    }

    /// Writes a buffer at an offset. Returns the number of bytes.
    fn pwrite(&self, py: Python<'_>, buffer: PyBuffer<u8>, offset: u64) -> PyResult<usize> {
        let bytes = Bytes::of(&buffer, false)?;
        // SAFETY: `buffer` lives until the call has ended.
        self.call(py, move |file| file.write_at(unsafe { bytes.slice() }, offset))
    }

    /// Appends a buffer in one piece. Returns its offset.
    fn append(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<u64> {
        let bytes = Bytes::of(&buffer, false)?;
        // SAFETY: `buffer` lives until the call has ended.
        self.call(py, move |file| file.append(unsafe { bytes.slice() }))
    }

    /// Returns up to `length` bytes at an offset as an object with a buffer: in the server's
    /// memory, if that is mapped in this process.
    fn view(&self, py: Python<'_>, offset: u64, length: usize) -> PyResult<View> {
        self.call(py, |file| file.view(offset, length)).map(View::new)
    }

    /// Returns the attributes.
    fn stat(&self, py: Python<'_>) -> PyResult<StatTuple> {
        self.call(py, rfs_native::File::stat).map(tuple)
    }

    /// Sets the length.
    fn truncate(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        self.call(py, |file| file.set_len(length))
    }

    /// Publishes the exact time of the last write.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, rfs_native::File::sync)
    }

    /// Locks bytes for this open file. Returns False if another lock conflicts and `wait` is False.
    #[pyo3(signature = (*, exclusive=true, first=0, last=u64::MAX, wait=true))]
    fn lock(&self, py: Python<'_>, exclusive: bool, first: u64, last: u64, wait: bool) -> PyResult<bool> {
        let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
        self.call(py, |file| match wait {
            true => file.lock(mode, first..=last).map(|()| true),
            false => file.try_lock(mode, first..=last),
        })
    }

    /// Unlocks bytes.
    #[pyo3(signature = (*, first=0, last=u64::MAX))]
    fn unlock(&self, py: Python<'_>, first: u64, last: u64) -> PyResult<()> {
        self.call(py, |file| file.unlock(first..=last))
    }

    /// Closes the file. Does nothing if it is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.0.lock().map_err(|_| PyValueError::new_err("the file is unusable"))?.take();
        py.detach(|| file.map_or(Ok(()), rfs_native::File::close)).map_err(failed)
    }
}
