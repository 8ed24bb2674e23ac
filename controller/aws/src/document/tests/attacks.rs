//! Tests for rows B1 to B11 and B18 in the table of attacks.

use kubelet_attestation::evidence::InvalidEvidence;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_authenticator_test_support::instance_identity::message::{
    ALGORITHM_PROTECTION, Attribute, CONTENT_TYPE, DATA, DSA_WITH_SHA_1, MESSAGE_DIGEST, RSA,
    RSA_WITH_SHA_256, SHA_1, SHA_256, SIGNED_DATA, SIGNING_TIME, SignerInfo, to_lines,
};

use super::{OTHER, REGION, SIGNER, SIGNERS, denial, document, message, verify};
use crate::denial::AwsDenial;

fn undecodable(detail: &'static str) -> AwsDenial {
    AwsDenial::DocumentUndecodable(detail)
}

fn structure(detail: &'static str) -> AwsDenial {
    AwsDenial::DocumentStructure(detail)
}

fn attributes(detail: &'static str) -> AwsDenial {
    AwsDenial::DocumentAttributes(detail)
}

fn algorithm(detail: &'static str) -> AwsDenial {
    AwsDenial::DocumentAlgorithm(detail)
}

fn signature_invalid() -> AwsDenial {
    AwsDenial::DocumentSignatureInvalid(REGION.into())
}

/// The reason for denying the valid message after this change to the data about its signer, with a new signature.
fn after(change: impl FnOnce(&mut SignerInfo)) -> AwsDenial {
    denial(&message().resigned(&SIGNER, change))
}

/// The same as [`after`], for a change to the signed attributes.
fn with_attributes(change: impl FnOnce(&mut Vec<Attribute>)) -> AwsDenial {
    after(|signer| change(&mut signer.attributes))
}

/// Replaces the attribute of the same type.
fn replaced(attribute: Attribute) -> impl FnOnce(&mut Vec<Attribute>) {
    move |all| {
        let place = all.iter_mut().find(|other| other.kind == attribute.kind);
        *place.unwrap() = attribute;
    }
}

#[test]
fn an_empty_or_malformed_payload_is_denied() {
    let valid = message().to_base64();

    let refused = |text: &str| SIGNERS.verify(text).unwrap_err();
    assert_eq!(refused(""), undecodable("it is empty"));
    assert_eq!(refused("\r\n\n"), undecodable("it is empty"));
    assert_eq!(refused("{}"), undecodable("it is not base64"));
    assert_eq!(
        refused(&format!(" {valid}")),
        undecodable("it is not base64")
    );
    assert_eq!(
        refused(&format!(
            "-----BEGIN PKCS7-----\n{valid}\n-----END PKCS7-----"
        )),
        undecodable("it is not base64")
    );
    assert_eq!(
        refused(valid.get(..617).unwrap()),
        undecodable("it is not base64")
    );
    assert_eq!(
        refused(valid.get(..616).unwrap()),
        undecodable("it is truncated")
    );
}

#[test]
fn a_document_without_a_signature_is_denied() {
    let plain = document().to_json();
    let mut unsigned = message();
    unsigned.signers[0].signature.clear();
    let mut without_signer = message();
    without_signer.signers.clear();

    assert_eq!(
        SIGNERS.verify(&plain).unwrap_err(),
        undecodable("it is not base64")
    );
    assert_eq!(
        SIGNERS.verify(&to_lines(plain.as_bytes())).unwrap_err(),
        undecodable("it has trailing bytes")
    );
    assert_eq!(
        denial(&unsigned),
        algorithm("the signature is not 2048 bits long")
    );
    assert_eq!(denial(&without_signer), AwsDenial::DocumentSigners(0));
}

#[test]
fn a_garbage_signature_is_denied() {
    let mut garbage = message();
    garbage.signers[0].signature = vec![0x5a; 256];
    let mut changed = message();
    changed.signers[0].signature[255] ^= 1;
    let mut of_another_key = message();
    of_another_key.sign(&OTHER);

    for message in [garbage, changed, of_another_key] {
        assert_eq!(denial(&message), signature_invalid());
    }
}

