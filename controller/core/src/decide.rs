//! The decision about one request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::{Audience, Provider};

use crate::inventory::Inventory;
use crate::ledger::Ledger;
use crate::refusal::{Deferral, Denial, Failure, Ignored, Refusal};
use crate::request::{Dismissal, IssuedCertificate, RawRequest};
use crate::signer::Signer;
use crate::verifier::Verifier;

/// All that a decision needs to know about one workload cluster.
#[derive(Debug, Clone)]
pub struct Context {
    /// Who appraises evidence, one verifier a provider that the cluster admits.
    pub verifiers: Verifiers,
    /// The audiences that mean this cluster.
    pub audiences: Vec<Audience>,
    /// Its machines.
    pub inventory: Arc<dyn Inventory>,
    /// Who holds its node names.
    pub ledger: Arc<dyn Ledger>,
    /// Its CA.
    pub signer: Arc<Signer>,
    /// How long certificates are valid.
    pub lifetimes: Lifetimes,
}

/// The verifiers of a cluster, one for each provider that it admits.
#[derive(Debug, Clone, Default)]
pub struct Verifiers(BTreeMap<Provider, Arc<dyn Verifier>>);

impl Verifiers {
    /// The verifier of this provider.
    pub fn of(&self, provider: &Provider) -> Option<&dyn Verifier> {
        self.0.get(provider).map(AsRef::as_ref)
    }

    /// The providers that are admitted.
    pub fn providers(&self) -> impl Iterator<Item = &Provider> {
        self.0.keys()
    }
}

impl FromIterator<Arc<dyn Verifier>> for Verifiers {
    fn from_iter<T: IntoIterator<Item = Arc<dyn Verifier>>>(verifiers: T) -> Self {
        Self(
            verifiers
                .into_iter()
                .map(|verifier| (verifier.provider().clone(), verifier))
                .collect(),
        )
    }
}

/// The longest validity that is granted; a longer one that is asked for is cut to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// For a machine that proved what it is.
    pub attested: Duration,
    /// For one that cannot: it is never renewed.
    pub insecure: Duration,
}

impl Lifetimes {
    /// The same, but none beyond `end`.
    fn until(self, end: SystemTime, now: SystemTime) -> Self {
        let left = end.duration_since(now).unwrap_or_default();
        Self {
            attested: self.attested.min(left),
            insecure: self.insecure.min(left),
        }
    }
}

impl Default for Lifetimes {
    /// Seven days, and for an unattested machine one year.
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self {
            attested: 7 * DAY,
            insecure: 365 * DAY,
        }
    }
}

/// What is to be done about a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Decision {
    /// Nothing.
    Ignore(Ignored),
    /// Condition `Denied`.
    Deny(Denial),
    /// Condition `Failed`.
    Fail(Failure),
    /// Nothing now; decide again later.
    Retry(Deferral),
    /// Approve it, and publish this.
    Issue(IssuedCertificate),
}

impl From<Refusal> for Decision {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Deny(denial) => Self::Deny(denial),
            Refusal::Fail(failure) => Self::Fail(failure),
            Refusal::Retry(deferral) => Self::Retry(deferral),
        }
    }
}

impl From<Denial> for Decision {
    fn from(denial: Denial) -> Self {
        Self::Deny(denial)
    }
}

impl From<Dismissal> for Decision {
    fn from(dismissal: Dismissal) -> Self {
        match dismissal {
            Dismissal::Ignore(ignored) => Self::Ignore(ignored),
            Dismissal::Deny(denial) => Self::Deny(denial),
        }
    }
}

/// A decision, and how it was reached.
#[derive(Debug)]
pub struct Decided {
    /// What is to be done.
    pub decision: Decision,
    /// The checks that were made, in order; the last one decided.
    pub steps: Vec<Step>,
}

/// A check that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Which.
    pub check: Check,
    /// How long it took.
    pub took: Duration,
}

/// The checks: one for each link of the chain in [`crate::request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Check {
    /// Is it ours, and open?
    Triage,
    /// Is it well-formed, and signed with its own key?
    Parse,
    /// Does it ask for what a kubelet may have, by who may ask?
    ConformClient,
    /// Which machine is it?
    Locate,
    /// Does the evidence hold, for this key and this machine?
    Attest,
    /// Is the node name this machine's?
    Settle,
    /// Is the name's record this machine's?
    Claim,
    /// Can the CA sign?
    Sign,
}

impl Check {
    /// A stable name, for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Triage => "triage",
            Self::Parse => "parse",
            Self::ConformClient => "conform_client",
            Self::Locate => "locate",
            Self::Attest => "attest",
            Self::Settle => "settle",
            Self::Claim => "claim",
            Self::Sign => "sign",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Decides about `request` at `now`.
///
/// Writes nothing but the ledger's record, and can be repeated: the same request finds the same
/// record. The traits that `context` holds bring their own deadlines.
pub async fn decide(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
) -> Decided {
    let mut steps = Steps::default();
    let decision = match issue(request, context, now, &mut steps).await {
        Ok(certificate) => Decision::Issue(certificate),
        Err(decision) => decision,
    };
    Decided {
        decision,
        steps: steps.0,
    }
}

async fn issue(
    request: &CertificateSigningRequest,
    context: &Context,
    now: SystemTime,
    steps: &mut Steps,
) -> Result<IssuedCertificate, Decision> {
    let Context {
        verifiers,
        audiences,
        inventory,
        ledger,
        signer,
        lifetimes,
    } = context;
    let raw = steps.take(Check::Triage, || RawRequest::triage(request, verifiers))?;
    let Some(verifier) = verifiers.of(raw.provider()) else {
        return Err(Decision::Ignore(Ignored::AnotherSigner {
            signer: request.spec.signer_name.clone(),
        }));
    };
    let csr = steps.take(Check::Parse, || raw.parse())?;
    // The record must not outlive the certificate, which does not outlive the CA.
    let lifetimes = lifetimes.until(signer.not_after(), now);
    let csr = steps.take(Check::ConformClient, || {
        csr.conform_client(verifier, &lifetimes)
    })?;
    let csr = steps
        .wait(Check::Locate, csr.locate(inventory.as_ref()))
        .await?;
    let csr = steps
        .wait(Check::Attest, csr.attest(verifier, audiences, now))
        .await?;
    let csr = steps
        .wait(Check::Settle, csr.settle(inventory.as_ref()))
        .await?;
    // Before the claim: a machine whose certificate cannot be made must not hold its name for its
    // former key.
    if let Err(not_valid) = signer.is_valid(now) {
        return Err(steps.take(Check::Sign, || Refusal::from(not_valid).into()));
    }
    let csr = steps
        .wait(Check::Claim, csr.claim(ledger.as_ref(), now))
        .await?;
    Ok(steps.take(Check::Sign, || csr.sign(signer, now))?)
}

#[derive(Default)]
struct Steps(Vec<Step>);

impl Steps {
    fn take<T>(&mut self, check: Check, make: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = make();
        self.took(check, begin);
        result
    }

    async fn wait<T>(&mut self, check: Check, made: impl Future<Output = T>) -> T {
        let begin = Instant::now();
        let result = made.await;
        self.took(check, begin);
        result
    }

    fn took(&mut self, check: Check, begin: Instant) {
        let took = begin.elapsed();
        self.0.push(Step { check, took });
    }
}

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod names;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unready;
