//! What is set for AWS instances.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kubelet_attestation::names::NodeName;
use serde::Deserialize;

use super::error::ValueError;
use super::layer::{FromText, text};

/// What is set for AWS instances; every other provider passes it over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AwsSettings {
    /// As whom the instance calls STS.
    pub principal: AwsPrincipal,
    /// Which of the names that the cloud gives the instance its node has to have.
    pub node_name: AwsNodeName,
    /// The host of STS, where it is not the region's own.
    pub sts_endpoint: Option<StsEndpoint>,
    /// Where the instance metadata service is, where it is not at its link-local addresses.
    pub metadata_endpoint: Option<MetadataEndpoint>,
}

/// As whom an instance calls STS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AwsPrincipal {
    /// As its instance identity role, which nobody else can assume.
    #[default]
    InstanceIdentityRole,
    /// As the role of its instance profile: what its trust policy says decides who else can be it.
    InstanceProfile,
}

/// Which of the names that the cloud gives an instance its node has to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AwsNodeName {
    /// Any that the kubelet goes by and the cloud gives it.
    #[default]
    Hostname,
    /// The first of the metadata's `local-hostname`.
    LocalHostname,
    /// The instance's ID.
    InstanceId,
}

impl FromText for AwsPrincipal {
    fn read(text: &str) -> Result<Self, ValueError> {
        match text {
            "instanceIdentityRole" => Ok(Self::InstanceIdentityRole),
            "instanceProfile" => Ok(Self::InstanceProfile),
            _ => Err(ValueError::NotOneOf {
                known: &["instanceIdentityRole", "instanceProfile"],
            }),
        }
    }
}

impl FromText for AwsNodeName {
    fn read(text: &str) -> Result<Self, ValueError> {
        match text {
            "hostname" => Ok(Self::Hostname),
            "localHostname" => Ok(Self::LocalHostname),
            "instanceID" => Ok(Self::InstanceId),
            _ => Err(ValueError::NotOneOf {
                known: &["hostname", "localHostname", "instanceID"],
            }),
        }
    }
}

/// A host of STS, as a `host` header has it: a private or FIPS endpoint. The node only signs for
/// it; it is the verifier that calls it, and that has to be told the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StsEndpoint(String);

impl StsEndpoint {
    /// The host, with its port where that is not 443.
    pub fn host(&self) -> &str {
        &self.0
    }
}

impl FromText for StsEndpoint {
    /// Takes `sts.example.com`, `sts.example.com:8443`, and either as it is written in a URL.
    fn read(text: &str) -> Result<Self, ValueError> {
        let authority = text.strip_prefix("https://").unwrap_or(text);
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let authority = authority.strip_suffix(":443").unwrap_or(authority);
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
        if NodeName::parse(host).is_ok() && port.is_none_or(is_port) {
            Ok(Self(authority.to_owned()))
        } else {
            Err(ValueError::Host)
        }
    }
}

/// Where the instance metadata service is. An IP address, so that no resolver stands between the
/// machine and what tells it who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataEndpoint(SocketAddr);

impl MetadataEndpoint {
    /// The service at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self(address)
    }
}

impl fmt::Display for MetadataEndpoint {
    /// Its URL, without a path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            80 if self.0.is_ipv6() => write!(f, "http://[{}]", self.0.ip()),
            80 => write!(f, "http://{}", self.0.ip()),
            _ => write!(f, "http://{}", self.0),
        }
    }
}

impl FromText for MetadataEndpoint {
    /// Takes `http://<address>` with or without a port.
    fn read(text: &str) -> Result<Self, ValueError> {
        let address = text
            .strip_prefix("http://")
            .ok_or(ValueError::MetadataEndpoint)?;
        let address = address.strip_suffix('/').unwrap_or(address);
        let unbracketed = address.trim_start_matches('[').trim_end_matches(']');
        let without_port = || unbracketed.parse::<IpAddr>().map(|ip| (ip, 80).into());
        address
            .parse::<SocketAddr>()
            .or_else(|_| without_port())
            .map(Self)
            .map_err(|_| ValueError::MetadataEndpoint)
    }
}

