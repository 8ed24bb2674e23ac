//! Cases that create each link from another value of the same type, or without the preceding link.

use node_attestation_core::request::*;

fn copied(
    raw: &RawRequest,
    parsed: &ParsedCsr,
    conformant: &ConformantClientCsr,
    located: &LocatedCsr,
    attested: &AttestedCsr,
    settled: &NamedCsr,
    claimed: &ClaimedCsr,
    issued: &IssuedCertificate,
    serving: &ConformantServingCsr,
    corroborated: &CorroboratedCsr,
    exempt: &ExemptRenewal,
    approval: &Approval,
) {
    let _: RawRequest = raw.clone();
    let _: ParsedCsr = parsed.clone();
    let _: ConformantClientCsr = conformant.clone();
    let _: LocatedCsr = located.clone();
    let _: AttestedCsr = attested.clone();
    let _: NamedCsr = settled.clone();
    let _: ClaimedCsr = claimed.clone();
    let _: IssuedCertificate = issued.clone();
    let _: ConformantServingCsr = serving.clone();
    let _: CorroboratedCsr = corroborated.clone();
    let _: ExemptRenewal = exempt.clone();
    let _: Approval = approval.clone();
}

fn out_of_nothing() {
    let _ = RawRequest::default();
    let _ = ParsedCsr::default();
    let _ = ConformantClientCsr::default();
    let _ = LocatedCsr::default();
    let _ = AttestedCsr::default();
    let _ = NamedCsr::default();
    let _ = ClaimedCsr::default();
    let _ = IssuedCertificate::default();
    let _ = ConformantServingCsr::default();
    let _ = CorroboratedCsr::default();
    let _ = ExemptRenewal::default();
    let _ = Approval::default();
}

fn main() {}
