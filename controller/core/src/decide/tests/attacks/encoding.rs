//! Tests of the PEM and DER encodings.

use kubelet_attestation::names::Provider;

use crate::refusal::Denial;
use crate::testing::{
    Csr, EVIDENCE, block, denied, der, envelope, evidence_block, insecure, object, provider_block,
    texts,
};

fn csr_block() -> String {
    block("CERTIFICATE REQUEST", &Csr::valid().der())
}

#[track_caller]
fn denied_request(request: &str) -> Denial {
    denied(&object(request))
}

#[track_caller]
fn denied_der(csr: &[u8]) {
    let denial = denied_request(&envelope(csr));

    assert!(matches!(denial, Denial::NotStrictDer { .. }), "{denial:?}");
}

#[test]
fn a_first_block_that_is_not_a_request_is_denied() {
    for request in [
        block("CERTIFICATE", b"x") + &csr_block(),
        block("NEW CERTIFICATE REQUEST", &Csr::valid().der()),
        provider_block("null") + &csr_block(),
    ] {
        assert_eq!(denied_request(&request), Denial::NotARequestFirst);
    }
}

#[test]
fn two_request_blocks_are_denied() {
    let request = csr_block() + &csr_block() + &provider_block("null") + &evidence_block(EVIDENCE);

    assert_eq!(denied_request(&request), Denial::SecondRequest);
}

#[test]
fn a_second_request_after_the_evidence_is_denied() {
    let request = envelope(&Csr::valid().der()) + &csr_block();

    assert_eq!(denied_request(&request), Denial::SecondRequest);
}

#[test]
fn text_after_the_last_block_is_denied() {
    for rest in ["x\n", "\n", " ", "x"] {
        let request = envelope(&Csr::valid().der()) + rest;

        assert_eq!(
            denied_request(&request),
            Denial::TextOutsideBlocks,
            "{rest:?}"
        );
    }
}

#[test]
fn a_request_without_pem_is_denied() {
    for request in ["", "garbage", "-----BEGIN", "{}"] {
        assert_eq!(denied_request(request), Denial::NoPemBlock, "{request:?}");
    }
    assert_eq!(denied(&object(Csr::valid().der())), Denial::NoPemBlock);
}

#[test]
fn a_duplicate_provider_or_evidence_block_is_denied() {
    let valid = envelope(&Csr::valid().der());
    for second in [provider_block("null"), evidence_block(EVIDENCE)] {
        let request = valid.clone() + &second;

        assert_eq!(denied_request(&request), Denial::DuplicateBlock);
    }
}

#[test]
fn an_unknown_block_is_denied() {
    let valid = envelope(&Csr::valid().der());
    for label in ["ATTESTATION DATA", "CERTIFICATE", "certificate request"] {
        let request = valid.clone() + &block(label, b"x");

        assert_eq!(denied_request(&request), Denial::UnknownBlock, "{label}");
    }
}

#[test]
fn text_before_or_between_blocks_is_denied() {
    let valid = envelope(&Csr::valid().der());
    let between = valid.replacen(
        "-----END CERTIFICATE REQUEST-----\n",
        "-----END CERTIFICATE REQUEST-----\nx\n",
        1,
    );

    assert_eq!(denied_request(&between), Denial::TextOutsideBlocks);
    assert_eq!(
        denied_request(&("x\n".to_owned() + &valid)),
        Denial::NotARequestFirst
    );
}

#[test]
fn a_non_canonical_block_layout_is_denied() {
    let valid = envelope(&Csr::valid().der());
    let headers = valid.replacen(
        "REQUEST-----\n",
        "REQUEST-----\nProc-Type: 4,ENCRYPTED\n\n",
        1,
    );
    let carriage_returns = valid.replace('\n', "\r\n");
    let (first, rest) = valid.split_at(valid.find('\n').unwrap() + 11);
    let short_line = format!("{first}\n{rest}");
    let no_last_newline = valid.trim_end().to_owned();
    let indented = valid.replacen('M', " M", 1);
    let other_end = valid.replacen("END CERTIFICATE REQUEST", "END CERTIFICATE", 1);

    for request in [
        headers,
        carriage_returns,
        short_line,
        no_last_newline,
        indented,
        other_end,
    ] {
        assert_eq!(denied_request(&request), Denial::NotStrictPem, "{request}");
    }
}

