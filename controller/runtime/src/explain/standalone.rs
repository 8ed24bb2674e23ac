//! Explains requests in a cluster that does not belong to a management cluster. A file lists the machines of this
//! cluster, and its records are in the cluster.

use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::names::NodeName;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::identifiers::{KeyDigest, RecordUid, ServingName};
use node_attestation_core::ledger::{
    AllRecords, LastIssued, Record, Records, Rehearsal, Stored, Version, WriteError,
};
use node_attestation_core::nodes::{Node, Nodes};
use node_attestation_core::refusal::{NotCalled, Unavailable};
use node_attestation_core::serving::NodeReportedAddresses;
use node_attestation_core::verifier::{Identity, Verifiers};
use tokio::task::JoinSet;

use super::of_cluster::{are_read, named_by_platform, rehearsed_signer};
use super::{ExplainError, Explainer, Offline};
use crate::client::ClusterAccess;
use crate::file_inventory::ClusterInventory;
use crate::metrics::Metrics;
use crate::nodes::KubeNodes;
use crate::records::{KubeRecords, WORKLOAD_NAMESPACE};
use crate::standalone::{ClusterInFiles, certificates, uid};

/// The settings for a cluster whose controller uses files.
#[derive(Debug)]
pub struct StandaloneSettings {
    /// The workload cluster. If `None`, requests can only be read from files.
    pub workload: Option<ClusterAccess>,
    /// The CA certificates of the cluster, as PEM. The first certificate is used for signing. If empty, the
    /// certificates in the kubeconfig are used.
    pub ca_certificates: Vec<u8>,
    /// The machines.
    pub inventory: ClusterInventory,
    /// The other settings for the cluster's controller.
    pub authentication: KubeletAuthentication,
}

impl Explainer {
    /// Creates an explainer from files and from the cluster's API server. `verifiers` must not call a service.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be used, or if there is no CA certificate.
    pub async fn standalone(
        settings: StandaloneSettings,
        verifiers: impl Fn(&KubeletAuthentication, &str) -> Verifiers,
    ) -> Result<Self, ExplainError> {
        let StandaloneSettings {
            workload,
            ca_certificates,
            inventory,
            authentication,
        } = settings;
        let trusted = workload.iter().flat_map(ClusterAccess::ca_certificates);
        let signing = certificates(&ca_certificates);
        let first = pem::parse_many(&ca_certificates).unwrap_or_default();
        let first = first.into_iter().next().map(pem::Pem::into_contents);
        let Some(ca) = first.or_else(|| trusted.clone().next().cloned()) else {
            return Err(ExplainError::File(
                "no CA certificate: set --ca-cert, or use a kubeconfig with CA certificates".into(),
            ));
        };
        let signer = rehearsed_signer(&ca).map_err(ExplainError::File)?;
        let offline = Offline::default();
        let verifiers = verifiers(&authentication, &uid(&signing));
        let mut notes = Vec::new();
        let cluster = &*authentication.spec.cluster_name;
        let records = records(workload.as_ref(), cluster, &mut notes).await;
        let files = ClusterInFiles {
            authentication: &authentication,
            inventory,
            ca_certificates: &signing.into_iter().chain(trusted.cloned()).collect(),
            workload: workload.as_ref(),
            verifiers: offline.verifiers(verifiers, &named_by_platform(&authentication.spec)),
            records,
            signer,
        };
        let seen = SeenNodes(workload.as_ref().map(|access| {
            KubeNodes::new(access.client().clone()).with_time(access.server_time().clone())
        }));
        let context = files.context(seen);
        Ok(Self {
            context: context.map_err(|error| ExplainError::File(error.into()))?,
            workload,
            management: None,
            signed_by: "the controller, with the key of --ca-key or with its external signer"
                .to_owned(),
            not_ready: None,
            offline,
            notes,
            _watches: JoinSet::new(),
        })
    }
}

/// The records of the cluster, without writes. Unknown if there is no kubeconfig, or if the records cannot be read.
async fn records(
    workload: Option<&ClusterAccess>,
    cluster: &str,
    notes: &mut Vec<String>,
) -> Arc<dyn Records> {
    let Some(workload) = workload else {
        return Arc::new(Unknown);
    };
    let client = workload.client().clone();
    let records = KubeRecords::start(client, WORKLOAD_NAMESPACE, cluster, &Metrics::default());
    match are_read(&records).await {
        Ok(()) => Arc::new(Rehearsal::over(Arc::new(records))),
        Err(error) => {
            notes.push(error.to_string());
            Arc::new(Unknown)
        }
    }
}

/// The records, which are unknown because they were not read.
#[derive(Debug)]
struct Unknown;

impl Unknown {
    fn records() -> Unavailable {
        Unavailable::new(NotCalled(
            "the node identities, which are in the workload cluster",
        ))
    }
}

#[async_trait::async_trait]
impl Records for Unknown {
    async fn known(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        Err(Self::records())
    }

    async fn known_of_machine(
        &self,
        _: &Identity,
        _: KeyDigest,
    ) -> Result<Vec<Stored>, Unavailable> {
        Err(Self::records())
    }

    async fn known_of_uid(&self, _: RecordUid) -> Result<Vec<Stored>, Unavailable> {
        Err(Self::records())
    }

    async fn caught_up(&self, _: &NodeName, _: &Version) -> Result<(), Unavailable> {
        Err(Self::records())
    }

    async fn read(&self, _: &NodeName) -> Result<Option<Stored>, Unavailable> {
        Err(Self::records())
    }

    async fn create(&self, _: &Record) -> Result<Stored, WriteError> {
        Err(Self::records().into())
    }

    async fn replace(&self, _: &Record, _: &Version) -> Result<Stored, WriteError> {
        Err(Self::records().into())
    }

    async fn delete(&self, _: &NodeName, _: &Version) -> Result<(), WriteError> {
        Err(Self::records().into())
    }

    async fn all(&self) -> Result<AllRecords, Unavailable> {
        Err(Self::records())
    }

    async fn note(&self, _: &NodeName, _: &LastIssued) -> Result<(), Unavailable> {
        Err(Self::records())
    }
}

/// Read-only access to the Nodes.
#[derive(Debug)]
struct SeenNodes(
    /// The Nodes. `None` without a kubeconfig.
    Option<KubeNodes>,
);

fn no_kubeconfig() -> Unavailable {
    Unavailable::new(NotCalled("the Nodes, because no kubeconfig was given"))
}

#[async_trait::async_trait]
impl Nodes for SeenNodes {
    async fn state(&self, name: &NodeName) -> Result<Option<Node>, Unavailable> {
        match &self.0 {
            Some(nodes) => nodes.state(name).await,
            None => Err(no_kubeconfig()),
        }
    }

    async fn delete(&self, _: &NodeName, _: &str) -> Result<(), Unavailable> {
        Err(Unavailable::new(NotCalled(
            "an explanation does not delete Nodes",
        )))
    }

    fn now(&self, now: SystemTime) -> SystemTime {
        self.0.as_ref().map_or(now, |nodes| nodes.now(now))
    }
}

#[async_trait::async_trait]
impl NodeReportedAddresses for SeenNodes {
    async fn names(&self, name: &NodeName) -> Result<Vec<ServingName>, Unavailable> {
        match &self.0 {
            Some(nodes) => nodes.names(name).await,
            None => Err(no_kubeconfig()),
        }
    }
}
