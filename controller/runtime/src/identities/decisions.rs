//! Decisions that apply to all records of a Cluster, stored in annotations on its `KubeletAuthentication`.

use std::time::SystemTime;

use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use kubelet_attestation::ensure;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::{
    CHANGED_BY_ANNOTATION, KubeletAuthentication, LOWEST_VALID_GENERATION_ANNOTATION, NodeIdentity,
    RELEASED_MACHINES_ANNOTATION,
};
use node_attestation_core::ledger::{MAX_CLOCK_DIFFERENCE, RevocationDecisions};
use node_attestation_core::time::unix_seconds;
use serde_json::json;

use super::{Identities, IdentitiesError};
use crate::capi::ObjectKey;
use crate::client::{CallError, call};
use crate::watch::{patched_metadata, readable_one_of};

impl Identities {
    /// Raises the lowest valid generation of the Cluster to `floor`, in seconds since 1970. Without `floor`, raises it
    /// above all generations until the present time on the API server. Returns the new lowest valid generation, and the
    /// error if the Event could not be created.
    ///
    /// # Errors
    ///
    /// Returns an error if `floor` is lower than the current value, or later than the second after the present time on
    /// the API server, or if the object could not be written.
    pub async fn raise_floor(
        &self,
        cluster: &ObjectKey,
        floor: Option<u64>,
        now: SystemTime,
    ) -> Result<(u64, Option<CallError>), IdentitiesError> {
        let (found, decisions, present) = self.decisions(cluster, now).await?;
        // The controller ignores a later floor, so this floor is not kept, even if this machine's clock is fast.
        let before = decisions.until(present).floor;
        // A certificate of the present second must be refused, too.
        let latest = unix_seconds(present).saturating_add(1);
        let floor = match floor {
            None => latest.max(before),
            Some(floor) => {
                ensure!(floor <= latest, IdentitiesError::FloorInFuture(floor));
                ensure!(
                    floor >= before,
                    IdentitiesError::FloorFalls { floor, before }
                );
                floor
            }
        };
        let value = (LOWEST_VALID_GENERATION_ANNOTATION, floor.to_string());
        let note = format!("all node certificates of generations before {floor} are refused");
        let decided = self.decide(&found, value, ("FloorRaised", note), now).await;
        Ok((floor, decided?))
    }

    /// Allows this machine to claim names again, regardless of all revocations up to now. The revocation in `identity`,
    /// the machine's record, can be later than now, if the clock of the machine on which it was made was fast. Returns
    /// the error if the Event could not be created.
    ///
    /// # Errors
    ///
    /// Returns an error if the object could not be written.
    pub async fn release(
        &self,
        cluster: &ObjectKey,
        machine: ProviderId,
        identity: Option<&NodeIdentity>,
        now: SystemTime,
    ) -> Result<Option<CallError>, IdentitiesError> {
        let (found, mut decisions, present) = self.decisions(cluster, now).await?;
        let note = format!("machine {machine} can claim node names again");
        // The controller ignores a later time, both of a revocation and of a release.
        let latest = present + MAX_CLOCK_DIFFERENCE;
        let identity = identity.filter(|identity| identity.spec.provider_id == machine.as_str());
        let revoked = identity.and_then(|identity| identity.spec.revoked);
        let revoked = revoked.map(|revoked| revoked.at).filter(|at| *at <= latest);
        let at = revoked.map_or(present, |at| at.max(present));
        decisions.release(machine, at);
        let value = (RELEASED_MACHINES_ANNOTATION, decisions.released_text());
        let text = ("MachineReleased", note);
        self.decide(&found, value, text, now).await
    }

    /// Cancels the release of a machine before it is revoked again.
    pub(super) async fn take_release_back(
        &self,
        cluster: &ObjectKey,
        machine: &str,
        who: Option<&str>,
    ) -> Result<(), IdentitiesError> {
        let found = match self.authentication(cluster).await {
            // If the object is missing, no machine is released. A missing permission for the object must not delay a
            // revocation.
            Err(
                IdentitiesError::NoAuthentication(_) | IdentitiesError::Call(CallError::Refused(_)),
            ) => return Ok(()),
            found => found?,
        };
        let mut decisions = RevocationDecisions::of_annotations(Some(found.annotations()));
        let machine = ProviderId::parse(machine).ok();
        if machine.is_some_and(|machine| decisions.take_back(&machine)) {
            let value = decisions.released_text();
            self.annotate(&found, (RELEASED_MACHINES_ANNOTATION, value), who)
                .await?;
        }
        Ok(())
    }

