//! The names and addresses in a kubelet's serving certificate.
//!
//! The signer cannot determine which machine has a name. It rejects names that cannot belong to a machine, and the
//! reserved names in the file of the CA.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The names and addresses that a kubelet is not allowed to have, in addition to the names and addresses that no host
/// can have.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    pub(crate) names: Vec<ReservedName>,
    pub(crate) addresses: Vec<ReservedAddress>,
}

/// A DNS name in lower case, without a final dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReservedName(String);

/// An address, or an address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReservedAddress(IpNet);

/// A string that is not a DNS name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not a DNS name")]
pub(crate) struct InvalidName;

/// A string that is neither an address nor an address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not an address, or a range such as 10.96.0.0/12")]
pub(crate) struct InvalidAddress;

impl FromStr for ReservedName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if is_dns_name(&name) {
            Ok(Self(name))
        } else {
            Err(InvalidName)
        }
    }
}

impl FromStr for ReservedAddress {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_canonical().into()));
        }
        text.parse().map(Self).map_err(|_| InvalidAddress)
    }
}

/// Checks that each name is a DNS name or an address in the form that the controller writes, and that it is not
/// reserved.
///
/// # Errors
///
/// Returns the reason for the first invalid name.
pub(crate) fn check(names: &SubjectAltName, reserved: &Reserved) -> Result<(), &'static str> {
    names.0.iter().try_for_each(|name| match name {
        GeneralName::DnsName(name) => check_dns_name(name.as_str(), reserved),
        GeneralName::IpAddress(octets) => check_address(octets.as_bytes(), reserved),
        GeneralName::OtherName(_)
        | GeneralName::Rfc822Name(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EdiPartyName(_)
        | GeneralName::UniformResourceIdentifier(_)
        | GeneralName::RegisteredId(_) => {
            Err("it has a name that is neither a DNS name nor an address")
        }
    })
}

fn check_dns_name(name: &str, reserved: &Reserved) -> Result<(), &'static str> {
    if !is_dns_name(name) {
        return Err("it has a malformed DNS name");
    }
    let is_reserved = reserved.names.iter().any(|other| other.0 == name);
    if is_reserved || is_of_no_machine(name) {
        return Err("it has a DNS name that is reserved");
    }
    Ok(())
}

fn check_address(octets: &[u8], reserved: &Reserved) -> Result<(), &'static str> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from));
    let Ok(address) = address else {
        return Err("it has a malformed address");
    };
    // An IPv4-mapped address is an alternative form of an IPv4 address (RFC 4291 section 2.5.5.2).
    if address.to_canonical() != address {
        return Err("it has a malformed address");
    }
    let mut ranges = reserved.addresses.iter();
    if is_no_host(address) || ranges.any(|range| range.0.contains(&address)) {
        return Err("it has an address that is reserved");
    }
    Ok(())
}

/// Whether the text consists of labels with lower-case letters, digits and hyphens, without a final dot or a wildcard.
/// An address in text form is rejected.
fn is_dns_name(name: &str) -> bool {
    let is_of_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut labels = name.split('.');
    labels.all(|label| !label.is_empty() && label.bytes().all(is_of_label))
        && name.parse::<IpAddr>().is_err()
}

/// `localhost` and its subdomains (RFC 6761 section 6.3), names whose first label is `localhost` or `kubernetes`, and
/// the names of Services.
fn is_of_no_machine(name: &str) -> bool {
    let mut labels = name.split('.');
    let first = labels.next();
    let last = name.rsplit('.').next();
    let is_loopback = first == Some("localhost") || last == Some("localhost");
    is_loopback || first == Some("kubernetes") || labels.any(|label| label == "svc")
}

