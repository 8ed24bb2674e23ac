//! Tests of signed statements that no TPM creates, for the checks after the signature check, which must not depend on
//! the signature.

use std::collections::BTreeMap;

use kubelet_authenticator_test_support::tpm_machine::{SoftwareKey, forged_quote};

use super::*;

const DATA: [u8; 32] = [7; 32];

/// A key whose forged attributes let it sign any data.
struct Forger {
    software: SoftwareKey,
    key: AttestationKey,
    registers: BTreeMap<u8, [u8; 32]>,
}

impl Forger {
    fn new() -> Self {
        let software = SoftwareKey::generate();
        Self {
            key: AttestationKey::parse(&software.public(0x0005_0472)).unwrap(),
            software,
            registers: [(0, [1; 32]), (9, [2; 32]), (23, [3; 32])].into(),
        }
    }

    fn attest(&self) -> Vec<u8> {
        let public = self.software.public(0x0005_0472);
        forged_quote(&public, &DATA, &self.registers)
    }

    /// Signs this statement, and verifies it.
    fn verify(&self, attest: &[u8]) -> Result<VerifiedQuote, TpmDenial> {
        let quote = Quote {
            attest: attest.to_vec(),
            signature: self.software.sign(attest),
            registers: Registers::new(self.registers.clone()).unwrap(),
        };
        VerifiedQuote::verify(&self.key, quote, &[None, Some(DATA)])
    }
}

/// The statement with different bytes at the position `at`.
fn with(attest: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = attest.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    changed
}

#[test]
fn a_quote_created_in_software_is_parsed() {
    let forger = Forger::new();

    let quote = forger.verify(&forger.attest()).unwrap();

    let boot = TpmBoot {
        resets: 2,
        restarts: 0,
        clock: 60_000,
    };
    assert_eq!(quote.boot, boot);
    assert_eq!(quote.registers, Registers::new(forger.registers).unwrap());
}

#[test]
fn a_wrong_magic_value_is_denied() {
    let forger = Forger::new();
    let attest = forger.attest();
    for changed in [
        with(&attest, 0, &[0xfe]),
        with(&attest, 3, &[0x46]),
        attest[..3].to_vec(),
        attest[1..].to_vec(),
    ] {
        let denial = forger.verify(&changed).unwrap_err();
        assert_eq!(denial, TpmDenial::QuoteNotMadeByTpm);
    }
}

#[test]
fn a_structure_of_another_type_is_denied() {
    let forger = Forger::new();
    for tag in [
        0x8014, 0x8015, 0x8016, 0x8017, 0x8019, 0x801a, 0x801c, 0, 0xffff_u16,
    ] {
        let changed = with(&forger.attest(), 4, &tag.to_be_bytes());

        let denial = forger.verify(&changed).unwrap_err();
        assert_eq!(denial, TpmDenial::QuoteOfAnotherKind(tag));
    }
}

#[test]
fn an_attest_structure_with_wrong_lengths_is_denied() {
    let forger = Forger::new();
    let attest = forger.attest();
    let malformed = TpmDenial::QuoteMalformed("it is not exactly one TPMS_ATTEST");
    let prefixes = (6..attest.len()).map(|len| attest[..len].to_vec());
    let longer = [
        [&attest[..], &[0]].concat(),
        [&attest[..], &attest].concat(),
    ];
    // The false values are the lengths of the name, of the qualifying data and of the digest, and the Boolean `safe`.
    let end = attest.len();
    let lies = [
        with(&attest, 6, &[0xff]),
        with(&attest, 42, &[0, 33]),
        with(&attest, end - 34, &[0, 33]),
        with(&attest, end - 53, &[2]),
    ];
    for changed in prefixes.chain(longer).chain(lies) {
        let denial = forger.verify(&changed).unwrap_err();
        assert_eq!(denial, malformed, "{changed:x?}");
    }
}

#[test]
fn a_quote_with_another_qualified_signer_name_is_denied() {
    let forger = Forger::new();
    let attest = forger.attest();
    for at in [8, 9, 10, 41] {
        let mut changed = attest.clone();
        changed[at] ^= 1;

        let denial = forger.verify(&changed).unwrap_err();
        assert_eq!(denial, TpmDenial::QuoteOfAnotherSigner, "byte {at}");
    }
}

#[test]
fn a_quote_with_an_invalid_register_selection_is_denied() {
    let forger = Forger::new();
    let attest = forger.attest();
    // The length of the bitmap precedes its three bytes and the digest.
    let at = attest.len() - 34 - 4;
    let four_bytes = |last: u8| {
        let longer = with(&attest, at, &[4]);
        [&longer[..at + 4], &[last], &longer[at + 4..]].concat()
    };

    assert!(forger.verify(&four_bytes(0)).is_ok());
    assert_eq!(
        forger.verify(&four_bytes(1)),
        Err(TpmDenial::QuoteSelection(
            "it covers a register that a PC does not have"
        ))
    );
}

#[test]
fn every_changed_byte_of_the_digest_is_denied() {
    let forger = Forger::new();
    let attest = forger.attest();
    for back in 1..=32 {
        let mut changed = attest.clone();
        changed[attest.len() - back] ^= 0x80;

        let denial = forger.verify(&changed).unwrap_err();
        assert_eq!(denial, TpmDenial::QuoteDigest);
    }
}

#[test]
fn a_quote_for_a_removed_previous_key_is_denied() {
    let forger = Forger::new();
    let attest = forger.attest();
    let quote = Quote {
        signature: forger.software.sign(&attest),
        attest,
        registers: Registers::new(forger.registers.clone()).unwrap(),
    };
    for (qualifying, is_for) in [
        ([Some(DATA), None], true),
        ([Some([8; 32]), Some(DATA)], true),
        ([Some([8; 32]), None], false),
        ([None, None], false),
    ] {
        let decided = VerifiedQuote::verify(&forger.key, quote.clone(), &qualifying);
        match decided {
            Ok(_) => assert!(is_for),
            Err(denial) => {
                assert!(!is_for);
                assert_eq!(denial, TpmDenial::QuoteOfAnotherRequest);
            }
        }
    }
}

#[test]
fn a_quote_matches_either_or_both_challenge_keys() {
    let (one, other, third) = ([1; 32], [2; 32], [3; 32]);
    for (qualifying, expected) in [
        ([Some(one), None], true),
        ([Some(other), None], false),
        ([Some(one), Some(other)], true),
        ([Some(other), Some(one)], true),
        ([Some(one), Some(one)], true),
        ([Some(other), Some(third)], false),
    ] {
        assert_eq!(is_for_one_of(&qualifying, &one), expected, "{qualifying:?}");
    }
}
