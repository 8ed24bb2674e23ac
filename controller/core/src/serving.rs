//! The names and addresses in kubelet serving certificates.

use std::fmt::Debug;
use std::mem;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use kubelet_attestation::names::NodeName;

use crate::identifiers::ServingName;
use crate::refusal::Unavailable;
use crate::unshared::Unshared;

/// The names that serving certificates in one cluster must never contain, the ranges for their addresses, and the
/// sources of a machine's names.
#[derive(Debug, Clone, Default)]
pub struct ServingPolicy {
    /// The host names, in lower case, and the addresses of the control-plane endpoint.
    pub endpoint_hosts: Vec<String>,
    /// The addresses of the cluster's Services.
    pub service_ranges: ServiceRanges,
    /// The allowed ranges for the machine's addresses in a certificate. If empty, all addresses are allowed.
    pub address_ranges: Vec<AddressRange>,
    /// The source for the addresses that a node reports itself. `None` if only addresses from the infrastructure are
    /// accepted.
    pub node_reported: Option<Arc<dyn NodeReportedAddresses>>,
}

/// The Service addresses of one cluster. All clones share the ranges. Until the ranges are known, the controller does
/// not sign a certificate for an address that software on the machine can choose.
#[derive(Debug, Clone, Default)]
pub struct ServiceRanges(Arc<Unshared<ReadRanges>>);

#[derive(Debug, Default)]
struct ReadRanges {
    /// Sorted and disjoint, so that a lookup reads only a few ranges. A request contains up to 1,024 addresses, and an
    /// API server that a tenant operates can report 1,000 ranges.
    ranges: Vec<AddressRange>,
    are_all: bool,
}

/// Sorts the ranges, and removes each range that another range contains. Two CIDR ranges can overlap only if one of
/// them contains the other.
fn disjoint(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable_by_key(|range| (range.network(), range.prefix_len()));
    ranges.dedup_by(|next, before| before.contains(&next.network()));
    ranges
}

impl ServiceRanges {
    /// Creates the ranges. `are_all` means that the cluster has no other ranges.
    pub fn new(ranges: Vec<AddressRange>, are_all: bool) -> Self {
        let known = Self::default();
        known.set(ranges, are_all);
        known
    }

    /// Replaces the ranges.
    pub fn set(&self, ranges: Vec<AddressRange>, are_all: bool) {
        let ranges = disjoint(ranges);
        *self.0.lock() = ReadRanges { ranges, are_all };
    }

    /// Adds ranges. All ranges count as known if `are_all` is set, or if they were already known.
    pub fn add(&self, ranges: Vec<AddressRange>, are_all: bool) {
        let mut known = self.0.lock();
        let mut all = mem::take(&mut known.ranges);
        all.extend(ranges);
        known.ranges = disjoint(all);
        known.are_all |= are_all;
    }

    /// Whether all ranges are known.
    pub fn are_known(&self) -> bool {
        let known = self.0.lock();
        known.are_all
    }

    /// Whether a known range contains the address.
    pub(crate) fn contain(&self, address: &IpAddr) -> bool {
        let known = self.0.lock();
        let ranges = &known.ranges;
        let after = ranges.partition_point(|range| range.network() <= *address);
        let before = after.checked_sub(1).and_then(|index| ranges.get(index));
        before.is_some_and(|range| range.contains(address))
    }
}

/// Reads the addresses that nodes report about themselves.
#[async_trait::async_trait]
pub trait NodeReportedAddresses: Debug + Send + Sync {
    /// Reads the names and addresses from the Node's status. The list is empty if the Node does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error for an outage.
    async fn names(&self, node_name: &NodeName) -> Result<Vec<ServingName>, Unavailable>;
}

/// A range of addresses with a common prefix, as in CIDR notation (RFC 4632, RFC 4291 section 2.3).
#[derive(Debug, derive_more::Deref, derive_more::Display, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Parses a range as kube-apiserver does, which ignores the host bits. `None` if the text is not an address range.
    pub fn lenient(text: &str) -> Option<Self> {
        let range = text.parse::<IpNet>().ok()?.trunc();
        (!is_ipv4_in_ipv6(range)).then_some(Self(range))
    }
}

/// Creates the range that contains only this address.
impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

/// A string that is not an address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an address range must have the form <network>/<prefix length>, without host bits and without IPv4-mapped IPv6, \
     such as 10.0.0.0/8 or 2001:db8::/32"
)]
pub struct InvalidAddressRange;

