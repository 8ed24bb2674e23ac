//! The names in a server's certificate, as Go compares them.
//!
//! Source: `VerifyHostname` in Go's `crypto/x509/verify.go`.

use std::net::IpAddr;

use rustls_pki_types::{CertificateDer, ServerName};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// Whether Go accepts a name in the certificate for `name`, but webpki does not. These names end with a dot, have a
/// wildcard before a single label, or are IPv4 addresses in the form of IPv6.
pub(super) fn are_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let parsed = parse_x509_certificate(certificate);
    let Ok((_, certificate)) = &parsed else {
        return false;
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    names.value.general_names.iter().any(|presented| {
        let pair = (presented, name);
        matches!(
            pair,
            (GeneralName::DNSName(pattern), ServerName::DnsName(host))
                if matches(pattern, host.as_ref())
        ) || matches!(
            pair,
            (GeneralName::IPAddress(bytes), ServerName::IpAddress(host))
                if is_address(bytes, IpAddr::from(*host))
        )
    })
}

/// Whether the address of a certificate equals the host. An IPv4 address can have the form of IPv6.
fn is_address(presented: &[u8], host: IpAddr) -> bool {
    let as_ipv4 = <[u8; 4]>::try_from(presented).map(IpAddr::from);
    let as_ipv6 = <[u8; 16]>::try_from(presented).map(IpAddr::from);
    let presented = as_ipv4.or(as_ipv6);
    presented.is_ok_and(|presented| presented.to_canonical() == host.to_canonical())
}

/// Whether the pattern equals the host, or equals it with a wildcard as the first label.
fn matches(pattern: &str, host: &str) -> bool {
    let [pattern, host] = [pattern, host].map(str::to_ascii_lowercase);
    let relative = host.strip_suffix('.').unwrap_or(&host);
    if pattern == host || pattern == relative {
        return true;
    }
    let parent = pattern.strip_prefix("*.").filter(|it| !it.is_empty());
    let of_host = relative.split_once('.');
    of_host.is_some_and(|(label, rest)| !label.is_empty() && parent == Some(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_in_the_form_of_ipv6_is_the_same_address() {
        let [short, long] = ["10.0.0.1", "::ffff:10.0.0.1"].map(|it| it.parse().unwrap());
        let cases: [(&[u8], bool); 6] = [
            (&[10, 0, 0, 1], true),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1], true),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1], false),
            (&[10, 0, 0, 2], false),
            (&[10, 0, 0, 1, 255, 255, 255, 255], false),
            (&[], false),
        ];
        for (presented, expected) in cases {
            for host in [short, long] {
                assert_eq!(is_address(presented, host), expected, "{presented:?}");
            }
        }
    }

    #[test]
    fn tls_names_are_compared_as_in_go() {
        for (pattern, host, expected) in [
            ("api.example", "api.example", true),
            ("API.example", "api.Example", true),
            ("api.example", "api.example.", true),
            ("api.example.", "api.example.", true),
            ("api.example.", "api.example", false),
            ("*.example", "api.example", true),
            ("*.example", "api.example.", true),
            ("*.example", "example", false),
            ("*.example", ".example", false),
            ("*.example", "a.api.example", false),
            ("*.example.", "api.example", false),
            ("a*.example", "api.example", false),
            ("*.*.example", "a.api.example", false),
            ("*", "example", false),
            ("*.", "example.", false),
            ("my_api.example", "my_api.example", true),
        ] {
            assert_eq!(matches(pattern, host), expected, "{pattern} {host}");
        }
    }
}
