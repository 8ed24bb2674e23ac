//! The hosts in `/etc/hosts` (hosts(5)).

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};

const HOSTS: &str = "/etc/hosts";

/// The maximum length of [`HOSTS`], in bytes. A list of blocked hosts can be several megabytes long.
const MAX_HOSTS_LEN: u64 = 64 * 1024 * 1024;

/// The addresses of a host in [`HOSTS`], with port 0. Empty if the file cannot be read.
pub(super) fn addresses(host: &str) -> Vec<SocketAddr> {
    let Ok(file) = File::open(HOSTS) else {
        return Vec::new();
    };
    listed(BufReader::new(file.take(MAX_HOSTS_LEN)), host)
}

/// The addresses of a host in this content. As in Go, the case of letters is ignored, and a name can end with a dot.
/// Unlike in Go, the addresses have the order of the content.
fn listed(content: impl BufRead, host: &str) -> Vec<SocketAddr> {
    let host = host.trim_end_matches('.');
    let mut found = Vec::new();
    for line in content.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else {
            continue;
        };
        if words.any(|name| name.trim_end_matches('.').eq_ignore_ascii_case(host)) {
            found.push(SocketAddr::new(address, 0));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content: &str, host: &str) -> Vec<String> {
        let found = listed(content.as_bytes(), host);
        found
            .iter()
            .map(|address| address.ip().to_string())
            .collect()
    }

    #[test]
    fn a_host_is_found_in_the_hosts_file_as_in_go() {
        for (content, host, expected) in [
            ("10.0.0.1 api.test\n", "api.test", &["10.0.0.1"][..]),
            ("10.0.0.1 API.Test", "api.test", &["10.0.0.1"]),
            ("10.0.0.1 api.test", "API.test.", &["10.0.0.1"]),
            ("10.0.0.1 api.test.", "api.test", &["10.0.0.1"]),
            (" 10.0.0.1\tn1 api # n2\r\n", "api", &["10.0.0.1"]),
            ("fd00::1 api\n10.0.0.1 api", "api", &["fd00::1", "10.0.0.1"]),
            ("\u{e4} api\n10.0.0.1 \u{e4} api", "api", &["10.0.0.1"]),
            ("10.0.0.1 n1 # api", "api", &[]),
            ("#10.0.0.1 api", "api", &[]),
            ("10.0.0.1 api.test", "api", &[]),
            ("10.0.0.1 api", "api.test", &[]),
            ("10.0.0.1 10.0.0.2", "10.0.0.1", &[]),
            ("api 10.0.0.1\n\n10.0.0.1", "api", &[]),
            ("", "api", &[]),
        ] {
            assert_eq!(found(content, host), expected, "{content:?} {host}");
        }
        // musl reads only the first 511 bytes of a line.
        let others: Vec<_> = (0..100).map(|n| format!("other-{n}.test")).collect();
        let line = format!("10.0.0.1 {} api\n", others.join(" "));
        assert_eq!(found(&line, "api"), ["10.0.0.1"]);
    }
}
