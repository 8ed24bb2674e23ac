//! The endorsement key of an instance's TPM: `GetInstanceTpmEkPub`.
//!
//! A Nitro TPM has no certificate for its endorsement key. The key is accepted because EC2 reports it for this
//! instance, in a call with the cluster's own credentials.

pub(super) mod key_format;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{EkPubKeyFormat, EkPubKeyType};
use futures::future::FutureExt as _;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::{KeyDigest, ServingName};
use node_attestation_core::rate_limit::Rate;
use node_attestation_core::refusal::{Reason, Refusal, Unavailable};
use node_attestation_core::verifier::platform::{KeyKind, Platform};
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::metrics::Metrics;
use tokio::time::timeout;

use self::key_format::{key_type, read};
use super::batch::Instances;
use super::call_limits::CallLimits;
use super::channel::{Channel, Lane, Remembered, recall, remember};
use super::client::{Ec2, Ec2Settings, outage};
use super::outage::OutageKind;
use super::place::InstancePlace;
use crate::credentials::{CredentialsSource, Tenant};
use crate::denial::AwsDenial;
use crate::policy::AwsPolicy;

/// The action that the controller's IAM policy must allow.
const ACTION: &str = "ec2:GetInstanceTpmEkPub";

/// The limits on key lookups.
const LIMITS: CallLimits = CallLimits {
    // EC2 allows twice this rate, but other clients share the account's quota.
    rate: Rate {
        burst: 20,
        every: Duration::from_millis(100),
    },
    // The time is longer than the time between a machine's two requests. The key does not change while the instance
    // exists.
    remembered: Duration::from_mins(5),
    credentials: Duration::from_secs(20),
    call: Duration::from_secs(12),
    // The maximum wait for the turn to call EC2.
    wait: Duration::from_secs(10),
    pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(30),
};

/// The endorsement keys of instance TPMs, as reported by EC2.
///
/// # Guarantees
///
/// - Only keys are remembered. Keys are shared only between callers with the same credentials and region. For an
///   unknown instance, or an instance without a key, every lookup calls EC2.
/// - A failure for one instance does not delay other instances.
#[derive(Debug, Clone)]
pub struct NitroTpms {
    channel: Arc<Channel<Keys>>,
    ec2: Arc<Ec2>,
}

type Keys = Remembered<(String, EkPubKeyType), KeyDigest>;

impl NitroTpms {
    /// Calls EC2 with the credentials from `source`.
    pub fn new(source: Arc<dyn CredentialsSource>, settings: Ec2Settings) -> Self {
        Self::with(source, settings, LIMITS)
    }

    /// Does the same as [`new`](Self::new), and also counts the calls.
    pub fn measured(
        source: Arc<dyn CredentialsSource>,
        settings: Ec2Settings,
        metrics: &Metrics,
    ) -> Self {
        let ec2 = Ec2::new(settings.clone()).measured_by(metrics.clone());
        Self {
            ec2: Arc::new(ec2),
            ..Self::new(source, settings)
        }
    }

    fn with(source: Arc<dyn CredentialsSource>, settings: Ec2Settings, limits: CallLimits) -> Self {
        Self {
            channel: Arc::new(Channel::new(source, limits)),
            ec2: Arc::new(Ec2::new(settings)),
        }
    }

    /// The TPMs of the instances that a cluster with this policy can have. `instances` describes the instances.
    pub fn of_cluster(&self, instances: Instances, policy: AwsPolicy) -> ClusterTpms {
        ClusterTpms {
            tpms: self.clone(),
            instances,
            policy,
        }
    }

    /// Returns the key of an instance's TPM. `None` if the instance has no TPM.
    async fn key(
        &self,
        tenant: &Tenant,
        place: InstancePlace<'_>,
        key_type: EkPubKeyType,
    ) -> Result<Option<KeyDigest>, Unavailable> {
        let (lane, _lease) = self.channel.lane(tenant, place.region).await?;
        let cluster = tenant.line();
        let key = self.ask(&lane, &cluster, place, key_type).await;
        key.map_err(|outage| outage.at(place.region))
    }

