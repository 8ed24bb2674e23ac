use std::process::Command;
use std::sync::Arc;

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use serde_json::json;

use super::bed::{KINDS, ask, assert_empty, bytes, keys_of};
use super::quotes::question;

#[test]
fn the_keys_match_the_keys_that_tpm2_tools_create() {
    let tpm = Arc::new(Swtpm::start());
    for (name, kind) in KINDS {
        let machine = TpmMachine::new(tpm.clone(), kind);

        let answer = keys_of(&tpm, Some(name));

        let keys = &answer["Ok"];
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
fn an_evicted_endorsement_key_is_recreated_identically() {
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
fn an_invalid_key_at_the_endorsement_key_handle_is_ignored() {
    let tpm = Swtpm::start();
    let good = keys_of(&tpm, Some("EccP384"));
    tpm.evict(0x8101_0016);
    tools(
        &tpm,
        &[
            "tpm2_createprimary -C e -G ecc384 -c key",
            "tpm2_evictcontrol -C o -c key 0x81010016",
        ],
    );
    tpm.flush();

    assert_eq!(keys_of(&tpm, Some("EccP384")), good);
    assert_empty(&tpm);
}

/// Runs tpm2-tools with this TPM.
#[track_caller]
pub(super) fn tools(tpm: &Swtpm, lines: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), [7; 64]).unwrap();
    std::fs::write(folder.path().join("pin"), [0, 0, 0, 0, 0, 0, 0, 3]).unwrap();
    // The bytes are `PolicyA`, and a point in the encoding of libtss2: a nonce of 20 bytes, and zeros.
    let policy = b"837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa";
    let policy = data_encoding::HEXLOWER.decode(policy).unwrap();
    std::fs::write(folder.path().join("policy"), policy).unwrap();
    let number = |begin: &[u8]| [&[32, 0], begin, &vec![0; 128 - begin.len()]].concat();
    let unique = [number(&[5; 20]), number(&[])].concat();
    std::fs::write(folder.path().join("unique"), unique).unwrap();
    for line in lines {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let command = command.args(words).env("TPM2TOOLS_TCTI", tpm.tcti());
        let output = command.current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    }
}

#[test]
fn an_unreadable_certificate_counts_as_missing() {
    let all = "ppwrite|ppread|ownerread|authread|no_da|platformcreate";
    let define = |attributes: &str| format!("tpm2_nvdefine 0x1c00016 -C p -s 64 -a {attributes}");
    let write = "tpm2_nvwrite 0x1c00016 -C p -i data".to_owned();
    let lock = "tpm2_nvreadlock 0x1c00016 -C p".to_owned();
    let of_owner = all.replace("authread|", "");
    let locked = format!("{all}|read_stclear");
    let counted = all.replace("no_da|", "");
    let with_password = format!("{} -p secret", define(all));
    let tpm = Swtpm::start();
    assert_eq!(EndorsementKey::P384.certificate_index(), 0x1c0_0016);
    tpm.remove_certificate(0x1c0_0016);
    let expected = keys_of(&tpm, Some("EccP384"));
    assert!(expected["Ok"]["certificate"].is_null());
    let another = keys_of(&tpm, Some("Rsa2048"));
    for (case, lines) in [
        ("not written", vec![define(all)]),
        ("the owner's", vec![define(&of_owner), write.clone()]),
        ("locked", vec![define(&locked), write.clone(), lock]),
        (
            "not exempt from the lockout",
            vec![define(&counted), write.clone()],
        ),
        ("with a password", vec![with_password, write]),
    ] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        tools(&tpm, &lines);

        assert_eq!(keys_of(&tpm, Some("EccP384")), expected, "{case}");
        assert_eq!(keys_of(&tpm, None), another, "{case}");
        tpm.remove_certificate(0x1c0_0016);
    }
    assert_empty(&tpm);
}

