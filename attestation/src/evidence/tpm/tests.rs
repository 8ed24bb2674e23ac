use base64::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::evidence::MAX_EVIDENCE_LEN;
use crate::names::Audience;

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn enrolment() -> Value {
    json!({
        "version": "v1", "audience": "prod", "phase": "enrol",
        "ekCert": base64(b"certificate"), "ekPub": base64(b"endorsement"), "akPub": base64(b"attestation"),
    })
}

fn response() -> Value {
    json!({
        "version": "v1", "audience": "prod", "phase": "respond",
        "id": base64(&[7; 16]), "expiry": "2026-01-01T00:05:00Z",
        "ekPub": base64(b"endorsement"), "akPub": base64(b"attestation"),
        "quote": {
            "attest": base64(b"attest"), "signature": base64(b"signature"),
            "pcrs": {"sha256": {"0": "00".repeat(32), "23": "0f".repeat(32)}},
        },
    })
}

fn parsed(evidence: &Value) -> Result<TpmEvidence, InvalidEvidence> {
    TpmEvidence::parse(evidence.to_string().as_bytes())
}

#[test]
fn evidence_of_both_phases_is_unchanged_after_a_round_trip() {
    let mut bare = enrolment();
    bare.as_object_mut().unwrap().remove("ekCert");
    for valid in [enrolment(), bare, response()] {
        let evidence = parsed(&valid).unwrap();

        let written = evidence.to_json();
        assert_eq!(TpmEvidence::parse(&written).unwrap(), evidence);
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), valid);
    }
}

/// The evidence of a first request in the version `v2`, which contains these intermediate certificates.
fn with_chain(chain: &[Vec<u8>]) -> Value {
    let mut evidence = enrolment();
    evidence["version"] = json!("v2");
    let chain: Vec<String> = chain.iter().map(|der| base64(der)).collect();
    evidence["ekChain"] = json!(chain);
    evidence
}

const NOT_AN_ID: &str = "id is not base64 of 16 bytes";
const NOT_A_TIME: &str = "invalid expiry (want YYYY-MM-DDTHH:MM:SSZ)";

fn not_a_structure(name: &str) -> InvalidField {
    InvalidField::new(format!("{name} is not a TPM structure in base64"))
}

fn other_fields() -> InvalidField {
    InvalidField::new("the fields do not match the phase and the version of the evidence")
}

fn field(evidence: &Value) -> InvalidField {
    match parsed(evidence) {
        Err(InvalidEvidence::Field(field)) => field,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ca_certificates_are_unchanged_after_a_round_trip_in_their_version() {
    let chain = vec![b"first".to_vec(), b"second".to_vec()];
    let valid = with_chain(&chain);

    let evidence = parsed(&valid).unwrap();

    let written = evidence.to_json();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), valid);
    let TpmEvidence::Enrol(enrolment) = evidence else {
        panic!("{evidence:?}")
    };
    assert_eq!(enrolment.intermediates, chain);
}

#[test]
fn version_v2_without_ca_certificates_equals_v1() {
    for mut valid in [enrolment(), response()] {
        valid["version"] = json!("v2");

        let evidence = parsed(&valid).unwrap();

        let written = evidence.to_json();
        assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), valid);
    }
}

#[test]
fn ca_certificates_outside_a_v2_enrollment_are_refused() {
    let chain = json!([base64(b"first")]);
    let mut of_v1 = with_chain(&[b"first".to_vec()]);
    of_v1["version"] = json!("v1");
    let mut without_certificate = with_chain(&[b"first".to_vec()]);
    without_certificate
        .as_object_mut()
        .unwrap()
        .remove("ekCert");
    let mut in_response = response();
    in_response["version"] = json!("v2");
    in_response["ekChain"] = chain;
    for evidence in [of_v1, without_certificate, in_response] {
        assert_eq!(field(&evidence), other_fields(), "{evidence}");
    }
}

