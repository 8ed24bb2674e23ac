//! Tests of expensive sizes and structures.
//!
//! Tests that a request over a limit is not read. A request within the limits has a bounded cost: the cost of each step
//! is linear in the size, or is the cost of sorting a list of that size.

use futures::executor::block_on;
use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use proptest::prelude::*;
use x509_cert::der::asn1::ObjectIdentifier;

use crate::decide::{Decision, decide};
use crate::refusal::{Denial, Failure};
use crate::testing::{
    Csr, EVIDENCE, block, cluster, decided, denied, der, envelope, evidence_block, extension, now,
    object, provider_block, texts, valid,
};

/// Returns the DER rule that this certification request violates, from the denial.
#[track_caller]
fn not_strict_der(csr: &[u8]) -> String {
    let denial = denied(&object(envelope(csr)));
    let Denial::NotStrictDer(detail) = denial else {
        panic!("{denial:?}");
    };
    detail
}

#[test]
fn a_request_over_the_limit_is_not_read() {
    let valid = envelope(&Csr::valid().der());
    for len in [MAX_REQUEST_LEN + 1, 1024 * 1024] {
        let request = object(valid.clone() + &"\n".repeat(len - valid.len()));
        let decided = block_on(decide(&request, &cluster(), now(), || {
            std::time::Duration::ZERO
        }));

        let checks: Vec<_> = decided.steps.iter().map(|step| step.check).collect();
        assert_eq!(checks, ["scope"]);
        let Decision::Deny(denial) = decided.decision else {
            panic!("not denied");
        };
        assert_eq!(denial, Denial::RequestTooLarge(len));
    }
}

#[test]
fn a_request_at_the_limit_is_read() {
    let valid = envelope(&Csr::valid().der());
    let request = valid.clone() + &"\n".repeat(MAX_REQUEST_LEN - valid.len());

    assert_eq!(denied(&object(request)), Denial::TextOutsideBlocks);
}

#[test]
fn too_many_lines_are_denied() {
    let lines = "\n".repeat(MAX_REQUEST_LEN);
    let begins = "-----BEGIN X-----\n".repeat(MAX_REQUEST_LEN / 18);

    assert_eq!(denied(&object(lines)), Denial::NoPemBlock);
    assert_eq!(denied(&object(begins)), Denial::NotARequestFirst);
}

/// Returns the maximum number of these items that fit into a request. A request contains DER in base64.
fn as_many<T>(len: usize, item: impl Fn(usize) -> T) -> Vec<T> {
    (0..MAX_REQUEST_LEN * 70 / 100 / len).map(item).collect()
}

#[test]
fn too_many_names_in_the_subject_are_denied() {
    let name = Csr::part("2.5.4.3", der::utf8("system:node:n1"));
    let csr = Csr {
        subject: as_many(name.len(), |_| name.clone()),
        ..Csr::valid()
    };

    assert_eq!(
        denied(&object(envelope(&csr.der()))),
        Denial::SubjectOrganization
    );
}

#[test]
fn too_many_alternative_names_are_denied() {
    let name = der::tlv(0x82, b"a");
    let names = der::sequence(&as_many(name.len(), |_| name.clone()));
    let csr = Csr::with_extension(extension("2.5.29.17", false, &names));

    assert_eq!(
        denied(&object(envelope(&csr.der()))),
        Denial::SubjectAltNameRequested("DNS")
    );
}

#[test]
fn too_many_extensions_are_denied() {
    let csr = Csr {
        extensions: as_many(16, |index| extension(&format!("1.2.{index}"), false, b"")),
        ..Csr::valid()
    };

    assert_eq!(
        denied(&object(envelope(&csr.der()))),
        Denial::UnknownExtension(ObjectIdentifier::new_unwrap("1.2.0"))
    );
}

#[test]
fn too_many_values_in_reverse_order_are_denied() {
    let len = MAX_REQUEST_LEN / 8;
    let values: Vec<_> = (0..len)
        .rev()
        .map(|index| der::integer(&u16::try_from(index + 256).unwrap().to_be_bytes()))
        .collect();
    let attribute = der::sequence(&[der::oid("1.2.3"), der::set(&values)]);
    let csr = Csr {
        attributes: Some(vec![attribute]),
        ..Csr::valid()
    };

    assert_eq!(
        not_strict_der(&csr.der()),
        "the request is not in canonical DER encoding"
    );
}

#[test]
fn deep_nesting_is_denied() {
    let deep = (0..10_000).fold(Vec::new(), |inner, _| der::tlv(der::SEQUENCE, &inner));
    let in_extension = Csr::with_extension(extension("1.2.3", false, &deep));
    let in_subject = Csr {
        subject: vec![deep.clone()],
        ..Csr::valid()
    };

    assert_eq!(
        denied(&object(envelope(&in_extension.der()))),
        Denial::UnknownExtension(ObjectIdentifier::new_unwrap("1.2.3"))
    );
    for csr in [in_subject.der(), deep] {
        // The detail of the denial contains the message of the DER library.
        not_strict_der(&csr);
    }
}