/// Addresses that cannot belong to a host: loopback, unspecified, multicast, broadcast and link-local addresses.
fn is_no_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_link_local()
                // "This network" (RFC 1122 section 3.2.1.3), which includes 0.0.0.0.
                || address.octets().first() == Some(&0)
        }
        IpAddr::V6(address) => {
            // The IPv4-compatible addresses (RFC 4291 section 2.5.5.1), including the unspecified and the loopback
            // address.
            address.to_bits() <= u128::from(u32::MAX)
                || address.is_multicast()
                || address.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use x509_cert::der::asn1::{Ia5String, OctetString};

    use super::*;

    fn dns(name: &str) -> GeneralName {
        GeneralName::DnsName(Ia5String::new(name).unwrap())
    }

    fn address(octets: &[u8]) -> GeneralName {
        GeneralName::IpAddress(OctetString::new(octets).unwrap())
    }

    fn ip(address: &str) -> GeneralName {
        GeneralName::from(address.parse::<IpAddr>().unwrap())
    }

    /// The result of the check, if an API server's names and addresses are reserved.
    fn checked(name: GeneralName) -> Result<(), &'static str> {
        let reserved = Reserved {
            names: vec!["API.prod-1.example.".parse().unwrap()],
            addresses: vec![
                "203.0.113.7".parse().unwrap(),
                "10.96.0.0/12".parse().unwrap(),
                "2001:db8::7".parse().unwrap(),
            ],
        };
        // A valid first name must not hide an invalid name.
        check(&SubjectAltName(vec![dns("n1"), name]), &reserved)
    }

    #[test]
    fn the_names_and_addresses_of_a_kubelet_are_signed() {
        for name in [
            "n1",
            "ip-10-0-0-1.eu-west-1.compute.internal",
            "svc",
            "kubernetes-1",
        ] {
            assert_eq!(checked(dns(name)), Ok(()), "{name}");
        }
        for address in ["203.0.113.8", "10.112.0.1", "2001:db8::8"] {
            assert_eq!(checked(ip(address)), Ok(()), "{address}");
        }
    }

    #[test]
    fn the_names_of_the_api_server_and_of_services_are_refused() {
        for name in [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
            "webhook.tenant-a.svc",
            "webhook.tenant-a.svc.cluster.local",
            "localhost",
            "localhost.localdomain",
            "n1.localhost",
            "api.prod-1.example",
        ] {
            let expected = Err("it has a DNS name that is reserved");
            assert_eq!(checked(dns(name)), expected, "{name}");
        }
    }

    #[test]
    fn a_non_canonical_name_is_refused() {
        for name in [
            "",
            "*",
            "*.default.svc",
            "*.example",
            "Kubernetes",
            "kubernetes.",
            ".kubernetes",
            "kubernetes..default",
            "kubernetes.default.svc\0.example",
            "n1 ",
            "203.0.113.7",
            "::1",
        ] {
            let expected = Err("it has a malformed DNS name");
            assert_eq!(checked(dns(name)), expected, "{name:?}");
        }
    }

    #[test]
    fn addresses_of_the_api_server_and_special_addresses_are_refused() {
        for address in [
            "203.0.113.7",
            "10.96.0.1",
            "10.111.255.255",
            "2001:db8::7",
            "127.0.0.1",
            "127.255.0.9",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "169.254.169.254",
            "::",
            "::1",
            "::7f00:1",
            "fe80::1",
            "ff02::1",
        ] {
            let expected = Err("it has an address that is reserved");
            assert_eq!(checked(ip(address)), expected, "{address}");
        }
    }

    #[test]
    fn a_non_canonical_address_is_refused() {
        let mapped = ip("::ffff:203.0.113.7");
        let range = address(&[203, 0, 113, 0, 255, 255, 255, 0]);
        for name in [mapped, range, address(&[]), address(&[127, 0, 0])] {
            let expected = Err("it has a malformed address");
            assert_eq!(checked(name.clone()), expected, "{name:?}");
        }
    }

    #[test]
    fn names_of_other_kinds_are_refused() {
        let text = |text| Ia5String::new(text).unwrap();
        for name in [
            GeneralName::UniformResourceIdentifier(text("spiffe://example/n1")),
            GeneralName::Rfc822Name(text("n1@example")),
            GeneralName::RegisteredId(x509_cert::der::asn1::ObjectIdentifier::new_unwrap("1.2.3")),
        ] {
            let expected = Err("it has a name that is neither a DNS name nor an address");
            assert_eq!(checked(name.clone()), expected, "{name:?}");
        }
    }

    #[test]
    fn a_reservation_must_be_a_valid_name_address_or_range() {
        for text in ["", "*.example", "203.0.113.7", "a..b", "https://api"] {
            assert_eq!(text.parse::<ReservedName>(), Err(InvalidName), "{text}");
        }
        for text in ["", "api", "10.96.0.0/33", "10.96.0.0:443", "[::1]"] {
            let parsed = text.parse::<ReservedAddress>();
            assert_eq!(parsed, Err(InvalidAddress), "{text}");
        }
        let mapped: ReservedAddress = "::ffff:203.0.113.7".parse().unwrap();
        assert_eq!(mapped, "203.0.113.7".parse().unwrap());
    }
}