/// Indices that are protected with a different password, or that count reads without a password as failures.
fn guarded(index: &str) -> [(&'static str, Vec<String>); 3] {
    let define = |size: u8, attributes: &str, password: &str| {
        format!("tpm2_nvdefine {index} -C o -s {size} -a {attributes}{password}")
    };
    let readable = "ownerwrite|ownerread|authread";
    let write = |data: &str| format!("tpm2_nvwrite {index} -C o -i {data}");
    let pin = format!("nt=pinfail|{readable}|no_da");
    [
        (
            "a password",
            vec![define(64, readable, " -p secret"), write("data")],
        ),
        ("no password", vec![define(64, readable, ""), write("data")]),
        ("a PIN", vec![define(8, &pin, " -p secret"), write("pin")]),
    ]
}

#[test]
fn an_index_is_not_read_if_a_failed_password_affects_the_lockout() {
    let tpm = Swtpm::start();
    let expected = keys_of(&tpm, Some("Rsa2048"));
    let without = keys_of(&tpm, Some("EccP256"));
    for (index, kind, expected) in [
        ("0x1c00100", "Rsa2048", expected),
        ("0x1c0000a", "EccP256", without),
    ] {
        for (case, lines) in guarded(index) {
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            tools(&tpm, &lines);
            for _ in 0..4 {
                assert_eq!(keys_of(&tpm, Some(kind)), expected, "{index}: {case}");
            }
            assert_eq!(tpm.wrong_passwords(), 0, "{index}: {case}");
            let read = format!("tpm2_nvread {index} -C o -o content");
            let compare = ["cmp content pin"];
            if case == "a PIN" {
                tools(&tpm, &[&[read.as_str()][..], &compare].concat());
            }
            tools(&tpm, &[&format!("tpm2_nvundefine {index} -C o")]);
        }
    }
    assert!(!tpm.is_locked_out());
    assert_empty(&tpm);
}

#[test]
fn a_locked_out_tpm_attests_with_any_index_for_certificates() {
    let tpm = Arc::new(Swtpm::start());
    let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P256);
    let expected = keys_of(&tpm, Some("EccP256"));
    tpm.lock_out();
    for (case, lines) in guarded("0x1c0000a") {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        tools(&tpm, &lines);

        assert_eq!(keys_of(&tpm, Some("EccP256")), expected, "{case}");
        let asked = question(&machine, &machine.ek_public(), &machine.ak_name());
        assert!(ask(&tpm.tcti(), &asked)["Ok"].is_object(), "{case}");
        tools(&tpm, &["tpm2_nvundefine 0x1c0000a -C o"]);
    }
    let proxy = TpmProxy::before(&tpm);
    let read = Commands::One(command::NV_READ);
    proxy.inject(read, Times::always(), Fault::Answer(0x921));
    let keys = json!({"Keys": {"endorsement_key": "EccP384"}});
    assert!(ask(&proxy.tcti(), &keys)["Ok"]["certificate"].is_null());
    assert!(tpm.is_locked_out());
}

#[test]
fn a_failed_certificate_read_is_reported_as_a_tpm_error() {
    let tpm = Swtpm::start();
    for code in [0x101, 0x902, 0x922, 0x9ff] {
        let proxy = TpmProxy::before(&tpm);
        let read = Commands::One(command::NV_READ);
        proxy.inject(read, Times::always(), Fault::Answer(code));
        for kind in [json!("EccP384"), json!(null)] {
            let answer = ask(&proxy.tcti(), &json!({"Keys": {"endorsement_key": kind}}));

            let expected = json!({"Err": {"Code": {"step": "TPM2_NV_Read", "code": code}}});
            assert_eq!(answer, expected);
        }
    }
    let proxy = TpmProxy::before(&tpm);
    let read = Commands::One(command::NV_READ);
    proxy.inject(read, Times::always(), Fault::Cut);
    let answer = ask(&proxy.tcti(), &json!({"Keys": {"endorsement_key": null}}));
    let code = answer["Err"]["Code"]["code"].as_u64().unwrap();
    assert_eq!(code & 0xff_0000, 0xa_0000, "{answer}");
}

