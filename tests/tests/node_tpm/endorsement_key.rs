//! Tests that a machine keeps the endorsement key from its enrollment.

use std::process::Command;

use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::page::commands;
use sha2::{Digest as _, Sha256};

use crate::bed::Bed;
use crate::join::hex;

/// A machine that renews in every run, and whose TPM provides only an RSA key.
fn with_rsa_alone() -> Bed {
    let mut bed = Bed::new();
    bed.tpm.evict(EndorsementKey::P384.persistent_handle());
    bed.tpm
        .remove_certificate(EndorsementKey::P384.certificate_index());
    bed.trusted = public(&bed, EndorsementKey::Rsa2048);
    bed.old = true;
    bed
}

fn public(bed: &Bed, kind: EndorsementKey) -> Vec<u8> {
    TpmMachine::new(bed.tpm.clone(), kind).ek_public()
}

/// Makes a P-256 endorsement key persistent in the TPM, as an agent does that needs this key.
fn persist_p256(bed: &Bed) {
    let handle = format!("{:#010x}", EndorsementKey::P256.persistent_handle());
    let output = Command::new("tpm2_createek")
        .args(["-G", "ecc", "-u", "/dev/null", "-c", &handle])
        .env("TPM2TOOLS_TCTI", bed.tpm.tcti())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    bed.tpm.flush();
}

/// The endorsement keys in the requests, in order.
fn shown(bed: &Bed) -> Vec<Vec<u8>> {
    let sent = bed.sent().into_iter();
    sent.map(|sent| match sent.evidence {
        TpmEvidence::Enrol(enrolment) => enrolment.keys.endorsement,
        TpmEvidence::Respond(response) => response.keys.endorsement,
    })
    .collect()
}

#[test]
fn a_machine_keeps_its_kind_of_endorsement_key_until_reset() {
    let mut bed = with_rsa_alone();
    let rsa = bed.trusted.clone();
    bed.run().succeeded();
    assert_eq!(shown(&bed), [rsa.clone(), rsa.clone()]);
    persist_p256(&bed);

    bed.run().succeeded();

    assert_eq!(shown(&bed)[2..], [rsa.clone(), rsa]);
    let sent = bed.sent();
    assert_eq!(sent[3].provider_id, sent[0].provider_id);
    bed.node.command(&["reset", "--yes"]).succeeded();
    // A key with a certificate takes precedence over a persistent key.
    let certificate = EndorsementKey::Rsa2048.certificate_index();
    bed.tpm.remove_certificate(certificate);
    let p256 = public(&bed, EndorsementKey::P256);
    bed.trusted.clone_from(&p256);
    bed.run().succeeded();
    assert_eq!(shown(&bed)[4..], [p256.clone(), p256]);
}

#[test]
fn a_machine_with_another_provider_id_keeps_its_endorsement_key_kind() {
    let mut bed = with_rsa_alone();
    bed.node.set("providerID", "vsphere://4210");
    let rsa = bed.trusted.clone();
    bed.run().succeeded();
    persist_p256(&bed);

    bed.run().succeeded();

    assert_eq!(shown(&bed)[2..], [rsa.clone(), rsa]);
}

#[test]
fn a_configured_kind_of_endorsement_key_overrides_the_enrolled_one() {
    let mut bed = with_rsa_alone();
    bed.run().succeeded();
    let p256 = public(&bed, EndorsementKey::P256);
    bed.trusted.clone_from(&p256);
    bed.node.set("tpm.endorsementKey", "ecc-p256");

    bed.run().succeeded();
    bed.node.unset("tpm.endorsementKey");
    bed.run().succeeded();

    let expected = [p256.clone(), p256.clone(), p256.clone(), p256];
    assert_eq!(shown(&bed)[2..], expected);
}

#[test]
fn an_endorsement_key_kind_without_an_origin_is_not_used() {
    let bed = Bed::new();
    let kept = bed.node.file("endorsement-key");
    std::fs::create_dir_all(bed.node.state()).unwrap();
    std::fs::write(&kept, "rsa-2048").unwrap();
    let p384 = public(&bed, EndorsementKey::P384);

    bed.run().succeeded();

    assert_eq!(shown(&bed), [p384.clone(), p384]);
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "ecc-p384");
}

/// Runs a script from the page in this directory. Returns the digest that the script prints.
#[track_caller]
fn digest_by(script: &str, bed: &Bed, directory: &Scratch) -> String {
    let output = Command::new("sh")
        .args(["-euc", script])
        .current_dir(directory.path())
        .env("TPM2TOOLS_TCTI", bed.tpm.tcti())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    bed.tpm.flush();
    let said = String::from_utf8(output.stdout).unwrap();
    said.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn the_documented_commands_read_the_digest_that_the_plugin_claims() {
    let bed = Bed::new();
    let directory = Scratch::new("digests");
    let by_key = commands("tpm.md", '#').join("\n");
    for (kind, name) in [
        (EndorsementKey::P256, "ecc256"),
        (EndorsementKey::Rsa2048, "rsa"),
        (EndorsementKey::P384, "ecc384"),
    ] {
        let machine = TpmMachine::new(bed.tpm.clone(), kind);
        let script = by_key.replace("-G ecc256", &format!("-G {name}"));

        let digest = digest_by(&script, &bed, &directory);

        let claimed = hex(&Sha256::digest(machine.ek_spki()));
        assert_eq!(digest, claimed, "{name}");
    }

    let machine = TpmMachine::new(bed.tpm.clone(), EndorsementKey::P384);
    directory.write("ek.crt", machine.ek_certificate().unwrap());
    let mut by_certificate = commands("tpm.md", '$').into_iter();
    let by_certificate = by_certificate.find(|one| one.starts_with("openssl x509"));

    let digest = digest_by(&by_certificate.unwrap(), &bed, &directory);

    let identified = bed.node.command(&["identify", "--output", "json"]);
    assert!(identified.stdout.contains(&digest), "{identified:?}");
}
