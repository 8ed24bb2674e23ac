use serde_json::{Value, json};

use super::*;

fn valid() -> Value {
    json!({
        "version": "v1", "audience": "prod", "rsa2048": "MIAG\nCSqG",
        "sts": {
            "region": "eu-west-1", "accessKeyId": "ASIA0123456789ABCDEF",
            "sessionToken": "IQoJb3JpZ2luX2Vj+/=", "amzDate": "20260101T000000Z",
            "signature": "0123456789abcdef".repeat(4),
        },
    })
}

fn parsed(evidence: &Value) -> Result<AwsEvidence, InvalidEvidence> {
    AwsEvidence::parse(evidence.to_string().as_bytes())
}

#[test]
fn evidence_is_unchanged_after_a_round_trip() {
    let evidence = parsed(&valid()).unwrap();

    assert_eq!(AwsEvidence::parse(&evidence.to_json()).unwrap(), evidence);
    assert_eq!(
        serde_json::from_slice::<Value>(&evidence.to_json()).unwrap(),
        valid()
    );
}

#[test]
fn a_parsed_proof_contains_all_its_fields() {
    let proof = parsed(&valid()).unwrap().sts;

    let signature = "0123456789abcdef".repeat(4);
    assert_eq!(proof.region, "eu-west-1");
    assert_eq!(proof.access_key_id, "ASIA0123456789ABCDEF");
    assert_eq!(proof.session_token, "IQoJb3JpZ2luX2Vj+/=");
    assert_eq!(proof.amz_date, "20260101T000000Z");
    assert_eq!(proof.signature, signature);
    let same = Proof::new(ProofFields {
        region: "eu-west-1".to_owned(),
        access_key_id: "ASIA0123456789ABCDEF".to_owned(),
        session_token: "IQoJb3JpZ2luX2Vj+/=".to_owned(),
        amz_date: "20260101T000000Z".to_owned(),
        signature,
    });
    assert_eq!(same, Ok(proof));
}

#[test]
fn the_longest_region_and_session_token_are_read() {
    let longest = [
        ("region", format!("{}-west-12", "a".repeat(24))),
        ("sessionToken", "a".repeat(4096)),
    ];
    for (field, value) in longest {
        let mut evidence = valid();
        evidence["sts"][field] = json!(value);

        assert!(parsed(&evidence).is_ok(), "{field}");
    }
}

#[test]
fn the_error_for_a_malformed_field_names_it() {
    let long_region = format!("{}-west-12", "a".repeat(25));
    let digits = "0123456789abcdef".repeat(4);
    for (field, value, expected) in [
        (
            "region",
            "eu-west-1.evil.example/",
            "sts.region is not a valid region name",
        ),
        (
            "region",
            "eu-west-",
            "sts.region is not a valid region name",
        ),
        ("region", "west-1", "sts.region is not a valid region name"),
        (
            "region",
            "EU-west-1",
            "sts.region is not a valid region name",
        ),
        ("region", "", "sts.region is not a valid region name"),
        (
            "region",
            &long_region,
            "sts.region is not a valid region name",
        ),
        (
            "accessKeyId",
            "AKIA0123456789ABCDEF",
            "sts.accessKeyId does not belong to temporary credentials",
        ),
        (
            "accessKeyId",
            "ASIA0123456789ABCDE",
            "sts.accessKeyId does not belong to temporary credentials",
        ),
        (
            "accessKeyId",
            "ASIA0123456789ABCDEf",
            "sts.accessKeyId does not belong to temporary credentials",
        ),
        (
            "sessionToken",
            "",
            "sts.sessionToken is not a valid session token",
        ),
        (
            "sessionToken",
            "a\r\nx-evil: 1",
            "sts.sessionToken is not a valid session token",
        ),
        (
            "sessionToken",
            &"a".repeat(4097),
            "sts.sessionToken is not a valid session token",
        ),
        (
            "amzDate",
            "20260101T000000",
            "invalid sts.amzDate (want YYYYMMDDTHHMMSSZ)",
        ),
        (
            "amzDate",
            "2026-01-01T00:00Z",
            "invalid sts.amzDate (want YYYYMMDDTHHMMSSZ)",
        ),
        (
            "signature",
            digits.trim_start_matches('0'),
            "sts.signature is not 64 lower-case hexadecimal digits",
        ),
        (
            "signature",
            &digits.to_uppercase(),
            "sts.signature is not 64 lower-case hexadecimal digits",
        ),
    ] {
        let mut evidence = valid();
        evidence["sts"][field] = json!(value);

        let error = parsed(&evidence).unwrap_err();
        assert_eq!(error.to_string(), expected, "{field} {value}");
    }
}

#[test]
fn unknown_missing_and_repeated_fields_are_refused() {
    let mut unknown = valid();
    unknown["document"] = json!("{}");
    let mut unknown_in_proof = valid();
    unknown_in_proof["sts"]["url"] = json!("https://sts.evil.example/");
    let mut missing = valid();
    missing["sts"].as_object_mut().unwrap().remove("signature");
    for evidence in [unknown, unknown_in_proof, missing] {
        assert!(matches!(parsed(&evidence), Err(InvalidEvidence::Json(_))));
    }
    let text = valid().to_string();
    let twice = text.replacen("\"region\"", "\"region\":\"us-east-1\",\"region\"", 1);
    assert!(matches!(
        AwsEvidence::parse(twice.as_bytes()),
        Err(InvalidEvidence::Json(_))
    ));
}

#[test]
fn debug_output_contains_no_credential() {
    let shown = format!("{:?}", parsed(&valid()).unwrap());

    for secret in ["ASIA", "IQoJ", "0123456789abcdef"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    assert!(shown.contains("eu-west-1"));
}
