//! The search domains of the machine (resolv.conf(5)), for names that the C library does not find.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::Addresses;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The maximum length of [`RESOLV_CONF`], in bytes, which is much longer than any real file.
const MAX_RESOLV_CONF_LEN: u64 = 64 * 1024;

/// The maximum length of a domain name that ends with a dot, in bytes (RFC 1035, 3.1).
const MAX_NAME_LEN: usize = 254;

/// The time after which no further search domain is looked up. A name server that does not answer delays the lookup of
/// each name by up to 6 seconds, and the caller cannot send another request during this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// The host in each search domain of this machine.
pub(super) fn names_of(host: &str) -> Vec<String> {
    let host_name = dns_lookup::get_hostname().unwrap_or_default();
    names(host, &resolv_conf(), &host_name)
}

/// Returns `found`. If the host is unknown, returns the addresses of the first name in `names` that has an address.
pub(super) fn searched(
    found: Addresses,
    names: impl FnOnce() -> Vec<String>,
    lookup: impl Fn(&str) -> Addresses,
) -> Addresses {
    found.or_else(|error| {
        // If the name servers fail, more lookups would only take more time.
        if error.kind() != ErrorKind::NotFound {
            return Err(error);
        }
        let begun = Instant::now();
        let names = names();
        let mut names = names.iter().take_while(|_| begun.elapsed() < PATIENCE);
        let found = names.find_map(|name| lookup(name).ok());
        found.ok_or(error)
    })
}

fn resolv_conf() -> String {
    let mut content = Vec::new();
    if let Ok(file) = File::open(RESOLV_CONF) {
        // If the file cannot be read, use only the domain of the host name.
        drop(file.take(MAX_RESOLV_CONF_LEN).read_to_end(&mut content));
    }
    String::from_utf8_lossy(&content).into_owned()
}

/// The host name, extended with each search domain. The names end with a dot, so that the C library does not append
/// another domain.
fn names(host: &str, resolv_conf: &str, host_name: &str) -> Vec<String> {
    if host.ends_with('.') || host.parse::<IpAddr>().is_ok() {
        return Vec::new();
    }
    let names = domains(resolv_conf, host_name).into_iter();
    let names = names.map(|domain| format!("{host}.{domain}."));
    names.filter(|name| name.len() <= MAX_NAME_LEN).collect()
}

/// The search domains from the last line with `search` or `domain`. Without such a line, the domain of the host name.
fn domains<'a>(resolv_conf: &'a str, host_name: &'a str) -> Vec<&'a str> {
    let mut domains = Vec::new();
    for line in resolv_conf.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("search") => domains = words.collect(),
            // As in Go, a line without a value does not count.
            Some("domain") => {
                if let Some(domain) = words.next() {
                    domains = vec![domain];
                }
            }
            _ => {}
        }
    }
    // systemd-resolved writes `search .` if no domains are configured.
    domains.retain(|domain| *domain != ".");
    if domains.is_empty() {
        domains.extend(host_name.split_once('.').map(|(_, domain)| domain));
    }
    let domains = domains
        .into_iter()
        .map(|domain| domain.trim_end_matches('.'));
    domains.filter(|domain| !domain.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn failed(kind: ErrorKind) -> Addresses {
        Err(kind.into())
    }

    #[test]
    fn search_domains_are_read_as_in_go() {
        for (resolv_conf, host_name, expected) in [
            ("search a.test b.test\n", "n1", &["a.test", "b.test"][..]),
            ("search\ta.test  b.test.\r\n", "n1", &["a.test", "b.test"]),
            ("search a.test\nsearch b.test", "n1", &["b.test"]),
            ("search a.test\ndomain b.test c.test", "n1", &["b.test"]),
            ("search a.test", "n1.b.test", &["a.test"]),
            ("search a.test\ndomain", "n1", &["a.test"]),
            ("# search a.test\n;search a.test\n", "n1", &[]),
            ("#search a.test\nsearch .\n", "n1", &[]),
            ("searches a.test\nnameserver 10.0.0.2", "n1", &[]),
            ("search . a.test", "n1.b.test", &["a.test"]),
            ("search .", "n1.b.test", &["b.test"]),
            ("search", "n1.b.test", &["b.test"]),
            ("", "n1.b.test", &["b.test"]),
            ("", "n1.b.test.", &["b.test"]),
            ("", "n1.", &[]),
            ("", "", &[]),
        ] {
            let found = domains(resolv_conf, host_name);
            assert_eq!(found, expected, "{resolv_conf:?} {host_name}");
        }
        // musl ignores a line that is this long.
        let many: Vec<_> = (0..64).map(|n| format!("domain-{n}.test")).collect();
        let line = format!("search {}", many.join(" "));
        assert_eq!(domains(&line, "n1"), many);
    }

    #[test]
    fn a_name_has_a_candidate_in_each_search_domain() {
        let resolv_conf = "search a.test b.test";
        for host in ["api", "api.prod"] {
            let expected = ["a.test.", "b.test."].map(|domain| format!("{host}.{domain}"));
            assert_eq!(names(host, resolv_conf, "n1"), expected);
        }
        for host in ["api.prod.", "10.0.0.1", "fd00::1"] {
            assert!(names(host, resolv_conf, "n1").is_empty(), "{host}");
        }
        // With the dots and the domain, the names are 254 and 255 bytes long.
        for (len, count) in [(246, 1), (247, 0)] {
            let host = "a".repeat(len);
            assert_eq!(names(&host, "search a.test", "n1").len(), count, "{len}");
        }
    }

    #[test]
    fn only_an_unknown_host_is_looked_up_in_search_domains() {
        let asked = RefCell::new(Vec::new());
        let lookup = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            match name {
                "two" => Ok(vec![ADDRESS]),
                "one" => failed(ErrorKind::Other),
                _ => failed(ErrorKind::NotFound),
            }
        };
        let search = |found, names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            searched(found, || names, lookup)
        };
        let names = ["zero", "one", "two", "three"];

        let found = search(failed(ErrorKind::NotFound), &names).unwrap();
        assert_eq!(found, [ADDRESS]);
        assert_eq!(asked.take(), ["zero", "one", "two"]);

        let unknown: io::Error = search(failed(ErrorKind::NotFound), &["one"]).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        assert_eq!(asked.take(), ["one"]);

        let unavailable = search(failed(ErrorKind::Other), &names).unwrap_err();
        assert_eq!(unavailable.kind(), ErrorKind::Other);
        assert_eq!(search(Ok(vec![ADDRESS]), &names).unwrap(), [ADDRESS]);
        assert!(asked.take().is_empty());
    }
}
