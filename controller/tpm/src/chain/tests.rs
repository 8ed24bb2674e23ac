//! Tests with certificates of real TPMs, and with certificates that have faults.

mod encodings;
mod intermediates;
mod limits;
mod memory;
mod vendors;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use kubelet_authenticator_test_support::ek_ca::{
    AIK_USAGE, AlternativeName, EK_USAGE, EkCa, EkContents, Intermediates,
};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey as Kind, TpmMachine};

use super::signature::AuthorityKey;
use super::*;
use crate::fixture::{ANOTHER, Case, denied, digest, enrolment};

/// The OID of the signature algorithm, which both algorithm identifiers of a manufacturer's certificate contain.
const ECDSA_WITH_SHA_256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

static MAKER: LazyLock<Arc<EkCa>> = LazyLock::new(|| Arc::new(EkCa::new("a maker")));
static TPM: LazyLock<Arc<Swtpm>> = LazyLock::new(|| Arc::new(Swtpm::made_by(&MAKER)));

/// A time in 60 years, at which only certificates without an expiry time are still valid.
fn later() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365 * 120)
}

fn machine(kind: Kind) -> TpmMachine {
    TpmMachine::new(TPM.clone(), kind)
}

static KEYS: LazyLock<Vec<(Kind, EndorsementKey)>> = LazyLock::new(|| {
    let read = |kind| EndorsementKey::parse(&machine(kind).ek_public()).unwrap();
    Kind::ALL.map(|kind| (kind, read(kind))).to_vec()
});

fn key(kind: Kind) -> &'static EndorsementKey {
    let mut keys = KEYS.iter();
    &keys.find(|(of, _)| *of == kind).unwrap().1
}

fn spki(kind: Kind) -> Vec<u8> {
    key(kind).key().spki()
}

fn listed(texts: &[&str]) -> Result<Authorities, InvalidTpmSettings> {
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    Authorities::new(&texts)
}

fn authorities() -> Authorities {
    listed(&[MAKER.intermediates_pem()]).unwrap()
}

fn check(certificate: &[u8], kind: Kind) -> Result<(), TpmDenial> {
    let decided = authorities().decide(Some(certificate), &[], key(kind), later());
    decided.map(|_| ())
}

/// Returns the reason for the denial, for tests that do not check the details of the denial.
fn reason<T>(decided: Result<T, TpmDenial>) -> Result<(), &'static str> {
    decided.map(|_| ()).map_err(|denial| denial.reason())
}

fn untrusted() -> Result<(), &'static str> {
    Err("EndorsementCertificateUntrusted")
}

/// Issues a certificate that has these contents.
fn certificate(contents: &EkContents) -> Vec<u8> {
    MAKER.certify(&spki(Kind::P256), contents)
}

fn unfit(detail: &str) -> Result<(), TpmDenial> {
    Err(TpmDenial::EndorsementCertificateUnfit(detail.to_owned()))
}

/// Returns the certificate after it replaces bytes that occur exactly once with the same number of other bytes.
fn replaced(certificate: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut found = certificate
        .windows(from.len())
        .enumerate()
        .filter(|(_, window)| *window == from);
    let (at, _) = found.next().expect("it is there");
    assert!(found.next().is_none(), "it is there twice");
    let mut changed = certificate.to_vec();
    changed[at..at + to.len()].copy_from_slice(to);
    changed
}

#[test]
fn valid_endorsement_certificates_are_accepted() {
    for kind in [Kind::Rsa2048, Kind::P384] {
        let certificate = machine(kind).ek_certificate().unwrap();

        assert_eq!(check(&certificate, kind), Ok(()), "{kind:?}");
    }
    for kind in Kind::ALL {
        let certificate = MAKER.certify(&spki(kind), &EkContents::good());

        assert_eq!(check(&certificate, kind), Ok(()), "{kind:?}");
    }
}

#[test]
fn vendor_specific_certificates_are_accepted() {
    let public_key = spki(Kind::Rsa2048);
    let oaep = MAKER.certify_oaep(&public_key, &EkContents::good());
    assert_eq!(check(&oaep, Kind::Rsa2048), Ok(()));

    for contents in [
        EkContents {
            alternative_name: AlternativeName::NotCritical,
            common_name: Some("a TPM".to_owned()),
            ..EkContents::good()
        },
        EkContents {
            usages: vec![AIK_USAGE, EK_USAGE],
            unknown_extension: Some(false),
            ..EkContents::good()
        },
    ] {
        let certificate = certificate(&contents);
        assert_eq!(check(&certificate, Kind::P256), Ok(()), "{contents:?}");
    }

    let good = certificate(&EkContents::good());
    for padding in [&[0; 300][..], &[0xff; 7]] {
        assert_eq!(check(&[&good, padding].concat(), Kind::P256), Ok(()));
    }
}

