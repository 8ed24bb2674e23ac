//! Lookups that do not wait for a name server that rejects the queries for one address family.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use dns_lookup::AddrFamily;

use super::{Addresses, FAMILIES};

/// The time after which each family is also looked up separately. Most lookups take much less time.
const COMBINED: Duration = Duration::from_millis(500);

/// The time to wait for the other family, after one family has addresses or does not have the host.
const OTHER_FAMILY: Duration = Duration::from_secs(1);

/// The family of a lookup, and its result. `None` is the combined lookup of both families.
type Answer = (Option<AddrFamily>, Addresses);

/// Returns the result of `both`. If that lookup fails or takes long, returns the addresses of the families that are
/// found first. Lookups that continue do not delay the caller.
pub(super) fn prompt(
    both: impl FnOnce() -> Addresses + Send + 'static,
    one: impl Fn(AddrFamily) -> Addresses + Clone + Send + 'static,
) -> Addresses {
    let (sender, answers) = mpsc::channel();
    start(sender.clone(), None, both)?;
    let mut failure = match answers.recv_timeout(COMBINED) {
        Ok((_, Ok(found))) => return Ok(found),
        Ok((_, Err(error))) => Some(error),
        Err(_) => None,
    };
    for family in FAMILIES {
        let one = one.clone();
        // The lookups that are running can still succeed.
        if let Err(error) = start(sender.clone(), Some(family), move || one(family)) {
            failure.get_or_insert(error);
        }
    }
    drop(sender);
    let (mut found, mut is_unknown) = (Vec::new(), false);
    let mut end: Option<Instant> = None;
    loop {
        let next = match end {
            // The channel also ends after the last lookup.
            None => answers.recv().ok(),
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                answers.recv_timeout(left).ok()
            }
        };
        match next {
            Some((None, Ok(all))) => return Ok(all),
            Some((None, Err(error))) => failure = Some(error),
            Some((Some(_), Ok(addresses))) => {
                if !addresses.is_empty() {
                    end.get_or_insert_with(|| Instant::now() + OTHER_FAMILY);
                }
                found.extend(addresses);
            }
            Some((Some(_), Err(error))) => {
                if error.kind() == ErrorKind::NotFound {
                    is_unknown = true;
                    end.get_or_insert_with(|| Instant::now() + OTHER_FAMILY);
                }
            }
            None => break,
        }
    }
    found.sort_by_key(SocketAddr::is_ipv6);
    super::found_or(found, failure.unwrap_or_else(no_answer), is_unknown)
}

/// Runs a lookup on its own thread.
fn start(
    answers: Sender<Answer>,
    family: Option<AddrFamily>,
    lookup: impl FnOnce() -> Addresses + Send + 'static,
) -> io::Result<()> {
    // The receiver is dropped as soon as the caller has addresses.
    let run = move || drop(answers.send((family, lookup())));
    thread::Builder::new().spawn(run).map(drop)
}

fn no_answer() -> io::Error {
    io::Error::other("the lookup did not end")
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    const IPV4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const IPV6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

    /// A lookup that never ends.
    fn unanswered() -> Addresses {
        loop {
            thread::park();
        }
    }

    fn of_family(family: AddrFamily) -> Addresses {
        match family {
            AddrFamily::Inet => Ok(vec![IPV4]),
            AddrFamily::Inet6 => Ok(vec![IPV6]),
            AddrFamily::Unix => unanswered(),
        }
    }

    #[test]
    fn a_family_without_an_answer_does_not_stop_a_lookup() {
        for (answered, address) in [(AddrFamily::Inet, IPV4), (AddrFamily::Inet6, IPV6)] {
            let found = prompt(unanswered, move |family| {
                if family == answered {
                    of_family(family)
                } else {
                    unanswered()
                }
            });

            assert_eq!(found.unwrap(), [address]);
        }
    }

    #[test]
    fn an_unknown_host_is_reported_without_an_answer_for_the_other_family() {
        let error = prompt(unanswered, |family| match family {
            AddrFamily::Inet => Err(io::Error::from(ErrorKind::NotFound)),
            AddrFamily::Inet6 | AddrFamily::Unix => unanswered(),
        });

        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn both_families_of_a_slow_combined_lookup_are_found() {
        let found = prompt(unanswered, of_family);

        assert_eq!(found.unwrap(), [IPV4, IPV6]);
    }

    #[test]
    fn the_addresses_of_a_slow_combined_lookup_are_used() {
        let both = || {
            thread::sleep(COMBINED * 2);
            Ok(vec![IPV6, IPV4])
        };

        let found = prompt(both, |_| unanswered());

        assert_eq!(found.unwrap(), [IPV6, IPV4]);
    }

    #[test]
    fn the_error_of_a_prompt_lookup_tells_if_the_host_is_unknown() {
        for (kind, expected) in [
            (ErrorKind::NotFound, ErrorKind::NotFound),
            (ErrorKind::Other, ErrorKind::Other),
        ] {
            let refused = || Err(io::Error::other("both refused"));

            let error = prompt(refused, move |_| Err(io::Error::from(kind))).unwrap_err();

            assert_eq!(error.kind(), expected);
            assert_eq!(error.to_string(), "both refused");
        }
    }
}
