//! Open files: reads into Python buffers, and writes from them.

use std::{ptr, sync::Mutex};

use pyo3::{
    buffer::PyBuffer,
    exceptions::{PyBufferError, PyMemoryError, PyValueError},
    ffi,
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

/// Length in bytes from which the system is asked for huge pages. Memory of that length is new
/// memory of the process, and without them each page of it costs more time than its bytes.
const HUGE: usize = 4 << 20;
const PAGE: usize = 4096;

/// Returns a bytes object of zeros, and its memory.
fn zeroed(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyBytes>, Bytes)> {
    let size = len.try_into().map_err(|_| PyMemoryError::new_err("more bytes than memory has"))?;
    // SAFETY: a null pointer asks for a new object, which is returned without other references, or
    // null with an exception set. Its memory has `len` bytes and is written before it is read.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(ptr::null(), size);
        let bytes = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        let start = ffi::PyBytes_AsString(bytes.as_ptr()).cast::<u8>();
        if len >= HUGE {
            let first = start.add(start.align_offset(PAGE));
            let pages = (len - start.align_offset(PAGE)) / PAGE * PAGE;
            // Only a hint: the system may have no huge pages.
            let _ = rustix::mm::madvise(first.cast(), pages, rustix::mm::Advice::LinuxHugepage);
        }
        ptr::write_bytes(start, 0, len);
        Ok((bytes, Bytes { start, len }))
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
        let (bytes, mut memory) = zeroed(py, length)?;
        // SAFETY: `bytes` lives until the call has ended, and no other code has it yet.
        let read = self.call(py, move |file| file.read_at(unsafe { memory.room() }, offset))?;
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