    /// Whether the Cluster has a `KubeletAuthentication`. Without one, no controller installs the revocation list in
    /// the workload cluster. `true` if the object cannot be read.
    pub async fn has_authentication(&self, cluster: &ObjectKey) -> bool {
        let found = self.authentication(cluster).await;
        !matches!(found, Err(IdentitiesError::NoAuthentication(_)))
    }

    pub(super) async fn authentication(
        &self,
        cluster: &ObjectKey,
    ) -> Result<KubeletAuthentication, IdentitiesError> {
        let ObjectKey { namespace, name } = cluster;
        let client = self.management.client().clone();
        let api: Api<KubeletAuthentication> = Api::namespaced(client, namespace);
        let found = call(readable_one_of(&api, name)).await?;
        found.ok_or_else(|| IdentitiesError::NoAuthentication(cluster.clone()))
    }

    /// Writes an annotation and the operator's name, if the object still has the version that was read.
    async fn annotate(
        &self,
        found: &KubeletAuthentication,
        (annotation, value): (&str, String),
        who: Option<&str>,
    ) -> Result<(), CallError> {
        let namespace = found.namespace().unwrap_or_default();
        let client = self.management.client().clone();
        let api: Api<KubeletAuthentication> = Api::namespaced(client, &namespace);
        let patch = json!({
            "metadata": {
                "resourceVersion": found.metadata.resource_version,
                "annotations": {annotation: value, CHANGED_BY_ANNOTATION: who},
            },
        });
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let name = found.name_any();
        call(patched_metadata(&api, &name, &parameters, &patch)).await
    }

    /// The time of an operator's decision. `now` is the time on this machine, and counts only before the first
    /// response from the API server: the decisions of all operators must be in order, although their clocks differ.
    pub(super) fn present(&self, now: SystemTime) -> SystemTime {
        self.management.server_time().latest_or(now)
    }

    /// Reads the decisions about the Cluster, except decisions that are in the future both on the API server and on
    /// this machine. Returns the object that contains the decisions, the decisions, and the present time on the API
    /// server.
    async fn decisions(
        &self,
        cluster: &ObjectKey,
        now: SystemTime,
    ) -> Result<(KubeletAuthentication, RevocationDecisions, SystemTime), IdentitiesError> {
        let found = self.authentication(cluster).await?;
        let present = self.present(now);
        let decisions = RevocationDecisions::of_annotations(Some(found.annotations()));
        // If one clock is slow, recent decisions seem to be in the future, and the next write would remove them.
        let decisions = decisions.until(present.max(now));
        Ok((found, decisions, present))
    }

    /// Writes the annotation, and creates an Event. Returns the error if the Event could not be created.
    async fn decide(
        &self,
        found: &KubeletAuthentication,
        value: (&str, String),
        (reason, note): (&str, String),
        now: SystemTime,
    ) -> Result<Option<CallError>, IdentitiesError> {
        let who = self.who().await;
        self.annotate(found, value, who.as_deref()).await?;
        let namespace = found.namespace().unwrap_or_default();
        let text = (reason, note, who);
        let event = self.write_event(&namespace, found, text, now).await;
        Ok(event.err())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::client::ClusterAccess;

    #[tokio::test]
    async fn an_unreadable_kubelet_authentication_counts_as_present() {
        for (code, reason, expected) in [(404_u16, "NotFound", false), (403, "Forbidden", true)] {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "no", "reason": reason, "code": code,
            });
            let access = ClusterAccess::in_memory(move |_: Request<Body>| {
                let answer = Full::new(Bytes::from(status.to_string()));
                async move { Response::builder().status(code).body(answer).unwrap() }
            });
            let key = ObjectKey::new("kube-system", "prod-1");

            let has_one = Identities::new(&access).has_authentication(&key).await;

            assert_eq!(has_one, expected, "{reason}");
        }
    }
}
