//! Addresses of ports and devices: GUIDs and GIDs.

use std::{fmt, net::Ipv4Addr};

/// A 64-bit GUID of a device.
// Exhaustive: the specification fixes the length, and so it does for a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [self.0 >> 48, self.0 >> 32, self.0 >> 16, self.0].map(|part| part & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

/// A port's 128-bit address in network order. The text form is the kernel's, which is never
/// abbreviated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns true if the table entry is empty.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// Returns the IPv4 address that the GID contains, if any.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            let separator = if i == 0 { "" } else { ":" };
            write!(f, "{separator}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

/// Protocol of an entry of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand, or RoCE v1 (Ethernet frames without IP). The kernel has one name for both.
    IbOrRoceV1,
    /// RoCE v2 (UDP and IP).
    RoceV2,
    /// Any other name.
    Other(String),
}

impl GidType {
    /// Decodes the text of a file in `gid_attrs/types`. Returns `None` if it is empty.
    #[must_use]
    pub fn parse(text: &str) -> Option<GidType> {
        match text.trim() {
            "" => None,
            "IB/RoCE v1" => Some(GidType::IbOrRoceV1),
            "RoCE v2" => Some(GidType::RoceV2),
            other => Some(GidType::Other(other.to_owned())),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidType::IbOrRoceV1 => "IB/RoCE v1",
            GidType::RoceV2 => "RoCE v2",
            GidType::Other(name) => name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_written_as_the_kernel_writes_them() {
        assert_eq!(Guid(0x0002_c903_00a1_b2c3).to_string(), "0002:c903:00a1:b2c3");
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local[15] = 1;
        let gid = Gid(link_local);
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:0000:0000:0000:0001");
        assert_eq!(gid.ipv4(), None);
        assert!(!gid.is_zero());
    }

    #[test]
    fn only_an_ipv4_mapped_gid_has_an_ipv4_address() {
        let mapped = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(mapped.ipv4(), Some(Ipv4Addr::new(192, 0, 2, 7)));
        assert_eq!(mapped.to_string(), "0000:0000:0000:0000:0000:ffff:c000:0207");
        assert_eq!(Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7]).ipv4(), None);
        assert!(Gid([0; 16]).is_zero());
        assert_eq!(Gid([0; 16]).ipv4(), None);
    }

    #[test]
    fn gid_types_are_parsed() {
        assert_eq!(GidType::parse("RoCE v2\n"), Some(GidType::RoceV2));
        assert_eq!(GidType::parse("IB/RoCE v1\n"), Some(GidType::IbOrRoceV1));
        assert_eq!(GidType::parse("RoCE v3"), Some(GidType::Other("RoCE v3".into())));
        assert_eq!(GidType::parse("\n"), None);
    }
}
