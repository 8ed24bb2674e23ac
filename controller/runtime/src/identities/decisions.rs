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
    /// The present time for [`raise_floor`](Self::raise_floor). If `now`, which comes from this machine's clock, is
    /// wrong, the time comes from the management cluster's API server. With a slow clock, certificates that were issued
    /// recently would stay valid. With a fast clock, the floor would have no effect yet.
    ///
    /// # Errors
    ///
    /// Returns an error if the Cluster has no `KubeletAuthentication`, or if it could not be read.
    pub async fn present(
        &self,
        cluster: &ObjectKey,
        now: SystemTime,
    ) -> Result<SystemTime, IdentitiesError> {
        self.authentication(cluster).await?;
        Ok(self.management.server_time().present(now))
    }

    /// Sets the lowest valid generation of the Cluster to `floor`, in seconds since 1970. Returns the error if the
    /// Event could not be created.
    ///
    /// # Errors
    ///
    /// Returns an error if `floor` is lower than the current value, or later than the second after `now`, or if the
    /// object could not be written.
    pub async fn raise_floor(
        &self,
        cluster: &ObjectKey,
        floor: u64,
        now: SystemTime,
    ) -> Result<Option<CallError>, IdentitiesError> {
        let latest = unix_seconds(now).saturating_add(1);
        ensure!(floor <= latest, IdentitiesError::FloorInFuture(floor));
        let note = format!("all node certificates of generations before {floor} are refused");
        let raise = |decisions: &mut RevocationDecisions| {
            let before = decisions.floor;
            ensure!(
                floor >= before,
                IdentitiesError::FloorFalls { floor, before }
            );
            decisions.floor = floor;
            Ok((LOWEST_VALID_GENERATION_ANNOTATION, floor.to_string()))
        };
        self.decide(cluster, raise, ("FloorRaised", note), now)
            .await
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
        let note = format!("machine {machine} can claim node names again");
        let revoked = identity.and_then(|identity| identity.spec.revoked);
        let release = |decisions: &mut RevocationDecisions| {
            let now = self.management.server_time().present(now);
            // The controller ignores a later time, both of a revocation and of a release.
            let latest = now + MAX_CLOCK_DIFFERENCE;
            let revoked = revoked.map(|revoked| revoked.at).filter(|at| *at <= latest);
            let at = revoked.map_or(now, |revoked| revoked.max(now));
            decisions.release(machine, at);
            Ok((RELEASED_MACHINES_ANNOTATION, decisions.released_text()))
        };
        self.decide(cluster, release, ("MachineReleased", note), now)
            .await
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

    /// Whether the Cluster has a `KubeletAuthentication`. Without one, no controller installs the revocation list in the
    /// workload cluster. `true` if the object cannot be read.
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

    /// Writes the annotation that `change` returns, and creates an Event.
    async fn decide(
        &self,
        cluster: &ObjectKey,
        change: impl FnOnce(&mut RevocationDecisions) -> Result<(&'static str, String), IdentitiesError>,
        (reason, note): (&str, String),
        now: SystemTime,
    ) -> Result<Option<CallError>, IdentitiesError> {
        let found = self.authentication(cluster).await?;
        let decisions = RevocationDecisions::of_annotations(Some(found.annotations()));
        // With a slow clock, recent decisions would seem to be in the future, and this write would remove them.
        let mut decisions = decisions.until(self.management.server_time().later(now));
        let value = change(&mut decisions)?;
        let who = self.who().await;
        self.annotate(&found, value, who.as_deref()).await?;
        let namespace = &cluster.namespace;
        let text = (reason, note, who);
        let event = self.write_event(namespace, &found, text, now).await;
        Ok(event.err())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use node_attestation_core::crd::Revoked;
    use node_attestation_core::time;
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::client::{ClusterAccess, ServerTime};

    /// The time on the API server, in seconds since 1970.
    const SERVER: u64 = 1_795_849_200;

    /// One hour, in seconds.
    const HOUR: u64 = 3600;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn cluster() -> ObjectKey {
        ObjectKey::new("default", "prod-1")
    }

    fn machine(name: &str) -> ProviderId {
        ProviderId::parse(&format!("metal:///{name}")).unwrap()
    }

    /// A management cluster whose `KubeletAuthentication` has these annotations, and the patches that it received.
    fn with_annotations(annotations: Value) -> (Identities, Arc<Mutex<Vec<Value>>>) {
        let patches: Arc<Mutex<Vec<Value>>> = Arc::default();
        let written = patches.clone();
        let access = ClusterAccess::in_memory(move |request: Request<Body>| {
            let (written, annotations) = (written.clone(), annotations.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                if parts.method == Method::PATCH {
                    written.lock().push(serde_json::from_slice(&body).unwrap());
                }
                let object = json!({
                    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
                    "kind": "KubeletAuthentication",
                    "metadata": {
                        "name": "prod-1", "namespace": "default", "annotations": annotations,
                    },
                    "spec": {"clusterName": "prod-1", "authorizedAttestors": ["null"]},
                });
                Response::new(Full::new(Bytes::from(object.to_string())))
            }
        });
        let access = access.with_server_time(ServerTime::at(at(SERVER)));
        (Identities::new(&access), patches)
    }

    /// The releases in the last patch.
    fn released(patches: &Mutex<Vec<Value>>) -> RevocationDecisions {
        let patches = patches.lock();
        let annotations = &patches.last().unwrap()["metadata"]["annotations"];
        let text = annotations[RELEASED_MACHINES_ANNOTATION].as_str().unwrap();
        let text = text.to_owned();
        let annotations = [(RELEASED_MACHINES_ANNOTATION.to_owned(), text)];
        RevocationDecisions::of_annotations(Some(&annotations.into()))
    }

    /// A record that was revoked at this time.
    fn revoked(time: SystemTime) -> NodeIdentity {
        let object = json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
            "metadata": {"name": "prod-1.n1", "namespace": "default"},
            "spec": {
                "clusterName": "prod-1", "nodeName": "n1", "uid": "0".repeat(32),
                "providerID": "metal:///m1", "attestor": "null", "generation": 7,
                "opened": {
                    "keySHA256": "0".repeat(64), "requestName": "r", "requestUID": "u",
                    "time": "2026-01-01T00:00:00Z",
                },
                "notAfter": "2026-01-08T00:00:00Z",
                "revoked": {"generation": 7, "at": time::text(time)},
            },
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test]
    async fn a_slow_clock_does_not_lower_a_floor_or_remove_a_release() {
        // Another operator has made these decisions a minute ago. For this operator, they are an hour in the future.
        let recent = SERVER - 60;
        let (identities, patches) = with_annotations(json!({
            LOWEST_VALID_GENERATION_ANNOTATION: recent.to_string(),
            RELEASED_MACHINES_ANNOTATION: format!("metal:///m2@{recent}"),
        }));
        let now = at(SERVER - HOUR);

        let lowered = identities.raise_floor(&cluster(), SERVER - HOUR, now).await;

        let is_refused = matches!(
            lowered,
            Err(IdentitiesError::FloorFalls { before, .. }) if before == recent
        );
        assert!(is_refused, "{lowered:?}");
        assert!(patches.lock().is_empty());
        let cluster = cluster();
        let release = identities.release(&cluster, machine("m1"), None, now);
        release.await.unwrap();
        let released = released(&patches).released;
        assert_eq!(released[&machine("m2")], at(recent));
        // A revocation at the present time of the API server is earlier than the release.
        assert!(released[&machine("m1")] >= at(SERVER), "{released:?}");
    }

    #[tokio::test]
    async fn a_floor_is_the_time_of_the_api_server_if_the_local_clock_is_wrong() {
        let ((identities, patches), cluster) = (with_annotations(Value::Null), cluster());
        for clock in [SERVER - HOUR, SERVER + HOUR] {
            let present = identities.present(&cluster, at(clock)).await.unwrap();
            let floor = unix_seconds(present) + 1;
            assert!((SERVER + 1..SERVER + 600).contains(&floor), "{floor}");

            let raised = identities.raise_floor(&cluster, floor, present).await;

            raised.unwrap();
            let written = patches.lock().pop().unwrap();
            let annotations = &written["metadata"]["annotations"];
            let value = &annotations[LOWEST_VALID_GENERATION_ANNOTATION];
            assert_eq!(*value, floor.to_string());
        }
    }

    #[tokio::test]
    async fn the_time_of_a_revocation_does_not_come_from_a_wrong_clock() {
        let (identities, patches) = with_annotations(Value::Null);
        // The controller ignores a time that is more than 10 minutes in the future.
        for clock in [SERVER - HOUR, SERVER + HOUR] {
            let record = revoked(at(SERVER - HOUR));

            identities.revoke(&record, at(clock)).await.unwrap();

            let written = patches.lock().pop().unwrap();
            let found: Revoked =
                serde_json::from_value(written["spec"]["revoked"].clone()).unwrap();
            let expected = at(SERVER)..at(SERVER + 600);
            assert!(expected.contains(&found.at), "{clock}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_release_covers_a_revocation_by_a_fast_clock() {
        // The controller ignores the second time, because no command writes it.
        for (revoked_at, covers) in [(SERVER + 300, true), (SERVER + HOUR, false)] {
            let (identities, patches) = with_annotations(Value::Null);
            let (identity, cluster) = (revoked(at(revoked_at)), cluster());

            let release = identities.release(&cluster, machine("m1"), Some(&identity), at(SERVER));

            release.await.unwrap();
            let released = released(&patches).released[&machine("m1")];
            assert_eq!(released >= at(revoked_at), covers, "{revoked_at}");
            assert!(released >= at(SERVER), "{revoked_at}");
            assert!(released <= at(SERVER) + MAX_CLOCK_DIFFERENCE);
        }
    }

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
