//! The controller for one cluster, by hand: everything from files, records in memory; or, of one
//! cluster with Cluster API, the CA from files and the rest as [`management`](crate::management) has it
//! ([`ClusterSettings`]).
//!
//! An infrastructure provider embeds it with verifiers of its own:
//!
//! ```no_run
//! # use std::path::PathBuf;
//! # use std::sync::Arc;
//! # use node_attestation_core::scope::Duties;
//! # use node_attestation_core::lifetimes::Lifetimes;
//! # use node_attestation_runtime::standalone::{
//! #     CaKey, Machines, ServingSettings, Settings, Standalone, StandaloneError,
//! # };
//! # use node_attestation_core::verifier::{Verifier, Verifiers};
//! # async fn embed(verifier: Arc<dyn Verifier>) -> Result<(), StandaloneError> {
//! let settings = Settings {
//!     workload_kubeconfig: PathBuf::from("workload.kubeconfig"),
//!     ca_cert: PathBuf::from("ca.crt"),
//!     ca_key: CaKey::File(PathBuf::from("ca.key")),
//!     inventory: Machines::File(PathBuf::from("machines.yaml")),
//!     audiences: Vec::new(),
//!     lifetimes: Lifetimes::default(),
//!     duties: Duties::default(),
//!     serving: ServingSettings::default(),
//! };
//! let controller = Standalone::load(settings, Verifiers::from_iter([verifier])).await?;
//! controller.run(std::future::pending()).await;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::Audience;
use node_attestation_core::decide::Context;
use node_attestation_core::inventory::Inventory;
use node_attestation_core::ledger::{LedgerPolicy, MemoryRecords, RecordLedger};
use node_attestation_core::lifetimes::Lifetimes;
use node_attestation_core::scope::{Duties, Enforcement};
use node_attestation_core::serving::{AddressRange, NodeReportedAddresses, ServingPolicy};
use node_attestation_core::signer::{InvalidCa, Signer};
use node_attestation_core::verifier::Verifiers;
use zeroize::Zeroizing;

use crate::capi::ObjectKey;
use crate::client::{ClusterAccess, ClusterAccessError};
use crate::clock::now;
use crate::csr_writer::{KubeStore, RequestStore};
use crate::events::Events;
use crate::external_signer::ExternalSigner;
use crate::file_inventory::{MachineList, MachineListError};
use crate::metrics::{ClusterReport, Metrics};
use crate::nodes::KubeNodes;
use crate::pipeline::Pipeline;
use crate::preflight;
use crate::worker;

mod cluster_api;
#[cfg(feature = "testing")]
mod testing;

pub use cluster_api::ClusterSettings;
pub(crate) use cluster_api::Said;

type BoxError = Box<dyn Error + Send + Sync>;

/// Some hundred certificates, or any key. A wrong file is not read whole.
const MAX_PEM_LEN: u64 = 256 * 1024;

/// The wait before another call of an API server that did not answer.
const EXAMINE_RETRY: Duration = Duration::from_secs(5);

/// The settings of an operator.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The workload cluster.
    pub workload_kubeconfig: PathBuf,
    /// Certificate of the CA that its API server accepts client certificates of.
    pub ca_cert: PathBuf,
    /// The CA's private key.
    pub ca_key: CaKey,
    /// The machines.
    pub inventory: Machines,
    /// Audiences beside the digests of the CA certificates.
    pub audiences: Vec<Audience>,
    /// The longest validity that is granted.
    pub lifetimes: Lifetimes,
    /// The requests that the controller answers, apart from those to the client signers of the verifiers.
    pub duties: Duties,
    /// The settings for serving certificates.
    pub serving: ServingSettings,
}

/// The holder of the CA's private key.
#[derive(Debug, Clone)]
pub enum CaKey {
    /// A file.
    File(PathBuf),
    /// Another program.
    External(ExternalSigner),
}

/// The source of a cluster's machines.
#[derive(Debug, Clone)]
pub enum Machines {
    /// A file ([`MachineList`]).
    File(PathBuf),
    /// Another inventory.
    Known(Arc<dyn Inventory>),
}

impl Machines {
    fn open(self) -> Result<Arc<dyn Inventory>, MachineListError> {
        Ok(match self {
            Self::File(path) => Arc::new(MachineList::open(&path)?),
            Self::Known(inventory) => inventory,
        })
    }
}

/// The settings of an operator for serving certificates.
#[derive(Debug, Clone, Default)]
pub struct ServingSettings {
    /// Hosts of the control plane's endpoint, beside the one in the kubeconfig.
    pub endpoint_hosts: Vec<String>,
    /// The addresses of the cluster's Services.
    pub service_ranges: Vec<AddressRange>,
    /// The ranges that the addresses of certificates are limited to; empty: there is no such limit.
    pub address_ranges: Vec<AddressRange>,
    /// Whether to accept the addresses that nodes report.
    pub guest_reported_addresses: bool,
}

