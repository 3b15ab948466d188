//! The first page of a swap area, as `mkswap` writes it.
//!
//! # Concurrency
//! Pure functions.

/// Length of a page in bytes, and of the header.
pub(super) const PAGE: usize = 4096;
/// Fewest pages: the header, and a few pages to use.
const MIN_PAGES: u64 = 16;
/// Offset of the header's fields: boot blocks come before it.
const FIELDS: usize = 1024;
/// End of the header.
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
/// Offset of the label in the fields, behind version, last page, bad pages and UUID.
const LABEL: usize = FIELDS + 12 + 16;

/// Returns the header of an area of `bytes` bytes. `None` if the area is too small or too large.
pub(super) fn header(bytes: u64) -> Option<[u8; PAGE]> {
    let pages = bytes / PAGE as u64;
    let last = u32::try_from(pages.checked_sub(1)?).ok().filter(|_| pages >= MIN_PAGES)?;
    let mut page = [0; PAGE];
    page[FIELDS..FIELDS + 4].copy_from_slice(&1_u32.to_ne_bytes());
    page[FIELDS + 4..FIELDS + 8].copy_from_slice(&last.to_ne_bytes());
    page[LABEL..LABEL + 10].copy_from_slice(b"rfs-paging");
    page[PAGE - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_last_page_and_the_signature() {
        let page = header((1 << 20) + 5).expect("an area");
        assert_eq!((&page[1024..1028], &page[1028..1032]), (&[1, 0, 0, 0][..], &[255, 0, 0, 0][..]));
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!(&page[1052..1062], b"rfs-paging");
        assert_eq!(page[1032..1052], [0; 20], "no bad pages, no UUID");
        assert!(header(0).is_none() && header(15 * 4096).is_none() && header(16 * 4096).is_some());
        assert!(
            header(u64::MAX).is_none() && header(1 << 44).is_some() && header((1 << 44) + 4096).is_none()
        );
    }
}
