//! One cluster of a management cluster, by hand: for a time when its controller cannot run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::Audience;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::ledger::Absences;
use node_attestation_core::verifier::Verifiers;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{BoxError, CaKey, Standalone, StandaloneError, Trust, read_pem};
use crate::capi::{CapiInventory, Cluster, ObjectKey, Objects, Selection};
use crate::client::ClusterAccess;
use crate::csr_writer::KubeStore;
use crate::hardening::admission;
use crate::management::VerifierUnavailable;
use crate::management::spec_mapping::{ContextBuilder, is_to_be_enforced, serving_address_ranges};
use crate::metrics::Metrics;
use crate::records::KubeRecords;

/// Deadline of all reads before the first request: some lists of small objects.
const READ_DEADLINE: Duration = Duration::from_mins(1);

/// The settings of an operator for a cluster that has its other settings in a `KubeletAuthentication`.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// The workload cluster.
    pub workload_kubeconfig: PathBuf,
    /// The management cluster; the same where it hosts itself.
    pub management_kubeconfig: PathBuf,
    /// The Cluster, and the `KubeletAuthentication` of the same name.
    pub cluster: ObjectKey,
    /// Certificate of the CA that the workload cluster's API server accepts client certificates of.
    pub ca_cert: PathBuf,
    /// The CA's private key.
    pub ca_key: CaKey,
}

/// The management cluster; its watches run until this is dropped.
#[derive(Debug)]
pub(super) struct Background {
    pub(super) access: ClusterAccess,
    pub(super) cluster: ObjectKey,
    _watches: JoinSet<()>,
}

impl Standalone {
    /// Answers the requests of one Cluster as [`Controller`](crate::management::Controller) would, with its machines
    /// and records, but by a kubeconfig and a CA from files. The Cluster's Secrets are not read,
    /// nothing else is looked after, and no Lease is waited for: what both of them write, the
    /// records keep apart.
    ///
    /// # Errors
    ///
    /// A file, or what the management cluster says, cannot be used; or it says nothing in a minute.
    pub async fn of_cluster(
        settings: ClusterSettings,
        verifiers: impl Fn(&KubeletAuthentication, &str) -> Result<Verifiers, VerifierUnavailable>,
    ) -> Result<Self, StandaloneError> {
        let certificate = read_pem("certificate", &settings.ca_cert)?;
        let cert = &settings.ca_cert;
        let signer = settings
            .ca_key
            .signer(&certificate, cert, Some(&settings.cluster))?;
        let access = ClusterAccess::from_kubeconfig(&settings.workload_kubeconfig).await?;
        let management = ClusterAccess::from_kubeconfig(&settings.management_kubeconfig).await?;
        let key = settings.cluster;
        let refused = |source| StandaloneError::NotFromCluster {
            cluster: key.clone(),
            source,
        };

        let said = timeout(READ_DEADLINE, Said::read(management.client(), &key)).await;
        let said = said.unwrap_or_else(|_| Err(late())).map_err(refused)?;
        let verifiers = verifiers(&said.authentication, &said.cluster.uid);
        let verifiers = verifiers.map_err(|error| refused(error.into()))?;
        let spec = &said.authentication.spec;
        let mut trust = Trust::of(&certificate, &access);
        for text in &spec.audiences {
            let audience = Audience::parse(text);
            let invalid = |_| refused(format!("{text:?} is no audience").into());
            trust.audiences.insert(audience.map_err(invalid)?);
        }
        spec.check().map_err(|error| refused(error.into()))?;
        let serving_address_ranges =
            serving_address_ranges(spec).map_err(|error| refused(error.into()))?;

        // The controller of the cluster decides when it is enforced.
        let enforced = is_to_be_enforced(spec)
            && admission::is_enforced(access.client())
                .await
                .unwrap_or(false);
        let client = management.client().clone();
        let records = KubeRecords::start(client, &key.namespace, &key.name, &Metrics::default());
        let builder = ContextBuilder {
            spec,
            cluster: &said.cluster,
            access: &access,
            verifiers,
            audiences: trust.audiences.into_iter().collect(),
            serving_address_ranges,
            inventory: Arc::new(CapiInventory::new(said.objects, key.clone())),
            records: Arc::new(records),
            absences: Absences::default(),
            signer: Some(signer),
        };
        let context = builder.context();
        context.enforcement.set(enforced);
        let cluster = key.to_string();
        tracing::info!(cluster, "by the machines and records of this Cluster");
        if said.cluster.paused {
            tracing::warn!(cluster, "the Cluster is paused: nothing is answered");
        }
        let store = Arc::new(KubeStore::all(access.client().clone()));
        Ok(Self {
            access,
            context,
            store,
            ca_is_known: trust.ca_is_known,
            management: Some(Background {
                cluster: key,
                access: management,
                _watches: said.watches,
            }),
            metrics: Metrics::default(),
        })
    }
}

/// The settings and objects of the management cluster.
pub(crate) struct Said {
    pub(crate) authentication: KubeletAuthentication,
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    pub(crate) watches: JoinSet<()>,
}

impl Said {
    pub(crate) async fn read(client: &Client, key: &ObjectKey) -> Result<Self, BoxError> {
        let api: Api<KubeletAuthentication> = Api::namespaced(client.clone(), &key.namespace);
        let found = api.get_opt(&key.name).await;
        let found = found.map_err(|error| {
            let error = error_chain(&error);
            format!("its KubeletAuthentication cannot be read: {error}")
        })?;
        let authentication = found.ok_or("it has no KubeletAuthentication of this name")?;
        let selection = Selection {
            namespace: Some(key.namespace.clone()),
            watch_filter: None,
        };
        let (objects, all) = Objects::new(client.clone(), selection, &Metrics::default());
        let mut watches = JoinSet::new();
        watches.spawn(all);
        let mut changes = objects.changes();
        while !objects.is_ready() {
            ensure!(changes.changed().await.is_ok(), late());
        }
        let cluster = objects.cluster(key);
        Ok(Self {
            authentication,
            cluster: cluster.ok_or("it has no Cluster of this name")?,
            objects,
            watches,
        })
    }
}

fn late() -> BoxError {
    format!("it could not be read in {} s", READ_DEADLINE.as_secs()).into()
}
