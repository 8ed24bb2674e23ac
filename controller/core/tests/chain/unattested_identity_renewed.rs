//! A case that renews an identity that was not attested.

use std::time::SystemTime;

use kubelet_attestation::names::{NodeName, Provider};
use node_attestation_core::identifiers::{CertificateUid, KeyDigest};
use node_attestation_core::ledger::{Renewal, RequestRef};
use node_attestation_core::verifier::Identity;

fn renewal(name: NodeName, identity: Identity, uid: CertificateUid, at: SystemTime) -> Renewal {
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

fn main() {}
