//! A management cluster with Cluster API's resources in it, and workload clusters that they are
//! about. All API servers are real; what Cluster API's controllers would write, the test writes.
//!
//! ```no_run
//! use kubelet_authenticator_tests::management::Management;
//!
//! let management = Management::start();
//! let cluster = management.cluster("prod-1").create();
//! let machine = cluster.machine("m1").provider_id("generic:///a/m1").create();
//! let kubelet = cluster
//!     .control_plane()
//!     .kubelet(machine.node_name())
//!     .bootstrap_kubeconfig(machine.bootstrap_kubeconfig())
//!     .start();
//! ```

mod cluster;
mod contract;
mod crds;
mod machine;
mod place;
mod pool;
mod secrets;
mod transfer;

use std::path::Path;
use std::sync::Arc;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubectl};

pub use self::cluster::{ClusterBuilder, WorkloadCluster};
pub use self::contract::{Contract, InfraCluster};
pub use self::machine::{Machine, MachineBuilder};
pub use self::pool::{Pool, PoolBuilder};
pub use self::secrets::workload_kubeconfig;

/// A management cluster; it has no controllers of its own.
#[derive(Debug)]
pub struct Management {
    control_plane: Arc<ControlPlane>,
    contract: Contract,
}

impl Management {
    /// Starts one of today: both contracts served, v1beta2 stored.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(Contract::V1Beta2)
    }

    /// Starts one with the versions of this contract.
    #[track_caller]
    pub fn start_with(contract: Contract) -> Self {
        Self::on(ControlPlane::start(), contract)
    }

    /// Makes a management cluster of this one.
    #[track_caller]
    pub fn on(control_plane: ControlPlane, contract: Contract) -> Self {
        crds::install(control_plane.kubectl(), contract);
        Self {
            control_plane: Arc::new(control_plane),
            contract,
        }
    }

    /// The cluster itself.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// kubectl as a member of `system:masters`.
    pub fn kubectl(&self) -> &Kubectl {
        self.control_plane.kubectl()
    }

    /// A kubeconfig of a member of `system:masters`.
    pub fn admin_kubeconfig(&self) -> &Path {
        self.control_plane.admin_kubeconfig()
    }

    /// The contract whose versions it serves.
    pub fn contract(&self) -> Contract {
        self.contract
    }

    /// A Cluster of this name, to be created.
    pub fn cluster(&self, name: &str) -> ClusterBuilder {
        ClusterBuilder::new(self.control_plane.clone(), self.contract, name)
    }
}
