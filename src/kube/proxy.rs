//! The proxy for a server, as Go selects it for client-go.
//!
//! Source: `golang.org/x/net/http/httpproxy`. It ignores `ALL_PROXY`, and never uses a proxy for
//! loopback.

use std::ffi::OsString;
use std::net::IpAddr;

use ipnet::IpNet;
use reqwest::Url;

use crate::secret::Secret;

/// Reads an environment variable.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The proxy for this server in the environment, if any.
pub(super) fn from_environment(
    server: &Url,
    environment: Environment<'_>,
) -> Option<Secret<String>> {
    let variable = |upper: &str, lower: &str| {
        [upper, lower]
            .into_iter()
            .filter_map(environment)
            .filter_map(|value| value.into_string().ok())
            .find(|value| !value.is_empty())
    };
    let proxy = Secret::new(variable("HTTPS_PROXY", "https_proxy")?);
    let exceptions = variable("NO_PROXY", "no_proxy").unwrap_or_default();
    let host = server
        .host_str()?
        .trim_start_matches('[')
        .trim_end_matches(']');
    let port = server.port_or_known_default()?;
    if is_loopback(host)
        || exceptions
            .split(',')
            .any(|rule| excepts(rule.trim(), host, port))
    {
        return None;
    }
    // Go takes a bare host and port for an http proxy.
    if proxy.expose().contains("://") {
        Some(proxy)
    } else {
        Some(Secret::new(format!("http://{}", proxy.expose())))
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether an entry of `NO_PROXY` matches this host: `*`, a network, an address or a domain. Only
/// an address or a domain may have a port.
fn excepts(rule: &str, host: &str, port: u16) -> bool {
    if rule.is_empty() {
        return false;
    }
    if rule == "*" {
        return true;
    }
    let address = host.parse::<IpAddr>();
    if rule.contains('/') {
        let (network, address) = (rule.parse::<IpNet>(), address);
        return network.is_ok_and(|network| address.is_ok_and(|host| network.contains(&host)));
    }
    let (name, wanted_port) = split_port(rule);
    if wanted_port.is_some_and(|wanted| wanted != port) {
        return false;
    }
    if let (Ok(wanted), Ok(found)) = (name.parse::<IpAddr>(), address) {
        return wanted == found;
    }
    let name = name.strip_prefix('*').unwrap_or(name).to_ascii_lowercase();
    match name.strip_prefix('.') {
        // ".example.com" matches subdomains of example.com, "example.com" also itself.
        Some(_) => host.ends_with(&name),
        None => {
            host == name
                || host
                    .strip_suffix(&name)
                    .is_some_and(|rest| rest.ends_with('.'))
        }
    }
}

fn split_port(rule: &str) -> (&str, Option<u16>) {
    if let Some((address, rest)) = rule.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (
            address,
            rest.strip_prefix(':').and_then(|port| port.parse().ok()),
        );
    }
    match rule.split_once(':') {
        // With more than one colon, it is an IPv6 address without brackets.
        Some((name, port)) if !port.contains(':') => (name, port.parse().ok()),
        Some(_) | None => (rule, None),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn proxy(server: &str, variables: &[(&str, &str)]) -> Option<String> {
        let environment = |name: &str| {
            let (_, value) = variables.iter().find(|(key, _)| *key == name)?;
            Some(OsString::from(value))
        };
        from_environment(&server.parse().unwrap(), &environment).map(|url| url.expose().clone())
    }

    #[test]
    fn the_environments_proxy_is_for_every_server() {
        let url = Some("http://proxy:3128".to_owned());

        for name in ["HTTPS_PROXY", "https_proxy"] {
            assert_eq!(
                proxy("https://api:6443", &[(name, "http://proxy:3128")]),
                url
            );
            assert_eq!(proxy("https://api:6443", &[(name, "proxy:3128")]), url);
        }
        assert_eq!(proxy("https://api:6443", &[("HTTPS_PROXY", "")]), None);
        assert_eq!(
            proxy("https://api:6443", &[("ALL_PROXY", "http://proxy:3128")]),
            None
        );
        assert_eq!(proxy("https://api:6443", &[]), None);
    }

    #[test]
    fn loopback_is_never_proxied() {
        for server in [
            "https://127.0.0.1:6443",
            "https://[::1]:6443",
            "https://localhost",
        ] {
            assert_eq!(
                proxy(server, &[("HTTPS_PROXY", "http://proxy")]),
                None,
                "{server}"
            );
        }
    }

    #[test]
    fn no_proxy_is_read_as_go_reads_it() {
        for (rule, server, excepted) in [
            ("*", "https://api", true),
            ("api", "https://api", true),
            ("example.com", "https://example.com", true),
            ("example.com", "https://api.example.com", true),
            ("example.com", "https://badexample.com", false),
            (".example.com", "https://api.example.com", true),
            (".example.com", "https://example.com", false),
            ("*.example.com", "https://api.example.com", true),
            ("api:6443", "https://api:6443", true),
            ("api:6443", "https://api", false),
            ("10.0.0.1", "https://10.0.0.1", true),
            ("10.0.0.1:443", "https://10.0.0.1", true),
            ("10.0.0.1", "https://10.0.0.2", false),
            ("10.0.0.0/8", "https://10.200.0.1", true),
            ("10.0.0.0/8", "https://11.0.0.1", false),
            ("0.0.0.0/0", "https://11.0.0.1", true),
            ("10.0.0.0/33", "https://10.0.0.1", false),
            ("fd00::/8", "https://[fd00::1]", true),
            ("fd00::1", "https://[fd00::1]:6443", true),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", true),
            ("fd00::/8", "https://[fe80::1]", false),
            ("other, api", "https://api", true),
            ("", "https://api", false),
        ] {
            let variables = [("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", rule)];
            assert_eq!(
                proxy(server, &variables).is_none(),
                excepted,
                "{rule} {server}"
            );
        }
    }
}