#[test]
fn a_negative_serial_number_is_accepted() {
    let good = certificate(&EkContents::good());
    let (_, parsed) = X509Certificate::from_der(&good).unwrap();
    let serial = parsed.raw_serial();
    let negative = [&[serial[0] | 0x80], &serial[1..]].concat();

    // The parser reads the changed value, but the signature covers the original value.
    assert_eq!(
        reason(check(&replaced(&good, serial, &negative), Kind::P256)),
        untrusted()
    );
}

#[test]
fn a_certificate_from_an_unlisted_ca_is_denied() {
    let public_key = spki(Kind::P256);
    for other in [
        EkCa::new("another maker"),
        // This authority has the same name and a different key.
        EkCa::new("a maker"),
        EkCa::with_intermediates("a maker", Intermediates::Good(2)),
    ] {
        let certificate = other.certify(&public_key, &EkContents::good());
        assert_eq!(reason(check(&certificate, Kind::P256)), untrusted());
    }
    // The root did not sign the certificate, and additional authorities in the list have no effect.
    let good = certificate(&EkContents::good());
    let stranger = EkCa::new("another maker");
    for (texts, expected) in [
        (vec![MAKER.root_pem()], untrusted()),
        (
            vec![stranger.root_pem(), stranger.intermediates_pem()],
            untrusted(),
        ),
        (
            vec![stranger.intermediates_pem(), MAKER.intermediates_pem()],
            Ok(()),
        ),
        (
            vec![&*[MAKER.root_pem(), MAKER.intermediates_pem()].concat()],
            Ok(()),
        ),
    ] {
        let authorities = listed(&texts).unwrap();
        let decided = authorities.decide(Some(&good), &[], key(Kind::P256), later());
        assert_eq!(reason(decided), expected);
    }
}

#[test]
fn a_certificate_with_a_changed_signature_or_content_is_denied() {
    let good = certificate(&EkContents::good());
    let mut signature = good.clone();
    *signature.last_mut().unwrap() ^= 1;
    assert_eq!(reason(check(&signature, Kind::P256)), untrusted());

    let words = replaced(&good, b"swtpm", b"SWTPM");
    assert_eq!(reason(check(&words, Kind::P256)), untrusted());
    // The two places are the algorithm in the signed part, and the algorithm next to the signature.
    let places = good.windows(8).enumerate();
    let places = places.filter(|(_, window)| *window == ECDSA_WITH_SHA_256);
    let places: Vec<_> = places.map(|(at, _)| at + 7).collect();
    assert_eq!(places.len(), 2);
    for chosen in [&places[..1], &places[1..], &places] {
        // The first digest belongs to the algorithm with SHA-384, and the second to an algorithm with an unknown
        // digest.
        for digest in [0x03, 0x01] {
            let mut other = good.clone();
            for at in chosen {
                other[*at] = digest;
            }
            assert_eq!(reason(check(&other, Kind::P256)), untrusted());
        }
    }
}

/// A certificate with these values, signed with ECDSA P-256 and SHA-256, and its issuer.
fn signed(words: &[u8], subject: &[u8]) -> (Vec<u8>, Authorities) {
    let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let signature = key.sign(&SystemRandom::new(), words).unwrap();
    let der = |tag: u8, parts: &[&[u8]]| {
        let contents = parts.concat();
        let len = u16::try_from(contents.len()).unwrap().to_be_bytes();
        match len {
            [0, len] if len < 0x80 => [&[tag, len][..], &contents].concat(),
            [0, len] => [&[tag, 0x81, len][..], &contents].concat(),
            [high, low] => [&[tag, 0x82, high, low][..], &contents].concat(),
        }
    };
    let algorithm = [&[0x06, 0x08][..], &ECDSA_WITH_SHA_256].concat();
    let signature = der(0x03, &[&[0], signature.as_ref()]);
    let certificate = der(0x30, &[words, &der(0x30, &[&algorithm]), &signature]);
    let spki = Key::p256(key.public_key().as_ref()).unwrap().spki();
    let authority = Authority {
        subject: subject.to_vec(),
        name: "a signer".to_owned(),
        key_id: None,
        key: AuthorityKey::read(&SubjectPublicKeyInfo::from_der(&spki).unwrap().1).unwrap(),
        validity: x509_parser::certificate::Validity {
            not_before: ASN1Time::from_timestamp(0).unwrap(),
            not_after: ASN1Time::from_timestamp(253_402_300_799).unwrap(),
        },
        path_len: None,
    };
    (certificate, Authorities(vec![authority]))
}

