//! All parts, as management runs them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use kube::Client;
use node_attestation_core::crd::AutoApproveBindings;
use node_attestation_core::identifiers::{RecordUid, TokenId};
use node_attestation_core::ledger::RevokedGenerations;
use node_attestation_runtime::hardening::{
    ApplyOutcome, HardeningError, admission, auto_approve_audit, bindings, revocation, tokens,
};

/// What a workload cluster should be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Desired {
    /// Whether kubeadm's bindings are removed. `Remove` takes effect at once: it is for the caller
    /// to report only while a Node has no record.
    pub(crate) auto_approve_bindings: AutoApproveBindings,
    /// What may be asked for.
    pub(crate) admission: admission::Settings,
    /// The generations whose certificates are refused every write, by record.
    pub(crate) revoked: BTreeMap<RecordUid, RevokedGenerations>,
    /// The bootstrap tokens that are kept alive, each until it is no longer wanted; none with
    /// `bootstrapTokens: Ignore`.
    pub(crate) tokens: BTreeMap<TokenId, SystemTime>,
}

/// What became of it, part by part.
#[derive(Debug)]
pub(crate) struct Findings {
    /// Whether every way is closed, once what was to be removed is removed.
    pub(crate) closure: Result<auto_approve_audit::Closure, HardeningError>,
    /// Which of kubeadm's bindings were removed, for whoever wonders where they went.
    pub(crate) removed: Result<Vec<bindings::KubeadmBinding>, HardeningError>,
    /// Whether the policy on requests had to be written.
    pub(crate) admission: Result<ApplyOutcome, HardeningError>,
    /// How far revocation reaches.
    pub(crate) revocation: Result<revocation::Revocation, HardeningError>,
    /// What was done about tokens.
    pub(crate) tokens: Result<tokens::Kept, HardeningError>,
}

impl Findings {
    /// What went wrong, part by part.
    pub(crate) fn errors(&self) -> impl Iterator<Item = (&'static str, &HardeningError)> {
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
pub(crate) struct Hardening {
    client: Client,
    pub(crate) tokens: tokens::Tokens,
}

impl Hardening {
    /// The cluster that `client` speaks to; a bootstrap token that was extended is ended when it
    /// has not been wanted for `token_grace`.
    pub(crate) fn new(client: Client, token_grace: Duration) -> Self {
        Self {
            client,
            tokens: tokens::Tokens::new(token_grace),
        }
    }

    /// Makes the cluster as it should be. To be repeated every few minutes: others write there too.
    pub(crate) async fn reconcile(&mut self, desired: &Desired, now: SystemTime) -> Findings {
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
