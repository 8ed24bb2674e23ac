//! The partitions of AWS: which one a region is in, and where its STS answers.
//!
//! The table is this project's own, so that no name that comes from a node makes a host. A region of
//! tomorrow is found by the form of its name, as the SDKs find it (`partitions.json` of botocore);
//! its signer comes from the operator's file.

use std::str::FromStr;

use kubelet_attestation::evidence::aws::is_region;
use rustls::pki_types::ServerName;
use url::{Host, Url};

/// A part of AWS with accounts, credentials and names of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Its name, as the second part of every ARN has it.
    pub(crate) name: &'static str,
    dns_suffix: &'static str,
    /// The first region, which every account has.
    pub(crate) home: &'static str,
}

const AWS: Partition = partition("aws", "amazonaws.com", "us-east-1");

/// Areas of the partition `aws`: the first part of a region's name, which has two more.
const AREAS: [&str; 9] = ["af", "ap", "ca", "eu", "il", "me", "mx", "sa", "us"];

/// The other partitions, by what their regions' names begin with; two more parts follow.
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
    let is_ours = || AREAS.iter().any(|area| below(&format!("{area}-")));
    match other {
        Some((_, partition)) => Some(*partition),
        None => is_ours().then_some(AWS),
    }
}

/// The host of an HTTPS endpoint, with its port where that is not 443: what `host` says in a request,
/// byte for byte, so that node and controller sign the same.
#[derive(derive_more::Display, Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

impl FromStr for EndpointHost {
    type Err = InvalidHost;

    fn from_str(host: &str) -> Result<Self, InvalidHost> {
        let text = format!("https://{host}/");
        let url = Url::parse(&text).map_err(|_| InvalidHost)?;
        // A URL in its normal form, of nothing but a host and a port other than 443.
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

/// RFC 1123 section 2.1, without a dot at the end.
fn is_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok() && !name.contains('_') && !name.ends_with('.')
}

#[cfg(test)]
mod tests;
