//! Translates command lines of mount(8) into arguments of rfs-fuse.
//!
//! `mount -t fuse.rfs SOURCE DIR -o OPTIONS` and lines of `/etc/fstab` run a mount helper:
//! `mount.fuse.rfs SOURCE DIR [-sfnv] [-o OPTIONS] [-t fuse.rfs]`. The helper is rfs-fuse under
//! another name. [`parse`] expects a helper's command line unless the program's name begins with
//! `rfs-fuse`. rfs-fuse itself takes `-o`, too.
//!
//! A mount is `nosuid,nodev` by default, because its files belong to another machine. mount(8)
//! consumes `suid` and `dev` as its own defaults and does not pass them on. `allow_suid` and
//! `allow_dev` reach the helper. `nosuid` and `nodev` override them.
//!
//! No I/O, no locks, no clock.

use std::ffi::{OsStr, OsString};

/// The action that a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// Run rfs-fuse with these arguments, of which the first is the program's name.
    Plain(Vec<OsString>),
    /// Run rfs-fuse with these arguments, and return exit codes of mount(8).
    Mount(Vec<OsString>),
    /// Change the flags of an existing mount.
    Remount {
        /// The mount point.
        point: OsString,
        /// Arguments as for a mount. Only the kernel's flags take effect.
        arguments: Vec<OsString>,
    },
    /// Do nothing: `-f` asks for a dry run.
    Nothing,
}

/// An invalid command line of mount(8).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountUsage {
    /// The number of names is not two.
    #[error("a source and a directory are needed: {0} SOURCE DIR [-o OPTIONS]")]
    Names(String),
    /// An option lacks its value.
    #[error("-{0} needs a value")]
    Value(char),
    /// The argument is unknown.
    #[error("invalid option {0:?} of a mount helper: expected -o OPTIONS, -t TYPE, -s, -f, -n or -v")]
    Unknown(String),
    /// The mount option is unknown.
    #[error("unknown mount option {0:?}{did_you_mean}; see rfs-fuse --help and mount(8)", did_you_mean = suggestion(.0))]
    Option(String),
    /// The helper does not support mounts in another namespace.
    #[error("-N: mounting in another namespace is not supported: run mount in it (nsenter)")]
    Namespace,
}

/// Returns a mount helper's exit code for rfs-fuse's: 1 for an invalid command line, 32 for a
/// failed mount.
pub fn exit_code(code: u8) -> u8 {
    match code {
        0 => 0,
        2 => 1,
        _ => 32,
    }
}

/// Options that concern other programs, and options that describe the default.
const IGNORED: &[&str] = &[
    "defaults",
    "rw",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "exec",
    "async",
    "atime",
    "relatime",
    "nosuid",
    "nodev",
    "default_permissions",
    "nomand",
    "loud",
    "silent",
    "diratime",
    "nostrictatime",
    "nolazytime",
    "noiversion",
];

/// Options that the kernel shows of a FUSE mount. mount(8) passes them on with `remount`, and they
/// cannot change.
const SHOWN_BY_KERNEL: &[&str] = &["user-id", "group-id", "rootmode", "fd", "max-read", "blksize"];

/// Options of mount(8) that the helper takes.
const KNOWN: &[&str] =
    &["ro", "suid", "dev", "noexec", "sync", "dirsync", "noatime", "nodiratime", "strictatime", "remount"];

/// Returns a hint at an option of mount(8) that differs from `option` by one change.
fn suggestion(option: &str) -> String {
    let name = option.split('=').next().unwrap_or_default();
    let near = KNOWN.iter().chain(IGNORED).find(|known| is_one_change(name, known));
    near.map(|known| format!(" (did you mean {known:?}?)")).unwrap_or_default()
}

/// Returns true for words that differ by one letter: replaced, added, removed, or swapped with
/// its neighbour.
fn is_one_change(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let front = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[front..], &other[front..]);
    match (one, other) {
        ([a, b, one @ ..], [c, d, other @ ..]) if (a, b) == (d, c) && one == other => true,
        ([_, one @ ..], [_, other @ ..]) if one == other => true,
        ([_, rest @ ..], other) if rest == other => true,
        (one, [_, rest @ ..]) => one == rest,
        _ => false,
    }
}

/// Returns the argument of rfs-fuse for one option of a list, or `None` if the option has no
/// effect.
fn argument(option: &str) -> Option<String> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    if option.is_empty()
        || IGNORED.contains(&option)
        || name.starts_with("x-")
        || name.starts_with("X-")
        || name == "comment"
    {
        return None;
    }
    let name = match name {
        "ro" => "read-only".to_owned(),
        name => name.replace('_', "-"),
    };
    Some(match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    })
}

