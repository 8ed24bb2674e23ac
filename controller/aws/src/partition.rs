//! The partitions of AWS: which one a region is in, and where its STS answers.
//!
//! The table is this project's own, so that no name that comes from a node makes a host. A region of
//! tomorrow is found by the form of its name, as the SDKs find it (`partitions.json` of botocore);
//! its signer comes from the operator's file.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use kubelet_attestation::evidence::aws::is_region;

/// The longest name that DNS has (RFC 1035 section 2.3.4).
const MAX_HOST_LEN: usize = 253;
const MAX_LABEL_LEN: usize = 63;
const HTTPS_PORT: u16 = 443;

/// A part of AWS with accounts, credentials and names of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    name: &'static str,
    dns_suffix: &'static str,
}

impl Partition {
    /// Its name, as the second part of every ARN has it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Below which its services answer.
    pub fn dns_suffix(&self) -> &'static str {
        self.dns_suffix
    }
}

const AWS: Partition = partition("aws", "amazonaws.com");

/// Areas of the partition `aws`: the first part of a region's name, which has two more.
const AREAS: [&str; 9] = ["af", "ap", "ca", "eu", "il", "me", "mx", "sa", "us"];

/// The other partitions, by what their regions' names begin with; two more parts follow.
const OTHERS: [(&str, Partition); 7] = [
    ("cn-", partition("aws-cn", "amazonaws.com.cn")),
    ("us-gov-", partition("aws-us-gov", "amazonaws.com")),
    ("eusc-de-", partition("aws-eusc", "amazonaws.eu")),
    ("us-iso-", partition("aws-iso", "c2s.ic.gov")),
    ("us-isob-", partition("aws-iso-b", "sc2s.sgov.gov")),
    ("eu-isoe-", partition("aws-iso-e", "cloud.adc-e.uk")),
    ("us-isof-", partition("aws-iso-f", "csp.hci.ic.gov")),
];

const fn partition(name: &'static str, dns_suffix: &'static str) -> Partition {
    Partition { name, dns_suffix }
}

/// The partition of a region; `None` for what has no form of a region's name that is known.
pub fn of_region(region: &str) -> Option<Partition> {
    if !is_region(region) {
        return None;
    }
    let below = |prefix: &str| {
        region
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.split('-').count() == 2)
    };
    let other = OTHERS.iter().find(|(prefix, _)| below(prefix));
    let ours = || {
        AREAS
            .iter()
            .any(|area| below(&format!("{area}-")))
            .then_some(AWS)
    };
    other.map(|(_, partition)| *partition).or_else(ours)
}

/// The host of an HTTPS endpoint, with its port where that is not 443: what `host` says in a request,
/// byte for byte, so that node and controller sign the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointHost(String);

/// This is no host of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an endpoint is a lower-case host name, with a port where that is not 443, and nothing else"
)]
pub struct InvalidHost;

impl EndpointHost {
    /// The regional endpoint of STS; `None` where the region's partition is unknown.
    pub fn sts(region: &str) -> Option<Self> {
        let partition = of_region(region)?;
        Some(Self(format!("sts.{region}.{}", partition.dns_suffix)))
    }

    /// As `host` has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EndpointHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for EndpointHost {
    type Err = InvalidHost;

    fn from_str(host: &str) -> Result<Self, InvalidHost> {
        let (name, port) = match host.rsplit_once(':') {
            // A bare address of version 6 ends with its bracket.
            Some((name, port)) if !host.ends_with(']') => (name, Some(port)),
            Some(_) | None => (host, None),
        };
        let valid_port = port.is_none_or(|port| {
            !port.starts_with(['0', '+'])
                && port.parse::<u16>().is_ok_and(|number| number != HTTPS_PORT)
        });
        if valid_port && (is_name(name) || is_address(name)) {
            Ok(Self(host.to_owned()))
        } else {
            Err(InvalidHost)
        }
    }
}

/// RFC 1123 section 2.1, in lower case, with a last label that is no number: an address is none.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_LEN).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= MAX_HOST_LEN
        && name.split('.').all(is_label)
        && name
            .rsplit('.')
            .next()
            .is_some_and(|last| last.starts_with(|c: char| c.is_ascii_lowercase()))
}

/// An address in its one normal form; of version 6 in brackets (RFC 3986 section 3.2.2).
fn is_address(address: &str) -> bool {
    let bracketed = address
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(inner) => inner
            .parse::<Ipv6Addr>()
            .is_ok_and(|parsed| parsed.to_string() == inner),
        None => address
            .parse::<IpAddr>()
            .is_ok_and(|parsed| parsed.is_ipv4()),
    }
}

#[cfg(test)]
mod tests;