    async fn ask(
        &self,
        lane: &Lane<Keys>,
        cluster: &ObjectKey,
        place: InstancePlace<'_>,
        key_type: EkPubKeyType,
    ) -> Result<Option<KeyDigest>, OutageKind> {
        let asked = (place.instance.to_owned(), key_type);
        let age = self.channel.limits.remembered;
        let known = || lane.state(|state| recall(&state.own, &asked, age));
        if let Some(key) = known() {
            return Ok(Some(key));
        }
        let turn = timeout(self.channel.limits.wait, lane.token(cluster));
        turn.await.map_err(|_| OutageKind::Busy)??;
        // A different request might have found the key during the wait.
        if let Some(key) = known() {
            return Ok(Some(key));
        }
        let key = lane
            .call(cluster, || self.ec2.endorsement_key(lane, place, &asked.1))
            .await;
        match &key {
            Ok(_) | Err(OutageKind::NotFound(_) | OutageKind::NoKey(..)) => lane.settle(None),
            Err(outage) if is_of_all(outage) => lane.settle(Some(outage)),
            Err(_) => {}
        }
        if let Ok(Some(key)) = &key {
            lane.state(|state| remember(&mut state.own, asked, *key, age));
        }
        key
    }
}

/// Whether an outage also affects other instances. Other errors might affect only this instance, because permissions
/// can depend on tags.
fn is_of_all(outage: &OutageKind) -> bool {
    use OutageKind::{Credentials, InvalidResponse, Throttled, TimedOut, Unreachable};
    matches!(
        outage,
        TimedOut | Unreachable(_) | InvalidResponse(_) | Throttled(_) | Credentials(_)
    )
}

/// The endorsement keys of one cluster's instances, and the names of their Nodes, as reported by EC2.
///
/// EC2 is not called for a machine whose provider ID is not an AWS ID, or whose region is not allowed for the cluster.
/// With an account's credentials, EC2 lists only instances of that account.
#[derive(Debug, Clone)]
pub struct ClusterTpms {
    tpms: NitroTpms,
    instances: Instances,
    policy: AwsPolicy,
}

#[async_trait::async_trait]
impl Platform for ClusterTpms {
    async fn endorsement_key(
        &self,
        provider_id: &ProviderId,
        kind: KeyKind,
    ) -> Result<Option<KeyDigest>, Unavailable> {
        let place = InstancePlace::in_cluster(provider_id, &self.policy);
        let (Some(key_type), Some(place)) = (key_type(kind), place) else {
            return Ok(None);
        };
        self.tpms.key(&self.policy.tenant, place, key_type).await
    }

    async fn check(&self, provider_id: &ProviderId, now: SystemTime) -> Result<(), Refusal> {
        let source = self.tpms.channel.source();
        let checked = self.instances.check(source, &self.policy, provider_id, now);
        checked.await
    }

    fn denials(&self) -> &'static [Reason] {
        AwsDenial::CATALOGUE
    }

    async fn node_name(&self, provider_id: &ProviderId) -> Result<Option<NodeName>, Unavailable> {
        self.instances.node_name(&self.policy, provider_id).await
    }

    async fn serving_names(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Vec<ServingName>>, Unavailable> {
        let names = self.instances.serving_names(&self.policy, provider_id);
        names.await
    }
}

impl Ec2 {
    async fn endorsement_key(
        &self,
        lane: &Lane<Keys>,
        place: InstancePlace<'_>,
        key_type: &EkPubKeyType,
    ) -> Result<Option<KeyDigest>, OutageKind> {
        let key = self.ask_for_key(lane, place, key_type).await;
        self.count("GetInstanceTpmEkPub", &key);
        key
    }

    async fn ask_for_key(
        &self,
        lane: &Lane<Keys>,
        place: InstancePlace<'_>,
        key_type: &EkPubKeyType,
    ) -> Result<Option<KeyDigest>, OutageKind> {
        let InstancePlace {
            region, instance, ..
        } = place;
        let call = self
            .client(&lane.credentials, region)
            .get_instance_tpm_ek_pub()
            .instance_id(instance)
            .key_type(key_type.clone())
            .key_format(EkPubKeyFormat::Der);
        let output = match call.send().boxed().await {
            Ok(output) => output,
            Err(error) => {
                let code = error.as_service_error().and_then(|error| error.code());
                return match code {
                    Some("InvalidInstanceID.NotFound") => {
                        Err(OutageKind::NotFound(instance.to_owned()))
                    }
                    // These codes are not documented for this action. Any other code counts as an EC2 failure: the
                    // request waits, and the deferral contains the code.
                    Some("UnsupportedOperation" | "Unsupported") => Ok(None),
                    Some(_) | None => Err(outage(ACTION, &error)),
                };
            }
        };
        let is_asked = output.instance_id() == Some(instance)
            && output.key_type() == Some(key_type)
            && output.key_format() == Some(&EkPubKeyFormat::Der);
        let key = if is_asked {
            read(key_type, output.key_value().unwrap_or_default())
        } else {
            Err("it belongs to another instance or key")
        };
        key.map(Some)
            .map_err(|detail| OutageKind::NoKey(instance.to_owned(), detail))
    }
}

#[cfg(test)]
mod tests;
