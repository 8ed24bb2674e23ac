//! Cases that create each link without the preceding link.

use node_attestation_core::request::*;

fn by_hand() {
    let _ = RawRequest {};
    let _ = ParsedCsr {};
    let _ = ConformantClientCsr {};
    let _ = LocatedCsr {};
    let _ = AttestedCsr {};
    let _ = NamedCsr {};
    let _ = ClaimedCsr {};
    let _ = IssuedCertificate {};
    let _ = ConformantServingCsr {};
    let _ = CorroboratedCsr {};
    let _ = ExemptRenewal {};
    let _ = Approval {};
}

fn main() {}
