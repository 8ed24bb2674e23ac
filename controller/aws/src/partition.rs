//! The AWS partitions: the partition of a region, and the STS host for a region.
//!
//! The table is part of this project, so that a name from a node never becomes a host. A new region is recognized by
//! the form of its name, as in the SDKs (`partitions.json` in botocore). The document signer of such a region comes
//! from the operator's file.

use std::collections::BTreeSet;
use std::str::FromStr;

use kubelet_attestation::evidence::aws::is_region;
use rustls::pki_types::ServerName;
use url::{Host, Url};

/// A part of AWS with separate accounts, credentials and names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// The name of the partition, which is the second part of every ARN.
    pub(crate) name: &'static str,
    dns_suffix: &'static str,
    /// The first region, which every account can use.
    pub(crate) home: &'static str,
}

const AWS: Partition = partition("aws", "amazonaws.com", "us-east-1");

/// The areas of the partition `aws`: the first of the three parts of a region's name.
const AREAS: [&str; 9] = ["af", "ap", "ca", "eu", "il", "me", "mx", "sa", "us"];

/// The other partitions, by the prefix of their region names. Two more parts of the name follow the prefix.
const OTHERS: [(&str, Partition); 7] = [
    ("cn-", partition("aws-cn", "amazonaws.com.cn", "cn-north-1")),
    (
        "us-gov-",
        partition("aws-us-gov", "amazonaws.com", "us-gov-west-1"),
    ),
    (
        "eusc-de-",
        partition("aws-eusc", "amazonaws.eu", "eusc-de-east-1"),
    ),
    (
        "us-iso-",
        partition("aws-iso", "c2s.ic.gov", "us-iso-east-1"),
    ),
    (
        "us-isob-",
        partition("aws-iso-b", "sc2s.sgov.gov", "us-isob-east-1"),
    ),
    (
        "eu-isoe-",
        partition("aws-iso-e", "cloud.adc-e.uk", "eu-isoe-west-1"),
    ),
    (
        "us-isof-",
        partition("aws-iso-f", "csp.hci.ic.gov", "us-isof-south-1"),
    ),
];

const fn partition(name: &'static str, dns_suffix: &'static str, home: &'static str) -> Partition {
    Partition {
        name,
        dns_suffix,
        home,
    }
}

/// The domains of all partitions, without duplicates.
pub(crate) fn domains() -> impl Iterator<Item = &'static str> {
    let others = OTHERS.iter().map(|(_, partition)| partition.dns_suffix);
    let domains: BTreeSet<_> = others.chain([AWS.dns_suffix]).collect();
    domains.into_iter()
}

/// The partition of a region. `None` if the name does not have the form of a region name in a known partition.
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
    let is_ours = || AREAS.iter().any(|area| below(&format!("{area}-")));
    match other {
        Some((_, partition)) => Some(*partition),
        None => is_ours().then_some(AWS),
    }
}

/// The host of an HTTPS endpoint, including the port unless it is 443. The text is the exact value of the `host`
/// header, so that the node and the controller sign the same value.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointHost(String);

/// The error for a text that is not an endpoint host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must contain only a lower-case host name, and a port if it is not 443")]
pub struct InvalidHost;

impl EndpointHost {
    /// The regional STS endpoint. `None` if the partition of the region is unknown.
    pub fn sts(region: &str) -> Option<Self> {
        let partition = of_region(region)?;
        Some(Self(format!("sts.{region}.{}", partition.dns_suffix)))
    }

    /// The value of the `host` header.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EndpointHost {
    type Err = InvalidHost;

    fn from_str(host: &str) -> Result<Self, InvalidHost> {
        let text = format!("https://{host}/");
        let url = Url::parse(&text).map_err(|_| InvalidHost)?;
        // The URL must be normalized, and contain only a host and an optional port other than 443.
        let is_normal = url.as_str() == text && url.port() != Some(0) && !host.contains(['/', '@']);
        let is_host = match url.host() {
            Some(Host::Domain(name)) => is_name(name),
            Some(Host::Ipv4(_) | Host::Ipv6(_)) => true,
            None => false,
        };
        if is_normal && is_host {
            Ok(Self(host.to_owned()))
        } else {
            Err(InvalidHost)
        }
    }
}

/// A host name (RFC 1123 section 2.1) without a final dot.
fn is_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok() && !name.contains('_') && !name.ends_with('.')
}

#[cfg(test)]
mod tests;
