//! Checks that the API server still accepts a certificate that is not due for renewal.
//!
//! A kubelet whose writes are refused (403) keeps using its credential: client-go runs the plugin
//! again only after a 401 or after an hour. The plugin does not learn the cause of a run, so each run
//! checks the certificate, at a limited rate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Authenticator, Cluster, program};
use crate::clock::{self, Deadline};
use crate::credential::Credential;
use crate::kube::{ApiClient, ApiError};
use crate::origin::Origin;
use crate::store::Store;

/// The minimum interval between two checks, counted from the last lock by any run. A kubelet that
/// gets a 401 runs the plugin at each heartbeat, every ten seconds, so that a check follows within two
/// minutes. Other runs are hourly, or an operator's.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(100);

/// The deadline of a check. The kubelet waits for it.
const TRYING: Duration = Duration::from_secs(2);

impl Authenticator<'_> {
    /// Checks the certificate, at most once in [`TRIED_AGAIN_AFTER`] for all processes. `None` unless
    /// the API server refuses the certificate: any other failure says nothing about it.
    pub(super) fn refusal(
        &self,
        store: &Store,
        origin: &Origin,
        credential: &Credential,
        now: SystemTime,
    ) -> Option<ApiError> {
        // During a back-off no renewal can follow, so a check would be of no use.
        if was_tried_lately(store, now) || self.remembered(store, now).is_some() {
            return None;
        }
        // Another run that holds the lock renews the certificate or checks it.
        let lock = store.lock(Deadline::after(Duration::ZERO), &program(), now);
        drop(lock.ok()?);
        self.prepare_rescue(credential, now);
        // If the disk takes no writes, the lock keeps its date, and every run would check.
        if !was_tried_lately(store, clock::now()) {
            return None;
        }
        let deadline = Deadline::after(TRYING);
        self.try_certificate(origin, credential, deadline)
            .and_then(Result::err)
            .filter(ApiError::is_about_the_requester)
    }

    /// Checks the certificate now. `None` if the stored origin is invalid, or no client can be
    /// built.
    ///
    /// The check goes to the API server that client-go is about to use, if it is of the same
    /// cluster.
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
        let environment = |name: &str| std::env::var_os(name);
        let client = ApiClient::connect(&endpoint, &credential.login(), &environment).ok()?;
        Some(client.try_lease(&origin.node_name, deadline))
    }
}

fn was_tried_lately(store: &Store, now: SystemTime) -> bool {
    // A date in the future comes from a clock that was ahead.
    let ago = store.last_locked().map(|last| now.duration_since(last));
    matches!(ago, Some(Ok(ago)) if ago < TRIED_AGAIN_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_checked_two_minutes_after_the_last_lock() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::create(&folder.path().join("state")).unwrap();
        let now = clock::now();
        let ago = |seconds| {
            store.date_lock(now - Duration::from_secs(seconds));
            was_tried_lately(&store, now)
        };

        assert!(ago(0));
        assert!(ago(60));
        // One heartbeat of the kubelet may pass in between.
        assert!(!ago(110));
        store.date_lock(now + Duration::from_mins(1));
        assert!(!was_tried_lately(&store, now), "a clock that was ahead");
    }
}
