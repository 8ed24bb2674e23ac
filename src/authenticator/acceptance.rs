//! Checks whether the API server still accepts a certificate that is not due for renewal.
//!
//! If the API server refuses the writes of a kubelet (403), the kubelet continues to use its credential, because
//! client-go runs the plugin again only after a 401 or after an hour. client-go does not pass the cause to the plugin.
//! Therefore, runs check the certificate, at a limited rate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::errors::error_chain;

use super::{Authenticator, Cluster, program};
use crate::attester::Renewal;
use crate::clock::{self, Deadline};
use crate::credential::Credential;
use crate::kube::kubeconfig::ClusterEndpoint;
use crate::kube::{ApiClient, ApiError, ApiErrorKind};
use crate::origin::Origin;
use crate::store::Store;

/// The minimum interval between two checks. A new certificate counts as checked. If a kubelet gets a 401, client-go
/// runs the plugin at each heartbeat, every ten seconds, so a check follows within two minutes. Other runs are hourly,
/// or started by an operator.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(100);

/// The deadline of a check. The kubelet waits for this check.
const TRYING: Duration = Duration::from_secs(2);

/// The hint if a new certificate would not help.
pub(super) const CHECK_LEASE: &str =
    "check which admission policy or webhook rejects a dry-run update of the node's Lease";

/// The text of the admission policy that refuses every write with a revoked certificate.
const REVOKED: &str = "is revoked";

impl Authenticator<'_> {
    /// Checks the certificate, at most once per [`TRIED_AGAIN_AFTER`] for all processes. Returns `None` if this run did
    /// not check the certificate, or if the check failed for a reason other than the certificate.
    pub(super) fn tried(
        &self,
        store: &Store,
        origin: &Origin,
        credential: &Credential,
        now: SystemTime,
    ) -> Option<Result<(), ApiError>> {
        // During a back-off, the run cannot renew the certificate, so a check would be useless.
        if was_tried_lately(store, now) || self.remembered(store, now).is_some() {
            return None;
        }
        // If another run holds the lock, that run renews or checks the certificate.
        let lock = store.lock(Deadline::after(Duration::ZERO), &program(), now);
        let lock = lock.ok()?;
        // Another run can have checked the certificate between the first read and the lock.
        if was_tried_lately(&lock, clock::now()) {
            return None;
        }
        // Record the time of the check before the check starts. Without a record, as on a read-only or full disk, every
        // run would check the certificate.
        lock.note_check(now).ok()?;
        drop(lock);
        self.prepare_rescue(credential, now);
        let deadline = Deadline::after(TRYING);
        let tried = self.try_certificate(origin, credential, deadline);
        tried.filter(|tried| {
            let refused = tried.as_ref().err();
            refused.is_none_or(ApiError::is_about_the_requester)
        })
    }

    /// Returns the reason why a new certificate would not help against this refusal, if the reason is known.
    ///
    /// An admission policy of the cluster might refuse the check for any reason. In this case, a new certificate every
    /// hour would only add load. Without evidence, a request for a new certificate is a new claim to the node name,
    /// which remains pending while the node is ready.
    pub(super) fn no_use_of_renewal(
        &self,
        origin: &Origin,
        refused: &ApiError,
        now: SystemTime,
    ) -> Option<String> {
        let is_forbidden = refused.kind == ApiErrorKind::Forbidden;
        if is_forbidden && let Some(until) = origin.paused_until(now) {
            let until = humantime::format_rfc3339_seconds(until);
            return Some(format!(
                "the API server also refused a new certificate; the plugin does not send another request for this \
                 reason before {until}"
            ));
        }
        let is_revoked = error_chain(refused).contains(REVOKED);
        let is_claim = self.attester.renewal() == Renewal::Impossible;
        (is_forbidden && is_claim && !is_revoked).then(|| {
            "the certificate is not revoked, so the plugin does not request another certificate"
                .to_owned()
        })
    }

    /// Checks a certificate that was issued because the API server had refused the previous certificate, within the
    /// remaining time. If the API server also refuses the new certificate, the plugin pauses the renewals that such a
    /// refusal causes.
    pub(super) fn note_another_refusal(
        &self,
        store: &Store,
        fresh: &Credential,
        remaining: Duration,
    ) {
        let Some(mut origin) = Origin::read(store) else {
            return;
        };
        let deadline = Deadline::after(remaining.min(TRYING));
        let tried = self.try_certificate(&origin, fresh, deadline);
        let is_forbidden = matches!(
            &tried,
            Some(Err(error)) if error.kind == ApiErrorKind::Forbidden
        );
        let now = clock::now();
        let Ok(lock) = store.lock(Deadline::after(Duration::ZERO), &program(), now) else {
            return;
        };
        if is_forbidden && Origin::read(&lock).as_ref() == Some(&origin) {
            origin.refused_again = Some(clock::unix_seconds(now));
            // If the write fails, the next check requests another certificate.
            drop(origin.save(&lock));
        }
    }

    /// Checks the certificate now. Returns `None` if the stored origin is invalid, or if the client cannot be built.
    ///
    /// The check calls the API server that client-go is about to use, if that server belongs to the same cluster.
    pub(crate) fn try_certificate(
        &self,
        origin: &Origin,
        credential: &Credential,
        deadline: Deadline,
    ) -> Option<Result<(), ApiError>> {
        let known = Arc::new(origin.cluster().ok()?);
        let asked = self.cluster.as_ref().map(Cluster::endpoint);
        let endpoint = asked
            .and_then(Result::ok)
            .filter(|asked| asked.is_of_same_cluster(&known))
            .unwrap_or(known);
        Self::try_certificate_at(&endpoint, origin, credential, deadline)
    }

    /// Does the same as [`try_certificate`](Self::try_certificate), but calls the API server of this endpoint.
    pub(crate) fn try_certificate_at(
        endpoint: &ClusterEndpoint,
        origin: &Origin,
        credential: &Credential,
        deadline: Deadline,
    ) -> Option<Result<(), ApiError>> {
        let environment = |name: &str| std::env::var_os(name);
        let client = ApiClient::connect(endpoint, &credential.login(), &environment).ok()?;
        Some(client.try_lease(&origin.node_name, deadline))
    }
}

fn was_tried_lately(store: &Store, now: SystemTime) -> bool {
    // A time in the future counts as no check: the clock was ahead at the last check.
    let ago = store.last_check().and_then(|last| clock::age(last, now));
    ago.is_some_and(|ago| ago < TRIED_AGAIN_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_checked_two_minutes_after_the_last_check() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(&folder.path().join("state")).unwrap();
        let now = clock::now();
        let lock = store.lock(Deadline::after(TRYING), "test", now).unwrap();
        let ago = |seconds| {
            lock.note_check(now - Duration::from_secs(seconds)).unwrap();
            was_tried_lately(&store, now)
        };

        assert!(!was_tried_lately(&store, now), "never checked");
        assert!(ago(0));
        assert!(ago(60));
        // The limit is 120 seconds minus one interval of the kubelet's heartbeats.
        assert!(!ago(110));
        lock.note_check(now + Duration::from_mins(1)).unwrap();
        assert!(!was_tried_lately(&store, now), "a clock that was ahead");
    }
}