#[test]
fn the_number_and_size_of_ca_certificates_are_limited() {
    let of = |count: usize, len: usize| with_chain(&vec![vec![1; len]; count]);
    for count in [1, MAX_INTERMEDIATES] {
        assert!(parsed(&of(count, 100)).is_ok(), "{count}");
    }
    for count in [0, MAX_INTERMEDIATES + 1] {
        let expected = InvalidField::new(format!("ekChain has {count} certificates (want 1 to 5)"));
        assert_eq!(field(&of(count, 100)), expected);
    }
    assert!(parsed(&of(2, 5_120)).is_ok());
    let expected = InvalidField::new("ekChain is 10242 bytes long (limit: 10240)");
    assert_eq!(field(&of(2, 5_121)), expected);
    assert!(parsed(&of(1, 10_240)).is_ok());
    for bad in [of(1, 10_241), of(1, 0)] {
        assert_eq!(field(&bad), not_a_structure("ekChain"));
    }
}

#[test]
fn the_largest_evidence_with_ca_certificates_is_read() {
    let mut evidence = with_chain(&vec![vec![1; MAX_INTERMEDIATES_LEN / 5]; 5]);
    evidence["ekCert"] = json!(base64(&vec![1; MAX_CERTIFICATE_LEN]));
    for field in ["ekPub", "akPub"] {
        evidence[field] = json!(base64(&[1; MAX_STRUCTURE_LEN]));
    }
    evidence["audience"] = json!(format!("ca-sha256:{}", "0".repeat(64)));

    assert!(parsed(&evidence).is_ok());
}

#[test]
fn the_error_for_a_missing_or_undecodable_field_names_it() {
    for (evidence, pointer, name) in [
        (enrolment(), "/ekCert", "ekCert"),
        (enrolment(), "/ekPub", "ekPub"),
        (enrolment(), "/akPub", "akPub"),
        (response(), "/quote/attest", "quote.attest"),
        (response(), "/quote/signature", "quote.signature"),
    ] {
        let max = if name == "ekCert" { 8_192 } else { 2_048 };
        for (value, is_valid) in [
            (base64(&vec![1; max]), true),
            (base64(&vec![1; max + 1]), false),
            (String::new(), false),
            ("AA".to_owned(), false),
            ("AA==\n".to_owned(), false),
            ("AB==".to_owned(), false),
            ("A-_=".to_owned(), false),
        ] {
            let mut evidence = evidence.clone();
            *evidence.pointer_mut(pointer).unwrap() = json!(value);

            match parsed(&evidence) {
                Ok(_) => assert!(is_valid, "{name} {value}"),
                Err(InvalidEvidence::Field(field)) => {
                    assert!(
                        !is_valid && field == not_a_structure(name),
                        "{name} {value}"
                    );
                }
                Err(other) => panic!("{name} {value}: {other:?}"),
            }
        }
    }
    for (field, value, expected) in [
        ("id", base64(&[7; 15]), NOT_AN_ID),
        ("id", base64(&[7; 17]), NOT_AN_ID),
        ("id", "7".to_owned(), NOT_AN_ID),
        ("expiry", "2026-01-01T00:05:00+00:00".to_owned(), NOT_A_TIME),
        ("expiry", "2026-01-01T00:05:00.5Z".to_owned(), NOT_A_TIME),
        ("expiry", "2026-01-01 00:05:00Z".to_owned(), NOT_A_TIME),
        (
            "phase",
            "certify".to_owned(),
            "invalid phase (want enrol or respond)",
        ),
    ] {
        let mut evidence = response();
        evidence[field] = json!(value);

        let error = parsed(&evidence).unwrap_err();
        assert_eq!(error.to_string(), expected, "{field} {value}");
    }
}

#[test]
fn a_field_of_the_other_phase_is_refused() {
    let whole = response();
    for name in ["id", "expiry", "quote"] {
        let mut missing = whole.clone();
        missing.as_object_mut().unwrap().remove(name);
        let mut foreign = enrolment();
        foreign[name] = whole[name].clone();

        for evidence in [missing, foreign] {
            assert_eq!(field(&evidence), other_fields(), "{name}");
        }
    }
    let mut with_certificate = whole;
    with_certificate["ekCert"] = json!(base64(b"certificate"));
    assert_eq!(field(&with_certificate), other_fields());
}

