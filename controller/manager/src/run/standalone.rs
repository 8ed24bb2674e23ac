//! One workload cluster, by hand.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::ensure;
use kubelet_attestation::names::{Audience, Provider};
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::lifetimes::Lifetimes;
use node_attestation_core::scope::{Duties, KubeletSignerMode};
use node_attestation_core::serving::AddressRange;
use node_attestation_core::verifier::{InsecureVerifier, Verifier, Verifiers};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::external_signer::ExternalSigner;
use node_attestation_runtime::metrics::Metrics;
use node_attestation_runtime::standalone::{
    CaKey, ClusterSettings, Machines, ServingSettings, Settings, Standalone,
};

use tokio::task::JoinSet;

use super::standalone_aws::StandaloneAwsArguments;
use super::standalone_tpm::StandaloneTpmArguments;
use crate::error::{BoxError, explain};
use crate::file;
use crate::providers::{Cluster, OpenedProviders, Providers, attestors, named};

/// The shortest lifetime that a Kubernetes signer may be asked for (`spec.expirationSeconds` of at
/// least 600).
const MIN_DURATION: Duration = Duration::from_mins(10);

/// Some hundred certificates.
const MAX_CA_LEN: usize = 256 * 1024;

#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own on the command line"
)]
#[command(next_help_heading = "One workload cluster, without a management cluster")]
pub(super) struct StandaloneArguments {
    /// Kubeconfig of the workload cluster
    #[arg(long, value_name = "FILE", conflicts_with_all = MANAGEMENT, requires_all = ["ca_cert", "signing_key", "machines"])]
    pub(super) workload_kubeconfig: Option<PathBuf>,
    /// Certificate of the CA that the cluster's API server accepts client certificates of, as PEM
    #[arg(long, value_name = "FILE", requires = "workload_kubeconfig")]
    ca_cert: Option<PathBuf>,
    /// Key of that CA, as PEM: PKCS#8, PKCS#1 or SEC1
    #[arg(
        long,
        value_name = "FILE",
        group = "signing_key",
        requires = "workload_kubeconfig"
    )]
    ca_key: Option<PathBuf>,
    /// Whose evidence is appraised
    #[arg(
        long, value_name = "PROVIDER", value_parser = attestors(),
        conflicts_with_all = ["allow_insecure", "cluster"], requires = "workload_kubeconfig"
    )]
    attestor: Option<String>,
    #[command(flatten)]
    aws: StandaloneAwsArguments,
    #[command(flatten)]
    tpm: StandaloneTpmArguments,
    /// List of the cluster's machines, read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        group = "machines",
        requires = "workload_kubeconfig"
    )]
    inventory: Option<PathBuf>,
    /// The machines, records and settings of this Cluster, as its management cluster has them; its
    /// Secrets are not read
    #[arg(
        long, value_name = "NAMESPACE/NAME", group = "machines",
        requires_all = ["workload_kubeconfig", "management_kubeconfig", "signing_key"],
        conflicts_with_all = SAID_BY_CLUSTER
    )]
    cluster: Option<ObjectKey>,
    /// Kubeconfig of that management cluster; the same file where it hosts itself
    #[arg(long, value_name = "FILE", requires = "cluster")]
    management_kubeconfig: Option<PathBuf>,
    /// The longest validity that is granted to a machine that proved what it is
    #[arg(
        long, value_name = "DURATION", value_parser = duration,
        default_value = "168h", requires = "workload_kubeconfig"
    )]
    certificate_duration: Duration,
    /// The longest validity that is granted to a machine that proved nothing; it is never renewed
    #[arg(
        long, value_name = "DURATION", value_parser = duration,
        default_value = "8760h", requires = "workload_kubeconfig"
    )]
    insecure_certificate_duration: Duration,
    /// Accept evidence for this audience, beside the digests of the cluster's CA certificates
    #[arg(
        long = "audience", value_name = "AUDIENCE", value_parser = Audience::parse,
        requires = "workload_kubeconfig"
    )]
    audiences: Vec<Audience>,
    /// Answer requests for serving certificates; a machine without evidence gets none
    #[arg(long, requires = "workload_kubeconfig")]
    serving: bool,
    /// Addresses of Services, which no serving certificate is for
    #[arg(long = "service-range", value_name = "CIDR", requires = "serving")]
    service_ranges: Vec<AddressRange>,
    /// Addresses that serving certificates are limited to, of those that are the machine's; DNS names
    /// are not limited
    #[arg(
        long = "serving-address-range",
        value_name = "CIDR",
        requires = "serving"
    )]
    serving_address_ranges: Vec<AddressRange>,
    /// Host of the control plane's endpoint, beside the kubeconfig's, which no serving certificate is
    /// for
    #[arg(long = "endpoint-host", value_name = "HOST", requires = "serving")]
    endpoint_hosts: Vec<String>,
    /// Take the addresses that nodes report of themselves for theirs
    #[arg(long, requires = "serving")]
    guest_reported_addresses: bool,
    /// Deny requests to kubernetes.io/kube-apiserver-client-kubelet
    #[arg(long, requires = "workload_kubeconfig")]
    deny_built_in: bool,
    /// Approve such requests of control-plane machines that renew kubeadm's certificate
    #[arg(long, requires = "deny_built_in")]
    control_plane_renewal: bool,
}

