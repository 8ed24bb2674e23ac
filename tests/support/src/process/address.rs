use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::spawner;

/// The first address of 198.18.0.0/16. This network, and the next network, from which machines get addresses, are
/// reserved for benchmarks of network devices (RFC 2544). Documentation addresses cannot be used, because test machines
/// have them.
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// The number of addresses.
const COUNT: u64 = 1 << 16;

/// The maximum number of attempts to select an address that no other process holds.
const ATTEMPTS: usize = 20;

/// A shell script that adds the address, reports this, and removes the address when its standard input, a pipe from the
/// test process, is closed. If the process is killed, the kernel removes the address within 2 hours.
const HOLDER: &str = r#"ip address add "$1/32" dev lo valid_lft 7200 preferred_lft 7200 || exit
echo held; cat; ip address del "$1/32" dev lo"#;

/// An address on this machine that no other process uses. It exists until this value is dropped, or until the test
/// process ends.
///
/// Programs do not treat the address as a loopback address, but only this machine can connect to the address.
#[derive(Debug)]
pub struct HeldAddress {
    ip: Ipv4Addr,
    // Dropping this value ends the holder.
    input: Option<ChildStdin>,
    holder: Child,
}

impl HeldAddress {
    /// Adds an address to the machine.
    ///
    /// # Panics
    ///
    /// Panics without permission to add an address (root with `CAP_NET_ADMIN`), or without `ip` from iproute2.
    #[track_caller]
    pub fn take() -> Self {
        let mut trouble = String::new();
        for _ in 0..ATTEMPTS {
            match Self::hold(drawn()) {
                Ok(held) => return held,
                Err(message) => trouble = message,
            }
        }
        panic!("cannot add an address for a node (requires root with CAP_NET_ADMIN): {trouble}");
    }

    /// The address.
    pub fn ip(&self) -> Ipv4Addr {
        self.ip
    }

    fn hold(ip: Ipv4Addr) -> Result<Self, String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", HOLDER, "holder", &ip.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut holder = spawner::spawn(command).expect("sh can be started");
        let input = holder.stdin.take();
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).ok();
        let mut held = Self { ip, input, holder };
        if said == "held\n" {
            return Ok(held);
        }
        let mut trouble = String::new();
        if let Some(mut stderr) = held.holder.stderr.take() {
            stderr.read_to_string(&mut trouble).ok();
        }
        Err(trouble)
    }
}

impl Drop for HeldAddress {
    fn drop(&mut self) {
        drop(self.input.take());
        self.holder.wait().ok();
    }
}

fn drawn() -> Ipv4Addr {
    let offset = RandomState::new().hash_one(0) % COUNT;
    let offset = u32::try_from(offset).expect("less than the count");
    Ipv4Addr::from(u32::from(FIRST) + offset)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_held_address_can_be_bound_until_it_is_released() {
        let held = HeldAddress::take();
        let other = HeldAddress::take();
        let ip = held.ip();

        assert_ne!(ip, other.ip());
        TcpListener::bind((ip, 0)).unwrap();
        drop(held);
        TcpListener::bind((ip, 0)).unwrap_err();
    }

    #[test]
    fn a_held_address_is_not_allocated_again() {
        let held = HeldAddress::take();

        HeldAddress::hold(held.ip()).unwrap_err();

        TcpListener::bind((held.ip(), 0)).unwrap();
    }
}
