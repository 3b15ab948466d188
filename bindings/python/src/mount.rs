//! Mounts, and calls with paths.

use std::{path::PathBuf, time::Duration};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};
use rfs_native::{Credentials, MountOptions, OpenOptions, RenameMode, SetTime, Times, TlsClientFiles};

use crate::{
    error::{failed, raised},
    file::File,
    stat::{StatTuple, tuple},
};

/// A session with a server.
#[pyclass(frozen, module = "rfs._rfs")]
pub(crate) struct Mount(rfs_native::Mount);

impl Mount {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&rfs_native::Mount) -> rfs_native::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| call(&self.0)).map_err(failed)
    }
}

#[pymethods]
impl Mount {
    /// Connects to a server.
    #[new]
    #[pyo3(signature = (address, *, export="", key=None, tls_ca=None, provider=None, uid=None, gid=None,
                        groups=None, umask=None, timeout=None, connect_timeout=None, cache=true,
                        reconnect=true, name="python"))]
    #[allow(clippy::too_many_arguments, reason = "they are the options of a call in Python")]
    fn new(
        py: Python<'_>,
        address: &str,
        export: &str,
        key: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        provider: Option<&str>,
        uid: Option<u32>,
        gid: Option<u32>,
        groups: Option<Vec<u32>>,
        umask: Option<u32>,
        timeout: Option<f64>,
        connect_timeout: Option<f64>,
        cache: bool,
        reconnect: bool,
        name: &str,
    ) -> PyResult<Mount> {
        let me = Credentials::of_process();
        let others = if uid.is_some() { Vec::new() } else { me.groups };
        let user = Credentials {
            uid: uid.unwrap_or(me.uid),
            gid: gid.unwrap_or(me.gid),
            groups: groups.unwrap_or(others),
            umask: umask.unwrap_or(me.umask) & 0o777,
        };
        let mut options = MountOptions::for_user(user);
        options.export = export.to_owned();
        options.name = name.to_owned();
        options.key = key;
        options.tls = tls_ca.map(TlsClientFiles::new);
        (options.caches, options.reconnects) = (cache, reconnect);
        let seconds =
            |time: f64| Duration::try_from_secs_f64(time).map_err(|e| PyValueError::new_err(e.to_string()));
        if let Some(timeout) = timeout {
            options.timeout = seconds(timeout)?;
        }
        if let Some(timeout) = connect_timeout {
            options.connect_timeout = seconds(timeout)?;
        }
        if let Some(provider) = provider {
            let provider = provider.parse().map_err(|e| PyValueError::new_err(format!("{provider}: {e}")))?;
            options.provider = Some(provider);
        }
        let mount = py.detach(|| rfs_native::Mount::connect(address, &options));
        mount.map(Mount).map_err(|e| raised(e.errno(), e.to_string()))
    }

    /// Opens a regular file.
    #[pyo3(signature = (path, *, read=true, write=false, append=false, truncate=false, create=false,
                        create_new=false, mode=0o666))]
    #[allow(clippy::too_many_arguments, reason = "they are the options of a call in Python")]
    fn open_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        read: bool,
        write: bool,
        append: bool,
        truncate: bool,
        create: bool,
        create_new: bool,
        mode: u32,
    ) -> PyResult<File> {
        let mut options = OpenOptions::new();
        options.read(read).write(write).append(append).truncate(truncate);
        options.create(create).create_new(create_new).mode(mode);
        self.call(py, |mount| options.open(mount, &path)).map(File::new)
    }

    /// Returns the attributes of a path.
    #[pyo3(signature = (path, follow=true))]
    fn stat(&self, py: Python<'_>, path: PathBuf, follow: bool) -> PyResult<StatTuple> {
        self.call(py, |mount| if follow { mount.stat(&path) } else { mount.stat_link(&path) }).map(tuple)
    }

    /// Returns the entries of a directory: pairs of a name and its attributes.
    fn entries(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<(std::ffi::OsString, StatTuple)>> {
        let entries = self.call(py, |mount| mount.list(&path))?;
        Ok(entries.iter().map(|entry| (entry.name().to_owned(), tuple(entry.stat()))).collect())
    }

    /// Creates a directory.
    #[pyo3(signature = (path, mode=0o777))]
    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.call(py, |mount| mount.make_dir(&path, mode))
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.call(py, |mount| mount.remove_dir(&path))
    }

    /// Removes a name that is not of a directory.
    fn remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.call(py, |mount| mount.remove_file(&path))
    }

    /// Removes a file, or a directory with all that is in it.
    fn rmtree(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.call(py, |mount| mount.remove_tree(&path))
    }

    /// Renames, and replaces the new name if it exists.
    fn replace(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        self.call(py, |mount| mount.rename_with(&from, &to, RenameMode::Replace))
    }

    /// Creates a hard link.
    fn link(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<()> {
        self.call(py, |mount| mount.link(&from, &to))
    }

    /// Creates a symbolic link.
    fn symlink(&self, py: Python<'_>, target: PathBuf, path: PathBuf) -> PyResult<()> {
        self.call(py, |mount| mount.symlink(&target, &path))
    }

    /// Returns the target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<std::ffi::OsString> {
        self.call(py, |mount| mount.read_link(&path)).map(PathBuf::into_os_string)
    }

    /// Sets the permission bits.
    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.call(py, |mount| mount.set_mode(&path, mode))
    }

    /// Sets owner and group; None keeps one.
    #[pyo3(signature = (path, uid=None, gid=None))]
    fn chown(&self, py: Python<'_>, path: PathBuf, uid: Option<u32>, gid: Option<u32>) -> PyResult<()> {
        self.call(py, |mount| mount.set_owner(&path, uid, gid))
    }

    /// Sets the times of the last access and of the last change, in nanoseconds; None is the
    /// present.
    #[pyo3(signature = (path, times=None))]
    fn utime(&self, py: Python<'_>, path: PathBuf, times: Option<(i64, i64)>) -> PyResult<()> {
        let now = Times { accessed: SetTime::Now, modified: SetTime::Now };
        let given =
            |(accessed, modified)| Times { accessed: SetTime::At(accessed), modified: SetTime::At(modified) };
        self.call(py, |mount| mount.set_times(&path, times.map_or(now, given)))
    }

    /// Sets the length of a file.
    fn truncate(&self, py: Python<'_>, path: PathBuf, length: u64) -> PyResult<()> {
        self.call(py, |mount| mount.set_len(&path, length))
    }

    /// Returns the value of an extended attribute.
    fn getxattr<'py>(&self, py: Python<'py>, path: PathBuf, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, |mount| mount.xattr(&path, name)).map(|value| PyBytes::new(py, &value))
    }

    /// Sets an extended attribute.
    fn setxattr(&self, py: Python<'_>, path: PathBuf, name: &str, value: &[u8]) -> PyResult<()> {
        self.call(py, |mount| mount.set_xattr(&path, name, value))
    }

    /// Returns the names of the extended attributes.
    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<std::ffi::OsString>> {
        self.call(py, |mount| mount.xattrs(&path))
    }

    /// Removes an extended attribute.
    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
        self.call(py, |mount| mount.remove_xattr(&path, name))
    }

    /// Returns bytes, free bytes, inodes and free inodes of the export.
    fn space(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let space = self.call(py, rfs_native::Mount::space)?;
        Ok((space.bytes, space.bytes_free, space.inodes, space.inodes_free))
    }

    /// Ends the session at once. Calls on it and on its files fail from then on.
    fn disconnect(&self, py: Python<'_>) {
        py.detach(|| self.0.disconnect());
    }

    /// Returns True if the server's memory is mapped in this process.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.0.is_mapped()
    }

    fn __repr__(&self) -> String {
        format!("<rfs mount: {}>", self.0.description())
    }
}
