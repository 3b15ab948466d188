//! Explains a refused mount: translates an error number into its cause and the next step.
//!
//! [`Setting::here`] reads facts about this process that explain an error. All else has no I/O,
//! no locks and no clock.

use std::{fs, os::unix::fs::FileTypeExt};

use rustix::io::Errno;

use super::error::DEVICE;

/// The bit of CAP_SYS_ADMIN in a set of capabilities.
const SYS_ADMIN: u64 = 1 << 21;
/// Major and minor number of the FUSE device.
const FUSE: (u32, u32) = (10, 229);

/// Rights of this process that matter for mounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// True if the process has CAP_SYS_ADMIN in its user namespace.
    has_admin: bool,
    /// True in the initial user namespace.
    is_initial: bool,
    /// True if setuid programs raise no rights.
    no_new_privs: bool,
}

impl Setting {
    /// Returns the setting of this process.
    pub(super) fn here() -> Setting {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
        Setting::of(&read("status"), &read("uid_map"))
    }

    fn of(status: &str, uid_map: &str) -> Setting {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let effective = field("CapEff:").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let ids: Vec<&str> = uid_map.split_whitespace().collect();
        Setting {
            // Without /proc the capabilities are unknown, and the explanations assume root.
            has_admin: effective.is_none_or(|set| set & SYS_ADMIN != 0),
            is_initial: ids.is_empty() || ids == ["0", "0", "4294967295"],
            no_new_privs: field("NoNewPrivs:") == Some("1"),
        }
    }
}

/// Explains why the device cannot be opened.
pub(super) fn of_device(error: Errno) -> String {
    match error {
        Errno::NOENT => {
            "no such device: load the kernel module (modprobe fuse), or pass the device into the \
                         container (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
                .into()
        }
        // The device node has no driver.
        Errno::NODEV | Errno::NXIO => {
            "the kernel has no FUSE: load the module on the host (modprobe fuse)".into()
        }
        Errno::ACCESS => {
            "no permission to open it: ordinary users need mode 666 (chmod 666 /dev/fuse)".into()
        }
        Errno::PERM => {
            "the device is not allowed in this container: pass it with docker run --device /dev/fuse, \
                        or DeviceAllow=/dev/fuse in a systemd unit"
                .into()
        }
        e => format!("{e}"),
    }
}

/// Explains why an open file is not the FUSE device. Returns `None` if it is.
pub(super) fn of_file(meta: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let number = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let is_fuse = meta.file_type().is_char_device() && number == FUSE;
    (!is_fuse).then(|| {
        "not a FUSE device (character device 10:229): load the fuse module, or pass the device into the \
         container (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
            .into()
    })
}

/// Explains why mount(2) fails.
pub(super) fn of_mount(error: Errno, setting: Setting) -> String {
    match error {
        Errno::PERM if !setting.has_admin => {
            "not permitted without CAP_SYS_ADMIN: give the container the capability (docker run --cap-add \
             SYS_ADMIN), or mount as an ordinary user with fusermount3"
                .into()
        }
        Errno::PERM if !setting.is_initial => {
            "not permitted: this user namespace does not own the mount namespace; create both at once (unshare \
             --user --map-root-user --mount)"
                .into()
        }
        Errno::PERM | Errno::ACCESS => {
            "not permitted: a security policy of the host refuses mount(2); in a container, allow it (docker run \
             --security-opt apparmor=unconfined), and see the kernel log (dmesg)"
                .into()
        }
        Errno::NODEV => "the kernel has no FUSE: load the module (modprobe fuse)".into(),
        Errno::INVAL if !setting.is_initial => format!(
            "the kernel refuses {DEVICE} of another user namespace, or an option; see the kernel log (dmesg)"
        ),
        Errno::INVAL => "the kernel refuses an option; see the kernel log (dmesg)".into(),
        Errno::NOENT | Errno::NOTDIR => "the directory is gone: create it again".into(),
        Errno::NOSPC => {
            "too many mounts in this namespace: raise the limit (sysctl fs.mount-max), or unmount others".into()
        }
        Errno::NOMEM => "the kernel has no memory for another mount".into(),
        e => format!("{e}"),
    }
}