/// Splits a list of options. A comma behind a backslash, or between quotes, belongs to its
/// option.
fn options(list: &str) -> Vec<String> {
    let (mut all, mut one, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for c in list.chars() {
        match c {
            _ if std::mem::take(&mut escaped) => one.push(c),
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut one)),
            c => one.push(c),
        }
    }
    all.push(one);
    all
}

/// Returns the arguments for a list of options.
fn expand(list: &OsStr) -> Vec<OsString> {
    options(&list.to_string_lossy()).iter().filter_map(|one| argument(one)).map(OsString::from).collect()
}

/// Whether one kind of file takes effect: set-user-ID programs, or device nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Effect {
    /// The last of `suid` and `nosuid`, or of `dev` and `nodev`.
    flag: Option<bool>,
    /// True after `allow_suid`, or `allow_dev`.
    allowed: bool,
}

impl Effect {
    /// Returns true if files of the kind take effect. mount(8) moves its own flags in front of all
    /// other options, so `nosuid` counts in any place.
    fn is_wanted(self) -> bool {
        self.flag.unwrap_or(self.allowed)
    }
}

/// Whether set-user-ID programs and device nodes take effect.
#[derive(Clone, Copy, Debug, Default)]
struct Effects {
    suid: Effect,
    dev: Effect,
}

impl Effects {
    fn apply(&mut self, list: &OsStr) {
        for option in options(&list.to_string_lossy()) {
            match option.as_str() {
                "suid" => self.suid.flag = Some(true),
                "nosuid" => self.suid.flag = Some(false),
                "allow_suid" => self.suid.allowed = true,
                "dev" => self.dev.flag = Some(true),
                "nodev" => self.dev.flag = Some(false),
                "allow_dev" => self.dev.allowed = true,
                _ => {}
            }
        }
    }

    fn arguments(self) -> impl Iterator<Item = &'static str> {
        [(self.suid.is_wanted(), "--suid"), (self.dev.is_wanted(), "--dev")]
            .into_iter()
            .filter_map(|(is_set, name)| is_set.then_some(name))
    }
}

/// Returns the name of an option among the arguments of rfs-fuse.
fn name_of(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    text.split('=').next().unwrap_or_default().trim_start_matches('-').to_owned()
}

/// A command line of mount(8), with the lists of options expanded.
#[derive(Debug, Default)]
struct MountLine {
    /// The source and the directory.
    names: Vec<OsString>,
    options: Vec<OsString>,
    fs_type: String,
    effects: Effects,
    /// True if unknown options are dropped.
    sloppy: bool,
    /// True for a dry run.
    fake: bool,
    verbose: bool,
}

impl MountLine {
    fn read(fs_type: &str, mut arguments: impl Iterator<Item = OsString>) -> Result<MountLine, MountUsage> {
        let mut line = MountLine { fs_type: fs_type.to_owned(), ..MountLine::default() };
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy().into_owned();
            let Some(letters) = text.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                line.names.push(argument);
                continue;
            };
            if letters.starts_with('-') {
                return Err(MountUsage::Unknown(text));
            }
            for (at, letter) in letters.char_indices() {
                match letter {
                    's' => line.sloppy = true,
                    'f' => line.fake = true,
                    'v' => line.verbose = true,
                    'n' => {}
                    'N' => return Err(MountUsage::Namespace),
                    'o' | 't' => {
                        let attached = &letters[at + 1..];
                        let value = match attached {
                            "" => arguments.next().ok_or(MountUsage::Value(letter))?,
                            attached => attached.into(),
                        };
                        if letter == 'o' {
                            line.effects.apply(&value);
                            line.options.extend(expand(&value));
                        } else {
                            let given = value.to_string_lossy().into_owned();
                            given.trim_start_matches("fuse.").clone_into(&mut line.fs_type);
                        }
                        break;
                    }
                    _ => return Err(MountUsage::Unknown(text)),
                }
            }
        }
        Ok(line)
    }

    /// Removes the options that the helper takes itself, and unknown ones if the line is sloppy.
    /// Returns true if the line asks for a remount.
    ///
    /// # Errors
    /// An option is unknown.
    fn retain_known(&mut self, known: &dyn Fn(&str) -> bool) -> Result<bool, MountUsage> {
        let remount = self.options.iter().any(|argument| argument == "--remount");
        let of_its_own = ["--remount", "--suid", "--dev", "--allow-suid", "--allow-dev"];
        let sloppy = self.sloppy;
        self.options.retain(|argument| {
            let name = name_of(argument);
            let is_shown = remount && SHOWN_BY_KERNEL.contains(&name.as_str());
            !of_its_own.iter().any(|own| argument == own) && !is_shown && (!sloppy || known(&name))
        });
        match self.options.iter().find(|argument| !known(&name_of(argument))) {
            Some(unknown) => {
                let unknown = unknown.to_string_lossy();
                Err(MountUsage::Option(unknown.trim_start_matches('-').to_owned()))
            }
            None => Ok(remount),
        }
    }
}

