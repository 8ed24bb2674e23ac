use std::process::Command;
use std::sync::Arc;

use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};

use super::bed::{KINDS, assert_empty, bytes, keys_of};

#[test]
fn the_keys_are_what_other_tools_say_they_are() {
    let tpm = Arc::new(Swtpm::start());
    for (name, kind) in KINDS {
        let machine = TpmMachine::new(tpm.clone(), kind);

        let answer = keys_of(&tpm, Some(name));

        let keys = &answer["Keys"];
        assert_eq!(bytes(keys, "endorsement"), machine.ek_public(), "{name}");
        assert_eq!(bytes(keys, "attestation"), machine.ak_public(), "{name}");
        assert_eq!(bytes(keys, "spki"), machine.ek_spki(), "{name}");
        let certificate = keys["certificate"]
            .as_str()
            .map(|_| bytes(keys, "certificate"));
        assert_eq!(certificate, machine.ek_certificate(), "{name}");
        assert_eq!(
            certificate.is_some(),
            kind != EndorsementKey::P256,
            "{name}"
        );
    }
    assert_empty(&tpm);
}

#[test]
fn a_key_that_the_tpm_does_not_keep_is_the_same_made_anew() {
    let tpm = Swtpm::start();
    for (name, kind) in KINDS {
        let kept = keys_of(&tpm, Some(name));
        if kind == EndorsementKey::P256 {
            continue;
        }
        tpm.evict(kind.persistent_handle());
        assert_eq!(keys_of(&tpm, Some(name)), kept, "{name}");
    }
    assert_empty(&tpm);
}

#[test]
fn what_is_kept_in_the_place_of_an_endorsement_key_and_is_none_is_passed_over() {
    let tpm = Swtpm::start();
    let good = keys_of(&tpm, Some("EccP384"));
    tpm.evict(0x8101_0016);
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &str| {
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let command = command.args(words).args(["-T", &tpm.tcti()]);
        let output = command.current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run("tpm2_createprimary -C e -G ecc384 -c key");
    run("tpm2_evictcontrol -C o -c key 0x81010016");
    tpm.flush();

    assert_eq!(keys_of(&tpm, Some("EccP384")), good);
    assert_empty(&tpm);
}

#[test]
fn the_best_prepared_key_is_chosen_and_else_the_best_there_is() {
    let tpm = Swtpm::start();
    let all = KINDS.map(|(name, _)| keys_of(&tpm, Some(name))["Keys"]["spki"].clone());
    let [rsa, _, p384] = all;
    let chosen = || keys_of(&tpm, None)["Keys"]["spki"].clone();

    assert_eq!(chosen(), p384);
    tpm.evict(EndorsementKey::P384.persistent_handle());
    assert_eq!(chosen(), p384, "it has a certificate");
    tpm.remove_certificate(EndorsementKey::P384.certificate_index());
    assert_eq!(chosen(), rsa);
    tpm.evict(EndorsementKey::Rsa2048.persistent_handle());
    assert_eq!(chosen(), rsa, "it has a certificate");
    tpm.remove_certificate(EndorsementKey::Rsa2048.certificate_index());
    assert_eq!(chosen(), p384);
    assert_empty(&tpm);
}
