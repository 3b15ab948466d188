//! Options of a mount.

use std::{
    ffi::{CStr, OsStr, c_char},
    os::unix::ffi::OsStrExt,
    time::Duration,
};

use parking_lot::Mutex;
use rfs_native::{AccessTimes, Credentials, MountOptions, TlsClientFiles};

use crate::status::{Failure, answer_done, handle, take, text};

/// Options of a mount: a new one has the defaults.
#[allow(non_camel_case_types)]
pub struct rfs_options(Mutex<MountOptions>);

impl rfs_options {
    pub(crate) fn get(&self) -> MountOptions {
        self.0.lock().clone()
    }
}

fn number(value: &str) -> Result<u32, Failure> {
    let invalid = |e| Failure::new(libc::EINVAL, format!("{value:?} is no number: {e}"));
    value.parse().map_err(invalid)
}

fn flag(value: &str) -> Result<bool, Failure> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(Failure::new(libc::EINVAL, format!("{value:?} is neither yes nor no"))),
    }
}

/// Sets an option by its name.
fn set(options: &mut MountOptions, name: &str, value: &CStr) -> Result<(), Failure> {
    let path = OsStr::from_bytes(value.to_bytes());
    match name {
        "key" => {
            options.key = Some(path.into());
            return Ok(());
        }
        "tls-ca" => {
            options.tls = Some(TlsClientFiles::new(path));
            return Ok(());
        }
        _ => {}
    }
    let value = value.to_str().map_err(|_| Failure::new(libc::EINVAL, format!("{name}: no UTF-8")))?;
    match name {
        "export" => options.export = value.to_owned(),
        "name" => options.name = value.to_owned(),
        "uid" => {
            options.user = Credentials { uid: number(value)?, groups: Vec::new(), ..options.user.clone() }
        }
        "gid" => options.user.gid = number(value)?,
        "groups" => {
            let groups = value.split(',').filter(|group| !group.is_empty()).map(number);
            options.user.groups = groups.collect::<Result<_, _>>()?;
        }
        "umask" => {
            let invalid = |e| Failure::new(libc::EINVAL, format!("{value:?} is no octal number: {e}"));
            options.user.umask = u32::from_str_radix(value, 8).map_err(invalid)? & 0o777;
        }
        "timeout" => options.timeout = Duration::from_secs(number(value)?.into()),
        "connect-timeout" => options.connect_timeout = Duration::from_secs(number(value)?.into()),
        "cache" => options.caches = flag(value)?,
        "reconnect" => options.reconnects = flag(value)?,
        "atime" => {
            options.access_times = if flag(value)? { AccessTimes::Relative } else { AccessTimes::Never }
        }
        "provider" => {
            let invalid = |e| Failure::new(libc::EINVAL, format!("provider {value:?}: {e}"));
            options.provider = Some(value.parse().map_err(invalid)?);
        }
        _ => return Err(Failure::new(libc::EINVAL, format!("there is no option {name:?}"))),
    }
    Ok(())
}

/// Returns new options, which rfs_options_free() frees.
#[unsafe(no_mangle)]
pub extern "C" fn rfs_options_new() -> *mut rfs_options {
    Box::into_raw(Box::new(rfs_options(Mutex::new(MountOptions::default()))))
}

/// Sets an option: "export", "key", "tls-ca", "name", "uid", "gid", "groups" (with commas), "umask"
/// (octal), "provider" (shm, tcp, rdma), "timeout" and "connect-timeout" (seconds), "cache",
/// "reconnect" and "atime" (yes or no). "uid" removes the groups.
///
/// Returns 0, or -EINVAL for an unknown option or a bad value.
///
/// # Safety
/// The pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_options_set(
    options: *mut rfs_options,
    name: *const c_char,
    value: *const c_char,
) -> i32 {
    answer_done(|| {
        // SAFETY: the caller vouches for the pointers.
        let (options, name, value) = unsafe { (handle(options)?, text(name)?, text(value)?) };
        let name = name.to_str().map_err(|_| Failure::new(libc::EINVAL, "an option's name is no UTF-8"))?;
        let mut changed = options.0.lock();
        set(&mut changed, name, value)
    })
}

/// Frees options. NULL is permitted.
///
/// # Safety
/// The options are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfs_options_free(options: *mut rfs_options) {
    // SAFETY: the caller vouches for the pointer.
    drop(unsafe { take(options) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_groups() {
        let mut options = MountOptions::for_user(Credentials::new(0, 0));
        let mut set = |name: &str, value: &CStr| set(&mut options, name, value).is_ok();
        assert!(set("uid", c"1000") && set("gid", c"100") && set("groups", c"4,24"));
        assert!(!set("groups", c"4,x") && !set("uid", c"-1") && !set("nothing", c""));
        assert_eq!((options.user.uid, options.user.gid, &options.user.groups[..]), (1000, 100, &[4, 24][..]));
        assert!(super::set(&mut options, "groups", c"").is_ok() && options.user.groups.is_empty());
    }
}