/// The options of a management cluster.
const MANAGEMENT: [&str; 4] = ["kubeconfig", "context", "namespace", "watch_filter"];

/// There is nobody whose requests could be answered.
const NOTHING_ADMITTED: &str = "nobody's requests are answered: give --attestor to admit machines that prove \
                                what they are, or --allow-insecure to admit machines that prove nothing";

/// The flags that a `KubeletAuthentication` replaces.
const SAID_BY_CLUSTER: [&str; 9] = [
    "certificate_duration",
    "insecure_certificate_duration",
    "audiences",
    "serving",
    "service_ranges",
    "serving_address_ranges",
    "endpoint_hosts",
    "deny_built_in",
    "control_plane_renewal",
];

// The command line has every option that another one requires.
impl StandaloneArguments {
    /// With the settings of this Cluster of a management cluster.
    fn of_cluster(self, cluster: ObjectKey, external: Option<ExternalSigner>) -> ClusterSettings {
        ClusterSettings {
            ca_key: external.map_or_else(
                || CaKey::File(self.ca_key.unwrap_or_default()),
                CaKey::External,
            ),
            workload_kubeconfig: self.workload_kubeconfig.unwrap_or_default(),
            management_kubeconfig: self.management_kubeconfig.unwrap_or_default(),
            cluster,
            ca_cert: self.ca_cert.unwrap_or_default(),
        }
    }

    /// By files, or what else is on the command line.
    fn settings(
        self,
        providers: &Providers,
        external: Option<ExternalSigner>,
    ) -> Result<Settings, BoxError> {
        let inventory = if self.aws.aws_inventory {
            let aws = providers.aws.as_ref().map_err(String::as_str);
            let inventory = self.aws.inventory(aws.map_err(unusable("aws"))?);
            Machines::Known(inventory.map_err(explain("--aws-inventory"))?)
        } else {
            Machines::File(self.inventory.clone().unwrap_or_default())
        };
        Ok(Settings {
            duties: self.duties(),
            serving: self.serving_settings(),
            workload_kubeconfig: self.workload_kubeconfig.unwrap_or_default(),
            ca_cert: self.ca_cert.unwrap_or_default(),
            ca_key: external.map_or_else(
                || CaKey::File(self.ca_key.unwrap_or_default()),
                CaKey::External,
            ),
            inventory,
            audiences: self.audiences,
            lifetimes: Lifetimes {
                attested: self.certificate_duration,
                insecure: self.insecure_certificate_duration,
            },
        })
    }

    fn serving_settings(&self) -> ServingSettings {
        ServingSettings {
            endpoint_hosts: self.endpoint_hosts.clone(),
            service_ranges: self.service_ranges.clone(),
            address_ranges: self.serving_address_ranges.clone(),
            guest_reported_addresses: self.guest_reported_addresses,
        }
    }

    fn duties(&self) -> Duties {
        Duties {
            serving: self.serving,
            built_in: match (self.deny_built_in, self.control_plane_renewal) {
                (false, _) => KubeletSignerMode::Ignore,
                (true, false) => KubeletSignerMode::Deny,
                (true, true) => KubeletSignerMode::DenyExceptControlPlane,
            },
        }
    }

    /// The verifier of the cluster's machines.
    fn verifier(&self, providers: &Providers) -> Result<Arc<dyn Verifier>, BoxError> {
        let Some(registered) = self.attestor.as_deref().and_then(named) else {
            ensure!(providers.allow_insecure, NOTHING_ADMITTED.into());
            return Ok(Arc::new(InsecureVerifier));
        };
        let attestor = registered.provider.as_str();
        let owned = [
            (Provider::AWS, self.aws.said_of_evidence()),
            (Provider::TPM, self.tpm.said_of_evidence()),
        ];
        for (owner, option) in owned {
            if let Some(option) = option.filter(|_| owner != registered.provider) {
                let what =
                    format!("{option} says nothing with --attestor {attestor}: leave it out");
                return Err(what.into());
            }
        }
        let tpm = self.tpm.settings()?;
        // What AWS shares among clusters is of this one alone, so that no file is read for its name.
        let uid = if registered.provider == Provider::AWS {
            String::new()
        } else {
            self.cluster_identity()?
        };
        let cluster = Cluster {
            uid: &uid,
            name: self.aws.aws_cluster_name.clone(),
            namespace: None,
            aws: self.aws.settings(),
            tpm,
            aws_account: None,
        };
        let verifier = (registered.verifier)(providers, &cluster);
        verifier.map_err(unusable(attestor))
    }

