//! Extended attributes. They live at the server; whether an inode has any at all is in its record and among its attributes, so that
//! the question which is asked most (has this file security.capability, has it an ACL) costs no call where the answer is no, and
//! nothing at all where attributes are kept.

use rfs_proto::{
    Belongs, Errno, MAX_XATTR_NAME, MAX_XATTR_VALUE, Marks, Reply, Request, Value, XATTR_PART, XattrSet,
};

use super::{Client, ClientError, names::wrong_kind, space::TRIES};

/// The capabilities of a program, which the kernel looks for when it is written.
const CAPABILITY: &[u8] = b"security.capability";

fn check_name(name: &[u8]) -> Result<(), ClientError> {
    if (1..=MAX_XATTR_NAME).contains(&name.len()) { Ok(()) } else { Err(Errno::ERANGE.into()) }
}

impl Client {
    /// The value of an extended attribute. ENODATA if there is none.
    pub fn get_xattr(&self, ino: u64, name: &[u8]) -> Result<Vec<u8>, ClientError> {
        check_name(name)?;
        let needed = if name == CAPABILITY { Marks::CAPABILITY } else { Marks::XATTRS };
        if !self.marks(ino)?.contains(needed) {
            return Err(Errno::ENODATA.into());
        }
        self.whole(|offset| Request::GetXattr { ino, name, offset })
    }

    /// The names of all extended attributes, each followed by a NUL.
    pub fn list_xattr(&self, ino: u64) -> Result<Vec<u8>, ClientError> {
        if !self.marks(ino)?.contains(Marks::XATTRS) {
            return Ok(Vec::new());
        }
        self.whole(|offset| Request::ListXattr { ino, offset })
    }

    /// Sets an extended attribute. `drop_sgid`: an ACL takes set-group-ID away.
    pub fn set_xattr(
        &self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        how: XattrSet,
        drop_sgid: bool,
        only_if: Option<Belongs>,
    ) -> Result<(), ClientError> {
        check_name(name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(Errno::E2BIG.into());
        }
        let request =
            |value, continued| Request::SetXattr { ino, name, value, how, continued, drop_sgid, only_if };
        let set = match value.split_at_checked(XATTR_PART) {
            None => self.call_done(&request(value, false)),
            Some((first, rest)) => {
                let _one_at_a_time = self.parts.lock();
                self.call_done(&Request::XattrPart { value: first })
                    .and_then(|()| self.call_done(&request(rest, true)))
            }
        };
        self.untold(ino);
        set
    }

    /// Removes an extended attribute. ENODATA if there is none.
    pub fn remove_xattr(&self, ino: u64, name: &[u8], only_if: Option<Belongs>) -> Result<(), ClientError> {
        check_name(name)?;
        let removed = self.call_done(&Request::RemoveXattr { ino, name, only_if });
        self.untold(ino);
        removed
    }

    /// Takes the capabilities from a program that was written.
    pub fn drop_capability(&self, ino: u64) -> Result<(), ClientError> {
        match self.remove_xattr(ino, CAPABILITY, None) {
            Err(ClientError::Errno(Errno::ENODATA)) => Ok(()),
            outcome => outcome,
        }
    }

    /// Asks for a value until all of it is there, and all of one version.
    fn whole<'r>(&self, request: impl Fn(u32) -> Request<'r>) -> Result<Vec<u8>, ClientError> {
        'anew: for _ in 0..TRIES {
            let mut first = self.value(&request(0))?;
            while first.bytes.len() < first.len as usize {
                // As long as a value can be.
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
        match self.call(request)? {
            Reply::Value(value) if value.len as usize <= MAX_XATTR_VALUE => Ok(value),
            Reply::Value(_) => Err(ClientError::Protocol("a value that is too long")),
            _ => wrong_kind(),
        }
    }
}
