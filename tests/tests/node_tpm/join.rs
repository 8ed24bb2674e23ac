//! Tests of joins and renewals of a machine.

use std::sync::Arc;

use kubelet_attestation::evidence::tpm::{Bank, TpmEvidence};
use kubelet_authenticator_test_support::imds::{Imds, Instance};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{TpmProxy, command};
use kubelet_authenticator_tests::tpm::REGISTERS;
use node_attestation_core::crd::TpmSettings;
use node_attestation_core::verifier::platform::NoPlatform;
use node_attestation_tpm::challenge::{ChallengeKey, ChallengeKeys};
use node_attestation_tpm::policy::TpmPolicy;
use node_attestation_tpm::verifier::TpmVerifier;
use sha2::{Digest as _, Sha256};

use crate::bed::Bed;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_machine_joins_with_two_requests_one_key_and_one_quote() {
    let mut bed = Bed::new();
    let proxy = TpmProxy::before(&bed.tpm);
    bed.node.set("tpm.tcti", proxy.tcti());

    bed.run().succeeded();

    let sent = bed.sent();
    let [first, second] = sent.as_slice() else {
        panic!("{} requests", sent.len())
    };
    assert_eq!(first.spki, second.spki);
    assert_ne!(first.name, second.name);
    let TpmEvidence::Enrol(enrolment) = &first.evidence else {
        panic!("{:?}", first.evidence)
    };
    let TpmEvidence::Respond(response) = &second.evidence else {
        panic!("{:?}", second.evidence)
    };
    assert_eq!(enrolment.certificate, bed.machine.ek_certificate());
    assert_eq!(enrolment.keys, response.keys);
    assert_eq!(enrolment.keys.endorsement, bed.machine.ek_public());
    assert_eq!(enrolment.keys.attestation, bed.machine.ak_public());
    let registers: Vec<_> = response.quote.registers.iter().collect();
    let numbers: Vec<u8> = registers.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, REGISTERS);
    for (number, value) in registers {
        assert_eq!(bed.tpm.pcr(number), value);
    }
    assert_eq!(proxy.count(command::ACTIVATE_CREDENTIAL), 1);
    assert_eq!(proxy.count(command::QUOTE), 1);
}

#[test]
fn a_machine_without_another_id_is_identified_by_its_endorsement_key() {
    for (setting, key) in [
        ("rsa-2048", EndorsementKey::Rsa2048),
        ("ecc-p256", EndorsementKey::P256),
        ("ecc-p384", EndorsementKey::P384),
    ] {
        let mut bed = Bed::new();
        bed.node.set("tpm.endorsementKey", setting);
        let machine = TpmMachine::new(bed.tpm.clone(), key);
        bed.trusted = machine.ek_public();

        bed.run().succeeded();

        let expected = format!("tpm://{}", hex(&Sha256::digest(machine.ek_spki())));
        for sent in bed.sent() {
            assert_eq!(sent.provider_id.as_str(), expected, "{setting}");
        }
    }
}

/// A verifier without requirements for certificates or PCR values.
fn verifier() -> TpmVerifier {
    let keys = ChallengeKeys {
        current: ChallengeKey::new([3; 32]),
        former: None,
    };
    TpmVerifier::new(
        "4e2f0e0c-6a2c-4a54-9a2c-0a4b7f3f8a01",
        TpmPolicy::new(&TpmSettings::default()).unwrap(),
        Arc::new(NoPlatform),
        Arc::new(Arc::new(keys)),
    )
}

#[test]
fn the_verifier_accepts_the_evidence_from_the_plugin() {
    for key in ["rsa-2048", "ecc-p256", "ecc-p384"] {
        let mut bed = Bed::new();
        bed.node.set("tpm.endorsementKey", key);
        bed.verifier = Some(verifier());

        bed.run().succeeded();

        assert_eq!(bed.sent().len(), 2, "{key}");
    }
}

#[test]
fn a_machine_whose_only_strong_bank_is_sha384_joins() {
    for banks in ["sha384", "sha1,sha384"] {
        let mut bed = Bed::with(Swtpm::with_banks(banks));
        bed.verifier = Some(verifier());

        bed.run().succeeded();

        let sent = bed.sent();
        let TpmEvidence::Respond(response) = &sent[1].evidence else {
            panic!("{:?}", sent[1].evidence)
        };
        assert_eq!(response.quote.registers.bank(), Bank::Sha384);
    }
}

#[test]
fn a_configured_provider_id_overrides_the_tpm_digest() {
    let mut bed = Bed::new();
    bed.node.set("providerID", "vsphere://4210");

    bed.run().succeeded();

    assert_eq!(bed.sent()[1].provider_id.as_str(), "vsphere://4210");
}

#[test]
fn an_ec2_instance_has_its_instance_provider_id() {
    let imds = Imds::start(Instance::new(
        "eu-west-1",
        "eu-west-1a",
        "i-0123456789abcdef0",
    ));
    let mut bed = Bed::new();
    bed.node.set("aws.metadataEndpoint", imds.url());

    bed.run().succeeded();

    let expected = "aws:///eu-west-1a/i-0123456789abcdef0";
    assert_eq!(bed.sent()[1].provider_id.as_str(), expected);
}

#[test]
fn a_stored_credential_is_printed_without_the_tpm() {
    let mut bed = Bed::new();
    let first = bed.run().succeeded();
    bed.node.set("tpm.tcti", "swtpm:host=127.0.0.1,port=1");
    bed.node.move_program();

    let second = bed.node.run().succeeded();

    assert_eq!(second.pair(), first.pair());
    assert_eq!(bed.sent().len(), 2);
}

#[test]
fn a_renewal_attests_again_with_another_key() {
    let mut bed = Bed::new();
    bed.old = true;
    let first = bed.run().succeeded();
    bed.tpm.extend(4, &[1; 32]);
    bed.old = false;

    let second = bed.run().succeeded();

    assert_ne!(second.pair(), first.pair());
    let sent = bed.sent();
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[2].spki, sent[3].spki);
    assert_ne!(sent[0].spki, sent[2].spki);
    let TpmEvidence::Respond(response) = &sent[3].evidence else {
        panic!("{:?}", sent[3].evidence)
    };
    assert_eq!(
        response.quote.registers.get(4).unwrap(),
        bed.tpm.pcr(4).as_slice()
    );
}