/// The controller cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandaloneError {
    /// The workload cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterAccessError),
    /// The inventory.
    #[error(transparent)]
    Inventory(#[from] MachineListError),
    /// The management cluster does not say how the cluster's requests are answered.
    #[error("the management cluster does not say how requests of {cluster} are answered")]
    NotFromCluster {
        /// The Cluster.
        cluster: ObjectKey,
        /// The reason.
        source: BoxError,
    },
    /// A file of the CA could not be read.
    #[error("cannot read the CA's {what} {}", path.display())]
    ReadCa {
        /// `certificate` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The certificate's key is of no use.
    #[error("the CA in {} cannot sign by the external signer", cert.display())]
    ExternalCa {
        /// The certificate's file.
        cert: PathBuf,
        /// The reason.
        source: InvalidCa,
    },
    /// The CA cannot sign.
    #[error("the CA in {} and {} cannot be used", cert.display(), key.display())]
    Ca {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        source: InvalidCa,
    },
}

/// A controller that is ready to run.
#[derive(Debug)]
pub struct Standalone {
    access: ClusterAccess,
    context: Context,
    store: Arc<dyn RequestStore>,
    ca_is_known: bool,
    /// The management cluster, which keeps the records; `None` without Cluster API.
    management: Option<cluster_api::Background>,
    metrics: Metrics,
}

impl Standalone {
    /// Reads and checks all files, without a call of the cluster.
    pub async fn load(settings: Settings, verifiers: Verifiers) -> Result<Self, StandaloneError> {
        let certificate = read_pem("certificate", &settings.ca_cert)?;
        let signer = settings
            .ca_key
            .signer(&certificate, &settings.ca_cert, None)?;
        let inventory = settings.inventory.open()?;
        let access = ClusterAccess::from_kubeconfig(&settings.workload_kubeconfig).await?;

        let mut trust = Trust::of(&certificate, &access);
        trust.audiences.extend(settings.audiences);
        let mut endpoint_hosts = settings.serving.endpoint_hosts;
        endpoint_hosts.extend(access.server_host());
        let nodes = Arc::new(KubeNodes::new(access.client().clone()));
        let reported: Arc<dyn NodeReportedAddresses> = nodes.clone();
        let guest_reported = settings.serving.guest_reported_addresses;
        let serving = ServingPolicy {
            endpoint_hosts,
            service_ranges: settings.serving.service_ranges,
            address_ranges: settings.serving.address_ranges,
            guest_reported: guest_reported.then_some(reported),
        };
        let ledger = RecordLedger::new(
            Arc::new(MemoryRecords::default()),
            inventory.clone(),
            nodes,
            LedgerPolicy::new(settings.lifetimes.longest()),
        );
        let context = Context {
            verifiers,
            audiences: trust.audiences.into_iter().collect(),
            inventory,
            ledger: Arc::new(ledger),
            signer,
            lifetimes: settings.lifetimes,
            duties: settings.duties,
            enforcement: Enforcement::default(),
            serving,
        };
        let store = Arc::new(KubeStore::all(access.client().clone()));
        Ok(Self {
            access,
            context,
            store,
            ca_is_known: trust.ca_is_known,
            management: None,
            metrics: Metrics::default(),
        })
    }

    /// The same, which tells these metrics.
    #[must_use]
    pub fn measured_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Answers requests until `stop` is ready.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        self.tell_of_settings();
        self.metrics.require_lists(&["CertificateSigningRequest"]);
        let key = self.management.as_ref().map(|one| &one.cluster);
        let (namespace, name) = key.map_or(("", ""), |key| (&key.namespace, &key.name));
        let metrics = self.metrics.cluster(namespace, name).only();
        metrics.report(ClusterReport::serving);
        let client = self.access.client().clone();
        let machines = self.management.as_ref();
        let machines = machines.map(|one| one.access.client().clone());
        let (events, writer) = Events::start(client.clone(), machines);
        let pipeline = Pipeline::new(self.context, self.store, events, now).measured_by(metrics);
        let signers = pipeline.signers();
        let examination = tokio::spawn(examine(client.clone(), signers));
        worker::run(client, pipeline, Arc::default(), stop).await;
        examination.abort();
        writer.finish().await;
        tracing::info!("stopped");
    }

    fn tell_of_settings(&self) {
        for audience in &self.context.audiences {
            tracing::info!(
                audience = audience.as_str(),
                "evidence for this audience is accepted"
            );
        }
        if self.management.is_none() {
            tracing::warn!(
                "the ledger is in memory: after a restart every node name is free to the first machine that claims it, \
                 and no certificate of before can be renewed"
            );
        }
        if !self.ca_is_known {
            tracing::warn!(
                "the CA is not among the certificates that the kubeconfig trusts: \
                 kube-apiserver must have it in its --client-ca-file, or it refuses what is issued"
            );
        }
    }
}

