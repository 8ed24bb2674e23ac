//! The names in a server's certificate, as Go compares them.
//!
//! Source: `VerifyHostname` in Go's `crypto/x509/verify.go`.

use rustls_pki_types::{CertificateDer, ServerName};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// Whether Go accepts a DNS name in the certificate for `name`, but webpki does not. These names end with a dot, or
/// have a wildcard before a single label.
pub(super) fn are_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    let ServerName::DnsName(name) = name else {
        return false;
    };
    let parsed = parse_x509_certificate(certificate);
    let Ok((_, certificate)) = &parsed else {
        return false;
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    names.value.general_names.iter().any(|presented| {
        matches!(presented, GeneralName::DNSName(pattern) if matches(pattern, name.as_ref()))
    })
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