#[test]
fn a_document_with_the_signer_of_a_different_region_is_denied() {
    let in_region = |region: &str, zone: &str| {
        let mut document = document();
        (document.region, document.zone) = (region.into(), zone.into());
        document.to_json().into_bytes()
    };
    let elsewhere = in_region("eu-central-1", "eu-central-1a");

    // The signer of this region signs a document for another region.
    assert_eq!(
        denial(&SIGNER.message(&elsewhere)),
        AwsDenial::DocumentSignerMismatch("eu-central-1".into())
    );
    // Only the name of the signer differs: it is the name of the other region's signer.
    let under_his_name = SIGNER
        .message(&elsewhere)
        .resigned(&SIGNER, |signer| signer.serial = vec![0x11; 8]);
    assert_eq!(
        denial(&under_his_name),
        AwsDenial::DocumentSignatureInvalid("eu-central-1".into())
    );
    // The signer of another region signs a document for this region.
    assert_eq!(
        denial(&OTHER.message(document().to_json().as_bytes())),
        AwsDenial::DocumentSignerMismatch(REGION.into())
    );
    // The region was changed after the document was signed.
    let mut changed = message();
    changed.content = Some(elsewhere);
    assert_eq!(
        denial(&changed),
        attributes("the digest does not match the document")
    );
    // The issuer is different, but its certificate has the same serial number.
    let another_issuer = message().resigned(&SIGNER, |signer| {
        let organization = signer.issuer.len() - 1;
        signer.issuer[organization] = b'D';
    });
    assert_eq!(
        denial(&another_issuer),
        AwsDenial::DocumentSignerMismatch(REGION.into())
    );
    assert_eq!(
        denial(&SIGNER.message(&in_region("us-iso-east-1", "us-iso-east-1a"))),
        AwsDenial::RegionUnknown("us-iso-east-1".into())
    );
}

