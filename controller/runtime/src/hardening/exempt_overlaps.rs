//! Finds exempt Nodes for whose names two valid certificates exist.
//!
//! An exempt Node renews with the built-in signer, and without evidence. An attacker who got a certificate for its name
//! with a bootstrap token before enforcement can therefore also renew that certificate. A kubelet renews its
//! certificate only after at least 70 % of its validity has passed. Therefore, a certificate that is issued earlier for
//! the same name shows that there is another holder.
//!
//! kube-controller-manager deletes an issued request after 1 hour. The certificates that were seen earlier are kept
//! only in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::ListParams;
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, NodeName};
use node_attestation_core::signer::OtherCertificate;
use node_attestation_core::time::until;
use node_attestation_core::unshared::Unshared;

use super::access::HardeningError;
use super::other_approvers::each;
use crate::client::PAGE_SIZE;

/// The part of the validity before which no kubelet renews, in percent: a kubelet renews after 70 % to 90 %. The margin
/// covers clock differences.
const NOT_RENEWED_BEFORE: u32 = 65;

/// The maximum number of certificates in one search, because a tenant's API server can list any number. A kubelet gets
/// a few certificates in a year, and a request exists for one hour.
const MAX_ISSUED: usize = 1000;

/// The maximum number of names in the message.
const MAX_NAMED: usize = 5;

/// A certificate: the start and the end of its validity, and its serial number.
type Issued = (SystemTime, SystemTime, Vec<u8>);

/// The known certificates of the exempt Nodes in one cluster. All clones share them, so the certificates remain known
/// when the settings change. The lock is not shared between clusters.
#[derive(Debug, Clone, Default)]
pub struct ExemptOverlaps(Arc<Unshared<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The UID of the Cluster.
    cluster: String,
    /// For each name, the certificate that was issued last.
    last: BTreeMap<NodeName, Issued>,
    /// The names for which two valid certificates exist, with the time at which the first certificate expires.
    found: BTreeMap<NodeName, SystemTime>,
    /// Whether the last search did not evaluate all requests. A missing request can be an attacker's renewal.
    is_partial: bool,
}

impl ExemptOverlaps {
    /// The certificates of this Cluster. The certificates of an earlier Cluster with the same name are removed.
    #[must_use]
    pub fn of_cluster(self, uid: &str) -> Self {
        let mut known = self.0.lock();
        if known.cluster != uid {
            *known = Known {
                cluster: uid.to_owned(),
                ..Known::default()
            };
        }
        drop(known);
        self
    }

    /// Reads the requests that the cluster's built-in signer has answered, and compares the certificates for the names
    /// in `exempt`.
    ///
    /// # Errors
    ///
    /// Returns an error if a call to the API server failed.
    pub async fn look(
        &self,
        client: &Client,
        exempt: &BTreeSet<NodeName>,
        now: SystemTime,
    ) -> Result<(), HardeningError> {
        // If this search fails or does not complete, the result is partial.
        self.0.lock().begin(exempt, now);
        if exempt.is_empty() {
            return Ok(());
        }
        let (mut issued, mut are_few) = (Vec::new(), true);
        let of_signer = format!("spec.signerName={BUILT_IN_CLIENT_SIGNER}");
        let wanted = (PAGE_SIZE, ListParams::default().fields(&of_signer));
        let take = |request: CertificateSigningRequest| {
            let certificate = request.status.and_then(|status| status.certificate);
            let certificate = certificate.and_then(|pem| OtherCertificate::parse(&pem.0));
            let Some(one) = certificate else { return };
            let node = NodeName::from_user_name(&one.name);
            let Some(node) = node.filter(|node| exempt.contains(node)) else {
                return;
            };
            if issued.len() < MAX_ISSUED {
                issued.push((node, (one.begin, one.end, one.serial)));
            } else {
                are_few = false;
            }
        };
        let listed = each(client, wanted, take).await?;
        issued.sort_by_key(|(_, (begin, ..))| *begin);
        let mut known = self.0.lock();
        for (node, one) in issued {
            known.note(node, one, now);
        }
        known.is_partial = !(are_few && listed.is_complete());
        Ok(())
    }

    /// The number of names for which two valid certificates exist. `None` if no such name is known, and the last search
    /// did not evaluate all requests.
    pub fn count(&self) -> Option<usize> {
        let known = self.0.lock();
        let count = known.found.len();
        (count > 0 || !known.is_partial).then_some(count)
    }

    /// The message about names for which two valid certificates exist, and about requests that were not evaluated.
    /// `None` if there are no such names or requests.
    pub fn message(&self) -> Option<String> {
        let known = self.0.lock();
        let named = known.found.keys().take(MAX_NAMED);
        let named: Vec<&str> = named.map(NodeName::as_str).collect();
        let count = known.found.len();
        let mut parts = Vec::new();
        if known.is_partial {
            parts.push(format!(
                "the controller could not read all requests for {BUILT_IN_CLIENT_SIGNER}, so more exempt names can have two valid certificates"
            ));
        }
        if count > 0 {
            parts.push(format!(
                "{count} exempt names have two valid certificates, so the second holder might be an attacker: {}",
                named.join(", ")
            ));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl Known {
    /// Removes expired entries, and entries for other names.
    fn begin(&mut self, exempt: &BTreeSet<NodeName>, now: SystemTime) {
        self.is_partial = !exempt.is_empty();
        self.last.retain(|node, _| exempt.contains(node));
        let is_current = |node: &NodeName, end: SystemTime| exempt.contains(node) && end > now;
        self.found.retain(|node, end| is_current(node, *end));
    }

    /// Records a certificate. The certificate overlaps with the earlier certificate if the earlier one is still valid,
    /// and if its renewal was not due.
    fn note(&mut self, node: NodeName, issued: Issued, now: SystemTime) {
        let last = self.last.remove(&node);
        let last = last.unwrap_or_else(|| issued.clone());
        let (earlier, later) = if last <= issued {
            (last, issued)
        } else {
            (issued, last)
        };
        let whole = until(earlier.1, earlier.0);
        let is_early = until(later.0, earlier.0) < share(whole);
        let first_end = earlier.1.min(later.1);
        if earlier.2 != later.2 && is_early && first_end > now {
            self.found.insert(node.clone(), first_end);
        }
        self.last.insert(node, later);
    }
}

/// The part of this validity before which no kubelet renews.
fn share(validity: Duration) -> Duration {
    validity.saturating_mul(NOT_RENEWED_BEFORE) / 100
}

#[cfg(test)]
mod tests;