#[test]
fn unknown_and_repeated_fields_are_refused() {
    let text = response().to_string();
    for (from, to) in [
        (r#""phase""#, r#""more":1,"phase""#),
        (r#""phase""#, r#""phase":"respond","phase""#),
        (r#""id""#, r#""id":null,"id""#),
        (r#""attest""#, r#""attest":"AAAA","attest""#),
        (r#""sha256":{"#, r#""sha1":{},"sha256":{"#),
        (r#""sha256":{"#, r#""sha256":{},"sha256":{"#),
        (r#""sha256":{"#, r#""sha512":{"#),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        assert!(
            matches!(
                TpmEvidence::parse(changed.as_bytes()),
                Err(InvalidEvidence::Json(_))
            ),
            "{changed}"
        );
    }
}

#[test]
fn only_canonical_and_unique_register_numbers_are_accepted() {
    let digest = "0f".repeat(32);
    let banks = |registers: &str| {
        response().to_string().replacen(
            &json!(response()["quote"]["pcrs"]["sha256"]).to_string(),
            registers,
            1,
        )
    };
    let read = |registers: &str| TpmEvidence::parse(banks(registers).as_bytes());
    assert!(read(&format!(r#"{{"1":"{digest}"}}"#)).is_ok());
    for registers in [
        format!(r#"{{"1":"{digest}","1":"{digest}"}}"#),
        format!(r#"{{"01":"{digest}"}}"#),
        format!(r#"{{"+1":"{digest}"}}"#),
        format!(r#"{{"24":"{digest}"}}"#),
        format!(r#"{{"-1":"{digest}"}}"#),
        format!(r#"{{"1":"{}"}}"#, digest.to_uppercase()),
        format!(r#"{{"1":"{}"}}"#, "0f".repeat(31)),
        format!(r#"{{"1":"{}"}}"#, "0f".repeat(64)),
        format!(r#"{{"1":"{digest}","2":"{}"}}"#, "0f".repeat(48)),
        r#"{"1":1}"#.to_owned(),
        "[]".to_owned(),
    ] {
        assert!(
            matches!(read(&registers), Err(InvalidEvidence::Json(_))),
            "{registers}"
        );
    }
}

#[test]
fn a_quote_covers_the_registers_of_one_bank() {
    let registers = |len: usize| json!({"0": "00".repeat(len), "23": "0f".repeat(len)});
    let with = |pcrs: Value| {
        let mut evidence = response();
        evidence["quote"]["pcrs"] = pcrs;
        evidence
    };
    let sha384 = with(json!({"sha384": registers(48)}));

    let read = parsed(&sha384).unwrap();
    let written: Value = serde_json::from_slice(&read.to_json()).unwrap();
    assert_eq!(written, sha384);
    let TpmEvidence::Respond(Response { quote, .. }) = read else {
        panic!("it responds");
    };
    assert_eq!(quote.registers.bank(), Bank::Sha384);
    assert_eq!(quote.registers.get(23), None, "it is not of SHA-256");
    assert_eq!(quote.registers.iter().last(), Some((23, &[0x0f; 48][..])));
    let not_one = InvalidField::new("quote.pcrs does not contain the PCRs of exactly one bank");
    for pcrs in [
        json!({}),
        json!({"sha256": registers(32), "sha384": registers(48)}),
        json!({"sha256": registers(48)}),
        json!({"sha384": registers(32)}),
        json!({"sha384": {}}),
    ] {
        assert_eq!(field(&with(pcrs.clone())), not_one, "{pcrs}");
    }
}

#[test]
fn the_largest_challenge_response_fits_into_a_request() {
    let digests = (0..=MAX_REGISTER).map(|number| (number, vec![0; 48]));
    let evidence = TpmEvidence::Respond(Response {
        header: Header {
            version: EvidenceVersion::V2,
            audience: Audience::parse(&"a".repeat(253)).unwrap(),
        },
        id: ChallengeId::new([7; 16]),
        expiry: Expiry::parse("2026-01-01T00:05:00Z").unwrap(),
        keys: PublicAreas {
            endorsement: vec![0; MAX_STRUCTURE_LEN],
            attestation: vec![0; MAX_STRUCTURE_LEN],
        },
        quote: Quote {
            attest: vec![0; MAX_STRUCTURE_LEN],
            signature: vec![0; MAX_STRUCTURE_LEN],
            registers: Registers::of_bank(Bank::Sha384, digests.collect()).unwrap(),
        },
    });

    assert!(evidence.to_json().len() < MAX_EVIDENCE_LEN);
}

#[test]
fn registers_require_a_valid_number_and_a_digest_of_the_bank() {
    let registers = Registers::new([(0, [7; 32]), (23, [8; 32])].into()).unwrap();

    assert_eq!(registers.get(0), Some(&[7; 32]));
    assert_eq!(registers.get(23), Some(&[8; 32]));
    assert_eq!(registers.get(1), None);
    assert_eq!(Registers::new([(24, [0; 32])].into()), None);
    let of = |digest: usize| Registers::of_bank(Bank::Sha384, [(0, vec![0; digest])].into());
    assert!(of(48).is_some());
    assert_eq!(of(32), None);
}

fn challenge() -> Challenge {
    Challenge {
        id: ChallengeId::new([7; 16]),
        expiry: Expiry::parse("2026-01-01T00:05:00Z").unwrap(),
        credential_blob: b"sealed".to_vec(),
        encrypted_secret: b"seed".to_vec(),
    }
}

#[test]
fn a_challenge_is_unchanged_after_a_round_trip() {
    let annotation = challenge().to_annotation();

    assert_eq!(Challenge::parse(&annotation).unwrap(), challenge());
    assert_eq!(challenge().id.as_bytes(), &[7; 16]);
    let shown = format!("ChallengeId({})", base64(&[7; 16]));
    assert_eq!(format!("{:?}", challenge().id), shown);
    let json: Value =
        serde_json::from_slice(&BASE64_STANDARD.decode(&annotation).unwrap()).unwrap();
    assert_eq!(
        json,
        json!({
            "id": base64(&[7; 16]), "expiry": "2026-01-01T00:05:00Z",
            "credentialBlob": base64(b"sealed"), "encryptedSecret": base64(b"seed"),
        })
    );
}

#[test]
fn an_annotation_without_a_valid_challenge_is_refused() {
    let valid = BASE64_STANDARD.decode(challenge().to_annotation()).unwrap();
    let valid: Value = serde_json::from_slice(&valid).unwrap();
    let read = |json: &Value| Challenge::parse(&BASE64_STANDARD.encode(json.to_string()));
    assert!(read(&valid).is_ok());

    let with = |field: &str, value: &str| {
        let mut json = valid.clone();
        json[field] = json!(value);
        read(&json)
    };
    let field = |result: Result<Challenge, InvalidChallenge>| match result {
        Err(InvalidChallenge::Field(field)) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(with("id", "AA==")).to_string(), NOT_AN_ID);
    assert_eq!(field(with("expiry", "soon")).to_string(), NOT_A_TIME);
    for name in ["credentialBlob", "encryptedSecret"] {
        let long = base64(&[1; MAX_STRUCTURE_LEN + 1]);
        assert_eq!(field(with(name, "")), not_a_structure(name));
        assert_eq!(field(with(name, &long)), not_a_structure(name));
    }
    assert!(matches!(with("more", ""), Err(InvalidChallenge::Json(_))));
    assert!(matches!(
        Challenge::parse("?"),
        Err(InvalidChallenge::Base64)
    ));
    let padded = |len: usize| BASE64_STANDARD.encode(format!("{:len$}", valid.to_string()));
    assert!(Challenge::parse(&padded(12_288)).is_ok());
    assert!(matches!(
        Challenge::parse(&padded(12_289)),
        Err(InvalidChallenge::Base64)
    ));
}
