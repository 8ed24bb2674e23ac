//! A cluster without a management cluster: its machines are in a file, and its records in the memory of its controller.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use kubelet_attestation::names::{Audience, NodeName, Provider};
use node_attestation_core::decide::Context;
use node_attestation_core::identifiers::KeyDigest;
use node_attestation_core::ledger::{
    LastIssued, LedgerPolicy, Record, RecordLedger, Records, Stored, Version, WriteError,
};
use node_attestation_core::lifetimes::Lifetimes;
use node_attestation_core::nodes::{Node, Nodes, ReadOnlyNodes};
use node_attestation_core::refusal::{NotAsked, Unavailable};
use node_attestation_core::scope::{Duties, Enforcement, KubeletSignerMode};
use node_attestation_core::serving::{AddressRange, ServingPolicy};
use node_attestation_core::verifier::{Identity, Verifiers};
use tokio::task::JoinSet;

use super::of_cluster::rehearsed_signer;
use super::{ExplainError, Explainer, Unasked};
use crate::client::ClusterAccess;
use crate::file_inventory::MachineList;
use crate::nodes::KubeNodes;

/// A cluster whose controller runs by files.
#[derive(Debug)]
pub struct AloneSettings {
    /// The workload cluster; `None`: only requests from files.
    pub workload: Option<ClusterAccess>,
    /// DER of the cluster's CA certificates, the one that signs first; the kubeconfig's are added.
    pub ca_certificates: Vec<Vec<u8>>,
    /// The file of its machines.
    pub inventory: PathBuf,
    /// Audiences beside the digests of the CA certificates.
    pub audiences: Vec<Audience>,
    /// The ranges that the addresses of serving certificates are limited to.
    pub serving_address_ranges: Vec<AddressRange>,
}

impl Explainer {
    /// The cluster, as far as files and its API server tell. `verifiers` ask nobody.
    ///
    /// # Errors
    ///
    /// A file cannot be used, or there is no CA certificate.
    pub fn alone(settings: AloneSettings, verifiers: Verifiers) -> Result<Self, ExplainError> {
        let AloneSettings {
            workload,
            mut ca_certificates,
            inventory,
            audiences,
            serving_address_ranges,
        } = settings;
        let trusted = workload.iter().flat_map(ClusterAccess::ca_certificates);
        ca_certificates.extend(trusted.cloned());
        let Some(ca) = ca_certificates.first() else {
            return Err(ExplainError::File(
                "there is no certificate of the CA".into(),
            ));
        };
        let signer = rehearsed_signer(ca).map_err(ExplainError::File)?;
        let signed_by = "the controller, with the key of --ca-key or by its external signer";
        let inventory = MachineList::open(&inventory);
        let inventory = Arc::new(inventory.map_err(|error| ExplainError::File(error.into()))?);
        let nodes: Arc<dyn Nodes> = match &workload {
            Some(access) => Arc::new(ReadOnlyNodes(KubeNodes::new(access.client().clone()))),
            None => Arc::new(Unknown),
        };
        let lifetimes = Lifetimes::default();
        let policy = LedgerPolicy::new(lifetimes.longest());
        let ledger = RecordLedger::new(Arc::new(Unknown), inventory.clone(), nodes, policy);
        let unasked = Unasked::default();
        let of_ca = ca_certificates.iter().map(|der| Audience::of_ca(der));
        let all: BTreeSet<_> = of_ca.chain(audiences).collect();
        let endpoint_hosts = workload.as_ref().and_then(ClusterAccess::server_host);
        let context = Context {
            verifiers: unasked.verifiers(verifiers, &[Provider::AWS]),
            audiences: all.into_iter().collect(),
            inventory,
            ledger: Arc::new(ledger),
            signer,
            lifetimes,
            duties: Duties {
                serving: true,
                built_in: KubeletSignerMode::Ignore,
            },
            enforcement: Enforcement::default(),
            serving: ServingPolicy {
                endpoint_hosts: endpoint_hosts.into_iter().collect(),
                address_ranges: serving_address_ranges,
                ..ServingPolicy::default()
            },
        };
        Ok(Self {
            context,
            workload,
            management: None,
            signed_by: signed_by.to_owned(),
            unasked,
            notes: Vec::new(),
            _watches: JoinSet::new(),
        })
    }
}

/// Records and Nodes of which nothing is known here.
#[derive(Debug)]
struct Unknown;

impl Unknown {
    fn records() -> Unavailable {
        Unavailable::new(NotAsked(
            "the records, which are in the memory of the controller",
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

    async fn all(&self) -> Result<Vec<Stored>, Unavailable> {
        Err(Self::records())
    }

    async fn note(&self, _: &NodeName, _: &LastIssued) -> Result<(), Unavailable> {
        Err(Self::records())
    }
}

#[async_trait::async_trait]
impl Nodes for Unknown {
    async fn state(&self, _: &NodeName) -> Result<Option<Node>, Unavailable> {
        Err(Unavailable::new(NotAsked(
            "the Nodes, without a kubeconfig",
        )))
    }

    async fn delete(&self, _: &NodeName, _: &str) -> Result<(), Unavailable> {
        Err(Unavailable::new(NotAsked(
            "the Nodes, without a kubeconfig",
        )))
    }
}