#[test]
fn a_certificate_must_name_its_issuer_and_its_algorithm() {
    let good = certificate(&EkContents::good());
    let (_, parsed) = X509Certificate::from_der(&good).unwrap();
    let words: &[u8] = parsed.tbs_certificate.as_ref();
    let issuer = parsed.issuer().as_raw();
    let check = |words: &[u8], subject: &[u8]| {
        let (certificate, authorities) = signed(words, subject);
        reason(authorities.decide(Some(&certificate), &[], key(Kind::P256), later()))
    };

    assert_eq!(check(words, issuer), Ok(()));
    assert_eq!(check(words, &issuer[1..]), untrusted());
    let mut ecdsa_with_sha384 = ECDSA_WITH_SHA_256;
    ecdsa_with_sha384[7] = 0x03;
    let other = replaced(words, &ECDSA_WITH_SHA_256, &ecdsa_with_sha384);
    assert_eq!(check(&other, issuer), untrusted());
}

#[test]
fn a_certificate_with_a_duplicate_extension_is_denied() {
    // The change turns the extension for basic constraints into a second key usage.
    let good = certificate(&EkContents::good());
    let twice = replaced(
        &good,
        &[0x06, 0x03, 0x55, 0x1d, 0x13],
        &[0x06, 0x03, 0x55, 0x1d, 0x0f],
    );

    assert_eq!(
        check(&twice, Kind::P256),
        unfit("it has a duplicate extension")
    );
}

#[test]
fn a_certificate_that_is_not_for_an_endorsement_key_is_denied() {
    let no_usage = unfit("it does not have the extended key usage 2.23.133.8.1");
    let of = |change: &dyn Fn(&mut EkContents)| {
        let mut contents = EkContents::good();
        change(&mut contents);
        check(&certificate(&contents), Kind::P256)
    };

    assert_eq!(of(&|_| {}), Ok(()));
    assert_eq!(of(&|contents| contents.usages = vec![]), no_usage);
    assert_eq!(of(&|contents| contents.usages = vec![AIK_USAGE]), no_usage);
    assert_eq!(
        of(&|contents| contents.alternative_name = AlternativeName::Absent),
        unfit("it does not contain a TPM manufacturer")
    );
    assert_eq!(
        of(&|contents| contents.authority = true),
        unfit("it is a CA certificate")
    );
    assert_eq!(
        of(&|contents| contents.unknown_extension = Some(true)),
        unfit("it has an unknown critical extension (2.23.133.99)")
    );
}

#[test]
fn a_certificate_that_does_not_name_a_tpm_is_denied() {
    // The change turns the attribute tpmManufacturer into an unknown attribute.
    let manufacturer = [0x67, 0x81, 0x05, 0x02, 0x01];
    let other = [0x67, 0x81, 0x05, 0x02, 0x7f];
    let good = certificate(&EkContents::good());

    assert_eq!(
        check(&replaced(&good, &manufacturer, &other), Kind::P256),
        unfit("it does not contain a TPM manufacturer")
    );
}

#[test]
fn a_certificate_that_has_expired_or_is_not_valid_yet_is_denied() {
    let not_valid =
        |detail: &str| Err(TpmDenial::EndorsementCertificateNotValid(detail.to_owned()));
    let year = Duration::from_hours(24 * 365);
    let contents = EkContents {
        not_before: later() - year,
        not_after: later() + year,
        ..EkContents::good()
    };
    let certificate = certificate(&contents);
    let second = Duration::from_secs(1);
    for (now, expected) in [
        (later(), Ok(())),
        (contents.not_before, Ok(())),
        (
            contents.not_before - second,
            not_valid("is not valid before 2088-12-02"),
        ),
        (contents.not_after, Ok(())),
        (
            contents.not_after + second,
            not_valid("expired on 2090-12-02"),
        ),
    ] {
        let decided = authorities().decide(Some(&certificate), &[], key(Kind::P256), now);
        assert_eq!(decided.map(|_| ()), expected);
    }
}

#[test]
fn a_certificate_from_an_expired_ca_is_denied() {
    let maker = EkCa::with_intermediates("a maker", Intermediates::Expired);
    let certificate = maker.certify(&spki(Kind::P256), &EkContents::good());

    let authorities = listed(&[maker.intermediates_pem()]).unwrap();

    assert_eq!(
        reason(authorities.decide(Some(&certificate), &[], key(Kind::P256), later())),
        untrusted()
    );
}

