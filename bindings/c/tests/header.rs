//! The header is the one that cbindgen makes of the sources. RFS_UPDATE=1 writes it anew.
//!
//! Own program: the crate has no other, so it is linked once.

use std::{fs, path::Path};

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings =
        cbindgen::Builder::new().with_crate(root).with_config(config).generate().expect("a header");
    let mut header = Vec::new();
    bindings.write(&mut header);
    // The heading is of Rust; its text is for C, too.
    let header = String::from_utf8(header).expect("UTF-8").replace(" * # Safety\n", "").into_bytes();
    let path = root.join("include/rfs.h");
    if std::env::var_os("RFS_UPDATE").is_some() {
        return fs::write(path, header).expect("written");
    }
    let known = fs::read(path).expect("include/rfs.h");
    assert!(known == header, "include/rfs.h is old: RFS_UPDATE=1 cargo test -p rfs-c writes it");
}
