//! Configuration of one export: name, size, number of inodes and root directory.
//!
//! Each export has its own space and inodes; exports do not share them.
//!
//! # Concurrency
//! Plain values.

use rfs_proto::{BLOCK, checksum, record};

use crate::{memory_object::header::Shape, metadata::root::Root, space::eviction::EvictionPolicy};

/// Minimum size of an export in bytes.
pub const MIN_MEMORY: u64 = 1 << 20;

/// Bytes of memory per inode, by default.
const BYTES_PER_INODE: u64 = 16 << 10;

/// Maximum length of an export's name in bytes.
const MAX_NAME: usize = 64;

/// The shape of an export that a server creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Name for clients, logs and /proc.
    pub name: String,
    /// Size in bytes; rounded down to whole blocks.
    pub memory: u64,
    /// The largest size that it can be grown to, in bytes. `None`: `memory`.
    pub max: Option<u64>,
    /// Maximum number of inodes. Default: one per 16 KiB of the largest size, at least 1024.
    pub inodes: Option<u32>,
    /// The root directory.
    pub root: Root,
    /// Rules by which files leave the export.
    pub eviction: EvictionPolicy,
}

impl ExportConfig {
    /// Returns the number of inodes, including the root directory.
    pub fn inode_count(&self) -> u32 {
        self.inodes
            .unwrap_or_else(|| u32::try_from(self.largest() / BYTES_PER_INODE).unwrap_or(u32::MAX).max(1024))
    }

    /// Returns the size in bytes: whole blocks.
    pub fn size(&self) -> u64 {
        self.memory / BLOCK * BLOCK
    }

    /// Returns the size of the arena in bytes: the largest size of the export.
    pub fn arena_len(&self) -> u64 {
        self.largest() / BLOCK * BLOCK
    }

    fn largest(&self) -> u64 {
        self.max.unwrap_or(self.memory)
    }

    /// Returns the shape of the export's memory object.
    pub fn shape(&self, checked: bool) -> Shape {
        Shape { arena: self.arena_len(), inodes: self.inode_count(), checked }
    }

    /// Returns the size of the checksums in bytes.
    pub fn sums_len(&self) -> u64 {
        checksum::region_len(self.arena_len())
    }

    /// Returns the size of the table in bytes.
    pub fn table_len(&self) -> u64 {
        u64::from(self.inode_count()) * record::LEN as u64
    }
}

/// An export on the command line:
/// `NAME=SIZE[,max=SIZE][,inodes=N][,root-mode=MODE][,evict=lru][,ttl=SECONDS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportArg {
    /// Name of the export.
    pub name: String,
    /// Size in bytes.
    pub memory: u64,
    /// The largest size, if given.
    pub max: Option<u64>,
    /// Number of inodes, if given.
    pub inodes: Option<u32>,
    /// Permissions of the root directory, if given.
    pub root_mode: Option<u32>,
    /// Rules by which files leave the export.
    pub eviction: EvictionPolicy,
}

impl ExportArg {
    /// Parses an export.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(text: &str) -> Result<ExportArg, String> {
        let mut parts = text.split(',');
        let (name, memory) = parts
            .next()
            .and_then(|first| first.split_once('='))
            .ok_or_else(|| format!("invalid export {text:?}: expected NAME=SIZE, such as scratch=4g"))?;
        let memory = byte_size::parse(memory).map_err(|e| e.to_string())?;
        let (name, eviction) = (parse_name(name)?, EvictionPolicy::default());
        let mut export = ExportArg { name, memory, max: None, inodes: None, root_mode: None, eviction };
        for part in parts {
            match part.split_once('=') {
                Some(("inodes", count)) => {
                    let count = count.parse().ok().filter(|count| *count > 0);
                    export.inodes = Some(count.ok_or_else(|| format!("{part:?}: at least one inode"))?);
                }
                Some(("max", size)) => {
                    export.max = Some(byte_size::parse(size).map_err(|e| format!("{part:?}: {e}"))?);
                }
                Some(("root-mode", mode)) => export.root_mode = Some(parse_mode(mode)?),
                _ if export
                    .eviction
                    .parse(part)
                    .map_err(|why| format!("export {:?}: {why}", export.name))? => {}
                _ => {
                    let has = "an export has max=SIZE, inodes=N, root-mode=MODE, evict=lru and ttl=SECONDS";
                    return Err(format!("{part:?}: {has}"));
                }
            }
        }
        Ok(export)
    }
}

/// Parses octal permissions.
pub fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("invalid mode {text:?}: expected octal permissions such as 755 or 1777"))
}

/// Checks a name for logs and /proc.
pub fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
        return Err("a name is 1 to 64 bytes of printable text".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn modes_and_names() {
        assert_eq!(parse_mode("1777"), Ok(0o1777));
        assert!(parse_mode("17777").is_err() && parse_mode("8").is_err() && parse_mode("").is_err());
        assert!(parse_name("scratch").is_ok());
        assert!(parse_name("").is_err() && parse_name("a\0b").is_err());
    }

    #[test]
    fn exports_are_parsed() {
        let none = EvictionPolicy::default();
        let export = |inodes, root_mode| ExportArg {
            name: "a".into(),
            memory: 2 << 20,
            max: None,
            inodes,
            root_mode,
            eviction: none,
        };
        let lru = EvictionPolicy { by_use: true, ttl: Some(Duration::from_secs(9)) };
        let cache = ExportArg { eviction: lru, ..export(Some(7), None) };
        assert_eq!(ExportArg::parse("a=2M,evict=lru,inodes=7,ttl=9"), Ok(cache));
        let message = ExportArg::parse("kv=2M,evict=lfu").unwrap_err();
        assert!(message.contains("\"kv\"") && message.contains("evict=lru"), "{message}");
        let growing = ExportArg { max: Some(8 << 20), ..export(None, None) };
        for (text, parsed) in [
            ("a=2M,max=8M", growing),
            ("a=2M", export(None, None)),
            ("a=2M,inodes=7", export(Some(7), None)),
            ("a=2M,root-mode=1777,inodes=7", export(Some(7), Some(0o1777))),
        ] {
            assert_eq!(ExportArg::parse(text), Ok(parsed));
        }
        for text in [
            "",
            "a",
            "=2M",
            "a=",
            "a=lots",
            "a=2M,",
            "a=2M,inodes=0",
            "a=2M,max=lots",
            "a=2M,root-mode=9",
            "a=2M,size=1",
            "a=2M,b=2M",
            "a=2M,ttl=0",
            "a=2M,evict",
        ] {
            assert!(ExportArg::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn inodes_follow_memory() {
        let root = Root { perm: 0, uid: 0, gid: 0 };
        let export = |memory, inodes| ExportConfig {
            name: "a".into(),
            memory,
            max: None,
            inodes,
            root,
            eviction: EvictionPolicy::default(),
        };
        assert_eq!(export(4 << 30, None).inode_count(), 262_144);
        assert_eq!(export(1 << 20, None).inode_count(), 1024);
        assert_eq!(export(u64::MAX, None).inode_count(), u32::MAX);
        let small = export((1 << 20) + 1, Some(3));
        assert_eq!((small.table_len(), small.arena_len()), (3 * 128, 1 << 20));
        let growing = ExportConfig { max: Some((4 << 30) + 1), ..export((1 << 20) + 1, None) };
        assert_eq!((growing.inode_count(), growing.size(), growing.arena_len()), (262_144, 1 << 20, 4 << 30));
    }
}
