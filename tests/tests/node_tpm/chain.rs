//! Tests of CA certificates in the TPM, and of the evidence versions that can contain them.

use std::sync::Arc;

use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::ek_ca::{EkCa, Intermediates};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use kubelet_authenticator_tests::node::PATIENCE;
use node_attestation_core::crd::TpmSettings;
use node_attestation_core::verifier::platform::NoPlatform;
use node_attestation_tpm::challenge::{ChallengeKey, ChallengeKeys};
use node_attestation_tpm::policy::TpmPolicy;
use node_attestation_tpm::verifier::TpmVerifier;

use crate::bed::Bed;

/// A machine whose TPM has separate CAs, and stores their certificates in this order.
fn with_chain(order: impl FnOnce(&mut Vec<Vec<u8>>)) -> (Bed, Arc<EkCa>) {
    let maker = Arc::new(EkCa::with_intermediates("a maker", Intermediates::Good(3)));
    let tpm = Swtpm::made_by(&maker);
    let mut chain = maker.intermediates().to_vec();
    order(&mut chain);
    tpm.write_certificate(0x01c0_0100, &chain.concat());
    (Bed::with(tpm), maker)
}

/// A verifier that trusts only the root CA of the TPM's manufacturer.
fn requiring(maker: &EkCa) -> TpmVerifier {
    let keys = ChallengeKeys {
        current: ChallengeKey::new([3; 32]),
        former: None,
    };
    let mut settings = TpmSettings::default();
    settings.endorsement_keys.require_ca = vec![maker.root_pem().to_owned()];
    TpmVerifier::new(
        "4e2f0e0c-6a2c-4a54-9a2c-0a4b7f3f8a01",
        TpmPolicy::new(&settings).unwrap(),
        Arc::new(NoPlatform),
        Arc::new(Arc::new(keys)),
    )
}

fn intermediates(evidence: &TpmEvidence) -> &[Vec<u8>] {
    match evidence {
        TpmEvidence::Enrol(enrolment) => &enrolment.intermediates,
        TpmEvidence::Respond(_) => &[],
    }
}

fn versions(bed: &Bed) -> Vec<String> {
    let sent = bed.sent().into_iter();
    sent.map(|sent| sent.version().to_string()).collect()
}

#[test]
fn a_tpm_that_stores_its_ca_certificates_joins_with_a_required_root() {
    // Intel's TPMs store the certificate nearest to the root before the others.
    let (mut bed, maker) = with_chain(|chain| chain.reverse());
    bed.verifier = Some(requiring(&maker));

    bed.run().succeeded();

    let sent = bed.sent();
    assert_eq!(sent.len(), 2);
    let mut expected = maker.intermediates().to_vec();
    expected.reverse();
    assert_eq!(intermediates(&sent[0].evidence), expected);
    assert_eq!(versions(&bed), ["v2", "v2"]);
}

#[test]
fn a_v1_controller_gets_evidence_without_ca_certificates() {
    let (mut bed, _) = with_chain(|_| {});
    bed.versions = &["v1"];

    bed.run().succeeded();

    assert_eq!(versions(&bed), ["v2", "v1", "v1"]);
    let sent = bed.sent();
    assert!(intermediates(&sent[1].evidence).is_empty());
    assert!(sent.iter().all(|one| one.spki == sent[0].spki));
}

#[test]
fn a_response_keeps_the_version_of_its_challenge_across_runs() {
    let mut bed = Bed::new();
    bed.versions = &["v1"];
    let proxy = TpmProxy::before(&bed.tpm);
    let activate = Commands::One(command::ACTIVATE_CREDENTIAL);
    proxy.inject(activate, Times::always(), Fault::Answer(0x922));
    bed.node.set("tpm.tcti", proxy.tcti());
    bed.run().failed(6).saying("is busy");
    assert_eq!(versions(&bed), ["v2", "v1"]);
    proxy.clear_faults();

    let joined = poll(PATIENCE, || (bed.run().code == Some(0)).then_some(()));

    assert!(joined.is_some());
    assert_eq!(versions(&bed), ["v2", "v1", "v1"]);
}
