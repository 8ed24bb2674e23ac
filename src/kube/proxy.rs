//! The proxy for a server, as Go selects it for client-go.
//!
//! Source: `golang.org/x/net/http/httpproxy`. Go ignores `ALL_PROXY`, and never uses a proxy for loopback addresses.

mod failure;

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use kubelet_attestation::kubeconfig::{ClusterEndpoint, proxy_url};
use reqwest::Url;

use super::kubeconfig::Refused;
use crate::secret::Secret;

pub(super) use failure::{Failed, connect_status};

/// Reads an environment variable.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A proxy, and the field or variable that specifies it. `Display` and `Debug` do not show the user name or the password.
#[derive(derive_more::Debug)]
#[debug("{self}")]
pub(super) struct ProxyServer {
    url: Secret<String>,
    /// The URL without user and password.
    shown: String,
    source: &'static str,
    pub(super) is_socks: bool,
}

impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy {} ({})", self.shown, self.source)
    }
}

impl ProxyServer {
    /// Returns the proxy for this endpoint: the proxy in its fields, or otherwise the proxy in the environment. The
    /// error contains the name of the invalid field or variable.
    pub(super) fn of(
        endpoint: &ClusterEndpoint,
        environment: Environment<'_>,
    ) -> Result<Option<Self>, (&'static str, Refused)> {
        if let Some(proxy) = endpoint.proxy() {
            return Self::parse(proxy, "proxy-url").map(Some);
        }
        let found = from_environment(endpoint.url(), environment);
        found
            .map(|(variable, proxy)| Self::parse(&proxy, variable))
            .transpose()
    }

    fn parse(
        proxy: &Secret<String>,
        source: &'static str,
    ) -> Result<Self, (&'static str, Refused)> {
        let url = proxy_url(proxy.expose()).map_err(|why| (source, why))?;
        let mut shown = url.clone();
        // These setters succeed for every URL with a host.
        if shown.set_username("").is_err() || shown.set_password(None).is_err() {
            return Err((source, Refused::NotAProxy));
        }
        Ok(Self {
            is_socks: url.scheme().starts_with("socks"),
            url: Secret::new(url.into()),
            shown: shown.as_str().trim_end_matches('/').to_owned(),
            source,
        })
    }

    /// The URL for the HTTP library. As in Go, a SOCKS proxy resolves the server's name, unless the URL contains an
    /// alias instead of the host.
    pub(super) fn for_client(&self, looks_up: bool) -> Secret<String> {
        let url = self.url.expose();
        Secret::new(match (looks_up, url.strip_prefix("socks5:")) {
            (true, Some(rest)) => format!("socks5h:{rest}"),
            (false, _) => url.replacen("socks5h:", "socks5:", 1),
            (true, None) => url.clone(),
        })
    }

    /// The host, for messages.
    pub(super) fn host(&self) -> String {
        let host = self.url().and_then(|url| Some(url.host_str()?.to_owned()));
        host.unwrap_or_default()
    }

    /// The parsed URL, with user and password.
    fn url(&self) -> Option<Url> {
        Url::parse(self.url.expose()).ok()
    }
}

/// Returns the proxy for this server from the environment, if one is set, and the variable that specifies the proxy.
fn from_environment(
    server: &Url,
    environment: Environment<'_>,
) -> Option<(&'static str, Secret<String>)> {
    let variable = |names: [&'static str; 2]| {
        let set = names
            .into_iter()
            .filter_map(|name| Some((name, environment(name)?)));
        let mut text = set.filter_map(|(name, value)| Some((name, value.into_string().ok()?)));
        text.find(|(_, value)| !value.is_empty())
    };
    let (name, proxy) = variable(["HTTPS_PROXY", "https_proxy"])?;
    let proxy = Secret::new(proxy);
    let exceptions = variable(["NO_PROXY", "no_proxy"]);
    let exceptions = exceptions.map(|(_, value)| value).unwrap_or_default();
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
    // Go interprets a bare host and port as an http proxy.
    if proxy.expose().contains("://") {
        Some((name, proxy))
    } else {
        Some((name, Secret::new(format!("http://{}", proxy.expose()))))
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether an entry of `NO_PROXY` matches this host: `*`, a network, an address or a domain. Only an address or a
/// domain can have a port.
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
    // Only "*." is a wildcard.
    let name = match name.strip_prefix('*') {
        Some(parent) if parent.starts_with('.') => parent,
        Some(_) | None => name,
    };
    let name = name.to_ascii_lowercase();
    match name.strip_prefix('.') {
        // ".example.com" matches only subdomains of example.com; "example.com" also matches itself.
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
        // A rule with more than one colon is an IPv6 address without brackets.
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
        let found = from_environment(&server.parse().unwrap(), &environment);
        found.map(|(_, url)| url.expose().clone())
    }

    #[test]
    fn the_environment_proxy_applies_to_every_server() {
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
    fn no_proxy_is_parsed_as_in_go() {
        for (rule, server, excepted) in [
            ("*", "https://api", true),
            ("api", "https://api", true),
            ("example.com", "https://example.com", true),
            ("example.com", "https://api.example.com", true),
            ("example.com", "https://badexample.com", false),
            (".example.com", "https://api.example.com", true),
            (".example.com", "https://example.com", false),
            ("*.example.com", "https://api.example.com", true),
            ("*example.com", "https://api.example.com", false),
            ("Example.COM", "https://api.example.com", true),
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

    #[test]
    fn a_proxy_is_shown_without_user_and_password_and_with_its_source() {
        let environment = |name: &str| {
            let url = "http://user:0123456789abcdef@proxy.corp:3128/";
            (name == "https_proxy").then(|| OsString::from(url))
        };
        let (variable, url) =
            from_environment(&"https://api".parse().unwrap(), &environment).unwrap();
        let proxy = ProxyServer::parse(&url, variable).unwrap();

        for shown in [proxy.to_string(), format!("{proxy:?}")] {
            assert_eq!(shown, "the proxy http://proxy.corp:3128 (https_proxy)");
        }
    }

    #[test]
    fn an_unusable_proxy_url_is_refused_with_its_source() {
        for (url, why) in [
            ("http://user:p#w@proxy:3128", Refused::NotAProxy),
            ("http://user:p/w@proxy:3128", Refused::NotAProxy),
            ("http://", Refused::NotAProxy),
            ("socks4://proxy", Refused::ProxyScheme),
            ("ftp://proxy", Refused::ProxyScheme),
        ] {
            let error = ProxyServer::parse(&Secret::new(url.to_owned()), "HTTPS_PROXY");
            assert_eq!(error.unwrap_err(), ("HTTPS_PROXY", why), "{url}");
        }
    }

    #[test]
    fn a_socks_proxy_resolves_the_host_name_unless_the_tls_name_differs() {
        for (url, looks_up, expected) in [
            ("socks5://proxy", true, "socks5h://proxy"),
            ("socks5h://proxy", true, "socks5h://proxy"),
            ("socks5h://proxy", false, "socks5://proxy"),
            ("socks5://proxy", false, "socks5://proxy"),
            ("http://proxy", true, "http://proxy/"),
        ] {
            let proxy = ProxyServer::parse(&Secret::new(url.to_owned()), "proxy-url").unwrap();
            assert_eq!(proxy.for_client(looks_up).expose(), expected, "{url}");
        }
    }
}
