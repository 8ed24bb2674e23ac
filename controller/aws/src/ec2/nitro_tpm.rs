//! The endorsement key of an instance's TPM: `GetInstanceTpmEkPub`.
//!
//! A TPM of Nitro has no certificate of its endorsement key. That EC2 says it of this instance, asked
//! with the controller's own credentials, is what makes the key the instance's.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::EkPubKeyFormat;
use futures::future::{BoxFuture, FutureExt as _};
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::identifiers::{KeyDigest, ServingName};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::verifier::platform::{Asked, Platform};
use tokio::time::{Instant, sleep_until, timeout};

use super::batch::{Instances, credentials};
use super::bucket::Bucket;
use super::circuit_breaker::CircuitBreaker;
use super::client::{Ec2, Ec2Settings, outage};
use super::endorsement_key::Kind;
use super::named::NothingTold;
use super::outage::Outage;
use super::place::Place;
use crate::credentials::{Credentials, CredentialsKey, CredentialsSource};
use crate::policy::AwsPolicy;

/// What the controller must be allowed to do.
const ACTION: &str = "ec2:GetInstanceTpmEkPub";

/// More than a fleet has tenants and regions in use; at it, all are made anew.
const MAX_LANES: usize = 4096;

/// More machines than join while a key is remembered; at it, all are asked for anew.
const MAX_REMEMBERED: usize = 10_000;

/// How much is asked of EC2, and how long is waited. The defaults are what the controller uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TpmLimits {
    /// How many calls may be made at once with the same credentials in one region.
    pub burst: u32,
    /// After those, one call in this time. EC2 allows twice as many, and others use the account too.
    pub interval: Duration,
    /// How long a request may wait until it may be asked.
    pub wait: Duration,
    /// How long one call may take, whatever its client does.
    pub call: Duration,
    /// How long credentials may take.
    pub credentials: Duration,
    /// How long a key is remembered: longer than a machine takes for its two requests. The key is
    /// the instance's for as long as the instance exists.
    pub remembered: Duration,
    /// How long EC2 is left alone after an outage; twice as long after each one more.
    pub pause: Duration,
    /// How long it is left alone at most.
    pub longest_pause: Duration,
}

impl Default for TpmLimits {
    fn default() -> Self {
        Self {
            burst: 20,
            interval: Duration::from_millis(100),
            wait: Duration::from_secs(10),
            call: Duration::from_secs(12),
            credentials: Duration::from_secs(20),
            remembered: Duration::from_mins(5),
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// The endorsement keys of instances' TPMs, by EC2's word.
///
/// # Guarantees
///
/// - What is remembered is shared only with the same [`CredentialsKey`] and region, and is keys
///   alone: what EC2 does not know, or says no key of, is asked anew each time.
/// - What EC2 says of one instance delays no other.
#[derive(Clone)]
pub struct NitroTpms {
    shared: Arc<Shared>,
}

struct Shared {
    source: Arc<dyn CredentialsSource>,
    ec2: Ec2,
    limits: TpmLimits,
    lanes: Mutex<HashMap<(CredentialsKey, String), Arc<Lane>>>,
}

/// The calls with the same credentials in one region.
struct Lane {
    credentials: Credentials,
    region: String,
    /// Who holds it is next.
    turn: tokio::sync::Mutex<Bucket>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    remembered: HashMap<(String, Kind), (Instant, KeyDigest)>,
    trouble: CircuitBreaker,
}

/// What EC2 says of an instance.
enum Told {
    Key(KeyDigest),
    /// It has no TPM.
    NoTpm,
    /// Nothing that could be used.
    Nothing(NothingTold),
}

impl NitroTpms {
    /// Asks EC2 with the credentials of `source`.
    pub fn new(source: Arc<dyn CredentialsSource>, settings: Ec2Settings) -> Self {
        Self::with(source, settings, TpmLimits::default())
    }

    /// The same with other limits.
    pub fn with(
        source: Arc<dyn CredentialsSource>,
        settings: Ec2Settings,
        limits: TpmLimits,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                source,
                ec2: Ec2::new(settings),
                limits,
                lanes: Mutex::default(),
            }),
        }
    }

