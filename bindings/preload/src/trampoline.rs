//! Functions of libc with a variable number of arguments, and `vfork`, which returns twice.
//!
//! Each symbol calls a hook that returns the address of libc's function, and jumps there with all
//! registers as they were. The stack is the caller's, so arguments on it stay in place.
//!
//! # Concurrency
//! Any thread.

use std::ffi::{c_int, c_void};

use crate::{calls::leave_to_kernel, next::Next, process};

/// Exports a function that calls a hook, and then is libc's function.
#[cfg(target_arch = "x86_64")]
macro_rules! trampoline {
    ($name:ident, $hook:ident) => {
        /// Calls the hook, then jumps to the function of libc with this name.
        ///
        /// # Safety
        /// As for the function of libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3", "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "call {hook}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]", "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                hook = sym $hook,
            );
        }
    };
}

/// Exports a function that calls a hook, and then is libc's function.
#[cfg(target_arch = "aarch64")]
macro_rules! trampoline {
    ($name:ident, $hook:ident) => {
        /// Calls the hook, then jumps to the function of libc with this name.
        ///
        /// # Safety
        /// As for the function of libc.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-208]!",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #80]", "stp q2, q3, [sp, #112]", "stp q4, q5, [sp, #144]",
                "stp q6, q7, [sp, #176]",
                "bl {hook}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp q0, q1, [sp, #80]", "ldp q2, q3, [sp, #112]", "ldp q4, q5, [sp, #144]",
                "ldp q6, q7, [sp, #176]",
                "ldp x29, x30, [sp], #208",
                "br x16",
                hook = sym $hook,
            );
        }
    };
}

trampoline! { execl, before_execl }
trampoline! { execlp, before_execlp }
trampoline! { execle, before_execle }
trampoline! { vfork, before_vfork }
trampoline! { clone, before_clone }
trampoline! { dprintf, before_dprintf }
trampoline! { __dprintf_chk, before_checked_dprintf }

/// Ends the program: libc lacks a function that the program has found here.
fn found(next: &Next) -> *const c_void {
    let found = next.get();
    if found.is_null() {
        std::process::abort();
    }
    found
}

/// Defines a hook, which runs before a function of libc.
macro_rules! hook {
    ($hook:ident($($arg:ident: $type:ty),*), $name:literal => $before:expr) => {
        extern "C" fn $hook($($arg: $type),*) -> *const c_void {
            static NEXT: Next = Next::new($name);
            $before;
            found(&NEXT)
        }
    };
}

hook! { before_execl(), c"execl" => process::give_offsets_back() }
hook! { before_execlp(), c"execlp" => process::give_offsets_back() }
hook! { before_execle(), c"execle" => process::give_offsets_back() }
// The child has descriptors of its own, and the memory of its parent.
hook! { before_vfork(), c"vfork" => process::give_offsets_back() }
hook! { before_clone(_function: usize, _stack: usize, flags: usize), c"clone" => before_flags(flags) }
hook! { before_dprintf(fd: c_int), c"dprintf" => leave_to_kernel(fd) }
hook! { before_checked_dprintf(fd: c_int), c"__dprintf_chk" => leave_to_kernel(fd) }

fn before_flags(flags: usize) {
    match flags & libc::CLONE_VM as usize {
        0 => process::turn_off(),
        _ => process::give_offsets_back(),
    }
}
