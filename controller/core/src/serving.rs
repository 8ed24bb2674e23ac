//! The names and addresses in kubelet serving certificates.

use std::fmt::Debug;
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
    /// The ranges for the machine's addresses in a certificate. Empty: no limit.
    pub address_ranges: Vec<AddressRange>,
    /// The source of the addresses that a node reports itself. `None`: only addresses from the infrastructure count.
    pub guest_reported: Option<Arc<dyn NodeReportedAddresses>>,
}

/// The Service addresses of one cluster. All clones share the ranges. Until the ranges are known, no certificate is
/// signed for an address that the software on a machine can choose.
#[derive(Debug, Clone, Default)]
pub struct ServiceRanges(Arc<Unshared<ReadRanges>>);

#[derive(Debug, Default)]
struct ReadRanges {
    ranges: Vec<AddressRange>,
    are_all: bool,
}

impl ServiceRanges {
    /// Creates the ranges. If `are_all` is true, there are no other ranges.
    pub fn new(ranges: Vec<AddressRange>, are_all: bool) -> Self {
        let known = Self::default();
        known.set(ranges, are_all);
        known
    }

    /// Replaces the ranges.
    pub fn set(&self, ranges: Vec<AddressRange>, are_all: bool) {
        *self.0.lock() = ReadRanges { ranges, are_all };
    }

    /// Adds ranges. All ranges are known if `are_all` is set, or if they were known before.
    pub fn add(&self, ranges: Vec<AddressRange>, are_all: bool) {
        let mut known = self.0.lock();
        known.ranges.extend(ranges);
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
        known.ranges.iter().any(|range| range.contains(address))
    }
}

/// Reads the addresses that nodes report themselves.
#[async_trait::async_trait]
pub trait NodeReportedAddresses: Debug + Send + Sync {
    /// Reads the names and addresses in the Node's status. The list is empty if there is no Node.
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
    /// Parses a range like kube-apiserver, which ignores the bits after the prefix. `None` if the text is not a range.
    pub fn lenient(text: &str) -> Option<Self> {
        let range = text.parse::<IpNet>().ok()?.trunc();
        (!is_ipv4_in_ipv6(range)).then_some(Self(range))
    }
}

/// The range that contains only this address.
impl From<IpAddr> for AddressRange {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

/// A text that is not a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a range of addresses is <network>/<length of its prefix>, with no bit after the prefix and not as \
     IPv4 in IPv6, such as 10.0.0.0/8 or 2001:db8::/32"
)]
pub struct InvalidAddressRange;

impl FromStr for AddressRange {
    type Err = InvalidAddressRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let range: IpNet = text.parse().map_err(|_| InvalidAddressRange)?;
        // `IpNet` also accepts bits after the prefix.
        (range == range.trunc() && !is_ipv4_in_ipv6(range))
            .then_some(Self(range))
            .ok_or(InvalidAddressRange)
    }
}

/// Whether all addresses of the range are IPv4-mapped (RFC 4291 section 2.5.5.2). No certificate contains such an
/// address.
fn is_ipv4_in_ipv6(range: IpNet) -> bool {
    let first = range.network();
    range.prefix_len() >= 96 && first.to_canonical() != first
}

#[cfg(test)]
mod tests {
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
            // Whoever means IPv4 has to say so.
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