#[test]
fn a_document_outside_the_signed_content_is_refused() {
    let mut other = document();
    other.instance = "i-0fedcba9876543210".into();
    let mut exchanged = message();
    exchanged.content = Some(other.to_json().into_bytes());
    let evidence = |side_document: &str| {
        format!(
            r#"{{"version":"v1","audience":"a",{side_document}"rsa2048":"{}","sts":{{
                "region":"eu-west-1","accessKeyId":"ASIAAAAAAAAAAAAAAAAA","sessionToken":"t",
                "amzDate":"20260101T000000Z","signature":"{}"}}}}"#,
            message().to_base64().replace('\n', ""),
            "0".repeat(64)
        )
    };

    assert_eq!(
        denial(&exchanged),
        attributes("the digest does not match the document")
    );
    assert!(AwsEvidence::parse(evidence("").as_bytes()).is_ok());
    assert!(matches!(
        AwsEvidence::parse(evidence(r#""document":"{}","#).as_bytes()),
        Err(InvalidEvidence::Json(_))
    ));
}

#[test]
fn certificates_and_zero_or_several_signers_are_denied() {
    let certificate = vec![0x30, 0x00];
    let mut with_certificate = message();
    with_certificate.certificates = vec![certificate.clone()];
    let mut with_revocation_list = message();
    with_revocation_list.revocation_lists = vec![certificate];
    let mut two = message();
    two.signers.push(two.signers[0].clone());
    two.signers[1].serial = vec![0x11; 8];
    two.sign(&SIGNER);
    let mut none = message();
    none.signers.clear();

    assert_eq!(denial(&with_certificate), AwsDenial::DocumentCertificates);
    assert_eq!(
        denial(&with_revocation_list),
        AwsDenial::DocumentCertificates
    );
    assert_eq!(denial(&two), AwsDenial::DocumentSigners(2));
    assert_eq!(denial(&none), AwsDenial::DocumentSigners(0));
}

#[test]
fn invalid_signed_attributes_are_denied() {
    assert_eq!(with_attributes(Vec::clear), attributes("they are missing"));
    for (kind, missing) in [
        (CONTENT_TYPE, "the content type is missing"),
        (MESSAGE_DIGEST, "the digest is missing"),
    ] {
        assert_eq!(
            with_attributes(|all| all.retain(|attribute| attribute.kind != kind)),
            attributes(missing)
        );
    }
    for kind in [
        CONTENT_TYPE,
        MESSAGE_DIGEST,
        SIGNING_TIME,
        ALGORITHM_PROTECTION,
    ] {
        let repeated = with_attributes(|all| {
            let again = all.iter().find(|attribute| attribute.kind == kind).cloned();
            all.extend(again);
        });
        assert_eq!(repeated, attributes("an attribute is repeated"));
    }
    let two_values = with_attributes(|all| {
        let digest = all
            .iter_mut()
            .find(|attribute| attribute.kind == MESSAGE_DIGEST);
        let values = &mut digest.unwrap().values;
        values.push(values[0].clone());
    });
    assert_eq!(two_values, attributes("an attribute is malformed"));
    for (attribute, detail) in [
        (
            Attribute::message_digest(&[0; 32]),
            "the digest does not match the document",
        ),
        (
            Attribute::message_digest(&[]),
            "the digest does not match the document",
        ),
        (
            Attribute::content_type(SIGNED_DATA),
            "the content type is not plain data",
        ),
        (Attribute::signing_time(b"never"), "invalid signing time"),
        (
            Attribute::algorithm_protection(SHA_1, RSA_WITH_SHA_256),
            "the protected algorithms differ",
        ),
        (
            Attribute::algorithm_protection(SHA_256, RSA),
            "the protected algorithms differ",
        ),
        (
            Attribute::single(ALGORITHM_PROTECTION, vec![0x30, 0x00]),
            "the protected algorithms differ",
        ),
    ] {
        assert_eq!(with_attributes(replaced(attribute)), attributes(detail));
    }
    let mut unsigned = message();
    unsigned.signers[0].unsigned_attributes = vec![Attribute::content_type(DATA)];
    assert_eq!(denial(&unsigned), structure("it has unsigned attributes"));
}

#[test]
fn attributes_that_were_changed_after_the_signature_are_denied() {
    let mut later = message();
    replaced(Attribute::signing_time(b"260101000004Z"))(&mut later.signers[0].attributes);
    let mut without_time = message();
    without_time.signers[0]
        .attributes
        .retain(|attribute| attribute.kind != SIGNING_TIME);

    assert_eq!(denial(&later), signature_invalid());
    assert_eq!(denial(&without_time), signature_invalid());
}

#[test]
fn a_document_with_fewer_or_unknown_signed_attributes_is_accepted() {
    for kind in [SIGNING_TIME, ALGORITHM_PROTECTION] {
        let without = message().resigned(&SIGNER, |signer| {
            signer.attributes.retain(|attribute| attribute.kind != kind);
        });
        assert!(verify(&without).is_ok());
    }
    // AWS used this algorithm until 2020.
    let older = message().resigned(&SIGNER, |signer| {
        signer
            .attributes
            .retain(|attribute| attribute.kind != ALGORITHM_PROTECTION);
        signer.signature_algorithm = RSA;
    });
    assert!(verify(&older).is_ok());
    let with_another = message().resigned(&SIGNER, |signer| {
        signer
            .attributes
            .push(Attribute::single(&[1, 2, 3, 4], vec![0x05, 0x00]));
    });
    assert!(verify(&with_another).is_ok());
}

#[test]
fn detached_content_and_content_that_is_not_plain_data_are_denied() {
    let mut detached = message();
    detached.content = None;
    let mut nested = message();
    nested.content_type = SIGNED_DATA;
    let mut no_signed_data = message();
    no_signed_data.outer_type = DATA;
    let mut another_version = message();
    another_version.version = 3;
    let by_key_id = message().resigned(&SIGNER, |signer| signer.version = 3);

    assert_eq!(denial(&detached), structure("its content is detached"));
    assert_eq!(denial(&nested), structure("its content is not plain data"));
    assert_eq!(denial(&no_signed_data), structure("it is not SignedData"));
    assert_eq!(
        denial(&another_version),
        structure("its version is not supported")
    );
    assert_eq!(
        denial(&by_key_id),
        structure("its version is not supported")
    );
    assert_eq!(
        SIGNERS.verify("AAEC").unwrap_err(),
        undecodable("an end-of-contents marker is out of place")
    );
    assert_eq!(
        SIGNERS.verify("BAEB").unwrap_err(),
        structure("it is not SignedData")
    );
}

#[test]
fn algorithms_except_rsa_2048_with_sha_256_are_denied() {
    let mut announced_sha_1 = message();
    announced_sha_1.digest_algorithms = vec![SHA_1];
    let mut announced_both = message();
    announced_both.digest_algorithms = vec![SHA_256, SHA_1];
    let mut announced_none = message();
    announced_none.digest_algorithms = vec![];
    let mut signed_with_1024_bits = message();
    signed_with_1024_bits.signers[0].signature.truncate(128);
    let mut pkcs7 = message();
    pkcs7.digest_algorithms = vec![SHA_1];
    pkcs7.signers[0].digest_algorithm = SHA_1;
    pkcs7.signers[0].signature_algorithm = DSA_WITH_SHA_1;

    for message in [announced_sha_1, announced_both, pkcs7] {
        assert_eq!(denial(&message), algorithm("different digest algorithm"));
    }
    assert_eq!(
        denial(&announced_none),
        structure("an element is missing or has an unexpected type")
    );
    assert_eq!(
        after(|signer| signer.digest_algorithm = SHA_1),
        algorithm("different digest algorithm")
    );
    assert_eq!(
        after(|signer| signer.signature_algorithm = DSA_WITH_SHA_1),
        algorithm("different signature algorithm")
    );
    assert_eq!(
        denial(&signed_with_1024_bits),
        algorithm("the signature is not 2048 bits long")
    );
    // The value `signature` from IMDS is a signature without the document, with a key that regions share.
    assert_eq!(
        SIGNERS.verify(&to_lines(&[0x30; 128])).unwrap_err(),
        undecodable("it has trailing bytes")
    );
}

#[test]
fn an_encoding_with_unbounded_cost_is_denied() {
    let refused = |ber: &[u8]| SIGNERS.verify(&to_lines(ber)).unwrap_err();

    assert_eq!(
        refused(&[0x30, 0x80].repeat(2000)),
        undecodable("it is nested too deeply")
    );
    assert_eq!(
        refused(&[0x30, 0x84, 0x80, 0, 0, 0]),
        undecodable("a length is too large")
    );
    let valid = message().to_ber();
    assert_eq!(
        refused(&valid[..valid.len() - 2]),
        undecodable("it is truncated")
    );
    assert_eq!(
        refused(&[&valid[..], &[0, 0]].concat()),
        undecodable("it has trailing bytes")
    );
    assert_eq!(
        refused(&vec![0x30; 16 * 1024 + 1]),
        undecodable("it is too large")
    );
    let text = "A".repeat(1 << 20);
    assert_eq!(
        SIGNERS.verify(&text).unwrap_err(),
        undecodable("it is too large")
    );
    let lines = message().to_base64() + &"\n".repeat(24 * 1024);
    assert_eq!(
        SIGNERS.verify(&lines).unwrap_err(),
        undecodable("it is too large")
    );
}

#[test]
fn the_verified_instance_is_the_instance_in_the_signed_document() {
    let mut colleague = document();
    colleague.instance = "i-0fedcba9876543210".into();

    let (ours, theirs) = (
        verify(&message()).unwrap(),
        verify(&SIGNER.message(colleague.to_json().as_bytes())).unwrap(),
    );

    assert_eq!(ours.instance, "i-0123456789abcdef0");
    assert_eq!(theirs.instance, "i-0fedcba9876543210");
    assert_ne!(ours.digest, theirs.digest);
}
