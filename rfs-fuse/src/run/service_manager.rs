//! Messages for the service manager.

use sd_notify::NotifyState;

/// Notifies the service manager, if there is one (sd_notify(3)).
pub(super) fn notify_manager(news: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[news]) {
        log::warn!("cannot notify the service manager: {e}");
    }
}
