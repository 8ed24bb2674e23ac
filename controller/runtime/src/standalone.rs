//! The controller for one cluster without a management cluster. The controller reads its configuration from files, and
//! keeps its records in the cluster.
//!
//! An infrastructure provider can embed the controller with its own verifiers:
//!
//! ```no_run
//! # use std::error::Error;
//! # use std::path::{Path, PathBuf};
//! # use std::sync::Arc;
//! # use node_attestation_core::crd::KubeletAuthentication;
//! # use node_attestation_core::verifier::{Verifier, Verifiers};
//! # use node_attestation_runtime::file_inventory::ClusterInventory;
//! # use node_attestation_runtime::metrics::Metrics;
//! # use node_attestation_runtime::settings_file;
//! # use node_attestation_runtime::standalone::{CaKey, Settings, Standalone};
//! # async fn embed(verifier: Arc<dyn Verifier>) -> Result<(), Box<dyn Error>> {
//! let settings = Settings {
//!     workload_kubeconfig: PathBuf::from("workload.kubeconfig"),
//!     ca_cert: PathBuf::from("ca.crt"),
//!     ca_key: CaKey::File(PathBuf::from("ca.key")),
//!     inventory: ClusterInventory::open(Path::new("machines.yaml"))?,
//!     authentication: settings_file::read(Path::new("settings.yaml"))?,
//!     metrics: Metrics::default(),
//! };
//! let verifiers = move |_: &KubeletAuthentication, _: &str| Verifiers::from_iter([verifier.clone()]);
//! let controller = Standalone::load(settings, &verifiers).await?;
//! controller.run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::conditions::ConditionStatus;
use node_attestation_core::crd::{AutoApproveBindings, KubeletAuthentication};
use node_attestation_core::decide::Context;
use node_attestation_core::signer::{InvalidCa, Signer};
use node_attestation_core::verifier::{VerifierUnavailable, Verifiers};
use zeroize::Zeroizing;

use crate::client::{ClusterAccess, ClusterAccessError};
use crate::clock::now;
use crate::csr_writer::{KubeStore, RequestStore};
use crate::events::Events;
use crate::external_signer::ExternalSigner;
use crate::file_inventory::ClusterInventory;
use crate::metrics::Metrics;
use crate::nodes::KubeNodes;
use crate::pipeline::Pipeline;
use crate::preflight;
use crate::records::{KubeRecords, WORKLOAD_NAMESPACE};
use crate::worker;

mod assembly;
mod findings;
mod records;
mod service_addresses;
#[cfg(feature = "testing")]
mod testing;

pub use assembly::UnusableSettings;
pub(crate) use assembly::{ClusterInFiles, certificates, uid};
pub use records::RecordsRefused;
pub(crate) use records::refusal;

/// The maximum size of a PEM file, which is enough for hundreds of certificates, or any key. The limit prevents reading
/// all of a large file that was specified by mistake.
const MAX_PEM_LEN: u64 = 256 * 1024;

/// The delay before the next call to an API server that did not respond.
const EXAMINE_RETRY: Duration = Duration::from_secs(5);

/// The settings that an operator provides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The workload cluster.
    pub workload_kubeconfig: PathBuf,
    /// The certificate of the CA that the API server accepts for client certificates.
    pub ca_cert: PathBuf,
    /// The private key of the CA.
    pub ca_key: CaKey,
    /// The machines.
    pub inventory: ClusterInventory,
    /// The other settings, which are the same as in a management cluster ([`settings_file`](crate::settings_file)).
    pub authentication: KubeletAuthentication,
    /// The metrics and the health of the controller.
    pub metrics: Metrics,
}

/// The location of the CA's private key.
#[derive(Debug, Clone)]
pub enum CaKey {
    /// A file.
    File(PathBuf),
    /// An external signer.
    External(ExternalSigner),
}

