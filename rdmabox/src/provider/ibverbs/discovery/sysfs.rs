//! Reads information about RDMA devices from `/sys/class/infiniband` that libibverbs does not
//! provide.
//!
//! A file that cannot be read counts as unknown, never as an error.

use std::{fs, path::Path};

use super::gid::GidType;

/// Directory in which the kernel lists its RDMA devices.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// Returns the sorted names of the kernel's devices; empty if the directory does not exist.
pub(crate) fn device_names(class: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(class) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Returns the protocol of an entry of a GID table.
pub(crate) fn gid_type(class: &Path, device: &str, port: u8, index: u32) -> Option<GidType> {
    let path = class.join(format!("{device}/ports/{port}/gid_attrs/types/{index}"));
    GidType::parse(&fs::read_to_string(path).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_unknown() {
        let class = tempfile::tempdir().expect("temporary directory");
        assert_eq!(gid_type(class.path(), "rxe0", 1, 0), None);
        assert_eq!(device_names(class.path()), Vec::<String>::new());
        assert_eq!(device_names(&class.path().join("absent")), Vec::<String>::new());
    }

    #[test]
    fn types_and_names_are_read() {
        let class = tempfile::tempdir().expect("temporary directory");
        let types = class.path().join("rxe0/ports/2/gid_attrs/types");
        fs::create_dir_all(&types).expect("directories");
        fs::create_dir(class.path().join("mlx5_0")).expect("directory");
        fs::write(types.join("7"), "RoCE v2\n").expect("file");
        fs::write(types.join("8"), b"\xff\xfe").expect("file");
        assert_eq!(gid_type(class.path(), "rxe0", 2, 7), Some(GidType::RoceV2));
        assert_eq!(gid_type(class.path(), "rxe0", 2, 8), None);
        assert_eq!(gid_type(class.path(), "rxe0", 1, 7), None);
        assert_eq!(device_names(class.path()), ["mlx5_0", "rxe0"]);
    }
}