#[test]
fn evidence_before_its_provider_is_denied() {
    let request = csr_block() + &evidence_block(EVIDENCE) + &provider_block("null");

    assert_eq!(denied_request(&request), Denial::EvidenceWithoutProvider);
}

#[test]
fn a_provider_that_does_not_match_the_signer_is_denied() {
    let request = csr_block() + &provider_block("insecure") + &evidence_block(EVIDENCE);

    assert_eq!(
        denied_request(&request),
        Denial::ProviderMismatch {
            signer: Provider::NULL,
            claimed: Some(Provider::INSECURE)
        }
    );
}

#[test]
fn a_request_without_a_provider_to_an_evidence_signer_is_denied() {
    assert_eq!(
        denied_request(&csr_block()),
        Denial::ProviderMismatch {
            signer: Provider::NULL,
            claimed: None
        }
    );
}

#[test]
fn an_insecure_request_with_another_provider_is_denied() {
    let mut request = insecure();
    request.spec.request.0 = (csr_block() + &provider_block("null")).into_bytes();

    assert_eq!(
        denied(&request),
        Denial::ProviderMismatch {
            signer: Provider::INSECURE,
            claimed: Some(Provider::NULL)
        }
    );
}

#[test]
fn missing_evidence_and_unexpected_evidence_are_denied() {
    let without = csr_block() + &provider_block("null");
    let mut insecure = insecure();
    insecure.spec.request.0 =
        (csr_block() + &provider_block("insecure") + &evidence_block(EVIDENCE)).into_bytes();

    assert_eq!(denied_request(&without), Denial::EvidenceMissing);
    assert_eq!(denied(&insecure), Denial::EvidenceUnexpected);
}

#[test]
fn a_provider_block_without_a_name_is_denied() {
    for name in ["", "null\n", "NULL", "null,aws", "\u{0}null"] {
        let request = csr_block() + &provider_block(name) + &evidence_block(EVIDENCE);

        assert_eq!(
            denied_request(&request),
            Denial::ProviderMalformed,
            "{name:?}"
        );
    }
}

#[test]
fn bytes_after_the_request_are_denied() {
    let csr = Csr::valid().der();

    denied_der(&[&csr[..], &[0]].concat());
    denied_der(&[&csr[..], &csr[..]].concat());
}

#[test]
fn a_length_that_is_not_minimally_encoded_is_denied() {
    let csr = Csr::valid().der();
    let [0x30, 0x82, len @ ..] = csr.as_slice() else {
        panic!("the length of a request takes two bytes");
    };

    denied_der(&[&[0x30, 0x83, 0x00], len].concat());
}

#[test]
fn an_indefinite_length_is_denied() {
    let csr = Csr::valid().der();

    denied_der(&[&[0x30, 0x80], &csr[4..], &[0, 0]].concat());
}

#[test]
fn ber_in_the_value_of_an_attribute_is_denied() {
    // In DER, a boolean is encoded as 0 or 255.
    let mut csr = Csr::valid();
    let other_true = [0x01, 0x01, 0x01];
    csr.extensions.push(der::sequence(&[
        der::oid("1.2.3"),
        other_true.to_vec(),
        der::octets(b""),
    ]));

    denied_der(&csr.der());
}

#[test]
fn a_truncated_request_is_denied() {
    let csr = Csr::valid().der();

    for len in [0, 1, 2, 4, csr.len() / 2, csr.len() - 1] {
        denied_der(&csr[..len]);
    }
}

#[test]
fn evidence_that_is_not_json_of_a_version_is_denied() {
    for evidence in [
        "",
        "[]",
        "{}",
        r#"{"version":1}"#,
        r#"{"version":"v1","version":"v1"}"#,
    ] {
        let request = csr_block() + &provider_block("null") + &evidence_block(evidence.as_bytes());
        let denial = denied_request(&request);

        assert!(
            matches!(denial, Denial::EvidenceMalformed { .. }),
            "{evidence}: {denial:?}"
        );
    }
}

#[test]
fn denial_messages_contain_no_text_from_the_request() {
    let mut request = object(envelope(&Csr::valid().der()));
    request.spec.username = Some("system:admin-of-elsewhere".to_owned());
    request.spec.groups = Some(texts(&["system:masters"]));

    assert!(!denied(&request).message().contains("elsewhere"));
}
