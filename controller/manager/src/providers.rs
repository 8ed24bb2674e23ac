//! The providers in this program: their options, the state that their verifiers share, and the registry.

use std::future::pending;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use clap::builder::{PossibleValue, PossibleValuesParser};
use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::Provider;
use node_attestation_aws::policy::AwsPolicy;
use node_attestation_aws::verifier::AwsVerifier;
use node_attestation_core::crd::{
    AWS_ACCOUNT_ANNOTATION, AwsSettings, KubeletAuthentication, TpmSettings,
};
use node_attestation_core::verifier::{InsecureVerifier, Verifier, VerifierUnavailable, Verifiers};
use node_attestation_runtime::capi::{ClusterObserver, ObjectKey};
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::log_lines::ClusterLines;
use node_attestation_runtime::metrics::Metrics;
use node_attestation_tpm::challenge::{ChallengeKeySource, RehearsedKeys};
use node_attestation_tpm::verifier::TpmVerifier;

use crate::aws::{Aws, AwsArguments, AwsError, AwsParts, AwsUnavailable};
use crate::error::BoxError;
use crate::tpm::{self, ConfigMapReader, ObservationsOfClusters, PoliciesOfClusters, TpmArguments};

/// The registry: one row for each provider that has evidence. `insecure` has no evidence, and requires
/// `--allow-insecure`.
pub(crate) const PROVIDERS: &[Registered] = &[
    Registered {
        provider: Provider::AWS,
        help: "Instances with an AWS instance identity",
        verifier: aws_verifier,
    },
    Registered {
        provider: Provider::TPM,
        help: "Machines with a TPM 2.0",
        verifier: tpm_verifier,
    },
];

/// A provider whose evidence this program verifies.
pub(crate) struct Registered {
    /// The name in `spec.authorizedAttestors`.
    pub(crate) provider: Provider,
    /// A description of the provider's machines, for `--help`.
    pub(crate) help: &'static str,
    /// Creates the verifier for one cluster.
    pub(crate) verifier: VerifierOf,
}

/// Creates a provider's verifier for one cluster.
pub(crate) type VerifierOf = fn(&Providers, &Cluster<'_>) -> Result<Arc<dyn Verifier>, BoxError>;

/// The options of the providers.
#[derive(Debug, clap::Args)]
pub(crate) struct ProviderArguments {
    /// Allow machines without evidence. Anyone with a machine's bootstrap token can join as that machine
    #[arg(long)]
    allow_insecure: bool,
    #[command(flatten)]
    aws: AwsArguments,
    #[command(flatten)]
    tpm: TpmArguments,
}

/// Background work, in addition to the work for clusters.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The providers after the files in their options have been read, before the clusters are known.
#[derive(Debug)]
pub(crate) struct OpenedProviders {
    allow_insecure: bool,
    aws: Result<AwsParts, AwsUnavailable>,
    tpm_keys: Option<Arc<dyn ChallengeKeySource>>,
}

/// The state that the verifiers of all clusters share.
#[derive(Debug)]
pub(crate) struct Providers {
    /// Whether to admit machines without evidence.
    pub(crate) allow_insecure: bool,
    /// The clients for AWS, or the reason why they are not available.
    pub(crate) aws: Result<Aws, AwsUnavailable>,
    /// The keys for TPM challenges. `None` if none are configured.
    tpm_keys: Option<Arc<dyn ChallengeKeySource>>,
    /// The `ConfigMap`s that can list endorsement keys. `None` without a management cluster.
    pub(crate) config_maps: Option<ConfigMapReader>,
    /// The observations about TPMs.
    observations: ObservationsOfClusters,
    /// The policies for TPMs.
    tpm_policies: PoliciesOfClusters,
}

/// A cluster that needs verifiers, and its settings.
#[derive(Debug)]
pub(crate) struct Cluster<'a> {
    /// A unique name of the cluster. All replicas use the same name.
    pub(crate) uid: &'a str,
    /// The name of the Cluster.
    pub(crate) name: &'a str,
    /// The namespace of the Cluster. `None` without a management cluster.
    pub(crate) namespace: Option<&'a str>,
    /// `spec.aws`.
    pub(crate) aws: AwsSettings,
    /// `spec.tpm`.
    pub(crate) tpm: TpmSettings,
    /// The AWS account that is recorded on the `KubeletAuthentication`.
    pub(crate) aws_account: Option<&'a str>,
}

