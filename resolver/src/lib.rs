//! Host lookup that also works in statically linked programs.

mod hosts;
mod prompt;
mod search;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs as _};

use dns_lookup::{AddrFamily, AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};

type Addresses = io::Result<Vec<SocketAddr>>;

const FAMILIES: [AddrFamily; 2] = [AddrFamily::Inet, AddrFamily::Inet6];

/// Looks up the addresses of a host, with port 0. Blocks, and has no deadline.
///
/// musl, the C library of static programs, looks up IPv4 and IPv6 addresses together, and fails if the name server
/// rejects either query (`name_from_dns` in `src/network/lookup_name.c`). glibc and Go use the answer to the other
/// query. The kubelet and other Kubernetes clients are written in Go. Therefore, after a failure, this function looks
/// up each family separately.
///
/// # Errors
///
/// Returns an error if the host has no address of either family. The error comes from the combined lookup. Its kind is
/// [`ErrorKind::NotFound`] if the host has no address in DNS.
#[expect(clippy::disallowed_methods, reason = "a failure is not the last word")]
pub fn addresses(host: &str) -> Addresses {
    let both = (host, 0).to_socket_addrs();
    either(both.map(Iterator::collect), |family| of(host, family))
}

/// Like [`addresses`], for a program that must find the same hosts as the kubelet, which is written in Go.
///
/// - Go finds a name in `/etc/hosts` regardless of case, and anywhere in a line. musl is case-sensitive, and reads only
///   the first 511 bytes of a line (`name_from_hosts` in `src/network/lookup_name.c`).
/// - Go also looks up an unknown name in the search domains, or in the domain of the host name (`nameList` and
///   `dnsReadConfig` in the package `net`). musl does not append a search domain to a name with a dot, and ignores a
///   list of search domains in a line of more than 255 bytes (`name_from_dns_search`, and `src/network/resolvconf.c`).
///   musl also does not derive a domain from the host name.
/// - If a name server rejects the query for one family, Go immediately uses the answer for the other family. musl waits
///   for another answer, for 5 seconds by default (`__res_msend_rc` in `src/network/res_msend.c`).
///
/// # Errors
///
/// Returns the error of [`addresses`] if the host has no address in any search domain either.
pub fn addresses_as_in_go(host: &str) -> Addresses {
    let listed = hosts::addresses(host);
    if !listed.is_empty() {
        return Ok(listed);
    }
    search::searched(
        addresses_promptly(host),
        || search::names_of(host),
        addresses_promptly,
    )
}

/// Like [`addresses`], but does not wait for a name server that rejects the queries for one family. A lookup that
/// continues in the background ends after a few seconds, so this function is only for short-lived programs.
///
/// # Errors
///
/// Returns an error if the host has no address of either family. Its kind is [`ErrorKind::NotFound`] if the host has no
/// address in DNS.
#[expect(clippy::disallowed_methods, reason = "a failure is not the last word")]
pub fn addresses_promptly(host: &str) -> Addresses {
    let (for_both, for_one) = (host.to_owned(), host.to_owned());
    let both = move || -> Addresses {
        (for_both.as_str(), 0)
            .to_socket_addrs()
            .map(Iterator::collect)
    };
    prompt::prompt(both, move |family| of(&for_one, family))
}

/// Returns `both`. If the combined lookup failed, returns the addresses from the separate lookups of each family.
fn either(both: Addresses, one: impl Fn(AddrFamily) -> Addresses) -> Addresses {
    both.or_else(|error| {
        let mut is_unknown = false;
        let mut found = Vec::new();
        for family in FAMILIES {
            match one(family) {
                Ok(addresses) => found.extend(addresses),
                // The answer to one family is sufficient, because the name server might reject each query of the other
                // family.
                Err(error) => is_unknown |= error.kind() == ErrorKind::NotFound,
            }
        }
        found_or(found, error, is_unknown)
    })
}

/// Returns the addresses of the separate lookups. Without any address, returns the error of the combined lookup.
/// `is_unknown` is true if the host is unknown in one family.
fn found_or(found: Vec<SocketAddr>, error: io::Error, is_unknown: bool) -> Addresses {
    if !found.is_empty() {
        return Ok(found);
    }
    Err(if is_unknown {
        io::Error::new(ErrorKind::NotFound, error)
    } else {
        error
    })
}

fn of(host: &str, family: AddrFamily) -> Addresses {
    let hints = AddrInfoHints {
        address: family.into(),
        // One entry for each address, as in the standard library.
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    getaddrinfo(Some(host), None, Some(hints))
        .map_err(of_lookup)?
        .map(|found| Ok(found?.sockaddr))
        .collect()
}

/// The error of a lookup. The error distinguishes an unknown host from a failure of the name server.
fn of_lookup(error: LookupError) -> io::Error {
    let is_unknown = matches!(
        error.kind(),
        LookupErrorKind::NoName | LookupErrorKind::NoData
    );
    let error = io::Error::from(error);
    if is_unknown {
        io::Error::new(ErrorKind::NotFound, error)
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const IPV4: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const IPV6: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

    fn refused(question: &str) -> Addresses {
        Err(io::Error::other(format!("{question} refused")))
    }

    #[test]
    fn a_name_with_one_refused_address_family_is_resolved() {
        for (family, address) in [(AddrFamily::Inet, IPV4), (AddrFamily::Inet6, IPV6)] {
            let found = either(refused("both"), |asked| {
                if asked == family {
                    Ok(vec![address])
                } else {
                    refused("one")
                }
            });
            assert_eq!(found.unwrap(), [address], "{family:?}");
        }
    }

    #[test]
    fn a_name_without_any_address_fails_like_a_lookup_of_both_families() {
        let error = either(refused("both"), |_| refused("one")).unwrap_err();
        assert_eq!(error.to_string(), "both refused");
        let error = either(refused("both"), |_| Ok(Vec::new())).unwrap_err();
        assert_eq!(error.to_string(), "both refused");
    }

    #[test]
    fn a_host_is_unknown_if_one_family_is_unknown_and_the_other_refused() {
        let unknown = || Err(io::Error::from(ErrorKind::NotFound));
        let error = either(refused("both"), |_| unknown()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), "both refused");

        for failing in [AddrFamily::Inet, AddrFamily::Inet6] {
            let error = either(refused("both"), |asked| {
                if asked == failing {
                    refused("one")
                } else {
                    unknown()
                }
            });
            let kind = error.unwrap_err().kind();
            assert_eq!(kind, ErrorKind::NotFound, "{failing:?}");
        }
        let error = either(refused("both"), |_| refused("one")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Other);
    }

    #[test]
    fn a_successful_lookup_is_not_repeated() {
        let found = either(Ok(vec![IPV6, IPV4]), |_| panic!("another lookup"));
        assert_eq!(found.unwrap(), [IPV6, IPV4]);
    }

    #[test]
    fn each_family_of_an_address_is_looked_up_separately() {
        assert_eq!(of("127.0.0.1", AddrFamily::Inet).unwrap(), [IPV4]);
        assert_eq!(of("::1", AddrFamily::Inet6).unwrap(), [IPV6]);
        assert!(of("127.0.0.1", AddrFamily::Inet6).is_err());
        assert_eq!(addresses("127.0.0.1").unwrap(), [IPV4]);
    }
}
