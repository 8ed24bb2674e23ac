//! The intended use of the chain: the counterpart of the cases that must not compile.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_attestation::names::{NodeName, Provider};
use node_attestation_core::decide::{Context, Decision};
use node_attestation_core::identifiers::{CertificateUid, KeyDigest};
use node_attestation_core::ledger::{Renewal, RequestRef};
use node_attestation_core::request::{
    Approval, AttestedCsr, ClaimedCsr, ConformantClientCsr, ConformantServingCsr, CorroboratedCsr,
    ExemptRenewal, IssuedCertificate, LocatedCsr, NamedCsr, ParsedCsr, RawRequest,
};
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::{AttestedIdentity, Verifier};

/// Creates every link once, from the preceding link.
pub(crate) async fn chain(
    object: &CertificateSigningRequest,
    context: &Context,
    verifier: &Arc<dyn Verifier>,
    signer: &Signer,
    now: SystemTime,
) -> Result<IssuedCertificate, Decision> {
    let (inventory, ledger) = (context.inventory.as_ref(), context.ledger.as_ref());
    let raw: RawRequest = RawRequest::triage(object, &context.verifiers)?;
    let parsed: ParsedCsr = raw.parse()?;
    let conformant: ConformantClientCsr =
        parsed.conform_client(verifier, context.longest_lifetime)?;
    let located: LocatedCsr = conformant.locate(inventory).await?;
    let attested: AttestedCsr = located.attest(&context.audiences, now).await?;
    let settled: NamedCsr = attested.check_node_name(inventory, ledger).await?;
    let claimed: ClaimedCsr = settled.claim(ledger, RequestRef::default(), now).await?;
    let issued: IssuedCertificate = claimed.sign(signer, now).await?;
    Ok(issued)
}

/// Creates the links for a serving certificate.
pub(crate) async fn serving(
    parsed: ParsedCsr,
    context: &Context,
    signer: &Signer,
    now: SystemTime,
) -> Result<IssuedCertificate, Decision> {
    let policy = &context.serving;
    let conformant: ConformantServingCsr =
        parsed.conform_serving(policy, context.longest_lifetime)?;
    let (ledger, inventory) = (context.ledger.as_ref(), context.inventory.as_ref());
    let corroborated: CorroboratedCsr = conformant
        .corroborate(ledger, inventory, &context.verifiers, policy)
        .await?;
    Ok(corroborated.sign(signer, now).await?)
}

/// The approval of a request that another signer signs.
pub(crate) fn approved(corroborated: CorroboratedCsr) -> Option<Approval> {
    corroborated.approve().ok()
}

/// The chain for exempt Nodes.
pub(crate) async fn exempt(parsed: ParsedCsr, context: &Context) -> Result<Approval, Decision> {
    let (ledger, inventory) = (context.ledger.as_ref(), context.inventory.as_ref());
    let renewal: ExemptRenewal = parsed
        .renew_exempt(inventory, ledger, &context.exempt_nodes)
        .await?;
    Ok(renewal.approve())
}

/// A renewal with an identity that a verifier has verified.
pub(crate) fn renewal(
    name: NodeName,
    identity: AttestedIdentity,
    uid: CertificateUid,
    at: SystemTime,
) -> Renewal {
    Renewal {
        node_name: name,
        identity,
        uid,
        asked: at,
        not_after: at,
        provider: Provider::NULL,
        machine_name: None,
        key: KeyDigest::of(b"key"),
        request: RequestRef::default(),
    }
}
