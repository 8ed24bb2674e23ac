//! EC2's description of an instance, its comparison with the document, and the TPM of the instance.

mod batch;
mod call_limits;
mod channel;
mod checks;
mod circuit_breaker;
mod client;
mod describe;
mod named;
mod nitro_tpm;
mod outage;
mod place;
#[cfg(feature = "testing")]
pub mod testing;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

pub(crate) use self::batch::Reservation;
pub use self::batch::{Instances, Limits};
pub use self::call_limits::CallLimits;
pub use self::checks::{Checked, check};
pub(crate) use self::checks::{absent, check_region, node_name};
pub use self::client::{Ec2, Ec2Settings};
use self::describe::MAX_IDS;
pub use self::describe::{Describe, Page, Query};
pub use self::nitro_tpm::{ClusterTpms, NitroTpms};
pub use self::outage::{Outage, OutageKind};

/// The instance fields that the checks use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceFacts {
    /// The instance ID.
    pub id: String,
    /// The account that owns the instance.
    pub owner: String,
    /// The state of the instance, as EC2 names it.
    pub state: String,
    /// The availability zone of the instance.
    pub zone: String,
    /// The time of the launch or of the last start of the instance.
    pub launched: Option<SystemTime>,
    /// The private DNS name of the instance.
    pub private_dns_name: Option<String>,
    /// The addresses of all interfaces, including public addresses.
    pub addresses: Vec<IpAddr>,
    /// The DNS names of all interfaces, including public names.
    pub dns_names: Vec<String>,
    /// The network interface with device index 0.
    pub first_interface: Option<Attachment>,
    /// The root device of the instance.
    pub root: RootDevice,
    /// The tags of the instance.
    pub tags: BTreeMap<String, String>,
}

/// A volume or network interface that was attached to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// The time when it was attached.
    pub time: Option<SystemTime>,
}

/// The root device of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootDevice {
    /// A disk on the host, which was never attached to another instance.
    InstanceStore,
    /// A volume. `None` if EC2 does not report when it was attached.
    Volume(Option<Attachment>),
}

impl InstanceFacts {
    /// Whether it is running or about to run.
    pub fn is_running(&self) -> bool {
        matches!(&*self.state, "pending" | "running")
    }
}

#[cfg(test)]
mod tests;