#[test]
fn a_certificate_of_another_key_is_denied() {
    let another = TpmMachine::new(ANOTHER.clone(), Kind::P256);
    let of_another = Err(TpmDenial::EndorsementCertificateOfAnotherKey);
    for spki in [another.ek_spki(), spki(Kind::P384), spki(Kind::Rsa2048)] {
        let certificate = MAKER.certify(&spki, &EkContents::good());
        assert_eq!(check(&certificate, Kind::P256), of_another);
    }
    // A key with the same modulus and a different exponent is a different key.
    let rsa = MAKER.certify(&spki(Kind::Rsa2048), &EkContents::good());
    let other = replaced(&rsa, &[0x02, 0x03, 1, 0, 1], &[0x02, 0x03, 1, 0, 3]);
    assert_eq!(check(&other, Kind::Rsa2048), of_another);
}

#[test]
fn a_required_certificate_must_match_the_endorsement_key() {
    let (machine, another) = (
        machine(Kind::P384),
        TpmMachine::new(ANOTHER.clone(), Kind::P384),
    );
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    case.now = later();
    let endorsement_keys = &mut case.settings.endorsement_keys;
    endorsement_keys.require_ca = vec![
        MAKER.intermediates_pem().to_owned(),
        ANOTHER.maker().intermediates_pem().to_owned(),
    ];
    let mut enrolment = enrolment(&machine);
    case.challenge(&enrolment);

    enrolment.certificate = another.ek_certificate();
    assert_eq!(
        denied(case.enrol(&enrolment)),
        TpmDenial::EndorsementCertificateOfAnotherKey
    );
    enrolment.certificate = None;
    assert_eq!(
        denied(case.enrol(&enrolment)),
        TpmDenial::EndorsementCertificateMissing
    );
    // If the policy does not require a certificate, the verifier ignores certificates.
    case.settings.endorsement_keys.require_ca.clear();
    enrolment.certificate = Some(b"no certificate".to_vec());
    case.challenge(&enrolment);
}

#[test]
fn a_certificate_with_other_trailing_bytes_is_denied() {
    let good = certificate(&EkContents::good());
    let malformed = |detail| Err(TpmDenial::EndorsementCertificateMalformed(detail));
    for end in [&[1][..], &[0, 0xff], &good] {
        assert_eq!(
            check(&[&good, end].concat(), Kind::P256),
            malformed("it has trailing bytes")
        );
    }
    for len in 0..good.len() {
        assert_eq!(
            check(&good[..len], Kind::P256),
            malformed("it is not exactly one DER certificate")
        );
    }
}

#[test]
fn an_altered_certificate_is_denied_at_every_bit() {
    let good = certificate(&EkContents::good());
    let (authorities, key) = (authorities(), key(Kind::P256));
    let (_, parsed) = X509Certificate::from_der(&good).unwrap();
    let signed: &[u8] = parsed.tbs_certificate.as_ref();
    for at in 4..4 + signed.len() {
        for bit in 0..8 {
            let mut changed = good.clone();
            changed[at] ^= 1 << bit;

            let decided = authorities.decide(Some(&changed), &[], key, later());
            assert!(decided.is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn an_invalid_ca_certificate_is_refused() {
    let good = MAKER.intermediates_pem();
    let no_authority = EkCa::with_intermediates("a maker", Intermediates::NotAnAuthority);
    let of_a_tpm = pem::encode(&pem::Pem::new(
        "CERTIFICATE",
        certificate(&EkContents::good()),
    ));
    let garbage = pem::encode(&pem::Pem::new("CERTIFICATE", b"garbage".to_vec()));
    let key = pem::encode(&pem::Pem::new("PUBLIC KEY", b"garbage".to_vec()));
    // The key is allowed to sign only certificate revocation lists.
    let parsed = pem::parse(good).unwrap();
    let usage = |bits: u8| {
        [
            0x55, 0x1d, 0x0f, 0x01, 0x01, 0xff, 0x04, 0x04, 0x03, 0x02, 0x01, bits,
        ]
    };
    let lists = replaced(parsed.contents(), &usage(0x06), &usage(0x02));
    let lists = pem::encode(&pem::Pem::new("CERTIFICATE", lists));
    for (text, detail) in [
        (
            no_authority.intermediates_pem(),
            "its certificate is not a CA certificate",
        ),
        (&*of_a_tpm, "its certificate is not a CA certificate"),
        (
            &*lists,
            "its key usage does not allow it to sign certificates",
        ),
        (&*garbage, "it is not exactly one DER certificate"),
        (&*key, "it has blocks other than certificates"),
        ("", "it has no certificate"),
        ("-----BEGIN CERTIFICATE-----\n", "it has no certificate"),
    ] {
        assert_eq!(
            listed(&[good, text]),
            Err(InvalidTpmSettings::new(format!("requireCA[1]: {detail}"))),
            "{text}"
        );
    }
}
