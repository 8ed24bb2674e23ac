use std::collections::BTreeSet;
use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rsa::KeySize;
use data_encoding::HEXLOWER;
use kubelet_attestation::evidence::aws::is_region;
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use serde_json::Value;

use super::{AWS_SIGNERS, InvalidSigners, Signer, Signers};
use crate::denial::AwsDenial;

const NEW: &str = "us-iso-east-1";
const SERIAL: [u8; 8] = [0xc0; 8];

static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new(SERIAL));

fn with_file(file: &str) -> Result<Signers, InvalidSigners> {
    Signers::embedded().with_file(file)
}

/// The message of the error.
fn refused(file: &str) -> String {
    with_file(file).unwrap_err().to_string()
}

fn signed_by(signer: &TestSigner, region: &str) -> String {
    let zone = format!("{region}a");
    signer.sign(&Document::new(
        "123456789012",
        region,
        &zone,
        "i-0123456789abcdef0",
    ))
}

#[test]
fn each_of_the_39_embedded_region_signers_has_a_different_key() {
    let signers = Signers::embedded();
    let table: Value = serde_json::from_str(AWS_SIGNERS).unwrap();
    let rows = table["signers"].as_array().unwrap();

    let (mut keys, mut regions) = (BTreeSet::new(), BTreeSet::new());
    for row in rows {
        let region = row["region"].as_str().unwrap();
        let [signer] = signers.region(region) else {
            panic!("{region}");
        };
        let hash = HEXLOWER.encode(digest(&SHA256, signer.spki()).as_ref());
        assert!(is_region(region), "{region}");
        assert_eq!(row["spkiSha256"], hash.as_str(), "{region}");
        keys.insert(hash);
        regions.insert(region);
    }
    assert_eq!(
        (keys.len(), regions.len(), signers.regions().count()),
        (39, 39, 39)
    );
    for region in [
        "cn-north-1",
        "us-gov-west-1",
        "eusc-de-east-1",
        "mx-central-1",
    ] {
        assert!(regions.contains(region), "{region}");
    }
}

#[test]
fn a_signer_from_a_file_verifies_only_documents_from_its_region() {
    // The certificate is valid until 2204, which only a GeneralizedTime can represent.
    let signers = with_file(&SIGNER.signers_file(&[NEW])).unwrap();

    assert!(signers.verify(&signed_by(&SIGNER, NEW)).is_ok());
    assert_eq!(
        signers.verify(&signed_by(&SIGNER, "us-east-1")),
        Err(AwsDenial::DocumentSignerMismatch("us-east-1".to_owned()))
    );
    assert_eq!(signers.regions().count(), 40);
}

#[test]
fn a_region_can_have_an_old_and_a_new_signer() {
    let renewed = TestSigner::new([0xc1; 8]);
    let file = SIGNER.signers_file(&[NEW]) + &renewed.signers_file(&[NEW]);

    let signers = with_file(&file).unwrap();

    for signer in [&*SIGNER, &renewed] {
        assert!(signers.verify(&signed_by(signer, NEW)).is_ok());
    }
}

#[test]
fn a_duplicate_signer_is_listed_once() {
    let file = SIGNER.signers_file(&[NEW, NEW]);

    let signers = with_file(&file).unwrap().with_file(&file).unwrap();

    assert_eq!(signers.region(NEW).len(), 1);
}

#[test]
fn comments_empty_lines_and_crlf_are_ignored() {
    let file = format!(
        "# From the page of AWS\n\n{}\n\n",
        SIGNER.signers_file(&[NEW])
    );

    assert!(with_file(&file).is_ok());
    assert!(with_file(&file.replace('\n', "\r\n")).is_ok());
}

#[test]
fn a_file_without_signers_is_refused() {
    for file in ["", "\n# nothing\n"] {
        assert_eq!(refused(file), "it does not contain a certificate");
    }
    let large = "#".repeat(1024 * 1024 + 1);
    assert_eq!(refused(&large), "it is 1048577 bytes long (limit: 1048576)");
}

