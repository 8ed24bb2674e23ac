//! The decision on one request.

use std::time::SystemTime;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::names::{
    BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, CSR_NAME_PREFIX, Provider,
};

use crate::identifiers::CertificateUid;
use crate::ledger::RequestRef;
use crate::refusal::{Deferral, Denial, Failure, Ignored, Refusal};
use crate::request::{
    self, Approval, ClaimedCsr, IssuedCertificate, KubeletServing, ParsedCsr, RawRequest,
    SignerKind, TriageError,
};
use crate::scope::EnforcementState;
use crate::time::until;

mod context;
mod foreseen;
mod seen;
mod steps;

pub use context::Context;
pub use foreseen::{Foreseen, foresee};
pub use steps::{Elapsed, Step};

use steps::Steps;

/// A decision on a request.
#[derive(Debug)]
pub enum Decision {
    /// Ignore the request.
    Ignore(Ignored),
    /// Set the condition `Denied`.
    Deny(Denial),
    /// Set the condition `Failed`.
    Fail(Failure),
    /// Leave the request pending, and decide again later.
    Retry(Deferral),
    /// Approve the request, and publish this certificate.
    Issue(IssuedCertificate),
    /// Approve the request, for kube-controller-manager to sign.
    Approve(Approval),
}

impl<R: Into<Refusal>> From<R> for Decision {
    fn from(refusal: R) -> Self {
        match refusal.into() {
            Refusal::Deny(denial) => Self::Deny(denial),
            Refusal::Fail(failure) => Self::Fail(failure),
            Refusal::Retry(deferral) => Self::Retry(deferral),
        }
    }
}

impl From<TriageError> for Decision {
    fn from(dismissal: TriageError) -> Self {
        match dismissal {
            TriageError::Ignore(ignored) => Self::Ignore(ignored),
            TriageError::Deny(denial) => Self::Deny(denial),
            TriageError::Retry(deferral) => Self::Retry(deferral),
        }
    }
}

/// A decision, with the checks that led to it.
#[derive(Debug)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// The checks in the order in which they ran. The last check determined the decision.
    pub steps: Vec<Step>,
    /// The object for Events about the machine. `None` if the machine was not found, or has no object.
    pub machine: Option<ObjectReference>,
}

/// Decides on `request` at `now`.
///
/// The decision writes only through the ledger, which stores node identities and deletes the Node of a previous holder.
/// A decision can be repeated: the same request gets the same node identity. The traits in `context` enforce their own
/// deadlines. `elapsed` is a monotonic clock, with which only the durations of the checks are measured.
pub async fn decide(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
    elapsed: Elapsed,
) -> Decided {
    decided(request, context, now, Steps::timed_by(elapsed)).await
}

/// Decides as [`decide`] does, with the same checks, and keeps [the observation from each check](Step::saw).
///
/// The decision writes through the ledger in `context`. For an explanation without any writes, use
/// [`Rehearsal`](crate::ledger::Rehearsal) for the records, [`ReadOnlyNodes`](crate::nodes::ReadOnlyNodes) for the
/// Nodes, and [a signer without the CA key](crate::signer::Signer::rehearsal).
pub async fn explain(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
    elapsed: Elapsed,
) -> Decided {
    let steps = Steps::timed_by(elapsed).explained();
    decided(request, context, now, steps).await
}

async fn decided(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
    steps: Steps,
) -> Decided {
    let mut deciding = Deciding {
        context,
        now,
        steps,
        machine: None,
        reference: reference(request),
    };
    let decision = deciding.answer(request).await;
    Decided {
        decision: decision.unwrap_or_else(|refused| refused),
        steps: deciding.steps.taken,
        machine: deciding.machine,
    }
}

struct Deciding<'a> {
    context: &'a Context,
    now: SystemTime,
    steps: Steps,
    machine: Option<ObjectReference>,
    reference: RequestRef,
}

