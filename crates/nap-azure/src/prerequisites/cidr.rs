//! Ranges of IPv4 addresses.

use std::fmt;
use std::net::Ipv4Addr;

/// Addresses that Azure keeps of every subnet.
pub(super) const RESERVED_ADDRESSES: u64 = 5;

/// A range of IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cidr {
    first: u32,
    /// Length of the prefix, from 0 to 32.
    pub prefix: u32,
}

impl Cidr {
    /// Parses `10.0.0.0/16`, or one address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.trim().split_once('/').unwrap_or((text.trim(), "32"));
        let address: Ipv4Addr = address.parse().ok()?;
        let prefix: u32 = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
        Some(Self { first: u32::from(address) & mask, prefix })
    }

    /// Number of addresses.
    pub fn addresses(self) -> u64 {
        1 << (32 - self.prefix)
    }

    /// Whether every address of the other range is in this one.
    pub fn contains(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.shares_first_bits(other)
    }

    /// Whether the ranges have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Whether every address is private: not reached through the Internet.
    pub fn is_private(self) -> bool {
        ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"]
            .iter()
            .filter_map(|range| Self::parse(range))
            .any(|range| range.contains(self))
    }

    fn shares_first_bits(self, other: Self) -> bool {
        let shift = 32 - self.prefix;
        self.first.checked_shr(shift) == other.first.checked_shr(shift)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap()
    }

    #[test]
    fn ranges_are_parsed_and_compared() {
        assert_eq!(cidr("10.1.2.3/16").to_string(), "10.1.0.0/16");
        assert_eq!(cidr("10.1.2.3").to_string(), "10.1.2.3/32");
        assert_eq!(cidr("172.19.0.0/28").addresses(), 16);
        assert!(cidr("0.0.0.0/0").contains(cidr("10.0.0.0/8")));
        assert!(cidr("10.0.0.0/8").overlaps(cidr("10.244.0.0/16")));
        assert!(cidr("10.244.0.0/16").overlaps(cidr("10.0.0.0/8")));
        assert!(!cidr("10.244.0.0/16").overlaps(cidr("10.245.0.0/16")));
        assert!(cidr("10.0.0.0/8").is_private() && !cidr("0.0.0.0/0").is_private());
        for bad in ["", "10.0.0.0/33", "fd00::/64", "VirtualNetwork"] {
            assert_eq!(Cidr::parse(bad), None, "{bad}");
        }
    }
}