/// Parses a command line. `known` returns true for the names of rfs-fuse's options.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    known: &dyn Fn(&str) -> bool,
) -> Result<Invocation, MountUsage> {
    let mut arguments = arguments.into_iter();
    let called = arguments.next().unwrap_or_default();
    let name = called.to_string_lossy();
    let name = name.rsplit('/').next().unwrap_or_default();
    if name.is_empty() || name.starts_with("rfs-fuse") {
        return Ok(Invocation::Plain(with_lists_expanded(called, arguments)));
    }
    // mount.fuse.rfs, mount.rfs and rfs show the type fuse.rfs.
    let fs_type = name.trim_start_matches("mount.").trim_start_matches("fuse.");
    let mut line = MountLine::read(fs_type, arguments)?;
    let [source, point] = &line.names[..] else { return Err(MountUsage::Names(name.to_owned())) };
    let names = [source.clone(), point.clone()];
    let remount = line.retain_known(known)?;
    if line.fake {
        return Ok(Invocation::Nothing);
    }
    line.options.extend(line.effects.arguments().map(OsString::from));
    let point = names[1].clone();
    let all = mount_arguments(line.options, &line.fs_type, line.verbose, names);
    Ok(match remount {
        true => Invocation::Remount { point, arguments: all },
        false => Invocation::Mount(all),
    })
}

/// Returns the arguments of rfs-fuse for a mount of the source and directory in `names`.
fn mount_arguments(
    options: Vec<OsString>,
    fs_type: &str,
    verbose: bool,
    names: [OsString; 2],
) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec!["rfs-fuse".into()];
    all.extend(options);
    all.push(format!("--subtype={fs_type}").into());
    // A mount helper prints nothing on success.
    all.extend((!verbose).then(|| "--quiet".into()));
    all.extend(["--daemon".into(), "--".into()]);
    all.extend(names);
    all
}

