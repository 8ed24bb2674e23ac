use super::*;

pub(super) fn defaults() -> TpmSettings {
    TpmSettings {
        device: "/dev/tpmrm0".into(),
        tcti: None,
        endorsement_key: EndorsementKeyChoice::Auto,
        registers: (0..=7).collect(),
        device_program: None,
    }
}

#[test]
fn every_key_of_a_tpm_can_be_set_in_a_file() {
    let settings = World::new()
        .file(
            "tpm:\n  device: /dev/tpmrm1\n  tcti: swtpm:host=127.0.0.1,port=2321\n  \
             endorsementKey: ecc-p384\n  pcrs: [11, 0]\n  deviceProgram: /p\n",
        )
        .settings();

    assert_eq!(settings.tpm.device, Path::new("/dev/tpmrm1"));
    let tcti = settings.tpm.tcti.unwrap().to_string();
    assert_eq!(tcti, "swtpm:host=127.0.0.1,port=2321");
    assert_eq!(settings.tpm.endorsement_key, EndorsementKeyChoice::EccP384);
    assert_eq!(settings.tpm.registers, [0, 11]);
    assert_eq!(
        settings.tpm.device_program.as_deref(),
        Some(Path::new("/p"))
    );
}

#[test]
fn what_is_no_setting_of_a_tpm_names_its_key() {
    for (contents, expected) in [
        (
            "tpm: {pcrs: []}",
            "key tpm.pcrs: numbers of registers from 0 to 23",
        ),
        (
            "tpm: {pcrs: [0, 24]}",
            "key tpm.pcrs: numbers of registers from 0 to 23",
        ),
        (
            "tpm: {tcti: \"swtpm:path=/s\"}",
            "key tpm.tcti: swtpm:host=<host>,port=<port> is needed",
        ),
        (
            "tpm: {device: tpmrm0}",
            "key tpm.device: a path begins with '/'",
        ),
        ("tpm: {pcr: [0]}", "key tpm.pcr: there is no such key"),
    ] {
        let error = World::new().file(contents).error();
        assert!(error.contains(expected), "{error}");
    }
}
