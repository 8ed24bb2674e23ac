//! Changes the records that a selector selects. Another client can change a record after it was listed.

use std::time::SystemTime;

use kubelet_attestation::ensure;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::{NodeIdentity, NodeIdentitySpec};

use super::{Changed, Identities, IdentitiesError};
use crate::capi::ObjectKey;

/// The change to each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityChange {
    /// Revokes the certificates of the current generation.
    Revoke,
    /// Resets the record.
    Reset {
        /// Also resets the record if its certificates are revoked.
        revoked: bool,
    },
}

impl Identities {
    /// Changes the record. If another client writes the record or the decisions about the Cluster at the same time,
    /// reads the record again, and repeats the change once.
    ///
    /// # Errors
    ///
    /// Returns an error if the record could not be written, or if a reset would now apply to another generation or to
    /// another revocation.
    pub async fn change(
        &self,
        identity: &NodeIdentity,
        change: IdentityChange,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        let error = match Box::pin(self.change_once(identity, change, now)).await {
            Err(IdentitiesError::Call(error)) if error.is_conflict() => error,
            changed => return changed,
        };
        let listed = &identity.spec;
        let namespace = identity.metadata.namespace.as_deref().unwrap_or_default();
        let (cluster, node) = (&listed.cluster_name, &listed.node_name);
        let fresh = self.of_node(namespace, cluster, node).await?;
        ensure!(still_applies(change, listed, &fresh.spec), error.into());
        Box::pin(self.change_once(&fresh, change, now)).await
    }

    async fn change_once(
        &self,
        identity: &NodeIdentity,
        change: IdentityChange,
        now: SystemTime,
    ) -> Result<Changed, IdentitiesError> {
        match change {
            IdentityChange::Revoke => self.revoke(identity, now).await,
            IdentityChange::Reset { revoked: false } => self.reset(identity, now).await,
            IdentityChange::Reset { revoked: true } => {
                let NodeIdentitySpec {
                    cluster_name,
                    provider_id,
                    ..
                } = &identity.spec;
                if let Ok(machine) = ProviderId::parse(provider_id) {
                    let namespace = identity.metadata.namespace.clone().unwrap_or_default();
                    let cluster = ObjectKey::new(namespace, cluster_name);
                    self.release(&cluster, machine, Some(identity), now).await?;
                }
                self.reset_revoked(identity, now).await
            }
        }
    }
}

/// Whether the operator's selection also applies to the record after a concurrent change. A revocation applies to each
/// generation of the machine. A reset applies only to the listed generation, because a later one has another key, and
/// must not end a revocation that another operator has made since then.
fn still_applies(
    change: IdentityChange,
    listed: &NodeIdentitySpec,
    fresh: &NodeIdentitySpec,
) -> bool {
    let is_its = fresh.provider_id == listed.provider_id && fresh.tombstone.is_none();
    let is_unchanged = fresh.generation == listed.generation && fresh.revoked == listed.revoked;
    is_its && (change == IdentityChange::Revoke || is_unchanged)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::super::tests::record;
    use super::*;
    use crate::client::ClusterAccess;

    const RESET: IdentityChange = IdentityChange::Reset { revoked: false };

    /// The listed record, after another client has changed these fields.
    fn fresh(spec: &Value) -> Value {
        let mut object = serde_json::to_value(record()).unwrap();
        object["metadata"]["resourceVersion"] = "8".into();
        for (name, value) in spec.as_object().unwrap() {
            object["spec"][name] = value.clone();
        }
        object
    }

    fn authentication() -> Value {
        json!({
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "KubeletAuthentication",
            "metadata": {"name": "prod-1", "namespace": "default"},
            "spec": {"clusterName": "prod-1", "authorizedAttestors": ["null"]},
        })
    }

    /// Changes a listed record. The first writes get these statuses, and the record then has these fields. Returns the
    /// result, and the number of writes.
    async fn changed(
        change: IdentityChange,
        refusals: &[u16],
        spec: Value,
    ) -> (Result<Changed, IdentitiesError>, usize) {
        let refusals = Arc::new(Mutex::new(refusals.to_vec()));
        let writes = Arc::new(Mutex::new(0));
        let written = writes.clone();
        let management = ClusterAccess::in_memory(move |request: Request<Body>| {
            let path = request.uri().path();
            let is_record = path.contains("nodeidentities");
            let is_authentication = path.contains("kubeletauthentications");
            let is_served = is_record || is_authentication;
            let mut status = if is_served { 200_u16 } else { 403 };
            if is_record && *request.method() == Method::PATCH {
                *written.lock() += 1;
                let mut refusals = refusals.lock();
                if !refusals.is_empty() {
                    status = refusals.remove(0);
                }
            }
            let answer = if status == 200 && is_authentication {
                authentication()
            } else if status == 200 {
                fresh(&spec)
            } else {
                json!({"kind": "Status", "code": status, "metadata": {}})
            };
            let body = Full::new(Bytes::from(answer.to_string()));
            let response = Response::builder().status(status).body(body).unwrap();
            async move { response }
        });
        let identities = Identities::new(&management);
        let done = Box::pin(identities.change(&record(), change, SystemTime::UNIX_EPOCH)).await;
        let writes = *writes.lock();
        (done, writes)
    }

    #[tokio::test]
    async fn a_renewal_during_the_command_does_not_prevent_the_change() {
        for change in [IdentityChange::Revoke, RESET] {
            let (done, writes) = changed(change, &[409], json!({})).await;

            assert!(done.is_ok(), "{change:?}: {done:?}");
            assert_eq!(writes, 2);
        }
        let later = json!({"generation": 6});
        let (done, _) = changed(IdentityChange::Revoke, &[409], later).await;
        assert_eq!(done.unwrap().identity.spec.generation, 6);
    }

    #[tokio::test]
    async fn a_change_is_not_repeated_for_another_machine_or_generation() {
        let at = "2026-11-22T12:00:00Z";
        let retired = json!({"tombstone": {"since": at, "reason": "MachineGone", "until": at}});
        let other = json!({"providerID": "metal:///m2"});
        for (change, spec) in [
            (RESET, json!({"generation": 6})),
            (RESET, other.clone()),
            (IdentityChange::Revoke, other),
            (IdentityChange::Revoke, retired),
        ] {
            let (done, writes) = changed(change, &[409], spec.clone()).await;

            assert!(matches!(done, Err(IdentitiesError::Call(_))), "{spec}");
            assert_eq!(writes, 1, "{spec}");
        }
    }

    #[tokio::test]
    async fn a_reset_is_not_repeated_after_a_revocation_by_another_operator() {
        let by_another = json!({
            "revoked": {"generation": 1, "at": "2026-11-22T12:00:00Z"},
        });

        let reset = IdentityChange::Reset { revoked: true };
        let (done, writes) = changed(reset, &[409], by_another).await;

        assert!(matches!(done, Err(IdentitiesError::Call(_))), "{done:?}");
        assert_eq!(writes, 1);
    }

    #[tokio::test]
    async fn another_failure_or_a_second_conflict_is_an_error() {
        for (refusals, expected) in [(&[403][..], 1), (&[409, 409], 2)] {
            let (done, writes) = changed(IdentityChange::Revoke, refusals, json!({})).await;

            assert!(matches!(done, Err(IdentitiesError::Call(_))), "{done:?}");
            assert_eq!(writes, expected);
        }
    }
}
