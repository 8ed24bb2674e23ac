//! Tests of valid and invalid operations of a machine with a TPM.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{
    AttestationKey, EndorsementKey, SoftwareKey, TpmMachine, forged_quote,
};

/// The TPM for the tests that do not leave objects in it.
static TPM: LazyLock<Arc<Swtpm>> = LazyLock::new(|| Arc::new(Swtpm::start()));

const GOOD: u32 = 0x0005_0472;

fn machine() -> TpmMachine {
    TpmMachine::new(TPM.clone(), EndorsementKey::P256)
}

fn with(key: AttestationKey) -> TpmMachine {
    machine().with_attestation_key(key)
}

/// The attributes in a `TPMT_PUBLIC`.
fn attributes(public: &[u8]) -> u32 {
    u32::from_be_bytes(public[4..8].try_into().unwrap())
}

/// Whether the signature is a valid ECDSA P-256 signature with SHA-256.
fn verifies(public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let (x, y) = public[public.len() - 68..].split_at(34);
    let (r, s) = signature[4..].split_at(34);
    assert_eq!(signature[..4], [0x00, 0x18, 0x00, 0x0b]);
    let point = [&[4], &x[2..], &y[2..]].concat();
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
        .verify(message, &[&r[2..], &s[2..]].concat())
        .is_ok()
}

/// The qualifying data in a `TPMS_ATTEST` whose names use SHA-256.
fn qualifying_data(attest: &[u8]) -> &[u8] {
    let length = usize::from(attest[43]);
    &attest[44..44 + length]
}

#[test]
fn only_the_matching_endorsement_key_opens_a_credential() {
    let another = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P256);
    for key in EndorsementKey::ALL {
        let machine = machine().with_endorsement_key(key);
        let (ek, name) = (machine.ek_public(), machine.ak_name());
        let (blob, encrypted) = another.make_credential(&ek, &name, b"the secret");

        assert_eq!(machine.activate(&blob, &encrypted).unwrap(), b"the secret");
        let relayed = another.with_endorsement_key(key);
        relayed.activate(&blob, &encrypted).unwrap_err();
        let other_key = machine.with_attestation_key(AttestationKey::unrestricted());
        let refused = other_key.activate(&blob, &encrypted).unwrap_err();
        assert!(refused.contains("0x1DF"), "{refused}");
    }
}

#[test]
fn a_quote_covers_the_register_values() {
    let tpm = Arc::new(Swtpm::start());
    let machine = TpmMachine::new(tpm.clone(), EndorsementKey::P256);
    tpm.extend(4, &[1; 32]);

    let quote = machine.quote(&[7; 32], &[7, 0, 4]);

    assert!(verifies(
        &machine.ak_public(),
        &quote.attest,
        &quote.signature
    ));
    assert_eq!(qualifying_data(&quote.attest), [7; 32]);
    assert_eq!(
        quote.registers.keys().copied().collect::<Vec<_>>(),
        [0, 4, 7]
    );
    assert_eq!(quote.registers[&4][..], tpm.pcr(4));
    let values: Vec<u8> = quote.registers.values().flatten().copied().collect();
    assert!(quote.attest.ends_with(digest(&SHA256, &values).as_ref()));
}

#[test]
fn an_unrestricted_key_signs_a_forged_quote_and_a_restricted_one_does_not() {
    let machine = machine();
    let (public, registers) = (machine.ak_public(), BTreeMap::from([(0, [9; 32])]));
    let forged = forged_quote(&public, &[7; 32], &registers);
    let real = machine.quote(&[7; 32], &[0]).attest;
    // The two structures differ only in the clock and in the register values.
    assert_eq!((&forged[..76], forged.len()), (&real[..76], real.len()));
    assert_eq!(forged[101..113], real[101..113]);

    let unrestricted = with(AttestationKey::unrestricted());
    let signature = unrestricted.sign(&forged).unwrap();
    assert!(verifies(&unrestricted.ak_public(), &forged, &signature));
    machine.sign(&forged).unwrap_err();
    machine.sign_with_ticket(&forged).unwrap_err();
}

#[test]
fn a_restricted_key_signs_data_that_the_tpm_hashed() {
    let machine = machine();

    let signature = machine.sign_with_ticket(b"{\"node\":1}").unwrap();

    assert!(verifies(&machine.ak_public(), b"{\"node\":1}", &signature));
}

#[test]
fn keys_created_outside_the_tpm_lack_its_attributes() {
    let software = SoftwareKey::generate();
    for (key, expected) in [
        (AttestationKey::exportable(), 0x0005_0460),
        (AttestationKey::imported(&software), 0x0005_0440),
        (AttestationKey::software(&software), 0x0004_0040),
    ] {
        let machine = with(key);
        let public = machine.ak_public();
        assert_eq!(attributes(&public), expected);
        let quote = machine.quote(&[7; 32], &[0]);
        assert!(verifies(&public, &quote.attest, &quote.signature));
        let (blob, encrypted) =
            machine.make_credential(&machine.ek_public(), &machine.ak_name(), b"secret");
        assert_eq!(machine.activate(&blob, &encrypted).unwrap(), b"secret");
    }
}

#[test]
fn a_software_key_can_claim_tpm_attributes() {
    let software = SoftwareKey::generate();
    let honest = with(AttestationKey::software(&software)).ak_public();

    assert_eq!(software.public(0x0004_0040), honest);
    let (public, forged) = (software.public(GOOD), b"forged");
    assert_eq!(attributes(&public), GOOD);
    assert!(verifies(&public, forged, &software.sign(forged)));
}

#[test]
fn a_tpm_signs_other_attestation_structures_with_the_same_key() {
    let machine = machine();
    let public = machine.ak_public();
    let software = AttestationKey::software(&SoftwareKey::generate());
    let (certified, certification) = machine.certify(&software);

    for (tag, statement, data) in [
        (0x17, certification.clone(), &[0x00, 0xff, 0x55, 0xaa][..]),
        (0x19, machine.time(&[7; 32]), &[7; 32]),
        (0x1a, machine.creation(&[7; 32]), &[7; 32]),
        (0x14, machine.index(&[7; 32], b"contents"), &[7; 32]),
    ] {
        assert_eq!(statement.attest[..6], [0xff, 0x54, 0x43, 0x47, 0x80, tag]);
        assert_eq!(qualifying_data(&statement.attest), data);
        assert!(verifies(&public, &statement.attest, &statement.signature));
    }
    let name = digest(&SHA256, &certified);
    let mut windows = certification.attest.windows(32);
    assert!(windows.any(|window| window == name.as_ref()));
}
