//! The functions of libc that this library takes the place of.
//!
//! # Concurrency
//! Any thread of the program, also in signal handlers.

mod attributes;
mod copy;
mod data;
mod descriptors;
mod memory;
mod open;
mod process;
mod streams;
mod system;
mod times;
mod vectored;

/// Exports a function, and others of the same effect under their names. A thread that is cancelled
/// in libc's function unwinds through the exported one.
macro_rules! export {
    ($($name:ident)|+: fn($($arg:ident: $type:ty),*) -> $out:ty => $target:path;) => {
        export! { @each [$($name)+] ($($arg: $type),*) ($out) $target }
    };
    (@each [$name:ident $($more:ident)*] ($($arg:ident: $type:ty),*) ($out:ty) $target:path) => {
        /// Takes the place of the function of libc with this name.
        ///
        /// # Safety
        /// As for the function of libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $out {
            // SAFETY: as the caller promises.
            unsafe { $target($($arg),*) }
        }
        export! { @each [$($more)*] ($($arg: $type),*) ($out) $target }
    };
    (@each [] ($($arg:ident: $type:ty),*) ($out:ty) $target:path) => {};
}
use export;

pub(crate) use streams::leave_to_kernel;
pub(crate) use times::publish;
