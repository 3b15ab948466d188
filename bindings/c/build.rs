//! Names the library for the dynamic linker. The number changes with each change that old programs
//! cannot use.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librfs.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