#[test]
fn evidence_over_the_limit_is_denied() {
    let request = block("CERTIFICATE REQUEST", &Csr::valid().der())
        + &provider_block("null")
        + &evidence_block(&vec![b' '; 32 * 1024 + 1]);

    assert_eq!(denied(&object(request)), Denial::EvidenceTooLarge);
}

#[test]
fn deep_nesting_in_evidence_is_denied() {
    let deep = format!(r#"{{"version":"v1","x":{}"#, "[".repeat(20_000));
    let request = block("CERTIFICATE REQUEST", &Csr::valid().der())
        + &provider_block("null")
        + &evidence_block(deep.as_bytes());

    let Denial::EvidenceMalformed(detail) = denied(&object(request)) else {
        panic!("not malformed");
    };
    assert_eq!(
        detail,
        "the evidence does not match the JSON format of its version"
    );
}

#[test]
fn a_requester_with_large_attributes_is_denied() {
    let mut username = valid();
    username.spec.username = Some("x".repeat(513));
    let mut uid = valid();
    uid.spec.uid = Some("x".repeat(257));
    let mut group = valid();
    group.spec.groups = Some(texts(&[&"x".repeat(257)]));
    let mut groups = valid();
    groups.spec.groups = Some(vec!["system:bootstrappers".to_owned(); 33]);

    for (request, field) in [
        (username, "username"),
        (uid, "uid"),
        (group, "groups"),
        (groups, "groups"),
    ] {
        assert_eq!(denied(&request), Denial::RequesterTooLarge(field));
    }
}

#[test]
fn too_many_usages_are_denied() {
    let mut request = valid();
    request.spec.usages = Some(vec!["client auth".to_owned(); 100_000]);

    assert_eq!(denied(&request), Denial::UsagesNotExact);
}

#[test]
fn an_unsupported_evidence_version_fails_with_the_supported_versions() {
    let request = block("CERTIFICATE REQUEST", &Csr::valid().der())
        + &provider_block("null")
        + &evidence_block(br#"{"version":"v2","new":[1]}"#);

    let Decision::Fail(failure) = decided(&object(request), &cluster()) else {
        panic!("not failed");
    };

    assert_eq!(failure.reason(), "UnsupportedAttestationVersion");
    assert!(matches!(
        failure,
        Failure::UnsupportedAttestationVersion { .. }
    ));
    assert_eq!(
        failure.annotations(),
        [(
            "attestation.cluster.x-k8s.io/supported-versions",
            "v1".to_owned()
        )]
    );
}

/// Replaces bytes, each at a relative position in `bytes`.
fn changed(bytes: &[u8], changes: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (index, byte) in changes {
        *index.get_mut(&mut bytes) = *byte;
    }
    bytes
}

proptest! {
    #[test]
    fn a_changed_request_never_causes_a_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let certification_request = block("CERTIFICATE REQUEST", &Csr::valid().der());
        let valid = certification_request.clone() + &provider_block("null") + &evidence_block(EVIDENCE);
        let other = changed(valid.as_bytes(), &changes);
        let same = other.starts_with(certification_request.as_bytes());

        let decision = decided(&object(other), &cluster());

        // The change can result in different evidence that this verifier can read.
        prop_assert!(same || matches!(decision, Decision::Deny(_)), "{decision:?}");
    }

    #[test]
    fn a_changed_certification_request_neither_panics_nor_is_issued(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let valid = Csr::valid().der();
        let other = changed(&valid, &changes);
        prop_assume!(other != valid);

        let decision = decided(&object(envelope(&other)), &cluster());

        prop_assert!(matches!(decision, Decision::Deny(_)), "{decision:?}");
    }

    #[test]
    fn a_signed_request_with_any_subject_never_causes_a_panic(
        subject in prop::collection::vec(any::<u8>(), 0..64),
        value in prop::collection::vec(any::<u8>(), 0..64),
        arc in 14_u8..60,
    ) {
        let csr = Csr {
            subject: vec![subject],
            ..Csr::with_extension(extension(&format!("2.5.29.{arc}"), false, &value))
        };

        let decision = decided(&object(envelope(&csr.der())), &cluster());

        prop_assert!(matches!(decision, Decision::Deny(_)), "{decision:?}");
    }

    #[test]
    fn evidence_with_arbitrary_bytes_never_causes_a_panic(evidence in prop::collection::vec(any::<u8>(), 0..256)) {
        let request = block("CERTIFICATE REQUEST", &Csr::valid().der())
            + &provider_block("null")
            + &evidence_block(&evidence);

        let decision = decided(&object(request), &cluster());

        prop_assert!(matches!(decision, Decision::Deny(_)), "{decision:?}");
    }
}

#[test]
fn valid_evidence_is_accepted() {
    let request = block("CERTIFICATE REQUEST", &Csr::valid().der())
        + &provider_block("null")
        + &evidence_block(EVIDENCE);

    assert!(matches!(
        decided(&object(request), &cluster()),
        Decision::Issue(_)
    ));
}
