//! Host lookup that also works in statically linked programs.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};

use dns_lookup::{AddrFamily, AddrInfoHints, SockType, getaddrinfo};

type Addresses = io::Result<Vec<SocketAddr>>;

/// Looks up the addresses of a host, with port 0. Blocks, and has no deadline.
///
/// musl, the C library of static programs, looks up IPv4 and IPv6 addresses together, and fails if the name server
/// rejects either query (`name_from_dns` in `src/network/lookup_name.c`). glibc and Go, and so the kubelet and other
/// Kubernetes clients, use the answer to the other query. So after a failure, this function looks up each family
/// separately.
///
/// # Errors
///
/// Returns an error if the host has no address of either family. The error comes from the combined lookup.
#[expect(clippy::disallowed_methods, reason = "a failure is not the last word")]
pub fn addresses(host: &str) -> Addresses {
    let both = (host, 0).to_socket_addrs();
    either(both.map(Iterator::collect), |family| of(host, family))
}

/// Returns `both`, or if it failed, the addresses of each family that has any.
fn either(both: Addresses, one: impl Fn(AddrFamily) -> Addresses) -> Addresses {
    both.or_else(|error| {
        let families = [AddrFamily::Inet, AddrFamily::Inet6];
        let found = families.into_iter().filter_map(|family| one(family).ok());
        let found: Vec<_> = found.flatten().collect();
        if found.is_empty() {
            return Err(error);
        }
        Ok(found)
    })
}

fn of(host: &str, family: AddrFamily) -> Addresses {
    let hints = AddrInfoHints {
        address: family.into(),
        // One entry for each address, as in the standard library.
        socktype: SockType::Stream.into(),
        ..AddrInfoHints::default()
    };
    getaddrinfo(Some(host), None, Some(hints))?
        .map(|found| Ok(found?.sockaddr))
        .collect()
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