/// Returns the arguments of rfs-fuse, in which each `-o` is replaced by the options of its list.
fn with_lists_expanded(called: OsString, mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all = vec![called];
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        match text.strip_prefix("-o") {
            _ if text == "--" => {
                all.push(argument);
                all.extend(arguments);
                break;
            }
            Some("") => match arguments.next() {
                Some(list) => all.extend(expand(&list)),
                // The parser reports the missing value.
                None => all.push("-o".into()),
            },
            Some(list) => all.extend(expand(list.as_ref())),
            None => all.push(argument),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> bool {
        ["io-uring", "read-only", "noexec", "attr-timeout", "provider", "noatime", "suid"].contains(&name)
    }

    fn parsed(line: &str) -> Result<Invocation, MountUsage> {
        parse(line.split(' ').map(OsString::from), &known)
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn rfs_fuse_only_expands_option_lists() {
        for (line, meant) in [
            ("rfs-fuse a:1 /m --threads 3", "rfs-fuse a:1 /m --threads 3"),
            (
                "/opt/rfs-fuse -o ro,attr_timeout=0 a:1 /m",
                "/opt/rfs-fuse --read-only --attr-timeout=0 a:1 /m",
            ),
            ("rfs-fuse-2 -oprovider=tcp a:1 /m", "rfs-fuse-2 --provider=tcp a:1 /m"),
            ("rfs-fuse -o defaults -- -o /m", "rfs-fuse -- -o /m"),
            ("rfs-fuse -o io_uring a:1 /m", "rfs-fuse --io-uring a:1 /m"),
            ("rfs-fuse a:1 /m -o", "rfs-fuse a:1 /m -o"),
        ] {
            assert_eq!(parsed(line), Ok(Invocation::Plain(words(meant))), "{line}");
        }
    }

    #[test]
    fn under_another_name_it_is_a_mount_helper() {
        for (line, meant) in [
            ("mount.fuse.rfs a:1 /m", "rfs-fuse --subtype=rfs --quiet --daemon -- a:1 /m"),
            ("/sbin/mount.rfs a:1 /m -o rw", "rfs-fuse --subtype=rfs --quiet --daemon -- a:1 /m"),
            ("anything a:1 /m", "rfs-fuse --subtype=anything --quiet --daemon -- a:1 /m"),
            ("mount.fuse.x -nv -t fuse.y a:1 /m", "rfs-fuse --subtype=y --daemon -- a:1 /m"),
            (
                "mount.fuse.rfs a:1 /m -o ro,noexec,_netdev,x-systemd.automount,comment=a -o attr_timeout=0.5,suid",
                "rfs-fuse --read-only --noexec --attr-timeout=0.5 --suid --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
            (
                "mount.fuse.rfs a:1 /m -o allow_suid,allow_dev",
                "rfs-fuse --suid --dev --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
            (
                "mount.fuse.rfs a:1 /m -o io_uring=on",
                "rfs-fuse --io-uring=on --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
            ("mount.fuse.rfs a:1 /m -o allow_dev,nodev", "rfs-fuse --subtype=rfs --quiet --daemon -- a:1 /m"),
            // mount(8) passes `-o allow_suid,allow_dev -o nosuid` on in this order.
            (
                "mount.fuse.rfs a:1 /m -o rw,nosuid,allow_suid,allow_dev",
                "rfs-fuse --dev --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
            (
                "mount.fuse.rfs a:1 /m -o nosuid,ro,nodev",
                "rfs-fuse --read-only --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
            (
                "mount.fuse.rfs a:1 /m -o nosuid,dev,nodev -o suid",
                "rfs-fuse --suid --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
            (
                "mount.fuse.rfs -s a:1 /m -o nonsense,provider=tcp,noatime,nosuid",
                "rfs-fuse --provider=tcp --noatime --subtype=rfs --quiet --daemon -- a:1 /m",
            ),
        ] {
            assert_eq!(parsed(line), Ok(Invocation::Mount(words(meant))), "{line}");
        }
        assert_eq!(parsed("mount.fuse.rfs -f a:1 /m"), Ok(Invocation::Nothing));
        let arguments = words("rfs-fuse --read-only --subtype=rfs --quiet --daemon -- a:1 /m");
        let point = "/m".into();
        assert_eq!(
            parsed("mount.fuse.rfs a:1 /m -o remount,ro,nosuid"),
            Ok(Invocation::Remount { point, arguments })
        );
        // As mount(8) asks for it, with the options that the mount table has.
        let line = "mount.fuse.rfs a:1 /m -o ro,nosuid,nodev,relatime,remount,user_id=0,group_id=0,default_permissions";
        let Ok(Invocation::Remount { arguments, .. }) = parsed(line) else { panic!("{:?}", parsed(line)) };
        assert_eq!(arguments, words("rfs-fuse --read-only --subtype=rfs --quiet --daemon -- a:1 /m"));
        let mount = parsed("mount.fuse.rfs a:1 /m -o user_id=0");
        assert_eq!(mount, Err(MountUsage::Option("user-id=0".into())));
    }

    #[test]
    fn mistakes_are_named() {
        let names = || Err(MountUsage::Names("mount.fuse.rfs".into()));
        assert_eq!(parsed("mount.fuse.rfs a:1"), names());
        assert_eq!(parsed("mount.fuse.rfs a:1 /m more"), names());
        assert_eq!(parsed("mount.fuse.rfs a:1 /m -o"), Err(MountUsage::Value('o')));
        assert_eq!(parsed("mount.fuse.rfs a:1 /m -q"), Err(MountUsage::Unknown("-q".into())));
        assert_eq!(parsed("mount.fuse.rfs a:1 /m --x"), Err(MountUsage::Unknown("--x".into())));
        assert_eq!(parsed("mount.fuse.rfs a:1 /m -N 7"), Err(MountUsage::Namespace));
    }

    #[test]
    fn a_misspelled_option_gets_a_suggestion() {
        let said = |line: &str| {
            parsed(&format!("mount.fuse.rfs a:1 /m -o {line}")).expect_err("unknown").to_string()
        };
        for (slip, meant) in
            [("noexce", "noexec"), ("noatim", "noatime"), ("noexxec", "noexec"), ("dirsinc", "dirsync")]
        {
            let text = format!(
                "unknown mount option {slip:?} (did you mean {meant:?}?); see rfs-fuse --help and mount(8)"
            );
            assert_eq!(said(slip), text);
        }
        assert_eq!(said("nonsense"), "unknown mount option \"nonsense\"; see rfs-fuse --help and mount(8)");
    }

    #[test]
    fn commas_can_be_part_of_a_value() {
        assert_eq!(options(r#"a,b="c,d",e\,f,,g"#), ["a", "b=c,d", "e,f", "", "g"]);
        assert_eq!(options(""), [""]);
    }
}