impl Cluster<'_> {
    /// The key of the Cluster. Empty without a management cluster.
    fn key(&self) -> ObjectKey {
        let name = self.namespace.map(|_| self.name).unwrap_or_default();
        ObjectKey::new(self.namespace.unwrap_or_default(), name)
    }
}

impl ProviderArguments {
    /// Reads the files that the options specify.
    pub(crate) fn open(self, metrics: &Metrics) -> Result<OpenedProviders, BoxError> {
        if self.allow_insecure {
            tracing::warn!(
                "machines without evidence are allowed: anyone with a machine's bootstrap token can join as that machine"
            );
        }
        let aws = match self.aws.open(metrics.clone()) {
            Ok(parts) => Ok(parts),
            Err(AwsError::Unavailable(why)) => Err(why),
            Err(AwsError::Invalid(error)) => return Err(error),
        };
        Ok(OpenedProviders {
            allow_insecure: self.allow_insecure,
            aws,
            tpm_keys: self.tpm.open()?,
        })
    }
}

impl OpenedProviders {
    /// Creates the providers for a controller without a management cluster.
    pub(crate) fn standalone(self) -> Providers {
        Providers {
            allow_insecure: self.allow_insecure,
            aws: self.aws.map(AwsParts::own),
            tpm_keys: self.tpm_keys,
            config_maps: None,
            observations: ObservationsOfClusters::default(),
            tpm_policies: PoliciesOfClusters::default(),
        }
    }

    /// Creates the providers for a management cluster or for one of its namespaces. The returned future runs the
    /// background work, and never ends.
    pub(crate) fn with_management(
        self,
        management: &ClusterAccess,
        namespace: Option<&str>,
    ) -> Result<(Providers, Work), BoxError> {
        let (aws, work): (_, Work) = match self.aws {
            Ok(parts) => {
                let (aws, work) = parts.tenants(management, namespace)?;
                (Ok(aws), Box::pin(work))
            }
            Err(why) => (Err(why), Box::pin(pending())),
        };
        let providers = Providers {
            allow_insecure: self.allow_insecure,
            aws,
            tpm_keys: self.tpm_keys,
            config_maps: Some(ConfigMapReader::new(management)),
            observations: ObservationsOfClusters::default(),
            tpm_policies: PoliciesOfClusters::default(),
        };
        Ok((providers, work))
    }
}

impl Providers {
    /// Creates providers that call only the management cluster, for explanations.
    pub(crate) fn offline(
        extra_signers: Option<&Path>,
        extra_versions: &[String],
        management: Option<&ClusterAccess>,
    ) -> Result<Self, BoxError> {
        Ok(Self {
            allow_insecure: true,
            aws: Ok(Aws::offline(extra_signers, extra_versions)?),
            tpm_keys: Some(Arc::new(RehearsedKeys)),
            config_maps: management.map(ConfigMapReader::new),
            observations: ObservationsOfClusters::default(),
            tpm_policies: PoliciesOfClusters::default(),
        })
    }

    /// Creates providers for predictions. With `ec2`, they call EC2 at these endpoints, with the operator's
    /// credentials.
    pub(crate) fn foreseeing(
        management: &ClusterAccess,
        ec2: Option<Vec<(String, String)>>,
    ) -> Result<Self, BoxError> {
        let mut providers = Self::offline(None, &[], Some(management))?;
        if let Some(endpoints) = ec2 {
            providers.aws = Ok(Aws::of_operator(endpoints)?);
        }
        Ok(providers)
    }

    /// The observer of the Cluster watch.
    pub(crate) fn cluster_observer(&self) -> Option<Arc<dyn ClusterObserver>> {
        let tenants = self.aws.as_ref().ok()?.tenants.as_ref()?;
        Some(tenants.observer.clone())
    }

    /// Creates the verifiers for a cluster's authorized attestation providers.
    pub(crate) fn verifiers(
        &self,
        authentication: &KubeletAuthentication,
        cluster_uid: &str,
    ) -> Verifiers {
        let spec = &authentication.spec;
        let cluster = Cluster {
            uid: cluster_uid,
            name: &spec.cluster_name,
            namespace: authentication.metadata.namespace.as_deref(),
            aws: spec.aws.clone().unwrap_or_default(),
            tpm: spec.tpm.clone().unwrap_or_default(),
            aws_account: annotation(authentication, AWS_ACCOUNT_ANNOTATION),
        };
        let tpm_policy = self.tpm_policies.of(cluster_uid);
        let authorized = spec.authorized_attestors.iter();
        let verifiers = authorized.map(|attestor| self.verifier(attestor, &cluster));
        verifiers.collect::<Verifiers>().with_settings(tpm_policy)
    }

