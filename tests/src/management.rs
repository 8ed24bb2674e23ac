//! A management cluster that contains Cluster API's resources, and the workload clusters that they describe. All API
//! servers are real. If Cluster API's managers are not running, the test writes their data.
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

mod aws;
mod capa;
mod cluster;
mod clusterctl;
mod contract;
mod crds;
mod deployment;
mod kubeadm_control_plane;
mod machine;
pub(crate) mod managers;
mod place;
mod pool;
mod provider;
mod rounds;
mod secrets;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, Kubectl};

use crate::packaging;

pub use self::aws::{Instances, Maker, network, networks, owned};
pub use self::capa::Capa;
pub use self::cluster::{AwaitedCluster, ClusterBuilder, WorkloadCluster};
pub use self::clusterctl::{CLUSTER_API_VERSION, clusterctl, clusterctl_program};
pub use self::contract::{Contract, InfraCluster};
pub use self::deployment::{MachineDeployment, MachinePool};
pub use self::machine::{Machine, MachineBuilder};
use self::managers::Managers;
pub use self::managers::OlderClusterApi;
pub use self::pool::{Pool, PoolBuilder};
pub use self::provider::{Boot, Order, Provider};
pub use self::secrets::{workload_kubeconfig, workload_kubeconfig_of_ca};

/// A management cluster.
#[derive(Debug)]
pub struct Management {
    // This is the first field, so that the managers stop before their API server.
    managers: Option<Managers>,
    control_plane: Arc<ControlPlane>,
    contract: Contract,
}

impl Management {
    /// Starts a management cluster with the current contract: both versions are served, and v1beta2 is stored.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(Contract::V1Beta2)
    }

    /// Starts a management cluster with the versions of this contract.
    #[track_caller]
    pub fn start_with(contract: Contract) -> Self {
        Self::on(ControlPlane::start(), contract)
    }

    /// Starts a management cluster with the project's definitions from these manifests, which can belong to another
    /// version.
    #[track_caller]
    pub fn start_with_manifests(manifests: &Path) -> Self {
        Self::on_with_manifests(ControlPlane::start(), Contract::V1Beta2, manifests)
    }

    /// Starts a management cluster with Cluster API's own managers. Their bootstrap tokens have this lifetime.
    #[track_caller]
    pub fn managed(token_ttl: Duration) -> Self {
        Self::with_managers(token_ttl, &managers::WITHOUT_CONTROL_PLANES)
    }

    /// Starts a management cluster whose managers also create control planes.
    #[track_caller]
    pub fn managed_with_control_planes(token_ttl: Duration) -> Self {
        Self::with_managers(token_ttl, &managers::ALL)
    }

    #[track_caller]
    fn with_managers(token_ttl: Duration, names: &[&str]) -> Self {
        let control_plane = ControlPlane::builder().controllers(Controllers::Default);
        let control_plane = control_plane.start();
        let managers = Managers::start(&control_plane, names, token_ttl);
        crds::install_beside(control_plane.kubectl());
        clusterctl::take_inventory(control_plane.kubectl());
        Self {
            managers: Some(managers),
            control_plane: Arc::new(control_plane),
            contract: Contract::V1Beta2,
        }
    }

    /// Turns this cluster into a management cluster, without Cluster API's managers.
    #[track_caller]
    pub fn on(control_plane: ControlPlane, contract: Contract) -> Self {
        Self::on_with_manifests(control_plane, contract, &packaging())
    }

    #[track_caller]
    fn on_with_manifests(
        control_plane: ControlPlane,
        contract: Contract,
        manifests: &Path,
    ) -> Self {
        crds::install(control_plane.kubectl(), contract, manifests);
        Self {
            managers: None,
            control_plane: Arc::new(control_plane),
            contract,
        }
    }

    /// The control plane of the management cluster.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// kubectl with the permissions of `system:masters`.
    pub fn kubectl(&self) -> &Kubectl {
        self.control_plane.kubectl()
    }

    /// A kubeconfig for a member of `system:masters`.
    pub fn admin_kubeconfig(&self) -> &Path {
        self.control_plane.admin_kubeconfig()
    }

    /// The contract whose versions the management cluster serves.
    pub fn contract(&self) -> Contract {
        self.contract
    }

    /// Creates a builder for a Cluster with this name.
    pub fn cluster(&self, name: &str) -> ClusterBuilder {
        let management = self.control_plane.clone();
        let builder = ClusterBuilder::new(management, self.contract, name);
        match self.managers {
            Some(_) => builder.managed(),
            None => builder,
        }
    }
}