/// The controller cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandaloneError {
    /// The workload cluster cannot be accessed.
    #[error(transparent)]
    Cluster(#[from] ClusterAccessError),
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] UnusableSettings),
    /// None of the authorized attestation providers is available.
    #[error(transparent)]
    Verifier(#[from] VerifierUnavailable),
    /// A CA file cannot be read.
    #[error("cannot read the CA's {what} {}", path.display())]
    ReadCa {
        /// `certificate` or `key`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The CA certificate cannot be used with the external signer.
    #[error("the external signer cannot sign with the CA in {}", cert.display())]
    ExternalCa {
        /// The path of the certificate file.
        cert: PathBuf,
        /// The reason.
        source: InvalidCa,
    },
    /// The CA cannot be used for signing.
    #[error("cannot use the CA certificate in {} with the key in {}", cert.display(), key.display())]
    Ca {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
        /// The reason.
        source: InvalidCa,
    },
}

/// A controller that is ready to run.
#[derive(derive_more::Debug)]
pub struct Standalone {
    access: ClusterAccess,
    /// The name of the cluster in its records.
    cluster: String,
    context: Context,
    /// Watches the records. Never ends.
    #[debug(skip)]
    records_watch: BoxFuture<'static, ()>,
    store: Arc<dyn RequestStore>,
    ca_is_known: bool,
    auto_approve_bindings: AutoApproveBindings,
    metrics: Metrics,
}

impl Standalone {
    /// Reads and checks all files, without calling the cluster.
    ///
    /// For `verifiers`, see [`management::Controller`](crate::management::Controller). Their text argument is a digest
    /// of the CA certificates.
    ///
    /// # Errors
    ///
    /// Returns an error if a file or a setting cannot be used.
    pub async fn load(
        settings: Settings,
        verifiers: impl Fn(&KubeletAuthentication, &str) -> Verifiers,
    ) -> Result<Self, StandaloneError> {
        let certificate = read_pem("certificate", &settings.ca_cert)?;
        let signing = certificates(&certificate);
        let authentication = &settings.authentication;
        let verifiers = verifiers(authentication, &uid(&signing));
        if let Some(why) = verifiers.none_available() {
            return Err(why.clone().into());
        }
        let signer = settings.ca_key.signer(&certificate, &settings.ca_cert)?;
        let access = ClusterAccess::from_kubeconfig(&settings.workload_kubeconfig).await?;
        let trusted = access.ca_certificates();
        let ca_is_known = signing.iter().any(|ca| trusted.contains(ca));
        let ca_certificates = signing.into_iter().chain(trusted.iter().cloned()).collect();
        let cluster = authentication.spec.cluster_name.clone();
        let (records, records_watch) = KubeRecords::of_one(
            access.client().clone(),
            WORKLOAD_NAMESPACE,
            &cluster,
            &settings.metrics,
        );
        let files = ClusterInFiles {
            authentication,
            inventory: settings.inventory,
            ca_certificates: &ca_certificates,
            workload: Some(&access),
            verifiers,
            records: Arc::new(records),
            signer,
        };
        let nodes = KubeNodes::new(access.client().clone());
        let context = files.context(nodes.with_time(access.server_time().clone()))?;
        let store = Arc::new(KubeStore::all(access.client().clone()));
        Ok(Self {
            access,
            cluster,
            context,
            records_watch: records_watch.boxed(),
            store,
            ca_is_known,
            auto_approve_bindings: authentication.spec.mode(),
            metrics: settings.metrics,
        })
    }

    /// Serves requests until `stop` is ready.
    ///
    /// # Errors
    ///
    /// Returns an error if the cluster cannot store the records. In this case, no request was answered.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), RecordsRefused> {
        self.tell_of_settings();
        self.metrics
            .require_lists(&["CertificateSigningRequest", "NodeIdentity"]);
        let mut stop = pin!(stop);
        tokio::select! {
            () = &mut stop => return Ok(()),
            checked = records::check(self.access.client(), &self.cluster) => checked?,
        }
        let records_watch = tokio::spawn(self.records_watch);
        let sweep = records::sweep(
            self.context.ledger.clone(),
            self.access.server_time().clone(),
        );
        let sweep = tokio::spawn(sweep);
        let metrics = self.metrics.cluster("", "").only();
        let findings = findings::tell(self.context.verifiers.clone(), metrics.clone());
        let findings = tokio::spawn(findings);
        let client = self.access.client().clone();
        let (events, writer) = Events::start(client.clone(), None);
        let services = self.context.serving.service_ranges.clone();
        let pipeline = Pipeline::new(self.context, self.store, events, now)
            .measured_by(metrics)
            .with_server_time(self.access.server_time().clone());
        let signers = pipeline.available_signers();
        let examination = {
            let client = client.clone();
            tokio::spawn(async move {
                examine(&client, &signers).await;
                service_addresses::read_repeatedly(&client, &services).await;
            })
        };
        let observed = (Arc::default(), worker::UnreadableRequests::default());
        worker::run(client, pipeline, observed, stop).await;
        for task in [examination, findings, sweep, records_watch] {
            task.abort();
        }
        writer.finish().await;
        tracing::info!("stopped");
        Ok(())
    }

    fn tell_of_settings(&self) {
        let available = self.context.verifiers.availability();
        if available.holds != ConditionStatus::True {
            tracing::warn!("{}", available.message);
        }
        for audience in &self.context.audiences {
            tracing::info!(
                audience = audience.as_str(),
                "evidence for this audience is accepted"
            );
        }
        match self.auto_approve_bindings {
            AutoApproveBindings::Report => tracing::info!(
                "autoApproveBindings is Report: requests to built-in signers from nodes without a node identity are not answered"
            ),
            AutoApproveBindings::Remove | AutoApproveBindings::RemoveNow => tracing::warn!(
                "autoApproveBindings is Remove: requests to the built-in client signer are denied. Without a management \
                 cluster, kubeadm's bindings remain: remove them with kubectl"
            ),
        }
        tracing::info!("bootstrap tokens are not managed: this requires a management cluster");
        if !self.ca_is_known {
            tracing::warn!(
                "the CA is not among the certificates that the kubeconfig trusts: add the CA to the \
                 --client-ca-file of kube-apiserver, which otherwise rejects the issued certificates"
            );
        }
    }
}

