//! Cases that use each link a second time, after its check.

use std::sync::Arc;
use std::time::SystemTime;

use node_attestation_core::decide::Context;
use node_attestation_core::ledger::RequestRef;
use node_attestation_core::request::*;
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifier;

fn parsed_twice(raw: RawRequest) {
    let _ = raw.parse();
    let _ = raw.parse();
}

fn conformed_twice(parsed: ParsedCsr, verifier: &Arc<dyn Verifier>, context: &Context) {
    let _ = parsed.conform_client(verifier, context.longest_lifetime);
    let _ = parsed.conform_client(verifier, context.longest_lifetime);
}

fn located_twice(conformant: ConformantClientCsr, context: &Context) {
    let _ = conformant.locate(context.inventory.as_ref());
    let _ = conformant.locate(context.inventory.as_ref());
}

fn attested_twice(located: LocatedCsr, now: SystemTime) {
    let _ = located.attest(&[], now);
    let _ = located.attest(&[], now);
}

fn named_twice(attested: AttestedCsr, context: &Context) {
    let _ = attested.check_node_name(context.inventory.as_ref(), context.ledger.as_ref());
    let _ = attested.check_node_name(context.inventory.as_ref(), context.ledger.as_ref());
}

fn claimed_twice(settled: NamedCsr, context: &Context, now: SystemTime) {
    let _ = settled.claim(context.ledger.as_ref(), RequestRef::default(), now);
    let _ = settled.claim(context.ledger.as_ref(), RequestRef::default(), now);
}

fn signed_twice(claimed: ClaimedCsr, signer: &Signer, now: SystemTime) {
    let _ = claimed.sign(signer, now);
    let _ = claimed.sign(signer, now);
}

fn corroborated_twice(serving: ConformantServingCsr, context: &Context) {
    let (ledger, inventory) = (context.ledger.as_ref(), context.inventory.as_ref());
    let verifiers = &context.verifiers;
    let _ = serving.corroborate(ledger, inventory, verifiers, &context.serving);
    let _ = serving.corroborate(ledger, inventory, verifiers, &context.serving);
}

fn signed_and_approved(corroborated: CorroboratedCsr, signer: &Signer, now: SystemTime) {
    let _ = corroborated.sign(signer, now);
    let _ = corroborated.approve();
}

fn main() {}
