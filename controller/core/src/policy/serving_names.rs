//! The names in a request for a serving certificate. These checks do not determine which machine has a name.

use std::collections::HashSet;
use std::net::IpAddr;

use kubelet_attestation::ensure;
use kubelet_attestation::names::NodeName;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::identifiers::ServingName;
use crate::refusal::Denial;
use crate::serving::ServingPolicy;

/// The maximum number of names, each of which is looked up. A kubelet requests all addresses of its Node. These include
/// pod addresses if a network plugin assigns them to the machine's interfaces.
const MAX_NAMES: usize = 1024;

/// Parses the value of the extension: DNS names and addresses, in canonical form and without duplicates.
pub(crate) fn parse(value: &[u8]) -> Result<Vec<ServingName>, Denial> {
    let malformed = |_| Denial::ServingNameKind("unknown");
    let extension = SubjectAltName::from_der(value).map_err(malformed)?;
    if extension.to_der().map_err(malformed)? != value {
        return Err(Denial::ServingNameKind("unknown"));
    }
    let count = extension.0.len();
    ensure!(count != 0, Denial::ServingNamesMissing);
    ensure!(count <= MAX_NAMES, Denial::TooManyServingNames(count));
    let (mut names, mut seen) = (Vec::with_capacity(count), HashSet::with_capacity(count));
    for name in &extension.0 {
        let name = serving_name(name)?;
        let is_new = seen.insert(name.clone());
        ensure!(is_new, Denial::ServingNameRepeated(name));
        names.push(name);
    }
    Ok(names)
}

fn serving_name(name: &GeneralName) -> Result<ServingName, Denial> {
    let kind = match name {
        GeneralName::DnsName(name) => return dns_name(name.as_str()),
        GeneralName::IpAddress(octets) => return address(octets.as_bytes()),
        GeneralName::OtherName(_) => "otherName",
        GeneralName::Rfc822Name(_) => "email",
        GeneralName::DirectoryName(_) => "directoryName",
        GeneralName::EdiPartyName(_) => "ediPartyName",
        GeneralName::UniformResourceIdentifier(_) => "URI",
        GeneralName::RegisteredId(_) => "registeredID",
    };
    Err(Denial::ServingNameKind(kind))
}

/// Parses a DNS name, which has the form of a node name: no wildcard, no upper case, no final dot. Checks that no
/// machine except `machine` has the name.
fn dns_name(text: &str) -> Result<ServingName, Denial> {
    if NodeName::parse(text).is_ok() && text.parse::<IpAddr>().is_err() {
        Ok(ServingName::Dns(text.to_owned()))
    } else {
        Err(Denial::ServingNameMalformed(text.to_owned()))
    }
}

fn address(octets: &[u8]) -> Result<ServingName, Denial> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    match v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)) {
        // An IPv4-mapped address is an alternative form of an IPv4 address (RFC 4291 section 2.5.5.2).
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Err(Denial::ServingNameMalformed(address.to_string()))
        }
        Ok(address) => Ok(ServingName::Ip(address)),
        Err(_) => Err(Denial::ServingNameMalformed(
            data_encoding::HEXLOWER.encode(octets),
        )),
    }
}

/// Rejects names that cannot belong to a machine, regardless of any reports.
pub(crate) fn not_reserved(name: &ServingName, policy: &ServingPolicy) -> Result<(), Denial> {
    let reserved = match name {
        ServingName::Dns(name) => is_reserved_name(name) || is_endpoint_name(name, policy),
        ServingName::Ip(address) => {
            is_no_host(*address)
                || is_endpoint_address(*address, policy)
                || policy.service_ranges.contain(address)
        }
    };
    if reserved {
        Err(Denial::ServingNameReserved(name.clone()))
    } else {
        Ok(())
    }
}

/// Rejects an address outside the ranges that an operator configured. Without ranges, every address is accepted. DNS
/// names are not limited.
pub(crate) fn in_range(name: &ServingName, policy: &ServingPolicy) -> Result<(), Denial> {
    let ranges = &policy.address_ranges;
    match name {
        ServingName::Ip(address)
            if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(address)) =>
        {
            Err(Denial::ServingAddressOutOfRange(*address))
        }
        ServingName::Ip(_) | ServingName::Dns(_) => Ok(()),
    }
}

/// `localhost` and its subdomains (RFC 6761 section 6.3), `kubernetes` and names whose first label is `kubernetes`, and
/// the names of Services.
fn is_reserved_name(name: &str) -> bool {
    let mut labels = name.split('.');
    let first = labels.next();
    let last = name.rsplit('.').next();
    first == Some("kubernetes") || last == Some("localhost") || labels.any(|label| label == "svc")
}

fn is_endpoint_name(name: &str, policy: &ServingPolicy) -> bool {
    let mut hosts = policy.endpoint_hosts.iter();
    hosts.any(|host| host.trim_end_matches('.').eq_ignore_ascii_case(name))
}

fn is_endpoint_address(address: IpAddr, policy: &ServingPolicy) -> bool {
    let mut hosts = policy.endpoint_hosts.iter();
    hosts.any(|host| {
        let host = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host.is_ok_and(|host| host.to_canonical() == address)
    })
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
