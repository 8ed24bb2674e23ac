use proptest::prelude::*;

use super::*;

const CSR_BLOCK: &str =
    "-----BEGIN CERTIFICATE REQUEST-----\nAQID\n-----END CERTIFICATE REQUEST-----\n";
const PROVIDER_BLOCK: &str = "-----BEGIN KUBELET AUTHENTICATOR ATTESTATION PROVIDER-----\nYXdz\n-----END KUBELET AUTHENTICATOR ATTESTATION PROVIDER-----\n";
const EVIDENCE_BLOCK: &str = "-----BEGIN KUBELET AUTHENTICATOR ATTESTATION DATA-----\ne30=\n-----END KUBELET AUTHENTICATOR ATTESTATION DATA-----\n";

fn parse(parts: &[&str]) -> Result<Envelope, InvalidEnvelope> {
    Envelope::parse(parts.concat().as_bytes())
}

#[test]
fn an_envelope_with_all_three_blocks_is_parsed() {
    let envelope = parse(&[CSR_BLOCK, PROVIDER_BLOCK, EVIDENCE_BLOCK]).unwrap();

    let expected = Envelope {
        csr: vec![1, 2, 3],
        provider: Some(Provider::AWS),
        evidence: Some(b"{}".to_vec()),
    };
    assert_eq!(envelope, expected);
}

#[test]
fn an_envelope_without_evidence_is_parsed() {
    assert_eq!(
        parse(&[CSR_BLOCK]).unwrap(),
        Envelope {
            csr: vec![1, 2, 3],
            provider: None,
            evidence: None
        }
    );
    assert_eq!(parse(&[CSR_BLOCK, PROVIDER_BLOCK]).unwrap().evidence, None);
}

#[test]
fn an_invalid_envelope_is_refused_with_a_reason() {
    use InvalidEnvelope::*;

    let crlf = CSR_BLOCK.replace('\n', "\r\n");
    let header = CSR_BLOCK.replace("AQID", "Proc-Type: 4,ENCRYPTED\n\nAQID");
    let unknown = CSR_BLOCK.replace("CERTIFICATE REQUEST", "CERTIFICATE");
    let new_request = CSR_BLOCK.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST");
    let cases: &[(&[&str], InvalidEnvelope)] = &[
        (&[""], NoPem),
        (&["garbage"], NoPem),
        (&[PROVIDER_BLOCK, CSR_BLOCK], NotFirst),
        (&["text\n", CSR_BLOCK], NotFirst),
        (&["\n", CSR_BLOCK], NotFirst),
        (&[&new_request], NotFirst),
        (&[CSR_BLOCK, CSR_BLOCK], SecondRequest),
        (
            &[CSR_BLOCK, PROVIDER_BLOCK, EVIDENCE_BLOCK, CSR_BLOCK],
            SecondRequest,
        ),
        (&[CSR_BLOCK, PROVIDER_BLOCK, PROVIDER_BLOCK], DuplicateBlock),
        (
            &[CSR_BLOCK, PROVIDER_BLOCK, EVIDENCE_BLOCK, EVIDENCE_BLOCK],
            DuplicateBlock,
        ),
        (&[CSR_BLOCK, &unknown], UnknownBlock),
        (&[CSR_BLOCK, EVIDENCE_BLOCK], EvidenceWithoutProvider),
        (&[CSR_BLOCK, "junk\n"], TextOutside),
        (&[CSR_BLOCK, "\n"], TextOutside),
        (&[CSR_BLOCK, "\n", PROVIDER_BLOCK], TextOutside),
        (&[&crlf], NotStrict),
        (&[&header], NotStrict),
        (&[&CSR_BLOCK.replace("AQID", "AQ\nID")], NotStrict),
        (&[&CSR_BLOCK.replace("AQID", "AQI")], NotStrict),
        (&[&CSR_BLOCK.replace("AQID", "AQJ=")], NotStrict),
        (&[&CSR_BLOCK.replace("AQID", " AQID")], NotStrict),
        (&[&CSR_BLOCK.replace("AQID\n", "AQID\n\n")], NotStrict),
        (&[CSR_BLOCK.trim_end()], NotStrict),
        (
            &[CSR_BLOCK.trim_end_matches("-----END CERTIFICATE REQUEST-----\n")],
            NotStrict,
        ),
        (
            &[&CSR_BLOCK.replace("END CERTIFICATE REQUEST", "END CERTIFICATE")],
            NotStrict,
        ),
        (
            &[CSR_BLOCK, &PROVIDER_BLOCK.replace("YXdz", "QVdT")],
            Provider,
        ),
    ];

    for (parts, expected) in cases {
        assert_eq!(parse(parts).unwrap_err(), *expected, "{parts:?}");
    }
}

#[test]
fn an_oversized_envelope_is_refused_before_it_is_parsed() {
    let largest = vec![b'x'; MAX_REQUEST_LEN];
    let larger = vec![b'x'; MAX_REQUEST_LEN + 1];

    assert_eq!(Envelope::parse(&largest), Err(InvalidEnvelope::NoPem));
    assert_eq!(Envelope::parse(&larger), Err(InvalidEnvelope::TooLarge));
}

#[test]
fn evidence_over_its_limit_is_refused() {
    let envelope = |len| Envelope {
        csr: vec![1],
        provider: Some(Provider::AWS),
        evidence: Some(vec![0; len]),
    };

    assert!(Envelope::parse(&envelope(MAX_EVIDENCE_LEN).encode()).is_ok());
    assert_eq!(
        Envelope::parse(&envelope(MAX_EVIDENCE_LEN + 1).encode()),
        Err(InvalidEnvelope::EvidenceTooLarge)
    );
}

proptest! {
    #[test]
    fn an_envelope_is_unchanged_after_a_round_trip(csr in prop::collection::vec(any::<u8>(), 1..2000), evidence in prop::option::of(prop::collection::vec(any::<u8>(), 1..2000))) {
        let envelope = Envelope { csr, provider: evidence.as_ref().map(|_| Provider::TPM), evidence };

        prop_assert_eq!(Envelope::parse(&envelope.encode()).unwrap(), envelope);
    }

    #[test]
    fn an_accepted_envelope_has_exactly_one_encoding(position in 0usize..180, byte in any::<u8>()) {
        let mut bytes = [CSR_BLOCK, PROVIDER_BLOCK].concat().into_bytes();
        let position = position % bytes.len();
        bytes[position] = byte;
        if let Ok(envelope) = Envelope::parse(&bytes) {
            prop_assert_eq!(envelope.encode(), bytes);
        }
    }
}
