//! The AWS identities of Clusters: their options, and the watches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::evidence::aws::is_region;
use node_attestation_aws::credentials::{ClusterTenant, DefaultChain, Tenant};
use node_attestation_aws::proxy::SharedHttpClient;
use node_attestation_aws::tenancy::credentials::{TenantClients, TenantCredentials};
use node_attestation_aws::tenancy::sessions::SdkSts;
use node_attestation_aws::tenancy::store::IdentityStore;
use node_attestation_aws::tenancy::stored_objects::Places;
use node_attestation_aws::tenancy::watch::{IdentityWatch, KubeTokens};
use node_attestation_aws::tenancy::{Ack, DigestKey, TenancySettings};
use node_attestation_core::crd::AwsSettings;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::ClusterAccess;
use node_attestation_runtime::metrics::Metrics;
use tokio::sync::Notify;
use tokio::time::{Instant, interval_at};

use crate::error::BoxError;

/// The interval at which the data of deleted Clusters is removed.
const FORGET: Duration = Duration::from_mins(5);

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "AWS identities of Clusters (management cluster)")]
#[expect(
    clippy::doc_markdown,
    reason = "each field is an option, and its comment is the option's help"
)]
pub(crate) struct TenancyArguments {
    /// Namespace of Cluster API Provider AWS, with the Secrets of AWSClusterStaticIdentity
    #[arg(long, value_name = "NAME", default_value = "capa-system")]
    capa_namespace: String,
    /// STS region for AssumeRole. Default: the region of each cluster
    #[arg(long, value_name = "REGION", value_parser = region)]
    aws_sts_region: Option<String>,
    /// Source of the role, in AWS Controllers for Kubernetes (ACK), for a cluster that Cluster API Provider AWS did not
    /// create
    #[arg(long, value_name = "WAY", value_enum, default_value_t = AckOption::Off)]
    ack: AckOption,
    /// Namespace of AWS Controllers for Kubernetes, which contains its ConfigMaps
    #[arg(long, value_name = "NAME", default_value = "ack-system")]
    ack_namespace: String,
    /// Call EC2 with the controller's own credentials for clusters without an identity
    #[arg(long)]
    allow_controller_identity_fallback: bool,
}

/// The values of `--ack`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum AckOption {
    /// ACK does not specify a role
    Off,
    /// Annotations of the Namespace, and the maps of accounts (CARM)
    Carm,
    /// The only ACK role selector that matches the instances
    RoleSelectors,
}

/// The identities of Clusters.
#[derive(Debug, Clone)]
pub(crate) struct Tenants {
    pub(super) credentials: Arc<TenantCredentials>,
    /// The objects that define the identities. The store observes the Cluster watch.
    pub(crate) observer: Arc<IdentityStore>,
    /// Notifies that a Cluster needs an identity. The watches start only after this notification.
    wanted: Arc<Notify>,
}

impl TenancyArguments {
    /// Creates the identities of the Clusters in `management`. The returned future keeps them current, and never ends.
    pub(super) fn open(
        self,
        management: &ClusterAccess,
        namespace: Option<&str>,
        own: Arc<DefaultChain>,
        sts_urls: BTreeMap<String, String>,
        sts_client: Option<SharedHttpClient>,
        metrics: &Metrics,
    ) -> Result<(Tenants, impl Future<Output = ()> + Send + use<>), BoxError> {
        let settings = self.settings();
        let store = Arc::new(IdentityStore::new(settings, &self.capa_namespace));
        let client = management.client().clone();
        let places = self.places(namespace);
        let sts = SdkSts::new(own.clone(), sts_urls, sts_client).measured_by(metrics.clone());
        let clients = TenantClients {
            own,
            sts: Arc::new(sts),
            tokens: Arc::new(KubeTokens::new(client.clone())),
            sts_region: self.aws_sts_region,
        };
        let watch = IdentityWatch::new(client, places, store.clone());
        let observer = store.clone();
        let key = DigestKey::random().ok_or("the system did not provide random bytes")?;
        let (credentials, first_accounts) = TenantCredentials::new(clients, store, key);
        let tenants = Tenants {
            credentials: Arc::new(credentials),
            observer,
            wanted: Arc::default(),
        };
        let (credentials, wanted) = (tenants.credentials.clone(), tenants.wanted.clone());
        let work = async move {
            wanted.notified().await;
            let forget = async {
                let mut rounds = interval_at(Instant::now() + FORGET, FORGET);
                loop {
                    rounds.tick().await;
                    credentials.forget_gone();
                }
            };
            tokio::join!(watch.run(), watch.write_accounts(first_accounts), forget);
        };
        Ok((tenants, work))
    }

    /// The namespaces of the objects, for the Clusters in this namespace or in all namespaces.
    pub(crate) fn places(&self, namespace: Option<&str>) -> Places {
        Places {
            namespace: namespace.map(ToOwned::to_owned),
            capa_namespace: self.capa_namespace.clone(),
            ack_namespace: self.ack_namespace.clone(),
        }
    }

    /// The settings for resolving identities.
    pub(crate) fn settings(&self) -> TenancySettings {
        let ack = match self.ack {
            AckOption::Off => Ack::Off,
            AckOption::Carm => Ack::Carm,
            AckOption::RoleSelectors => Ack::RoleSelectors,
        };
        TenancySettings {
            ack,
            allow_controller_identity_fallback: self.allow_controller_identity_fallback,
        }
    }
}

impl Tenants {
    /// The tenant for a Cluster that has these settings. `account` is the recorded AWS account.
    pub(crate) fn tenant(
        &self,
        cluster: ObjectKey,
        settings: &AwsSettings,
        account: Option<&str>,
    ) -> Tenant {
        self.credentials.read_pin(&cluster, account);
        self.wanted.notify_one();
        Tenant::Cluster(ClusterTenant {
            service_account_identity: settings.service_account_identity.clone(),
            ..ClusterTenant::new(cluster)
        })
    }
}

fn region(text: &str) -> Result<String, String> {
    if is_region(text) {
        Ok(text.to_owned())
    } else {
        Err("must be an AWS region, such as eu-west-1".to_owned())
    }
}
