//! An open file description that the library knows, and its file in the native API.
//!
//! A description is a candidate first: the kernel does its calls. After some calls the library
//! opens the file by the number of its inode, and carries calls from then on.
//!
//! # Concurrency
//! Any number of threads. The file is opened by one of them; others leave their calls to the kernel
//! meanwhile. No lock is held over a call at a given offset.

use std::{
    ffi::c_int,
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use rfs_native::{File, Stat};

use crate::{
    counts::{COUNTS, Reason},
    descriptor::access::Access,
    descriptor::position::Position,
    guard,
    mounts::site::{Session, Site},
    next,
};

/// An open file description.
pub(crate) struct Description {
    pub(crate) site: Arc<Site>,
    pub(crate) ino: u64,
    pub(crate) access: Access,
    pub(crate) position: Position,
    /// Calls that the kernel did before the file was opened.
    calls: AtomicU32,
    opening: Mutex<()>,
    opened: OnceLock<Opened>,
}

/// The file in the native API.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) session: Session,
    /// Attributes as the kernel shows them. `None` if it shows other users than the server.
    template: Option<libc::stat>,
}

impl Description {
    pub(crate) fn new(site: Arc<Site>, ino: u64, access: Access) -> Description {
        Description {
            site,
            ino,
            access,
            position: Position::new(),
            calls: AtomicU32::new(0),
            opening: Mutex::new(()),
            opened: OnceLock::new(),
        }
    }

    /// Returns the file, if the library has opened it.
    #[inline]
    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.opened.get()
    }

    /// Counts a call. Returns true if the file should be opened now: `after` calls were counted.
    pub(crate) fn is_due(&self, after: u32) -> bool {
        self.calls.load(Ordering::Relaxed) >= after || self.calls.fetch_add(1, Ordering::Relaxed) >= after
    }

    /// Opens the file. Returns `None` if another thread is opening it.
    ///
    /// # Errors
    /// The reason to leave the description to the kernel.
    pub(crate) fn open(&self, fd: c_int) -> Result<Option<&Opened>, Reason> {
        let Some(_opening) = self.opening.try_lock() else { return Ok(None) };
        if let Some(opened) = self.opened.get() {
            return Ok(Some(opened));
        }
        if self.site.has_mapped(self.ino) {
            return Err(Reason::Mapped);
        }
        let opened = catch(|| self.open_file(fd)).unwrap_or(Err(Reason::NoAccess))?;
        let Some(opened) = opened else { return Ok(None) };
        COUNTS.opened();
        Ok(Some(self.opened.get_or_init(|| opened)))
    }

    fn open_file(&self, fd: c_int) -> Result<Option<Opened>, Reason> {
        let Some(session) = self.site.session() else {
            return if self.site.may_have_session() { Ok(None) } else { Err(Reason::NoAccess) };
        };
        // SAFETY: the call has no conditions.
        if unsafe { libc::geteuid() } != session.uid {
            return Err(Reason::OtherUser);
        }
        let file = self.access.options().open_number(&session.mount, self.ino);
        let file = file.map_err(|_| Reason::NoName)?;
        let template = stat_of(fd).filter(|stat| {
            file.stat().is_ok_and(|native| (native.uid, native.gid) == (stat.st_uid, stat.st_gid))
        });
        Ok(Some(Opened { file, session, template }))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // The last file of a session closes the session's descriptors, often at the end of a call
        // that has failed.
        let _errno = next::KeptErrno::new();
        let _inside = guard::enter();
        catch(|| drop(self.opened.take()));
    }
}

impl Opened {
    /// Returns the attributes as fstat(2) does. `None` if the kernel has to be asked.
    pub(crate) fn stat(&self) -> Option<libc::stat> {
        let template = self.template?;
        let stat = self.file.stat().ok()?;
        Some(filled(template, &stat))
    }
}

/// Returns the kernel's attributes with the changeable ones of the server.
fn filled(mut out: libc::stat, stat: &Stat) -> libc::stat {
    out.st_mode = stat.mode();
    out.st_nlink = stat.nlink.into();
    (out.st_uid, out.st_gid) = (stat.uid, stat.gid);
    // Sizes of files are at most 2^63-1.
    out.st_size = stat.size as i64;
    out.st_blocks = stat.blocks as i64;
    let split = |nanos: i64| (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
    (out.st_atime, out.st_atime_nsec) = split(stat.atime);
    (out.st_mtime, out.st_mtime_nsec) = split(stat.mtime);
    (out.st_ctime, out.st_ctime_nsec) = split(stat.ctime);
    out
}

/// Returns the attributes of a descriptor as the kernel shows them.
fn stat_of(fd: c_int) -> Option<libc::stat> {
    let mut out = MaybeUninit::uninit();
    // SAFETY: the result has room.
    let outcome = unsafe { next::fstat64(fd, out.as_mut_ptr()) };
    // SAFETY: the call has filled the result.
    (outcome == 0).then(|| unsafe { out.assume_init() })
}

/// Runs a call of the native API. Returns `None` if it panics.
#[inline]
pub(crate) fn catch<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}