#[test]
fn a_signers_file_over_one_mebibyte_is_refused() {
    let file = SIGNER.signers_file(&[NEW]);
    let of_size = |size: usize| format!("{file}#{}", "x".repeat(size - file.len() - 1));
    assert!(file.ends_with('\n'));

    assert!(with_file(&of_size(1024 * 1024)).is_ok());
    assert_eq!(
        refused(&of_size(1024 * 1024 + 1)),
        "it is 1048577 bytes long (limit: 1048576)"
    );
}

#[test]
fn an_invalid_signers_file_is_refused_with_its_line() {
    let file = SIGNER.signers_file(&[NEW]);
    let certificate = SIGNER.certificate_pem();
    let unpaired = |line| {
        format!("line {line}: a separate line \"Region: <name>\" must precede each certificate")
    };

    assert_eq!(refused(certificate), unpaired(1));
    assert_eq!(refused(&format!("Region: eu-west-1\n{file}")), unpaired(2));
    assert_eq!(refused(&format!("# one\nRegion: {NEW}\n")), unpaired(2));
    assert_eq!(
        refused(&format!("\nregion {NEW}\n{certificate}")),
        "line 2 is neither \"Region: <name>\" nor part of a PEM certificate"
    );
    assert_eq!(
        refused(&file.replace(NEW, "us-iso-east-1.example")),
        "line 1 does not contain a region name"
    );
    let (begun, _) = file.split_once("-----END").unwrap();
    assert_eq!(
        refused(begun),
        "line 2: the certificate for us-iso-east-1 is not PEM"
    );
    assert_eq!(
        refused(&format!(
            "Region: {NEW}\n-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
        )),
        "line 2: cannot parse the certificate for us-iso-east-1"
    );
}

#[test]
fn a_signer_with_a_key_other_than_rsa_2048_is_refused() {
    let larger = TestSigner::with_size(KeySize::Rsa3072, SERIAL);

    assert_eq!(
        refused(&larger.signers_file(&[NEW])),
        "line 2: the key for us-iso-east-1 is not a 2048-bit RSA key"
    );
}

#[test]
fn a_key_with_an_unsupported_algorithm_or_size_is_not_a_signer() {
    const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    let signers = with_file(&SIGNER.signers_file(&[NEW])).unwrap();
    let [signer] = signers.region(NEW) else {
        panic!("one signer");
    };
    let valid = signer.spki().to_vec();
    let place = |of: &[u8]| valid.windows(of.len()).position(|bytes| bytes == of);
    let is_taken = |spki: &[u8]| Signer::new("CN=x", &SERIAL, spki).is_some();
    assert!(is_taken(&valid));

    // The first algorithm is RSASSA-PSS, and the second is RSA with SHA-256.
    for last in [0x0a, 0x0b] {
        let mut other = valid.clone();
        other[place(RSA_ENCRYPTION).unwrap() + RSA_ENCRYPTION.len() - 1] = last;
        assert!(!is_taken(&other), "{last}");
    }
    let mut shorter = valid.clone();
    let modulus = place(&[0x02, 0x82, 0x01, 0x01, 0x00]).unwrap() + 5;
    shorter[modulus] = 0x7f;
    assert!(!is_taken(&shorter));
}

#[test]
fn a_signer_that_contradicts_a_known_one_is_refused() {
    let impostor = TestSigner::new(SERIAL);
    let known = with_file(&SIGNER.signers_file(&[NEW])).unwrap();

    let below_another_region = known
        .clone()
        .with_file(&SIGNER.signers_file(&["us-east-1"]));
    let under_a_known_name = known.with_file(&impostor.signers_file(&[NEW]));

    assert_eq!(
        below_another_region.unwrap_err().to_string(),
        "line 2: the certificate for region us-east-1 has the same key as the certificate for region us-iso-east-1"
    );
    assert_eq!(
        under_a_known_name.unwrap_err().to_string(),
        "line 2: region us-iso-east-1 already has a certificate with the same issuer and serial number, but a different key"
    );
}