/// Adds the next step to a message of fusermount3.
pub(super) fn of_helper(said: &str, setting: Setting) -> String {
    let step = if setting.no_new_privs {
        "this process has no_new_privs, so that fusermount3 cannot become root: allow it (NoNewPrivileges=no in \
         a systemd unit, allowPrivilegeEscalation in a container), or mount as root"
    } else if said.contains("Operation not permitted") {
        "fusermount3 has to belong to root and be setuid (chmod u+s), and its file system must not be nosuid"
    } else if said.contains("no write access") || said.contains("Permission denied") {
        "mount on a directory that belongs to you"
    } else if said.contains("too many FUSE filesystems") {
        "unmount others, or have root raise mount_max in /etc/fuse.conf"
    } else if said.contains("user_allow_other") {
        "have root add the line user_allow_other to /etc/fuse.conf, or leave --allow-other out"
    } else {
        return said.to_owned();
    };
    format!("{said}; {step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Setting = Setting { has_admin: true, is_initial: true, no_new_privs: false };

    #[test]
    fn the_setting_is_read() {
        let initial = "         0          0 4294967295\n";
        let all = "Name:\tx\nCapEff:\t000001ffffffffff\nNoNewPrivs:\t0\n";
        assert_eq!(Setting::of(all, initial), ROOT);
        assert_eq!(Setting::of("", ""), ROOT, "nothing is known");
        // As root of a Docker container.
        let docker = "CapEff:\t00000000a80425fb\nNoNewPrivs:\t0\n";
        assert_eq!(Setting::of(docker, initial), Setting { has_admin: false, ..ROOT });
        let confined = "CapEff:\t0000000000000000\nNoNewPrivs:\t1\n";
        let own = "0 1000 1\n";
        let expected = Setting { has_admin: false, is_initial: false, no_new_privs: true };
        assert_eq!(Setting::of(confined, own), expected);
        Setting::here();
    }

    /// The message for an error with a known cause names the next step.
    #[test]
    fn errors_name_the_next_step() {
        let no_admin = Setting { has_admin: false, ..ROOT };
        let own_user = Setting { is_initial: false, ..ROOT };
        for (said, step) in [
            (of_device(Errno::NOENT), "modprobe fuse"),
            (of_device(Errno::NXIO), "modprobe fuse"),
            (of_device(Errno::NODEV), "modprobe fuse"),
            (of_device(Errno::ACCESS), "chmod 666"),
            (of_device(Errno::PERM), "--device /dev/fuse"),
            (of_mount(Errno::PERM, no_admin), "CAP_SYS_ADMIN"),
            (of_mount(Errno::PERM, own_user), "unshare --user --map-root-user --mount"),
            (of_mount(Errno::PERM, ROOT), "security policy"),
            (of_mount(Errno::NODEV, ROOT), "modprobe fuse"),
            (of_mount(Errno::INVAL, ROOT), "dmesg"),
            (of_mount(Errno::INVAL, own_user), "user namespace"),
            (of_mount(Errno::NOSPC, ROOT), "fs.mount-max"),
            (of_mount(Errno::NOENT, ROOT), "create it again"),
            (of_helper("mount failed: Operation not permitted", ROOT), "setuid"),
            (of_helper("user has no write access to mountpoint /x", ROOT), "belongs to you"),
            (
                of_helper(
                    "too many FUSE filesystems mounted; mount_max=3 can be set in /etc/fuse.conf",
                    ROOT,
                ),
                "mount_max",
            ),
            (of_helper("any", Setting { no_new_privs: true, ..ROOT }), "NoNewPrivileges=no"),
        ] {
            assert!(said.contains(step), "{step:?} is not in {said:?}");
        }
        assert_eq!(of_mount(Errno::IO, ROOT), "Input/output error (os error 5)");
        assert_eq!(of_helper("something else", ROOT), "something else");
    }

    #[test]
    fn other_files_are_not_the_device() {
        for other in ["/dev/null", "/", "/proc/self/status"] {
            let why = of_file(&fs::metadata(other).expect("attributes")).expect("not the device");
            assert!(why.starts_with("not a FUSE device"), "{other}: {why}");
        }
    }
}