impl FromStr for AddressRange {
    type Err = InvalidAddressRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let range: IpNet = text.parse().map_err(|_| InvalidAddressRange)?;
        // `IpNet` also accepts host bits.
        (range == range.trunc() && !is_ipv4_in_ipv6(range))
            .then_some(Self(range))
            .ok_or(InvalidAddressRange)
    }
}

/// Whether all addresses in the range are IPv4-mapped (RFC 4291 section 2.5.5.2). No certificate contains these
/// addresses.
fn is_ipv4_in_ipv6(range: IpNet) -> bool {
    let first = range.network();
    range.prefix_len() >= 96 && first.to_canonical() != first
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn range(text: &str) -> Result<AddressRange, InvalidAddressRange> {
        text.parse()
    }

    #[test]
    fn a_range_contains_only_addresses_with_its_prefix() {
        for (text, address, expected) in [
            ("10.96.0.0/12", "10.96.0.1", true),
            ("10.96.0.0/12", "10.111.255.255", true),
            ("10.96.0.0/12", "10.112.0.0", false),
            ("10.96.0.1/32", "10.96.0.1", true),
            ("10.96.0.1/32", "10.96.0.2", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("fd00:10::/108", "fd00:10::f:ffff", true),
            ("fd00:10::/108", "fd00:10::10:0", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "192.0.2.1", false),
            // An operator must write an IPv4 range in IPv4 notation.
            ("::/0", "::ffff:192.0.2.1", true),
            ("0.0.0.0/0", "::ffff:192.0.2.1", false),
        ] {
            let contains = range(text)
                .unwrap()
                .contains(&address.parse::<IpAddr>().unwrap());
            assert_eq!(contains, expected, "{address} of {text}");
        }
    }

    #[test]
    fn only_disjoint_service_ranges_are_kept() {
        let ranges = |texts: &[&str]| {
            let ranges = texts.iter().map(|text| range(text).unwrap());
            ranges.collect::<Vec<_>>()
        };
        let known = ServiceRanges::new(
            ranges(&["10.96.1.0/24", "fd00::/108", "10.96.0.0/12"]),
            true,
        );
        known.add(
            ranges(&["10.96.0.0/12", "10.0.0.0/16", "10.96.0.1/32"]),
            false,
        );

        let kept: Vec<String> = known
            .0
            .lock()
            .ranges
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(kept, ["10.0.0.0/16", "10.96.0.0/12", "fd00::/108"]);
        assert!(known.are_known());
    }

    #[test]
    fn an_address_is_found_in_each_of_many_service_ranges() {
        let number = |number: u32| Ipv4Addr::from(0x0a00_0000 + number * 4);
        let ranges = (0..1000).map(|one| format!("{}/31", number(one)));
        let ranges = ranges.chain(["fd00::/108".to_owned()]);
        let ranges: Vec<_> = ranges.map(|text| range(&text).unwrap()).rev().collect();
        let known = ServiceRanges::new(ranges, true);

        for one in 0..1000 {
            let first = u32::from(number(one));
            for (offset, expected) in [(0, true), (1, true), (2, false), (3, false)] {
                let address = IpAddr::from(Ipv4Addr::from(first + offset));
                assert_eq!(known.contain(&address), expected, "{address}");
            }
        }
        for (address, expected) in [
            ("9.255.255.255", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("fd00::f:ffff", true),
            ("fd00::10:0", false),
        ] {
            let contains = known.contain(&address.parse().unwrap());
            assert_eq!(contains, expected, "{address}");
        }
    }

    #[test]
    fn a_malformed_address_range_is_refused() {
        for text in [
            "",
            "10.96.0.0",
            "10.96.0.0/",
            "10.96.0.0/33",
            "10.96.0.1/12",
            "/12",
            "10.96/12",
            "10.96.0.0/+12",
            "10.96.0.0/-1",
            "::/129",
            "::ffff:10.96.0.0/108",
            "::ffff:0:0/96",
            "2001:db8::/32/",
            " 10.96.0.0/12",
            "x/8",
        ] {
            assert_eq!(range(text), Err(InvalidAddressRange), "{text}");
        }
    }

    #[test]
    fn a_range_with_bits_after_the_prefix_is_parsed_as_in_kubernetes() {
        for (text, expected) in [
            ("10.96.0.1/12", Some("10.96.0.0/12")),
            ("10.96.0.0/12", Some("10.96.0.0/12")),
            ("fd00::1/108", Some("fd00::/108")),
            ("::ffff:10.96.0.0/108", None),
            ("10.96.0.0", None),
            ("10.96.0.0/12 ", None),
        ] {
            let read = AddressRange::lenient(text).map(|range| range.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }
}
