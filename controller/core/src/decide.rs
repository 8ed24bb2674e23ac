//! The decision about one request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::ObjectReference;
use kubelet_attestation::names::{Audience, Provider};

use crate::duties::{BuiltIn, Duties, Issuance};
use crate::inventory::Inventory;
use crate::ledger::{Ledger, RequestRef};
use crate::refusal::{Deferral, Denial, Failure, Ignored, Refusal};
use crate::request::{
    self, Approval, Asked, ClaimedCsr, Dismissal, IssuedCertificate, ParsedCsr, RawRequest,
};
use crate::serving::ServingPolicy;
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
    /// Who signs.
    pub issuance: Issuance,
    /// How long certificates are valid.
    pub lifetimes: Lifetimes,
    /// Which requests are ours beside those to the client signers of the verifiers.
    pub duties: Duties,
    /// What serving certificates may be for.
    pub serving: ServingPolicy,
}

impl Context {
    /// The signers whose requests are ours to answer: what must be watched.
    pub fn signers(&self) -> Vec<String> {
        request::signers(&self.verifiers, self.duties)
    }
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
    /// The longer of them.
    pub fn longest(&self) -> Duration {
        self.attested.max(self.insecure)
    }

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
    /// Approve it, for kube-controller-manager to sign.
    Approve(Approval),
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
    /// The object that people look at for the machine, where the machine was found and has one.
    pub machine: Option<ObjectReference>,
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
    /// Is it for what a kubelet serves as, by the node itself?
    ConformServing,
    /// Is every name in it the machine's own?
    Corroborate,
    /// Is it a control-plane machine's, without evidence?
    ControlPlane,
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
            Self::ConformServing => "conform_serving",
            Self::Corroborate => "corroborate",
            Self::ControlPlane => "control_plane",
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
    let mut deciding = Deciding {
        context,
        now,
        steps: Steps::default(),
        machine: None,
        reference: reference(request),
    };
    let decision = deciding.answer(request).await;
    Decided {
        decision: decision.unwrap_or_else(|refused| refused),
        steps: deciding.steps.0,
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
    /// The error is a decision, too: `?` ends the checks with it.
    async fn answer(&mut self, request: &CertificateSigningRequest) -> Result<Decision, Decision> {
        let Context {
            verifiers,
            issuance,
            duties,
            ..
        } = self.context;
        let raw = self.steps.take(Check::Triage, || {
            RawRequest::triage(request, verifiers, duties)
        })?;
        let signer = match (raw.asked(), issuance) {
            (Asked::Client(_) | Asked::Serving(_), Issuance::Sign(signer)) => Some(signer.as_ref()),
            (Asked::Client(_) | Asked::Serving(_), Issuance::ApproveOnly) => {
                let signer = request.spec.signer_name.clone();
                return Err(Decision::Fail(Failure::SignerWithoutKey { signer }));
            }
            (Asked::BuiltInClient | Asked::BuiltInServing, _) => None,
        };
        let asked = raw.asked().clone();
        let csr = self.steps.take(Check::Parse, || raw.parse())?;
        match asked {
            Asked::Client(_) => self.client(csr, signer).await,
            Asked::BuiltInClient if csr.is_attested() => self.attested_built_in(csr).await,
            Asked::BuiltInClient => self.unattested_built_in(csr).await,
            Asked::Serving(_) | Asked::BuiltInServing => self.serving(csr, signer).await,
        }
    }

    /// `signer`: `None` if kube-controller-manager signs.
    async fn client(
        &mut self,
        csr: ParsedCsr,
        signer: Option<&Signer>,
    ) -> Result<Decision, Decision> {
        let now = self.now;
        let Some(signer) = signer else {
            let csr = self.claimed(csr, None).await?;
            let approval = self.steps.take(Check::Sign, || csr.approve())?;
            return Ok(Decision::Approve(approval));
        };
        let csr = self.claimed(csr, Some(signer)).await?;
        let certificate = self.steps.take(Check::Sign, || csr.sign(signer, now))?;
        Ok(Decision::Issue(certificate))
    }

    async fn claimed(
        &mut self,
        csr: ParsedCsr,
        signer: Option<&Signer>,
    ) -> Result<ClaimedCsr, Decision> {
        let Context {
            verifiers,
            audiences,
            inventory,
            ledger,
            lifetimes,
            ..
        } = self.context;
        let (inventory, now) = (inventory.as_ref(), self.now);
        let Some(provider) = csr.provider() else {
            return Err(Denial::SignerPurpose.into());
        };
        let Some(verifier) = verifiers.of(provider) else {
            let provider = provider.clone();
            return Err(Denial::ProviderNotAdmitted { provider }.into());
        };
        // The record must not outlive the certificate, which does not outlive the CA.
        let lifetimes = match signer {
            Some(signer) => lifetimes.until(signer.not_after(), now),
            None => *lifetimes,
        };
        let csr = self.steps.take(Check::ConformClient, || {
            csr.conform_client(verifier, &lifetimes)
        })?;
        let located = csr.locate(inventory);
        let csr = self.steps.wait(Check::Locate, located).await?;
        self.machine.clone_from(&csr.machine().object);
        let attested = csr.attest(verifier, audiences, now);
        let csr = self.steps.wait(Check::Attest, attested).await?;
        let settled = csr.settle(inventory);
        let csr = self.steps.wait(Check::Settle, settled).await?;
        // Before the claim: a machine whose certificate cannot be made must not hold its name for
        // its former key.
        if let Some(Err(not_valid)) = signer.map(|signer| signer.is_valid(now)) {
            let refusal = Refusal::from(not_valid);
            return Err(self.steps.take(Check::Sign, || refusal.into()));
        }
        let claimed = csr.claim(ledger.as_ref(), self.reference.clone(), now);
        Ok(self.steps.wait(Check::Claim, claimed).await?)
    }

    async fn attested_built_in(&mut self, csr: ParsedCsr) -> Result<Decision, Decision> {
        match self.context.duties.built_in {
            BuiltIn::ApproveOnly => self.client(csr, None).await,
            BuiltIn::Deny | BuiltIn::Ignore => Err(match csr.provider().cloned() {
                Some(provider) => Denial::BuiltInSignerNotUsed { provider }.into(),
                None => Denial::SignerPurpose.into(),
            }),
        }
    }

    async fn unattested_built_in(&mut self, csr: ParsedCsr) -> Result<Decision, Decision> {
        let Context {
            inventory,
            ledger,
            duties,
            ..
        } = self.context;
        if !duties.control_plane_renewal {
            let detail = "the cluster has no exception";
            return Err(Denial::UnattestedBuiltInRequest { detail }.into());
        }
        let renewal = csr.renew_control_plane(inventory.as_ref(), ledger.as_ref(), self.now);
        let renewal = self.steps.wait(Check::ControlPlane, renewal).await?;
        self.machine.clone_from(&renewal.machine().object);
        Ok(Decision::Approve(renewal.approve()))
    }

    /// `signer`: `None` if kube-controller-manager signs.
    async fn serving(
        &mut self,
        csr: ParsedCsr,
        signer: Option<&Signer>,
    ) -> Result<Decision, Decision> {
        let Context {
            inventory,
            ledger,
            issuance,
            lifetimes,
            serving,
            ..
        } = self.context;
        let now = self.now;
        let csr = self.steps.take(Check::ConformServing, || {
            csr.conform_serving(issuance, serving, lifetimes)
        })?;
        let corroborated = csr.corroborate(ledger.as_ref(), inventory.as_ref(), serving, now);
        let csr = self.steps.wait(Check::Corroborate, corroborated).await?;
        self.machine.clone_from(&csr.machine().object);
        Ok(match signer {
            Some(signer) => {
                Decision::Issue(self.steps.take(Check::Sign, || csr.sign(signer, now))?)
            }
            None => Decision::Approve(self.steps.take(Check::Sign, || csr.approve())?),
        })
    }
}

/// What a record says of the request that opened it.
fn reference(request: &CertificateSigningRequest) -> RequestRef {
    RequestRef {
        name: request.metadata.name.clone().unwrap_or_default(),
        uid: request.metadata.uid.clone().unwrap_or_default(),
    }
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
mod built_in;
#[cfg(test)]
mod first_use;
#[cfg(test)]
mod names;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod serving_names;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unready;
