//! Cases that call the step of each link without the check of the next link.

use std::sync::Arc;
use std::time::SystemTime;

use node_attestation_core::decide::Context;
use node_attestation_core::ledger::RequestRef;
use node_attestation_core::request::*;
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifier;

fn unparsed(raw: RawRequest, verifier: &Arc<dyn Verifier>, context: &Context) {
    let _ = raw.conform_client(verifier, context.longest_lifetime);
}

fn unconformant(parsed: ParsedCsr, context: &Context) {
    let _ = parsed.locate(context.inventory.as_ref());
}

fn unlocated(conformant: ConformantClientCsr, now: SystemTime) {
    let _ = conformant.attest(&[], now);
}

fn unattested(located: LocatedCsr, context: &Context) {
    let _ = located.check_node_name(context.inventory.as_ref(), context.ledger.as_ref());
}

fn unsettled(attested: AttestedCsr, context: &Context, now: SystemTime) {
    let _ = attested.claim(context.ledger.as_ref(), RequestRef::default(), now);
}

fn unclaimed(settled: NamedCsr, signer: &Signer, now: SystemTime) {
    let _ = settled.sign(signer, now);
}

fn unsigned(claimed: ClaimedCsr) -> IssuedCertificate {
    claimed
}

fn signed_at_once(raw: RawRequest, signer: &Signer, now: SystemTime) {
    let _ = raw.sign(signer, now);
}

fn unconformant_serving(parsed: ParsedCsr, context: &Context) {
    let (ledger, inventory) = (context.ledger.as_ref(), context.inventory.as_ref());
    let verifiers = &context.verifiers;
    let _ = parsed.corroborate(ledger, inventory, verifiers, &context.serving);
}

fn uncorroborated(serving: ConformantServingCsr, signer: &Signer, now: SystemTime) {
    let _ = serving.sign(signer, now);
}

fn approved_uncorroborated(serving: ConformantServingCsr) {
    let _ = serving.approve();
}

fn approved_unclaimed(settled: NamedCsr) {
    let _ = settled.approve();
}

fn approved_at_once(parsed: ParsedCsr) {
    let _ = parsed.approve();
}

fn main() {}
