//! A renewal of an identity that nobody vouched for.

use std::time::SystemTime;

use kubelet_attestation::names::NodeName;
use node_attestation_core::identifiers::CertificateUid;
use node_attestation_core::ledger::Renewal;
use node_attestation_core::verifier::Identity;

fn renewal(name: NodeName, identity: Identity, uid: CertificateUid, at: SystemTime) -> Renewal {
    Renewal {
        node_name: name,
        identity,
        uid,
        asked: at,
        not_after: at,
    }
}

fn main() {}
