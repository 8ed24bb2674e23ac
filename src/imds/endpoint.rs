//! The setting `aws.metadataEndpoint`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::failure::Invalid;
use crate::settings::{Setting, Value};

/// The setting, for providers that can run on EC2 instances.
pub const METADATA_ENDPOINT: Setting<MetadataEndpoint> = Setting::new(
    "aws.metadataEndpoint",
    "aws-metadata-endpoint",
    "URL",
    "URL of the instance metadata service",
)
.otherwise("169.254.169.254, then [fd00:ec2::254]");

/// The endpoint of the instance metadata service. It is an IP address, so that no resolver can influence the machine's
/// identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataEndpoint(SocketAddr);

impl fmt::Display for MetadataEndpoint {
    /// The URL without a path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            80 if self.0.is_ipv6() => write!(f, "http://[{}]", self.0.ip()),
            80 => write!(f, "http://{}", self.0.ip()),
            _ => write!(f, "http://{}", self.0),
        }
    }
}

impl Value for MetadataEndpoint {
    /// Accepts `http://<address>`, with or without a port.
    fn read(text: &str) -> Result<Self, Invalid> {
        let needed = || Invalid::needed("http:// and an IP address, with or without a port");
        let address = text.strip_prefix("http://").ok_or_else(needed)?;
        let address = address.strip_suffix('/').unwrap_or(address);
        let unbracketed = address.trim_start_matches('[').trim_end_matches(']');
        let without_port = || unbracketed.parse::<IpAddr>().map(|ip| (ip, 80).into());
        address
            .parse::<SocketAddr>()
            .or_else(|_| without_port())
            .map(Self)
            .map_err(|_| needed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_endpoint_that_is_not_an_address_url_is_refused() {
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
            let error = MetadataEndpoint::read(text).unwrap_err().to_string();
            let expected = "must be http:// and an IP address, with or without a port";
            assert_eq!(error, expected, "{text}");
        }
    }
}