    /// Those of the instances that a cluster with this policy may have; `instances` tell their names.
    pub fn of_cluster(&self, instances: Instances, policy: AwsPolicy) -> ClusterTpms {
        ClusterTpms {
            tpms: self.clone(),
            instances,
            policy,
        }
    }
}

impl fmt::Debug for NitroTpms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NitroTpms")
            .field("source", &self.shared.source)
            .field("ec2", &self.shared.ec2)
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

/// The endorsement keys of one cluster's instances, and the names of their Nodes, by EC2's word.
///
/// Nothing is known of a machine whose provider ID is none of AWS's, or names a region that the
/// cluster has no instances in; then nobody is asked. An account's credentials see its own
/// instances only, so an instance of another account is one that EC2 does not know.
#[derive(Debug, Clone)]
pub struct ClusterTpms {
    tpms: NitroTpms,
    instances: Instances,
    policy: AwsPolicy,
}

impl Platform for ClusterTpms {
    fn endorsement_key<'a>(
        &'a self,
        asked: Asked<'a>,
    ) -> BoxFuture<'a, Result<Option<KeyDigest>, Unavailable>> {
        async move {
            let place = Place::in_cluster(asked.provider_id, &self.policy);
            let (Some(kind), Some(place)) = (Kind::of(asked.kind), place) else {
                return Ok(None);
            };
            let account = self.policy.only_account().unwrap_or_default();
            self.tpms.shared.key(account, place, kind).await
        }
        .boxed()
    }

    fn node_name<'a>(
        &'a self,
        provider_id: &'a ProviderId,
    ) -> BoxFuture<'a, Result<Option<NodeName>, Unavailable>> {
        self.instances.node_name(&self.policy, provider_id).boxed()
    }

    fn serving_names<'a>(
        &'a self,
        provider_id: &'a ProviderId,
    ) -> BoxFuture<'a, Result<Option<Vec<ServingName>>, Unavailable>> {
        let names = self.instances.serving_names(&self.policy, provider_id);
        names.boxed()
    }
}

impl Shared {
    async fn key(
        &self,
        account: &str,
        place: Place<'_>,
        kind: Kind,
    ) -> Result<Option<KeyDigest>, Unavailable> {
        let credentials = credentials(
            &*self.source,
            account,
            place.region,
            self.limits.credentials,
        );
        let lane = self.lane(credentials.await?, place.region);
        if let Some(key) = lane.known(place, kind, self.limits.remembered)? {
            return Ok(Some(key));
        }
        let turn = timeout(self.limits.wait, lane.turn());
        turn.await.map_err(|_| Outage::Busy {
            region: lane.region.clone(),
        })?;
        // Meanwhile another may have learned it, or that EC2 is out of order.
        if let Some(key) = lane.known(place, kind, self.limits.remembered)? {
            return Ok(Some(key));
        }
        let told = timeout(
            self.limits.call,
            self.ec2.endorsement_key(&lane, place, kind),
        );
        let told = told.await.unwrap_or_else(|_| {
            Err(Outage::TimedOut {
                region: lane.region.clone(),
            })
        });
        lane.settle(told.as_ref().err(), &self.limits);
        match told? {
            Told::Key(key) => {
                lane.remember(place, kind, key);
                Ok(Some(key))
            }
            Told::NoTpm => Ok(None),
            Told::Nothing(why) => Err(Unavailable::new(why)),
        }
    }