/// The relation of the CA to the kubeconfig.
struct Trust {
    ca_is_known: bool,
    audiences: BTreeSet<Audience>,
}

impl Trust {
    fn of(ca_certificate: &[u8], access: &ClusterAccess) -> Self {
        let signing: Vec<Vec<u8>> = pem::parse_many(ca_certificate)
            .unwrap_or_default()
            .into_iter()
            .map(pem::Pem::into_contents)
            .collect();
        let trusted = access.ca_certificates();
        let all = signing.iter().chain(trusted);
        Self {
            ca_is_known: signing.iter().any(|ca| trusted.contains(ca)),
            audiences: all.map(|der| Audience::of_ca(der)).collect(),
        }
    }
}

impl CaKey {
    /// The signer with this key. `certificate` has been read from the file `cert`.
    fn signer(
        &self,
        certificate: &[u8],
        cert: &Path,
        cluster: Option<&ObjectKey>,
    ) -> Result<Arc<Signer>, StandaloneError> {
        let signer = match self {
            Self::File(path) => {
                let key = read_pem("key", path)?;
                let signer = Signer::from_pem(certificate, &key);
                signer.map_err(|source| StandaloneError::Ca {
                    cert: cert.to_owned(),
                    key: path.clone(),
                    source,
                })?
            }
            Self::External(external) => {
                let (namespace, name) = cluster.map_or(("", ""), |key| (&key.namespace, &key.name));
                let signer = Signer::with_external_key(certificate, external.key(namespace, name));
                signer.map_err(|source| StandaloneError::ExternalCa {
                    cert: cert.to_owned(),
                    source,
                })?
            }
        };
        Ok(Arc::new(signer))
    }
}

/// Calls the API server until it answers, and logs the findings.
async fn examine(client: kube::Client, signers: Vec<String>) {
    loop {
        let Err(error) = examine_once(&client, &signers).await else {
            return;
        };
        let refused = matches!(&error, kube::Error::Api(status) if status.code < 500);
        let error = error_chain(&error);
        if refused {
            tracing::warn!(error, "the API server does not say what we may do");
            return;
        }
        // The watches log an outage of the API server.
        tracing::debug!(error, "the API server could not be asked what we may do");
        tokio::time::sleep(EXAMINE_RETRY).await;
    }
}

async fn examine_once(client: &kube::Client, signers: &[String]) -> Result<(), kube::Error> {
    let server = preflight::version(client).await?;
    let missing = preflight::missing(client, preflight::required_rights(signers)).await?;
    let missing_optional = preflight::missing(client, preflight::optional_rights()).await?;
    let version = server.name.as_str();
    tracing::info!(version, "the API server answers");
    if !server.hands_uids_on() {
        tracing::warn!(
            version,
            "the API server is older than 1.33 and does not hand the UID of a certificate on: renewals will be denied"
        );
    }
    for right in missing {
        let right = right.to_string();
        tracing::error!(
            right,
            "a right is missing without which requests cannot be answered"
        );
    }
    for right in missing_optional {
        let right = right.to_string();
        tracing::warn!(
            right,
            "a right is missing; the controller works, and writes no events"
        );
    }
    Ok(())
}

fn read_pem(what: &'static str, path: &Path) -> Result<Zeroizing<Vec<u8>>, StandaloneError> {
    let failed = |source| StandaloneError::ReadCa {
        what,
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?.take(MAX_PEM_LEN);
    let mut bytes = Zeroizing::new(Vec::new());
    file.read_to_end(&mut bytes).map_err(failed)?;
    // A longer file has one more byte.
    file.set_limit(1);
    if file.read(&mut [0]).map_err(failed)? > 0 {
        let too_long = format!("longer than {MAX_PEM_LEN} bytes");
        return Err(failed(io::Error::new(
            io::ErrorKind::FileTooLarge,
            too_long,
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_longer_than_the_limit_is_refused_and_not_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let limit = usize::try_from(MAX_PEM_LEN).unwrap();
        std::fs::write(file.path(), vec![b'x'; limit]).unwrap();

        let read = read_pem("certificate", file.path()).unwrap();
        assert_eq!(read.len(), limit);

        std::fs::write(file.path(), vec![b'x'; limit + 1]).unwrap();
        let error = read_pem("certificate", file.path()).unwrap_err();
        let expected = format!(
            "cannot read the CA's certificate {}: longer than 262144 bytes",
            file.path().display()
        );
        assert_eq!(error_chain(&error), expected);
    }
}
