//! A window of fixed size, the policy of the RDMAbox paper (sections IV-A and V-A).

use super::{ADMISSION_PAGE, AdmissionPolicy};

/// Default size of [`StaticWindow`] in bytes, as in the paper.
pub const DEFAULT_WINDOW: u64 = 7 << 20;

/// A fixed window. It admits requests while the bytes in flight stay within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticWindow {
    bytes: u64,
}

impl StaticWindow {
    /// Creates a window of `bytes`, rounded down to whole pages, but at least one page.
    pub fn new(bytes: u64) -> StaticWindow {
        StaticWindow { bytes: (bytes / ADMISSION_PAGE).max(1) * ADMISSION_PAGE }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Default for StaticWindow {
    fn default() -> Self {
        StaticWindow::new(DEFAULT_WINDOW)
    }
}

impl AdmissionPolicy for StaticWindow {
    fn admit(&self, in_flight_bytes: u64, request_bytes: u64) -> bool {
        in_flight_bytes == 0
            || in_flight_bytes.checked_add(request_bytes).is_some_and(|total| total <= self.bytes)
    }

    fn window(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_pages() {
        const PAGE: u64 = ADMISSION_PAGE;
        assert_eq!(StaticWindow::new(0).bytes(), PAGE);
        assert_eq!(StaticWindow::new(PAGE * 2 - 1).bytes(), PAGE);
        assert_eq!(StaticWindow::new(u64::MAX).bytes(), u64::MAX - (PAGE - 1));
    }
}