    fn lane(&self, credentials: Credentials, region: &str) -> Arc<Lane> {
        let key = (credentials.key, region.to_owned());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.len() >= MAX_LANES && !lanes.contains_key(&key) {
            lanes.clear();
        }
        let made = || {
            let bucket = Bucket::new(self.limits.burst, self.limits.interval, Instant::now());
            Arc::new(Lane {
                credentials,
                region: region.to_owned(),
                turn: tokio::sync::Mutex::new(bucket),
                state: Mutex::default(),
            })
        };
        lanes.entry(key).or_insert_with(made).clone()
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key, where it is remembered; or why EC2 is left alone.
    fn known(
        &self,
        place: Place<'_>,
        kind: Kind,
        age: Duration,
    ) -> Result<Option<KeyDigest>, Outage> {
        let now = Instant::now();
        let state = self.lock();
        let remembered = state.remembered.get(&(place.instance.to_owned(), kind));
        let fresh = remembered.filter(|(since, _)| now.duration_since(*since) < age);
        if let Some((_, key)) = fresh {
            return Ok(Some(*key));
        }
        state.trouble.outage(now).map_or(Ok(None), Err)
    }

    /// Waits until one may ask. Who came first is first.
    async fn turn(&self) {
        let mut bucket = self.turn.lock().await;
        while let Err(ready) = bucket.take(Instant::now()) {
            sleep_until(ready).await;
        }
    }

    fn remember(&self, place: Place<'_>, kind: Kind, key: KeyDigest) {
        let mut state = self.lock();
        if state.remembered.len() >= MAX_REMEMBERED {
            state.remembered.clear();
        }
        let learned = (Instant::now(), key);
        state
            .remembered
            .insert((place.instance.to_owned(), kind), learned);
    }

    fn settle(&self, outage: Option<&Outage>, limits: &TpmLimits) {
        let is_of_all = outage.is_none_or(|outage| match outage {
            Outage::TimedOut { .. }
            | Outage::Unreachable { .. }
            | Outage::Throttled { .. }
            | Outage::Credentials { .. } => true,
            // Such an answer may be of this one instance: rights may be bound to tags.
            Outage::NotAllowed { .. }
            | Outage::Failed { .. }
            | Outage::TooMuch { .. }
            | Outage::Busy { .. } => false,
        });
        if is_of_all {
            let pause = (limits.pause, limits.longest_pause);
            self.lock().trouble.settle(outage, Instant::now(), pause);
        }
    }
}

impl Ec2 {
    async fn endorsement_key(
        &self,
        lane: &Lane,
        place: Place<'_>,
        kind: Kind,
    ) -> Result<Told, Outage> {
        let Place { region, instance } = place;
        let call = self
            .client(&lane.credentials, region)
            .get_instance_tpm_ek_pub()
            .instance_id(instance)
            .key_type(kind.key_type())
            .key_format(EkPubKeyFormat::Der);
        let output = match call.send().await {
            Ok(output) => output,
            Err(error) => {
                let code = error.as_service_error().and_then(|error| error.code());
                return match code {
                    Some("InvalidInstanceID.NotFound") => {
                        Ok(Told::Nothing(NothingTold::NotFound {
                            region: region.to_owned(),
                            instance: instance.to_owned(),
                        }))
                    }
                    // Undocumented for this action. Every other code that might say it, says that
                    // EC2 failed: the request waits, and the code is told.
                    Some("UnsupportedOperation" | "Unsupported") => Ok(Told::NoTpm),
                    Some(_) | None => Err(outage(region, ACTION, &error)),
                };
            }
        };
        let is_asked = output.instance_id() == Some(instance)
            && output.key_type() == Some(&kind.key_type())
            && output.key_format() == Some(&EkPubKeyFormat::Der);
        let key = if is_asked {
            kind.read(output.key_value().unwrap_or_default())
        } else {
            Err("it is of another instance or key")
        };
        Ok(match key {
            Ok(key) => Told::Key(key),
            Err(detail) => Told::Nothing(NothingTold::Unreadable {
                region: region.to_owned(),
                instance: instance.to_owned(),
                detail,
            }),
        })
    }
}

#[cfg(test)]
mod tests;