impl CaKey {
    /// Creates the signer that uses this key. `certificate` is the content of the file `cert`.
    fn signer(&self, certificate: &[u8], cert: &Path) -> Result<Arc<Signer>, StandaloneError> {
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
                let signer = Signer::with_external_key(certificate, external.key("", ""));
                signer.map_err(|source| StandaloneError::ExternalCa {
                    cert: cert.to_owned(),
                    source,
                })?
            }
        };
        Ok(Arc::new(signer))
    }
}

/// Calls the API server until it responds, and logs the findings.
async fn examine(client: &kube::Client, signers: &[String]) {
    loop {
        let Err(error) = examine_once(client, signers).await else {
            return;
        };
        let refused = matches!(&error, kube::Error::Api(status) if status.code < 500);
        let error = error_chain(&error);
        if refused {
            tracing::warn!(
                error,
                "the API server does not report the controller's permissions"
            );
            return;
        }
        // The watches log an outage of the API server.
        tracing::debug!(
            error,
            "cannot read the controller's permissions from the API server"
        );
        tokio::time::sleep(EXAMINE_RETRY).await;
    }
}

async fn examine_once(client: &kube::Client, signers: &[String]) -> Result<(), kube::Error> {
    let server = preflight::version(client).await?;
    let missing = preflight::missing(client, preflight::required_rights(signers)).await?;
    let missing_optional = preflight::missing(client, preflight::optional_rights()).await?;
    let version = server.name.as_str();
    tracing::info!(version, "the API server responds");
    if !server.hands_uids_on() {
        tracing::warn!(
            version,
            "the API server is older than 1.33 and does not forward certificate UIDs: renewals will be denied"
        );
    }
    for right in missing {
        let right = right.to_string();
        tracing::error!(
            right,
            "a permission is missing: the controller cannot answer requests"
        );
    }
    for right in missing_optional {
        let right = right.to_string();
        tracing::warn!(
            right,
            "a permission is missing: the controller works, but does not write Events"
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
    // Reads one byte more than the limit, to detect a file that is too long.
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
    fn an_oversized_file_is_refused_instead_of_truncated() {
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
