//! Tests of each combination of a supported key and an accepted signature algorithm. OpenSSL creates the signatures,
//! because aws-lc-rs signs with P-256 and P-384 keys only with one digest each.

use std::process::Command;

use futures::executor::block_on;
use kubelet_authenticator_test_support::ek_ca::vendors;
use kubelet_authenticator_test_support::process::Scratch;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::turns::{CALCULATIONS, FairTurns};
use x509_parser::prelude::FromDer as _;

use super::*;

/// The supported keys, with the algorithm and the option of `openssl genpkey`.
const KEYS: [(&str, &str, &str); 4] = [
    ("RSA", "RSA", "rsa_keygen_bits:2048"),
    ("P-256", "EC", "ec_paramgen_curve:P-256"),
    ("P-384", "EC", "ec_paramgen_curve:P-384"),
    ("P-521", "EC", "ec_paramgen_curve:P-521"),
];

/// The accepted digests.
const DIGESTS: [&str; 3] = ["sha256", "sha384", "sha512"];

/// The signed part of a certificate.
const SIGNED: &[u8] = b"the signed part";

fn openssl(folder: &Scratch, arguments: &[&str]) {
    let output = Command::new("openssl")
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "openssl {arguments:?}: {output:?}");
}

fn read(folder: &Scratch, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap()
}

/// Creates a key, and returns the DER of its `SubjectPublicKeyInfo`.
fn new_key(folder: &Scratch, algorithm: &str, option: &str) -> Vec<u8> {
    let create = ["genpkey", "-algorithm", algorithm, "-pkeyopt", option];
    openssl(folder, &[&create[..], &["-out", "key.pem"]].concat());
    let public = ["pkey", "-in", "key.pem", "-pubout", "-outform", "der"];
    openssl(folder, &[&public[..], &["-out", "key.der"]].concat());
    read(folder, "key.der")
}

/// Checks the signature of a certificate that names this algorithm.
fn checked(
    key: &AuthorityKey,
    value: &[u8],
    algorithm: &'static Accepted,
) -> Result<(), NotSigned> {
    let signature = Signature {
        signed: SIGNED.to_vec(),
        value: value.to_vec(),
        algorithm: Ok(algorithm),
    };
    let line = FairTurns::new(CALCULATIONS).line(&ObjectKey::new("a", "1"));
    let mut checks = Checks::of(&line);
    let signed = block_on(key.signed(&signature, &mut checks));
    signed.expect("it is the first check")
}

#[test]
fn each_ca_key_verifies_each_digest_and_no_algorithm_of_another_key() {
    for (kind, algorithm, option) in KEYS {
        let folder = Scratch::new("ca-key");
        folder.write("signed", SIGNED);
        let der = new_key(&folder, algorithm, option);
        let (_, spki) = SubjectPublicKeyInfo::from_der(&der).unwrap();
        let key = AuthorityKey::read(&spki).unwrap();
        for digest in DIGESTS {
            let option = format!("-{digest}");
            let sign = ["dgst", &option, "-sign", "key.pem"];
            openssl(
                &folder,
                &[&sign[..], &["-out", "signature", "signed"]].concat(),
            );
            let signature = read(&folder, "signature");
            for accepted in &ACCEPTED {
                let name = name_of(&accepted.0);
                let is_rsa = name.ends_with("WithRSAEncryption");
                let has_digest = name.to_lowercase().contains(digest);
                let expected = if is_rsa != (kind == "RSA") {
                    Err(NotSigned::KeyOfAnotherKind {
                        key: kind.to_owned(),
                        algorithm: name.clone(),
                    })
                } else if has_digest {
                    Ok(())
                } else {
                    Err(NotSigned::Invalid(name.clone()))
                };
                let found = checked(&key, &signature, accepted);
                assert_eq!(found, expected, "{kind} {digest} {name}");
            }
        }
    }
}

#[test]
fn a_certificate_with_two_signature_algorithms_is_denied_with_both() {
    const ECDSA_WITH_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    let folder = Scratch::new("ca-key");
    let key = new_key(&folder, "EC", "ec_paramgen_curve:P-256");
    let mut der = vendors::by_root(&key, "a root").certificate;
    let mut places = der.windows(ECDSA_WITH_SHA256.len());
    // The last place is the algorithm next to the signature.
    let last = places.rposition(|window| window == ECDSA_WITH_SHA256);
    // The last byte of ecdsa-with-SHA384 is greater by one.
    der[last.unwrap() + ECDSA_WITH_SHA256.len() - 1] += 1;

    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    let refused = Signature::of(&parsed).algorithm.unwrap_err();

    assert_eq!(
        refused.to_string(),
        "the certificate names two signature algorithms, ecdsa-with-SHA384 and ecdsa-with-SHA256"
    );
}
