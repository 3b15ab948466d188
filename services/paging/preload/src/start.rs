//! Runs when the program starts: reads the settings, and prepares for `fork` and the end.
//!
//! A wrapper that becomes the program by `exec` has its process number, so the library works in
//! both. Programs that the program starts have other numbers, and run without the library.
//!
//! # Concurrency
//! The loader calls it on the first thread, before `main`.

use crate::{settings, settings::Settings, small, state};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg_attr(test, expect(dead_code, reason = "the tests are not loaded before a program"))]
extern "C" fn start() {
    let own = std::process::id().to_string();
    if std::env::var(settings::PROCESS).is_ok_and(|process| process != own) {
        return forget_settings();
    }
    match Settings::read(|name| std::env::var(name).ok()) {
        Ok(Some(settings)) => configure(settings),
        Ok(None) => {}
        Err(error) => eprintln!("rfs-paging: memory of this program is not paged: {error}"),
    }
}

/// Removes the variables of the library from the environment of a program that is not paged.
fn forget_settings() {
    let others = std::env::var("LD_PRELOAD").map(|list| settings::without_this_library(&list));
    // SAFETY: The program has one thread yet.
    unsafe {
        settings::ALL.iter().for_each(|name| std::env::remove_var(name));
        match others {
            Ok(others) if !others.is_empty() => std::env::set_var("LD_PRELOAD", others),
            _ => std::env::remove_var("LD_PRELOAD"),
        }
    }
}

fn configure(mut settings: Settings) {
    // SAFETY: The program has one thread yet.
    unsafe { std::env::set_var(settings::PROCESS, std::process::id().to_string()) };
    if settings.small > 0 {
        // Allocations between the small and the large ones would stay local.
        settings.min_size = settings.min_size.min(small::MAX_SMALL);
        small::configure(settings.small);
    }
    state::configure(settings);
    // SAFETY: The handlers live as long as the library, which is never unloaded.
    unsafe {
        // The last handlers are the first before `fork`, so the lock of `state` is taken first.
        libc::pthread_atfork(
            Some(small::before_fork),
            Some(small::after_fork_in_parent),
            Some(small::after_fork_in_child),
        );
        libc::pthread_atfork(
            Some(state::before_fork),
            Some(state::after_fork_in_parent),
            Some(state::after_fork_in_child),
        );
        libc::atexit(at_exit);
    }
}

extern "C" fn at_exit() {
    state::print_stats();
    state::end_status();
}
