//! Extended attributes, which live at the server.
//!
//! The record and the attributes of an inode tell whether it has any. Most queries
//! (security.capability, ACLs) concern inodes without, so they cost no call, and nothing at all
//! while the attributes are cached.
//!
//! # Concurrency
//! Session threads. `parts` is held while a long value goes to the server in two calls.

use std::sync::Arc;

use parking_lot::Mutex;
use rfs_proto::{
    Errno, ExpectedOwner, MAX_XATTR_NAME, MAX_XATTR_VALUE, Marks, Reply, Request, Value, XATTR_PART,
    XattrSet, xattr,
};

use crate::{
    error::ClientError,
    metadata::attributes::Attributes,
    requests::{
        TRIES,
        calls::{Calls, wrong_kind},
    },
};

fn check_name(name: &[u8]) -> Result<(), ClientError> {
    if (1..=MAX_XATTR_NAME).contains(&name.len()) { Ok(()) } else { Err(Errno::ERANGE.into()) }
}

/// Reads and changes extended attributes.
#[derive(Debug)]
pub struct Xattrs {
    calls: Arc<Calls>,
    attributes: Arc<Attributes>,
    /// Held while a value goes to the server in several parts. The server stores one pending first
    /// part per session.
    parts: Mutex<()>,
}

impl Xattrs {
    pub(crate) fn new(calls: &Arc<Calls>, attributes: &Arc<Attributes>) -> Xattrs {
        Xattrs { calls: Arc::clone(calls), attributes: Arc::clone(attributes), parts: Mutex::default() }
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA if there is none.
    pub fn get_xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>, ClientError> {
        check_name(name)?;
        let needed = if name == xattr::CAPABILITY { Marks::CAPABILITY } else { Marks::XATTRS };
        if !self.attributes.marks(ino)?.contains(needed) {
            return Err(Errno::ENODATA.into());
        }
        self.whole(|offset| Request::GetXattr { ino, name, offset })
    }

    /// Returns the names of all extended attributes, each followed by a NUL.
    pub fn list_xattr(&self, ino: u64) -> Result<Vec<u8>, ClientError> {
        if !self.attributes.marks(ino)?.contains(Marks::XATTRS) {
            return Ok(Vec::new());
        }
        self.whole(|offset| Request::ListXattr { ino, offset })
    }

    /// Sets an extended attribute. With `drop_sgid` the ACL clears the set-group-ID bit.
    pub fn set_xattr(
        &self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        drop_sgid: bool,
        only_if: Option<ExpectedOwner>,
    ) -> Result<(), ClientError> {
        check_name(name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(Errno::E2BIG.into());
        }
        let request =
            |value, continued| Request::SetXattr { ino, name, value, how, continued, drop_sgid, only_if };
        let set = match value.split_at_checked(XATTR_PART) {
            None => self.calls.call_done(&request(value, false)),
            Some((first, rest)) => {
                let _one_at_a_time = self.parts.lock();
                self.calls
                    .call_done(&Request::XattrPart { value: first })
                    .and_then(|()| self.calls.call_done(&request(rest, true)))
            }
        };
        self.attributes.forget_told(ino);
        set
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA if there is none.
    pub fn remove_xattr(
        &self,
        ino: u64,
        name: &[u8],
        only_if: Option<ExpectedOwner>,
    ) -> Result<(), ClientError> {
        check_name(name)?;
        let removed = self.calls.call_done(&Request::RemoveXattr { ino, name, only_if });
        self.attributes.forget_told(ino);
        removed
    }

    /// Reads a whole value in parts. Begins anew if the value changes in between.
    fn whole<'r>(&self, request: impl Fn(u32) -> Request<'r>) -> Result<Vec<u8>, ClientError> {
        'anew: for _ in 0..TRIES {
            let mut first = self.value(&request(0))?;
            while first.bytes.len() < first.len as usize {
                // The length fits into `u32`, because values are limited.
                let part = self.value(&request(first.bytes.len() as u32))?;
                if part.version != first.version {
                    continue 'anew;
                }
                if part.bytes.is_empty() {
                    return Err(ClientError::Protocol("a value that is shorter than it says"));
                }
                first.bytes.extend(part.bytes);
            }
            return Ok(first.bytes);
        }
        Err(ClientError::Unstable)
    }

    fn value(&self, request: &Request<'_>) -> Result<Value, ClientError> {
        match self.calls.call(request)? {
            Reply::Value(value) if value.len as usize <= MAX_XATTR_VALUE => Ok(value),
            Reply::Value(_) => Err(ClientError::Protocol("a value that is too long")),
            _ => wrong_kind(),
        }
    }
}
