//! Hardening the join: on a workload cluster, every way to a kubelet's certificate that goes round
//! attestation is closed, and shown closed.
//!
//! | part | what it does |
//! | --- | --- |
//! | [`bindings`] | finds who has kubelets approved unseen, and removes kubeadm's two bindings |
//! | [`auto_approve_audit`] | proves that nobody has, or names who |
//! | [`admission`] | confines what tokens and nodes may ask for |
//! | [`revocation`] | refuses revoked certificates every write |
//! | [`tokens`] | keeps bootstrap tokens alive while they are wanted |
//! | [`rate_limit`] | bounds the work that one requester can cause; it has no I/O |
//!
//! # Guarantees
//!
//! - Every part can be repeated, and writes nothing where all is as it should be.
//! - No part reaches a decision about a node: what fails is an outage or a missing right.
//! - A part that fails stops no other.
//! - All of it works with the rights of `packaging/rbac/workload-cluster.yaml`.

mod access;
pub mod admission;
pub mod auto_approve_audit;
pub mod bindings;
mod policies;
pub mod rate_limit;
pub mod revocation;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::time::{Duration, SystemTime};

use kube::Client;

pub use access::{ApplyOutcome, HardeningError};

use node_attestation_core::crd::AutoApproveBindings;
use node_attestation_core::identifiers::{RecordUid, TokenId};
use node_attestation_core::ledger::RevokedGenerations;

/// What a workload cluster should be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// Whether kubeadm's bindings are removed. `Remove` takes effect at once: it is for the caller
    /// to report only while a Node has no record.
    pub auto_approve_bindings: AutoApproveBindings,
    /// What may be asked for.
    pub admission: admission::Settings,
    /// The generations whose certificates are refused every write, by record.
    pub revoked: BTreeMap<RecordUid, RevokedGenerations>,
    /// The bootstrap tokens that are kept alive, each until it is no longer wanted; none with
    /// `bootstrapTokens: Ignore`.
    pub tokens: BTreeMap<TokenId, SystemTime>,
}

/// What became of it, part by part.
#[derive(Debug)]
#[non_exhaustive]
pub struct Findings {
    /// Whether every way is closed, once what was to be removed is removed.
    pub closure: Result<auto_approve_audit::Closure, HardeningError>,
    /// Which of kubeadm's bindings were removed, for whoever wonders where they went.
    pub removed: Result<Vec<bindings::KubeadmBinding>, HardeningError>,
    /// Whether the policy on requests had to be written.
    pub admission: Result<ApplyOutcome, HardeningError>,
    /// How far revocation reaches.
    pub revocation: Result<revocation::Revocation, HardeningError>,
    /// What was done about tokens.
    pub tokens: Result<tokens::Kept, HardeningError>,
}

impl Findings {
    /// What went wrong, part by part.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, &HardeningError)> {
        let of = |part, error| Some((part, error?));
        [
            of("closure", self.closure.as_ref().err()),
            of("bindings", self.removed.as_ref().err()),
            of("admission", self.admission.as_ref().err()),
            of("revocation", self.revocation.as_ref().err()),
            of("tokens", self.tokens.as_ref().err()),
        ]
        .into_iter()
        .flatten()
    }
}

/// One workload cluster, to be made and kept as it should be.
pub struct Hardening {
    client: Client,
    tokens: tokens::Tokens,
}

impl Debug for Hardening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hardening").finish_non_exhaustive()
    }
}

impl Hardening {
    /// The cluster that `client` speaks to; a bootstrap token that was extended is ended when it
    /// has not been wanted for `token_grace`.
    pub fn new(client: Client, token_grace: Duration) -> Self {
        Self {
            client,
            tokens: tokens::Tokens::new(token_grace),
        }
    }

    /// Makes the cluster as it should be. To be repeated every few minutes: others write there too.
    pub async fn reconcile(&mut self, desired: &Desired, now: SystemTime) -> Findings {
        let Self { client, tokens } = self;
        let client = &*client;
        let mut removed = Ok(Vec::new());
        let (closure, admission, revocation, tokens) = tokio::join!(
            close(client, desired.auto_approve_bindings, &mut removed),
            admission::apply(client, &desired.admission),
            revocation::apply(client, &desired.revoked, now),
            async {
                let kept = tokens.keep(client, &desired.tokens, now).await?;
                let former = tokens.find_former(client, &desired.tokens, now);
                former.await.map(|()| kept)
            },
        );
        Findings {
            closure,
            removed,
            admission,
            revocation,
            tokens,
        }
    }
}

async fn close(
    client: &Client,
    about: AutoApproveBindings,
    removed: &mut Result<Vec<bindings::KubeadmBinding>, HardeningError>,
) -> Result<auto_approve_audit::Closure, HardeningError> {
    let mut scan = bindings::scan(client).await?;
    match about {
        AutoApproveBindings::Report => {}
        AutoApproveBindings::Remove => *removed = bindings::remove(client, &mut scan).await,
    }
    auto_approve_audit::examine(client, &scan).await
}
