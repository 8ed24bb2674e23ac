//! Releases a cluster whose `KubeletAuthentication` was deleted.

use std::ops::ControlFlow;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use node_attestation_core::cluster_line;
use node_attestation_core::crd::BootstrapTokens;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::secrets::{self, SecretWatches};
use super::{LOOK_AGAIN, RECONCILED, RESTART, Supervisor, cluster_now, other_cluster};
use crate::capi::{CORE_API_VERSION, CapiInventory, ObjectKey};
use crate::client::ClusterAccess;
use crate::clock::now;
use crate::events;
use crate::logs::Failures;
use crate::management::condition_events::in_turn;
use crate::management::desired_state::Parsed;
use crate::management::periodic::{self, PartError, TokenRelease};
use crate::management::single_object::Observed;
use crate::metrics::ClusterMetrics;
use crate::turns::FairRate;

/// The number of attempts to write the last Event of a release. The attempts take about 20 minutes.
const EVENT_TRIES: u32 = 10;

/// The channels that report the changes for which a release waits.
pub(super) struct ReleaseChannels {
    pub(super) objects: watch::Receiver<()>,
    pub(super) secrets: Option<SecretWatches>,
}

/// The state of a release.
#[derive(Default)]
struct Progress {
    /// The extended tokens, until they have expired.
    tokens: Option<TokenRelease>,
    is_policy_removed: bool,
    /// Whether the removal of the policy was logged.
    is_told: bool,
    /// Whether an Event reports that the policy was not removed.
    is_reported: bool,
    tries: u32,
    of_policy: Failures,
    of_tokens: Failures,
}

impl Supervisor {
    /// Expires the extended bootstrap tokens. Removes the admission policy for requests from the cluster, because it
    /// would reject kubelets without the plugin.
    ///
    /// Both are retried until the Cluster is deleted, its `KubeletAuthentication` is created again, or this replica is
    /// no longer the leader. A paused Cluster is not changed, because another management cluster might manage it.
    pub(super) async fn release(
        mut self: Box<Self>,
        mut sources: ReleaseChannels,
        full_at: &mut Instant,
    ) {
        let mut served = self.running.as_ref().map(|running| running.access.clone());
        self.stop().await;
        self.ca_key.hold(None);
        self.parsed = Parsed::default();
        self.metrics = ClusterMetrics::default();
        let mut progress = Progress {
            tokens: self.token_release(),
            ..Progress::default()
        };
        loop {
            // A tenant can change its objects at any rate.
            while let Err(next) = RECONCILED.take(full_at, Instant::now()) {
                sleep_until(next).await;
            }
            let is_leading = self.authentication.has_changed().is_ok();
            if !is_leading || self.authentication.borrow_and_update().is_some() {
                return;
            }
            self.sources.cluster = cluster_now(&self.shared.objects, &self.key);
            self.follow_secrets(&mut sources.secrets);
            let mut again = Instant::now() + LOOK_AGAIN;
            match self.access_now(&mut served).await {
                ControlFlow::Break(()) => return,
                ControlFlow::Continue(None) => {}
                ControlFlow::Continue(Some(access)) => {
                    let attempt = Box::pin(self.try_release(&access, &mut progress));
                    let is_complete = attempt.await;
                    let is_late = progress.tries > 0;
                    let is_news = progress.is_policy_removed && !progress.is_told;
                    if is_complete {
                        // Writing the Event can take minutes. It does not need the Secrets.
                        drop(sources);
                        if is_news {
                            self.tell_release(is_late).await;
                        }
                        return;
                    }
                    again = Instant::now() + RESTART.after(progress.tries);
                    progress.tries = progress.tries.saturating_add(1);
                    if is_news {
                        progress.is_told = true;
                        self.tell_release(is_late).await;
                        // The object might have been recreated in the meantime.
                        continue;
                    }
                }
            }
            tokio::select! {
                // The loop checks whether the object was recreated, or whether this replica is no longer the leader.
                _ = self.authentication.changed() => {}
                changed = secrets::changed(&mut sources.secrets) => self.secrets_changed(changed),
                cluster = other_cluster(&self.shared.objects, &self.key, &mut sources.objects, &self.sources.cluster) => {
                    self.sources.cluster = cluster;
                }
                () = sleep_until(again) => {}
            }
        }
    }

    /// The extended tokens that the release must expire. `None` if the controller does not manage them, because it
    /// might not have the permissions.
    fn token_release(&self) -> Option<TokenRelease> {
        match self.bootstrap_tokens {
            BootstrapTokens::Ignore => None,
            BootstrapTokens::Manage => {
                let inventory = CapiInventory::new(self.shared.objects.clone(), self.key.clone());
                let server_time = self.shared.controller.server_time.clone();
                let namespace = &self.key.namespace;
                Some(TokenRelease::new(inventory, namespace, server_time))
            }
        }
    }

    /// Makes one attempt. Returns whether the release is complete.
    ///
    /// The tokens are first, because the policy restricts them. Their failure does not delay the removal of the policy,
    /// because the controller might never get the missing permission.
    async fn try_release(&self, access: &ClusterAccess, progress: &mut Progress) -> bool {
        // The loop has seen the same version as this copy. After a change, the loop reads the new value.
        let mut authentication = self.authentication.clone();
        let ended = tokio::select! {
            biased;
            // The object was recreated, or this replica is no longer the leader.
            _ = authentication.changed() => return false,
            ended = self.end_tokens(access, progress.tokens.as_mut()) => ended,
        };
        if !progress.is_policy_removed {
            if let Err(error) = periodic::release(access).await {
                let error = error.to_string();
                self.log_failure(&error, progress.of_policy.is_first());
                progress.is_reported = progress.is_reported || self.tell_failure(&error).await;
                return false;
            }
            progress.is_policy_removed = true;
        }
        match ended {
            Ok(()) => progress.tokens = None,
            Err(error) => self.log_tokens(&error.to_string(), progress.of_tokens.is_first()),
        }
        progress.tokens.is_none()
    }