impl Deciding<'_> {
    async fn answer(&mut self, request: &CertificateSigningRequest) -> Result<Decision, Decision> {
        let enforcement = self.context.enforcement.state();
        if enforcement == EnforcementState::On || !is_as_before(request) {
            return self.checked(request).await;
        }
        if !self.context.exempt_nodes.is_empty()
            && let Ok(approved @ Decision::Approve(_)) = self.checked(request).await
        {
            return Ok(approved);
        }
        if enforcement == EnforcementState::Unknown {
            // An answered request does not need a decision. Until attestation is enforced, other approvers are allowed
            // to answer requests.
            return match triage(request, self.context) {
                Err(TriageError::Ignore(ignored)) if ignored != Ignored::IssuedByOthers => {
                    Err(Decision::Ignore(ignored))
                }
                Ok(_) | Err(_) => Err(Deferral::EnforcementUnknown.into()),
            };
        }
        Err(Decision::Ignore(Ignored::NotEnforced))
    }

    /// Runs the checks. An error is also a decision, so that `?` stops the checks.
    async fn checked(&mut self, request: &CertificateSigningRequest) -> Result<Decision, Decision> {
        let context = self.context;
        let raw = self.steps.take("scope", || triage(request, context))?;
        self.steps.saw(|| seen::request(request));
        let signer_kind = raw.signer_kind().clone();
        let csr = self.steps.take("encoding", || raw.parse())?;
        self.steps.saw(|| seen::parsed(&csr));
        match signer_kind {
            SignerKind::Client(provider) => Box::pin(self.client(csr, &provider)).await,
            SignerKind::BuiltInClient if csr.is_attested() => Err(attested_built_in(&csr).into()),
            SignerKind::BuiltInClient => Box::pin(self.unattested_built_in(csr)).await,
            SignerKind::Serving(_) | SignerKind::BuiltInServing | SignerKind::OwnBuiltInServing => {
                Box::pin(self.serving(csr)).await
            }
        }
    }

    async fn client(&mut self, csr: ParsedCsr, provider: &Provider) -> Result<Decision, Decision> {
        let (signer, now) = (self.context.signer.as_ref(), self.now);
        let csr = Box::pin(self.claimed(csr, provider)).await?;
        let made = Decision::Issue(self.steps.wait("signature", csr.sign(signer, now)).await?);
        self.steps.saw(|| seen::signed(&made));
        Ok(made)
    }

    async fn claimed(
        &mut self,
        csr: ParsedCsr,
        provider: &Provider,
    ) -> Result<ClaimedCsr, Decision> {
        let context = self.context;
        let (inventory, ledger) = (context.inventory.as_ref(), context.ledger.as_ref());
        let signer = context.signer.as_ref();
        let now = self.now;
        let Some(verifier) = context.verifiers.of(provider) else {
            let signer = provider.client_signer();
            return Err(Decision::Ignore(Ignored::AnotherSigner(signer)));
        };
        // The certificate must not expire later than the CA certificate.
        let left = until(signer.not_after(), now);
        let longest = context.longest_lifetime.min(left);
        let csr = self
            .steps
            .take("request-format", || csr.conform_client(verifier, longest))?;
        self.steps.saw(|| seen::client(csr.request()));
        let located = csr.locate(inventory);
        let csr = self.steps.wait("machine", located).await?;
        self.machine.clone_from(&csr.machine().object);
        self.steps.saw(|| seen::machine(csr.machine()));
        let attested = csr.attest(&context.audiences, now);
        let csr = self.steps.wait("evidence", attested).await?;
        self.steps.saw(|| seen::attested(&csr));
        let named = csr.check_node_name(inventory, ledger);
        let csr = self.steps.wait("node-name", named).await?;
        self.steps.saw(|| seen::named(&csr));
        // This check precedes the claim: if the signer cannot sign the certificate, the previous key of the machine
        // must keep the name.
        if let Err(deferral) = signer.check(now).await {
            self.steps.take("signature", || Err(deferral))?;
        }
        let claimed = csr.claim(ledger, self.reference.clone(), now);
        let csr = self.steps.wait("claim", claimed).await?;
        self.steps.saw(|| seen::claimed(csr.grant()));
        Ok(csr)
    }

    async fn unattested_built_in(&mut self, csr: ParsedCsr) -> Result<Decision, Decision> {
        let context = self.context;
        if context.exempt_nodes.is_empty() {
            let detail = "the cluster has no exempt Nodes (exemptNodes)";
            return Err(Denial::UnattestedBuiltInRequest(detail).into());
        }
        let (inventory, ledger) = (context.inventory.as_ref(), context.ledger.as_ref());
        let renewal = csr.renew_exempt(inventory, ledger, &context.exempt_nodes);
        let renewal = self.steps.wait("exempt", renewal).await?;
        if let Some(machine) = renewal.machine() {
            self.machine.clone_from(&machine.object);
            self.steps.saw(|| seen::machine(machine));
        }
        Ok(Decision::Approve(renewal.approve()))
    }

    async fn serving(&mut self, csr: ParsedCsr) -> Result<Decision, Decision> {
        let (context, now) = (self.context, self.now);
        let csr = self.steps.take("request-format", || {
            csr.conform_serving(&context.serving, context.longest_lifetime)
        })?;
        self.steps
            .saw(|| seen::serving(csr.request(), &context.serving));
        let corroborated = csr.corroborate(
            &context.ledger,
            context.inventory.as_ref(),
            &context.verifiers,
            &context.serving,
        );
        let csr = self.steps.wait("serving-names", corroborated).await?;
        self.machine.clone_from(&csr.machine().object);
        self.steps.saw(|| seen::machine(csr.machine()));
        let made = match csr.request().signer_kind {
            SignerKind::BuiltInServing => {
                Decision::Approve(self.steps.take("signature", || csr.approve())?)
            }
            SignerKind::Client(_)
            | SignerKind::BuiltInClient
            | SignerKind::Serving(_)
            | SignerKind::OwnBuiltInServing => {
                let signed = csr.sign(&context.signer, now);
                Decision::Issue(self.steps.wait("signature", signed).await?)
            }
        };
        self.steps.saw(|| seen::signed(&made));
        Ok(made)
    }
}

