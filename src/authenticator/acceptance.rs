//! Whether the API server still lets a certificate write that is not due for renewal.
//!
//! A kubelet whose writes are refused (403) goes on with the credential that it has: client-go runs
//! the plugin again only after a 401. So the plugin finds out by itself.

use std::time::{Duration, SystemTime};

use super::{Authenticator, program};
use crate::clock::{self, Deadline};
use crate::credential::Credential;
use crate::kube::kubeconfig::{ClusterEndpoint, Login};
use crate::kube::{ApiClient, ApiError};
use crate::origin::Origin;
use crate::secret::Secret;
use crate::store::{Store, StoreFile};

/// A certificate is tried this long after a run last had the lock: with every run that client-go
/// makes once an hour, and with few others.
const TRIED_AGAIN_AFTER: Duration = Duration::from_mins(55);

/// How long the kubelet waits for it at most.
const TRYING: Duration = Duration::from_secs(2);

impl Authenticator<'_> {
    /// Tries the certificate, once an hour for all processes. `None` unless the API server says that
    /// it does not accept it: any other failure says nothing about the certificate.
    pub(super) fn refusal(
        &self,
        store: &Store,
        origin: &Origin,
        credential: &Credential,
        now: SystemTime,
    ) -> Option<ApiError> {
        if was_tried_lately(store, now) || self.remembered(store, now).is_some() {
            return None;
        }
        // Whoever has the lock renews the certificate or tries it.
        let lock = store.lock(Deadline::after(Duration::ZERO), &program(), now);
        drop(lock.ok()?);
        self.prepare_rescue(credential, now);
        // On a disk that takes no writes every run would try it.
        if !was_tried_lately(store, clock::now()) {
            return None;
        }
        let deadline = Deadline::after(TRYING);
        self.try_certificate(origin, credential, deadline)
            .filter(is_refusal)
    }

    /// Tries the certificate now. `None` if it is accepted, or the stored origin is of no use.
    ///
    /// It is tried where client-go is about to use it, if that is the same cluster.
    pub(super) fn try_certificate(
        &self,
        origin: &Origin,
        credential: &Credential,
        deadline: Deadline,
    ) -> Option<ApiError> {
        let document = StoreFile::Origin.name();
        let known = ClusterEndpoint::from_fields(origin.endpoint.clone(), document).ok()?;
        let asked = self.cluster.map(ClusterEndpoint::from_exec_info);
        let asked = asked.and_then(Result::ok);
        let endpoint = asked
            .filter(|asked| asked.is_of_same_cluster(&known))
            .unwrap_or(known);
        let login = Login::ClientCertificate {
            chain_pem: credential.certificate_pem().to_owned(),
            key_pem: Secret::new(credential.key_pem().expose().clone()),
        };
        let environment = |name: &str| std::env::var_os(name);
        let client = ApiClient::connect(&endpoint, &login, &environment).ok()?;
        client.try_lease(&origin.node_name, deadline).err()
    }
}

/// Whether it is the certificate that the API server does not accept.
pub(super) const fn is_refusal(error: &ApiError) -> bool {
    matches!(
        error,
        ApiError::Forbidden { .. } | ApiError::Unauthorized { .. }
    )
}

fn was_tried_lately(store: &Store, now: SystemTime) -> bool {
    // A lock from the future was dated by a clock that was ahead.
    let ago = store.last_locked().map(|last| now.duration_since(last));
    matches!(ago, Some(Ok(ago)) if ago < TRIED_AGAIN_AFTER)
}