    /// Expires the extended tokens. The tokens of a deleted Cluster are not changed, because the Cluster might have been
    /// moved to another management cluster.
    async fn end_tokens(
        &self,
        access: &ClusterAccess,
        tokens: Option<&mut TokenRelease>,
    ) -> Result<(), PartError> {
        match (&self.sources.cluster, tokens) {
            (Observed::Absent, _) | (_, None) => Ok(()),
            (Observed::Present(_), Some(tokens)) => tokens.end(access).await,
            (Observed::Unknown | Observed::Unreadable(_), Some(_)) => {
                Err(PartError::Call("the Cluster cannot be read".to_owned()))
            }
        }
    }

    /// Returns access to the cluster. `None` while the Cluster is paused, or until all objects have been read. Returns
    /// `Break` if the Cluster was deleted.
    ///
    /// If the cluster was served, the existing access to it is used once, even if the Cluster was deleted.
    async fn access_now(
        &mut self,
        served: &mut Option<ClusterAccess>,
    ) -> ControlFlow<(), Option<ClusterAccess>> {
        ControlFlow::Continue(match &self.sources.cluster {
            Observed::Present(cluster) if cluster.paused => {
                // After the pause, another management cluster might manage the Cluster.
                *served = None;
                None
            }
            Observed::Present(_) => match served.take() {
                None => self.access().await,
                served => served,
            },
            Observed::Unknown | Observed::Unreadable(_) => served.take(),
            Observed::Absent => match served.take() {
                None => return ControlFlow::Break(()),
                served => served,
            },
        })
    }

    /// Returns access with the kubeconfig, if the kubeconfig exists and is accepted.
    async fn access(&mut self) -> Option<ClusterAccess> {
        let controller = &self.shared.controller;
        if let Some(connect) = &controller.connect {
            return Some(connect(&self.key));
        }
        let _turn = self.parsing.turn().await;
        let settings = &controller.settings;
        let kubeconfig = self.parsed.accepted_kubeconfig(&self.sources, settings)?;
        kubeconfig.access(&self.key).ok()
    }

    async fn tell_release(&mut self, is_late: bool) {
        cluster_line!(
            &self.lines,
            INFO,
            "stopped enforcing attestation: nodes can join without evidence"
        );
        if is_late {
            let message =
                "removed the admission policy for requests: kubelets without the plugin can join";
            for tries in 0..EVENT_TRIES {
                let words = ("Normal", "Release", "PolicyRemoved", message.to_owned());
                if self.write_event(words).await {
                    return;
                }
                tokio::select! {
                    // The object was recreated, or this replica is no longer the leader.
                    _ = self.authentication.changed() => return,
                    () = sleep_until(Instant::now() + RESTART.after(tries)) => {}
                }
            }
        }
    }

    fn log_failure(&self, error: &str, is_first: bool) {
        if !is_first {
            let cluster = self.key.to_string();
            tracing::debug!(cluster, error, "the admission policy still exists");
            return;
        }
        cluster_line!(
            &self.lines,
            WARN,
            error,
            "cannot remove the admission policy for requests, which refuses kubelets without the plugin; the controller retries"
        );
    }

    fn log_tokens(&self, error: &str, is_first: bool) {
        if !is_first {
            let cluster = self.key.to_string();
            tracing::debug!(cluster, error, "extended bootstrap tokens are still valid");
            return;
        }
        cluster_line!(
            &self.lines,
            WARN,
            error,
            "cannot expire the extended bootstrap tokens; the controller retries"
        );
    }

    /// Writes an Event about the failure. Returns `false` if the Event must be written again.
    async fn tell_failure(&self, error: &str) -> bool {
        let message = format!(
            "the KubeletAuthentication was deleted, but the admission policy for requests cannot be removed. It \
             refuses kubelets without the plugin. The controller retries: {error}"
        );
        self.write_event(("Warning", "Release", "PolicyNotRemoved", message))
            .await
    }

    /// Writes an Event on the Cluster, if it exists. Returns `false` if the Event must be written again.
    async fn write_event(&self, words: events::Words<'_>) -> bool {
        let Some(cluster) = self.sources.cluster.present() else {
            return true;
        };
        let shared = &self.shared;
        let to = (&shared.controller.management, &shared.condition_events);
        write_event(to, &self.key, &cluster.uid, words).await
    }
}

/// Writes an Event on the Cluster with this key and UID, if the Event gets a turn in time. Returns whether it was
/// written.
async fn write_event(
    (management, rate): (&Client, &FairRate),
    key: &ObjectKey,
    uid: &str,
    words: events::Words<'_>,
) -> bool {
    if !in_turn(rate, key).await {
        return false;
    }
    let regarding = ObjectReference {
        api_version: Some(CORE_API_VERSION.to_owned()),
        kind: Some("Cluster".to_owned()),
        namespace: Some(key.namespace.clone()),
        name: Some(key.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    };
    events::write_one(management.clone(), regarding, words, now()).await
}

#[cfg(test)]
mod tests;