    /// The identity of the cluster, the same for all replicas: without a management cluster there is no UID of
    /// a Cluster.
    fn cluster_identity(&self) -> Result<String, BoxError> {
        let path = self.ca_cert.as_deref().unwrap_or(Path::new(""));
        let text = file::read("--ca-cert", path, MAX_CA_LEN)?;
        Ok(cluster_of(&text))
    }
}

/// A name for the cluster with these CA certificates: replicas must agree on it, whose files may
/// differ in the order, the repetition or the form of the same certificates.
fn cluster_of(text: &[u8]) -> String {
    let blocks = pem::parse_many(text).unwrap_or_default().into_iter();
    let certificates: BTreeSet<Vec<u8>> = blocks
        .filter(|block| block.tag() == "CERTIFICATE")
        .map(pem::Pem::into_contents)
        .collect();
    if certificates.is_empty() {
        // Whoever reads the file next refuses it; until then it is no other file's cluster.
        return Audience::of_ca(text).to_string();
    }
    // DER says where it ends, so two lists never make the same bytes.
    let certificates: Vec<u8> = certificates.into_iter().flatten().collect();
    Audience::of_ca(&certificates).to_string()
}

fn unusable<E: Into<BoxError>>(attestor: &str) -> impl FnOnce(E) -> BoxError {
    explain(format!("--attestor {attestor} cannot be used"))
}

/// Serves the cluster until `stop` is ready.
pub(super) async fn run(
    arguments: StandaloneArguments,
    providers: OpenedProviders,
    external: Option<ExternalSigner>,
    metrics: Metrics,
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    let mut beside = JoinSet::new();
    let controller = match arguments.cluster.clone() {
        None => {
            let providers = providers.alone();
            let verifier = arguments.verifier(&providers)?;
            let settings = arguments.settings(&providers, external)?;
            Standalone::load(settings, Verifiers::from_iter([verifier])).await?
        }
        Some(cluster) => {
            let namespace = cluster.namespace.clone();
            let settings = arguments.of_cluster(cluster, external);
            let management = ClusterAccess::from_kubeconfig(&settings.management_kubeconfig).await;
            let management = management?;
            let (providers, work) = providers.with_management(&management, Some(&namespace))?;
            beside.spawn(work);
            let verifiers = |authentication: &KubeletAuthentication, cluster_uid: &str| {
                providers.verifiers(authentication, cluster_uid)
            };
            Standalone::of_cluster(settings, &verifiers).await?
        }
    };
    tokio::select! {
        () = controller.measured_by(metrics).run(stop) => {}
        // It ends by a panic alone; without it no change of an identity would count.
        Some(_) = beside.join_next() => return Err("the watch of AWS identities ended".into()),
    }
    Ok(())
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration < MIN_DURATION {
        return Err("a certificate is valid for at least 10m".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: super::super::Arguments,
    }

    #[test]
    fn the_ranges_of_the_command_line_are_each_in_its_own_setting() {
        let line = Line::parse_from([
            "run",
            "--workload-kubeconfig=a",
            "--ca-cert=b",
            "--ca-key=c",
            "--inventory=d",
            "--serving",
            "--service-range=10.96.0.0/12",
            "--serving-address-range=10.1.0.0/16",
            "--serving-address-range=2001:db8::/64",
        ]);

        let settings = line.arguments.standalone.serving_settings();

        let ranges = |texts: &[&str]| -> Vec<AddressRange> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        assert_eq!(settings.service_ranges, ranges(&["10.96.0.0/12"]));
        let limits = ranges(&["10.1.0.0/16", "2001:db8::/64"]);
        assert_eq!(settings.address_ranges, limits);
    }

    #[test]
    fn the_cluster_is_the_same_in_whatever_form_and_order_its_certificates_are() {
        let certificate = |byte| {
            let der = [&[0x30, 0x82, 1, 0][..], &[byte; 256]].concat();
            pem::encode(&pem::Pem::new("CERTIFICATE", der))
        };
        let (first, second) = (certificate(1), certificate(2));
        let cluster = |parts: &[&str]| cluster_of(parts.concat().as_bytes());
        let expected = cluster(&[&first, &second]);

        for same in [
            cluster(&[&second, &first]),
            cluster(&[&first, "\n", &second, "\n\n"]),
            cluster(&["subject=CN = kubernetes\n", &first, &second, &first]),
            cluster(&[&first, &second.replace("\r\n", "\n")]),
            cluster(&[&first.replace("\r\n", "\n"), &second]),
        ] {
            assert_eq!(same, expected);
        }
        for other in [
            cluster(&[&first]),
            cluster(&[&second]),
            cluster(&[&first, &certificate(3)]),
            cluster(&["no certificate"]),
        ] {
            assert_ne!(other, expected);
        }
        assert_ne!(cluster(&["no certificate"]), cluster(&["none either"]));
    }

    #[test]
    fn a_duration_is_read_and_not_too_short() {
        assert_eq!(duration("168h"), Ok(Duration::from_hours(168)));
        assert_eq!(duration("10m"), Ok(MIN_DURATION));
        for text in ["9m", "0s", "168", "-1h", "", "h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