/// What one source says of AWS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct AwsLayer {
    #[serde(deserialize_with = "text")]
    pub(super) principal: Option<AwsPrincipal>,
    #[serde(deserialize_with = "text")]
    pub(super) node_name: Option<AwsNodeName>,
    #[serde(deserialize_with = "text")]
    pub(super) sts_endpoint: Option<StsEndpoint>,
    #[serde(deserialize_with = "text")]
    pub(super) metadata_endpoint: Option<MetadataEndpoint>,
}

impl AwsLayer {
    /// This layer, and where it says nothing, what `lower` says.
    pub(super) fn over(self, lower: Self) -> Self {
        Self {
            principal: self.principal.or(lower.principal),
            node_name: self.node_name.or(lower.node_name),
            sts_endpoint: self.sts_endpoint.or(lower.sts_endpoint),
            metadata_endpoint: self.metadata_endpoint.or(lower.metadata_endpoint),
        }
    }

    /// The settings, with the defaults where nothing was said.
    pub(super) fn complete(self) -> AwsSettings {
        AwsSettings {
            principal: self.principal.unwrap_or_default(),
            node_name: self.node_name.unwrap_or_default(),
            sts_endpoint: self.sts_endpoint,
            metadata_endpoint: self.metadata_endpoint,
        }
    }
}

impl AwsSettings {
    /// What the digest of the settings covers of these.
    pub(super) fn digested(&self) -> [Option<Vec<u8>>; 4] {
        let of = |value: String| Some(value.into_bytes());
        [
            of(format!("{:?}", self.principal)),
            of(format!("{:?}", self.node_name)),
            self.sts_endpoint
                .as_ref()
                .map(|endpoint| endpoint.0.clone().into_bytes()),
            self.metadata_endpoint
                .map(|endpoint| endpoint.to_string().into_bytes()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_choice_names_those_there_are() {
        let error = AwsPrincipal::read("instanceRole").unwrap_err();
        assert_eq!(
            error.to_string(),
            "one of instanceIdentityRole, instanceProfile is needed"
        );
        let error = AwsNodeName::read("Hostname").unwrap_err();
        assert_eq!(
            error.to_string(),
            "one of hostname, localHostname, instanceID is needed"
        );
    }

    #[test]
    fn an_sts_endpoint_is_a_host_as_its_header_has_it() {
        for (text, host) in [
            (
                "sts-fips.us-east-1.amazonaws.com",
                "sts-fips.us-east-1.amazonaws.com",
            ),
            ("https://vpce-1.sts.vpce.test/", "vpce-1.sts.vpce.test"),
            ("https://sts.test:443", "sts.test"),
            ("sts.test:8443", "sts.test:8443"),
            ("127.0.0.1:4000", "127.0.0.1:4000"),
        ] {
            assert_eq!(StsEndpoint::read(text).unwrap().host(), host, "{text}");
        }
        for text in [
            "http://sts.test",
            "https://sts.test/path",
            "sts.test:0",
            "sts.test:x",
            "sts.test:1:2",
            "STS.test",
            "a@sts.test",
            "sts.test\r\nx: y",
            "https://",
        ] {
            assert_eq!(StsEndpoint::read(text), Err(ValueError::Host), "{text:?}");
        }
    }

    #[test]
    fn the_metadata_is_at_an_address() {
        for (text, url) in [
            ("http://169.254.169.254", "http://169.254.169.254"),
            ("http://169.254.169.254:80/", "http://169.254.169.254"),
            ("http://[fd00:ec2::254]", "http://[fd00:ec2::254]"),
            ("http://[::1]:8080", "http://[::1]:8080"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ] {
            assert_eq!(
                MetadataEndpoint::read(text).unwrap().to_string(),
                url,
                "{text}"
            );
        }
        for text in [
            "169.254.169.254",
            "https://169.254.169.254",
            "http://metadata.test",
            "http://127.0.0.1/latest",
            "http://user@127.0.0.1",
            "http://",
        ] {
            assert_eq!(
                MetadataEndpoint::read(text),
                Err(ValueError::MetadataEndpoint),
                "{text}"
            );
        }
    }
}