fn triage(
    request: &CertificateSigningRequest,
    context: &Context,
) -> Result<RawRequest, TriageError> {
    let serving = if context.signer.signs_kubelet_serving() {
        KubeletServing::Own
    } else {
        KubeletServing::BuiltIn
    };
    request::triage(request, &context.verifiers, serving)
}

/// Whether the request is for a built-in signer of Kubernetes, and comes from a machine without a node identity. While
/// attestation is not enforced, the controller ignores this request, even if it is invalid.
fn is_as_before(request: &CertificateSigningRequest) -> bool {
    let CertificateSigningRequest { metadata, spec, .. } = request;
    match spec.signer_name.as_str() {
        // Only the name of the request distinguishes the plugin's request from a request of a kubelet without a node
        // identity.
        BUILT_IN_CLIENT_SIGNER => {
            let name = metadata.name.as_deref();
            !name.unwrap_or_default().starts_with(CSR_NAME_PREFIX)
        }
        BUILT_IN_SERVING_SIGNER => {
            CertificateUid::parse(spec.uid.as_deref().unwrap_or_default()).is_err()
        }
        _ => false,
    }
}

/// Returns the denial of a request with evidence to the built-in client signer.
fn attested_built_in(csr: &ParsedCsr) -> Denial {
    match csr.provider() {
        Some(provider) => Denial::BuiltInSignerNotUsed(provider.client_signer()),
        None => Denial::SignerPurpose,
    }
}

/// The reference to a request, for the node identity that it opens.
fn reference(request: &CertificateSigningRequest) -> RequestRef {
    RequestRef {
        name: request.metadata.name.clone().unwrap_or_default(),
        uid: request.metadata.uid.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
