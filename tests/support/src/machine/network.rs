//! The network for the machines in a test process.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::process::{draw, spawn};

/// The second half of 198.18.0.0/15, a range for benchmarks of network devices (RFC 2544). Tests hold addresses in the
/// first half. Each test process uses one of the 256 networks in the second half.
const NETWORKS: [u8; 2] = [198, 19];

/// The first address that infrastructures can assign.
const ASSIGNED: u8 = 176;

/// The last quarter of a network.
const QUARTER: u8 = 192;

/// The minimum number of addresses in an EC2 network (`CreateVpc`: a prefix of 28 bits).
const SIXTEEN: u8 = 16;

/// A shell script that creates a switch in a separate namespace. The switch ends when its standard input is closed, and
/// therefore when the test process ends. All links of the switch end with it, including the link to the host, `$2`,
/// which has the address `$3`. `$1` is the test process.
const SWITCH: &str = r#"ip link add switch type bridge
ip link set switch up
ip link add host type veth peer name "$2" netns "/proc/$1/ns/net"
ip link set host master switch up
nsenter --net="/proc/$1/ns/net" ip address add "$3/24" dev "$2"
nsenter --net="/proc/$1/ns/net" ip link set "$2" up
echo made
exec cat"#;

static NETWORK: LazyLock<Network> = LazyLock::new(Network::make);

/// A switch that connects the host and the machines. It does not have any other connections.
#[derive(Debug)]
pub(super) struct Network {
    number: u8,
    machines: AtomicU8,
    // The standard input of the switch remains open until this process ends. The switch ends after this process, which
    // does not wait for the switch.
    switch: Child,
}

impl Network {
    /// The network of this test process.
    ///
    /// # Panics
    ///
    /// Panics without permission to create the network (root with `CAP_NET_ADMIN`), or without `ip` from iproute2.
    #[track_caller]
    pub(super) fn of_this_process() -> &'static Self {
        &NETWORK
    }

    /// The process whose network namespace contains the switch.
    pub(super) fn switch(&self) -> u32 {
        self.switch.id()
    }

    /// The host's address.
    pub(super) fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Returns an address for a machine. 174 different addresses are available.
    pub(super) fn next(&self) -> Ipv4Addr {
        let made = self.machines.fetch_add(1, Ordering::Relaxed);
        self.address(made % (ASSIGNED - 2) + 2)
    }

    /// Addresses that [`Network::next`] never returns, in CIDR notation.
    pub(super) fn assigned(&self) -> String {
        format!("{}/26", self.address(QUARTER))
    }

    /// The addresses that [`Network::next`] never returns, in several parts.
    pub(super) fn assigned_parts(&self) -> Vec<String> {
        let starts = (ASSIGNED..=u8::MAX).step_by(usize::from(SIXTEEN));
        starts
            .map(|first| format!("{}/28", self.address(first)))
            .collect()
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [first, second] = NETWORKS;
        Ipv4Addr::new(first, second, self.number, last)
    }

    fn make() -> Self {
        let mut trouble = String::new();
        for number in 0..=u8::MAX {
            if !draw(&format!("network-{number}")) {
                continue;
            }
            match Self::with(number) {
                Ok(network) => return network,
                // The previous switch in this network can still be stopping.
                Err(message) => trouble = message,
            }
        }
        panic!(
            "cannot create a network for machines (requires root with CAP_NET_ADMIN): {trouble}"
        );
    }

    fn with(number: u8) -> Result<Self, String> {
        let [first, second] = NETWORKS;
        let mut command = Command::new("unshare");
        command
            .args(["--net", "sh", "-euc", SWITCH, "switch"])
            .arg(std::process::id().to_string())
            .arg(format!("machines-{number}"))
            .arg(format!("{first}.{second}.{number}.1"))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut switch = spawn(command).expect("unshare can be started");
        let mut said = String::new();
        let stdout = switch.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut said).ok();
        if said == "made\n" {
            return Ok(Self {
                number,
                machines: AtomicU8::new(0),
                switch,
            });
        }
        let mut trouble = String::new();
        if let Some(mut stderr) = switch.stderr.take() {
            stderr.read_to_string(&mut trouble).ok();
        }
        drop(switch.stdin.take());
        switch.wait().ok();
        Err(trouble)
    }
}