#[test]
fn a_key_with_a_certificate_is_preferred_and_p384_is_the_fallback() {
    let tpm = Swtpm::start();
    let all = KINDS.map(|(name, _)| keys_of(&tpm, Some(name))["Ok"]["spki"].clone());
    let [rsa, _, p384] = all;
    let chosen = || keys_of(&tpm, None)["Ok"]["spki"].clone();

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

#[test]
fn a_tpm_that_cannot_report_p384_gets_a_p256_key() {
    // TPM_CAP_ECC_CURVES, and a response that contains only Curve448, which the bindings do not know.
    const ECC_CURVES: u32 = 8;
    const CURVE448: [u8; 11] = [0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0x41];
    let tpm = Swtpm::start();
    for kind in [EndorsementKey::Rsa2048, EndorsementKey::P384] {
        tpm.evict(kind.persistent_handle());
        tpm.remove_certificate(kind.certificate_index());
    }
    let keys_after = |fault| {
        let proxy = TpmProxy::before(&tpm);
        proxy.inject(Commands::Capability(ECC_CURVES), Times::always(), fault);
        ask(&proxy.tcti(), &json!({"Keys": {"endorsement_key": null}}))
    };
    let p256 = keys_of(&tpm, Some("EccP256"));

    // TPM_RC_VALUE for the first parameter means that the TPM does not have this capability.
    assert_eq!(keys_after(Fault::Answer(0x1c4)), p256);
    assert_eq!(keys_after(Fault::Respond(&CURVE448)), p256);

    let busy = json!({"Err": {"Code": {"step": "TPM2_GetCapability", "code": 0x902}}});
    assert_eq!(keys_after(Fault::Answer(0x902)), busy);
    assert_ne!(keys_of(&tpm, None), p256, "it reports P-384");
    assert_empty(&tpm);
}

#[test]
fn a_key_with_a_certificate_is_preferred_over_a_stored_key() {
    let tpm = Swtpm::start();
    let [rsa, p256, _] = KINDS.map(|(name, _)| keys_of(&tpm, Some(name))["Ok"].clone());
    let chosen = || keys_of(&tpm, None)["Ok"].clone();
    tpm.remove_certificate(EndorsementKey::P384.certificate_index());
    assert_eq!(chosen(), rsa, "a persistent P-384 key");
    tpm.evict(EndorsementKey::P384.persistent_handle());
    tools(&tpm, &["tpm2_createek -G ecc -u ek.pub -c 0x81010002"]);
    tpm.flush();
    assert_eq!(chosen(), rsa, "a persistent P-256 key");
    for blank in [[0; 64], [0xff; 64]] {
        tpm.write_certificate(EndorsementKey::P384.certificate_index(), &blank);
        assert_eq!(chosen(), rsa, "a blank index");
    }

    tpm.remove_certificate(EndorsementKey::Rsa2048.certificate_index());
    assert_eq!(chosen(), p256, "a persistent key");
    assert_empty(&tpm);
}

#[test]
fn the_endorsement_key_follows_the_template_and_nonce_in_the_tpm() {
    let tpm = Swtpm::start();
    let standard = bytes(&keys_of(&tpm, Some("EccP256"))["Ok"], "endorsement");
    let fixed = standard.len() - 68;
    let number = [&[0, 32][..], &[0; 32]].concat();
    let template = [&standard[..fixed], &number, &number].concat();
    tpm.write_certificate(0x01c0_000c, &template);
    let same = bytes(&keys_of(&tpm, Some("EccP256"))["Ok"], "endorsement");
    assert_eq!(same, standard, "its template is that of the profile");
    tpm.write_certificate(0x01c0_000b, &[5; 20]);

    let own = keys_of(&tpm, Some("EccP256"));

    // With the option -t, tpm2_createek 5.4 copies a pointer instead of the nonce.
    let attributes = "fixedtpm|fixedparent|sensitivedataorigin|adminwithpolicy|restricted|decrypt";
    let create = "tpm2_createprimary -C e -G ecc256:aes128cfb -g sha256 -L policy -u unique -c key";
    tools(
        &tpm,
        &[
            &format!("{create} -a {attributes}"),
            "tpm2_evictcontrol -C o -c key 0x81010002",
        ],
    );
    tpm.flush();
    assert_eq!(own, keys_of(&tpm, Some("EccP256")), "by another tool");
    assert_ne!(bytes(&own["Ok"], "endorsement"), standard);
    tpm.evict(0x8101_0002);
    tpm.write_certificate(0x01c0_000c, &[0xff; 122]);
    tpm.remove_certificate(0x01c0_000b);
    let same = bytes(&keys_of(&tpm, Some("EccP256"))["Ok"], "endorsement");
    assert_eq!(same, standard, "a blank template");
    assert_empty(&tpm);
}

#[test]
fn an_examination_shows_the_certificate_index_and_the_firmware_pcrs() {
    let tpm = Swtpm::start();
    let examined = |kind: &str| ask(&tpm.tcti(), &json!({"Examine": {"endorsement_key": kind}}));
    tpm.extend(7, &[1; 32]);
    let p384 = examined("EccP384")["Ok"].clone();
    assert_eq!(p384["has_certificate_index"], true);
    assert_eq!(examined("EccP256")["Ok"]["has_certificate_index"], false);
    tools(&tpm, &["tpm2_nvdefine 0x1c0000a -C o -s 64"]);
    assert_eq!(examined("EccP256")["Ok"]["has_certificate_index"], true);

    let firmware = p384["firmware"].as_object().unwrap();

    let numbers: Vec<&String> = firmware.keys().collect();
    assert_eq!(numbers, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    for number in [0, 7] {
        let value = data_encoding::HEXLOWER.encode(&tpm.pcr(number));
        assert_eq!(firmware[&number.to_string()], value);
    }
    let without = Swtpm::with_banks("sha1");
    let ask_without = json!({"Examine": {"endorsement_key": "EccP384"}});
    let none = json!({"Ok": {"has_certificate_index": true, "firmware": null}});
    assert_eq!(ask(&without.tcti(), &ask_without), none);
    assert_empty(&tpm);
}

#[test]
fn the_ca_certificates_are_read_from_their_indices_in_order() {
    let tpm = Swtpm::start();
    let (first, second) = (vec![1; 700], vec![2; 1500]);
    assert_eq!(keys_of(&tpm, Some("Rsa2048"))["Ok"]["chain"], "");
    tpm.write_certificate(0x01c0_0101, &second);
    tpm.write_certificate(0x01c0_0100, &first);
    tpm.write_certificate(0x01c0_0200, &[3; 64]);

    let answer = keys_of(&tpm, Some("Rsa2048"));

    let chain = bytes(&answer["Ok"], "chain");
    assert_eq!(chain, [first, second].concat());
    // A key that has no certificate has no CA certificates either.
    assert_eq!(keys_of(&tpm, Some("EccP256"))["Ok"]["chain"], "");
    assert_empty(&tpm);
}