    fn verifier(
        &self,
        attestor: &str,
        cluster: &Cluster<'_>,
    ) -> Result<Arc<dyn Verifier>, VerifierUnavailable> {
        if attestor == Provider::INSECURE.as_str() {
            ensure!(self.allow_insecure, VerifierUnavailable::InsecureNotAllowed);
            return Ok(Arc::new(InsecureVerifier));
        }
        let unknown = || VerifierUnavailable::Unknown(attestor.to_owned());
        let registered = named(attestor).ok_or_else(unknown)?;
        let verifier = (registered.verifier)(self, cluster);
        verifier.map_err(|error| VerifierUnavailable::Unusable {
            attestor: registered.provider.as_str(),
            why: error_chain(&*error),
        })
    }
}

/// The registered provider with this name.
fn named(attestor: &str) -> Option<&'static Registered> {
    PROVIDERS
        .iter()
        .find(|registered| registered.provider.as_str() == attestor)
}

/// The names of the attestation providers in this program, for clap.
pub(crate) fn attestors() -> PossibleValuesParser {
    let values = PROVIDERS.iter();
    let values = values.map(|one| PossibleValue::new(one.provider.as_str()).help(one.help));
    let insecure = PossibleValue::new(Provider::INSECURE.as_str());
    let insecure = insecure
        .help("Machines without evidence. Requires `--allow-insecure` in the command `run`");
    PossibleValuesParser::new(values.chain([insecure]))
}

fn annotation<'a>(authentication: &'a KubeletAuthentication, key: &str) -> Option<&'a str> {
    let annotations = authentication.metadata.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(key))
        .map(String::as_str)
}

impl Cluster<'_> {
    fn aws_policy(&self, aws: &Aws) -> AwsPolicy {
        let policy = AwsPolicy::new(&self.aws, Some(self.name.to_owned()));
        let (Some(tenants), Some(namespace)) = (&aws.tenants, self.namespace) else {
            return policy;
        };
        let cluster = ObjectKey::new(namespace, self.name);
        policy.of_tenant(tenants.tenant(cluster, &self.aws, self.aws_account))
    }
}

fn aws_verifier(
    providers: &Providers,
    cluster: &Cluster<'_>,
) -> Result<Arc<dyn Verifier>, BoxError> {
    let aws = providers.aws.as_ref().map_err(AwsUnavailable::clone)?;
    let clients = aws.clients.clone();
    let verifier = AwsVerifier::new(clients, cluster.aws_policy(aws), cluster.uid);
    Ok(Arc::new(verifier))
}

/// Creates the verifier for TPMs. If the machines are AWS instances, EC2 reports the endorsement keys.
fn tpm_verifier(
    providers: &Providers,
    cluster: &Cluster<'_>,
) -> Result<Arc<dyn Verifier>, BoxError> {
    let policy = |aws: &Aws| cluster.aws_policy(aws);
    let platform = tpm::platform(&cluster.tpm, providers.aws.as_ref(), policy)?;
    let names = &cluster.tpm.endorsement_keys.config_maps;
    let lists = match (&providers.config_maps, cluster.namespace) {
        _ if names.is_empty() => None,
        (Some(reader), Some(namespace)) => Some(reader.lists(namespace, names)),
        (None, _) | (_, None) => {
            let why = "endorsementKeys.configMaps requires a management cluster, \
                       and this controller has none: list the keys in allowList";
            return Err(why.into());
        }
    };
    let keys = providers.tpm_keys.clone();
    let keys = keys.ok_or("it runs without --tpm-challenge-keys")?;
    let policy = providers.tpm_policies.of(cluster.uid).of(&cluster.tpm)?;
    let owner = cluster.key();
    let observations = &providers.observations;
    let verifier = TpmVerifier::new(cluster.uid, policy, platform, keys)
        .observing(observations.of(cluster.uid, &owner.namespace))
        .in_turns_of(&owner)
        .logging(Arc::new(ClusterLines::of(&owner).of_evidence()));
    Ok(match lists {
        Some(lists) => Arc::new(verifier.reading(lists)),
        None => Arc::new(verifier),
    })
}

#[cfg(test)]
mod tests;
