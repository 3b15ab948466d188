//! Options of an open.

/// Permission bits of new files, before the umask.
const FILE: u32 = 0o666;

/// How to open a file. The names are those of [`std::fs::OpenOptions`], the effects those
/// of open(2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    pub(crate) follow: bool,
    pub(crate) count_reads: bool,
    pub(crate) mode: u32,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Returns options that open an existing file for nothing. Set at least `read`, `write` or
    /// `append`.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            follow: true,
            count_reads: true,
            mode: FILE,
        }
    }

    /// Permits reads.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Permits writes.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Permits writes, and makes [`std::io::Write`] append.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// Cuts the file to no bytes. Needs permission to write, also if the file is opened for reading
    /// only.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist, also if the file is opened for reading only.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// Creates the file, and fails with EEXIST if it exists. Of several mounts exactly one creates
    /// it.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// Follows a symbolic link at the end of the path; else fails with ELOOP. Default: true.
    pub fn follow(&mut self, follow: bool) -> &mut OpenOptions {
        self.follow = follow;
        self
    }

    /// Lets reads change the access time, as the mount's options say. Default: true.
    pub fn count_reads(&mut self, count: bool) -> &mut OpenOptions {
        self.count_reads = count;
        self
    }

    /// Sets the permission bits of a new file, before the umask. Default: 0666.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    pub(crate) fn is_to_write(&self) -> bool {
        self.write || self.append
    }

    pub(crate) fn is_to_read(&self) -> bool {
        self.read
    }

    pub(crate) fn is_to_append(&self) -> bool {
        self.append
    }
}
