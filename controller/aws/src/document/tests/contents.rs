//! Tests for row B11: signed documents with content that AWS does not write.

use std::sync::LazyLock;

use super::{REGION, SIGNER, SIGNERS, document, verify_bytes};
use crate::denial::AwsDenial;

/// A zone that is longer than 64 characters.
static LONG_ZONE: LazyLock<String> = LazyLock::new(|| format!("{REGION}-{}", "a".repeat(55)));

fn malformed(detail: &str) -> AwsDenial {
    AwsDenial::DocumentMalformed(detail.into())
}

/// The result for the valid document after `from` is replaced with `to`.
fn replaced(from: &str, to: &str) -> Result<(), AwsDenial> {
    let json = document().to_json();
    assert!(json.contains(from), "{from}");
    verify_bytes(&json.replacen(from, to, 1)).map(|_| ())
}

fn denied(from: &str, to: &str) -> AwsDenial {
    replaced(from, to).unwrap_err()
}

#[test]
fn a_repeated_name_is_denied() {
    for (name, value) in [
        ("instanceId", "i-0fedcba9876543210"),
        ("region", REGION),
        ("anything", "x"),
    ] {
        let members = format!("{{\n  \"{name}\" : \"{value}\",\n  \"{name}\" : \"{value}\",");
        let AwsDenial::DocumentMalformed(detail) = denied("{", &members) else {
            panic!("{name}");
        };
        assert!(
            detail.starts_with("not a JSON object with unique names"),
            "{detail}"
        );
    }
}

#[test]
fn a_document_that_is_not_a_json_object_is_denied() {
    let valid = document().to_json();
    for document in [
        String::new(),
        "[]".into(),
        "null".into(),
        format!("{valid}{valid}"),
        format!("{valid}x"),
        valid.strip_suffix('}').unwrap().into(),
        format!("\u{feff}{valid}"),
    ] {
        let Err(AwsDenial::DocumentMalformed(detail)) = verify_bytes(&document) else {
            panic!("{document}");
        };
        assert!(
            detail.starts_with("not a JSON object with unique names"),
            "{detail}"
        );
    }
}

#[test]
fn an_unknown_version_is_denied() {
    assert_eq!(
        denied("2017-09-30", "2031-01-01"),
        malformed("its version is unknown")
    );
    assert_eq!(replaced("2017-09-30", "2010-08-31"), Ok(()));
}

#[test]
fn only_a_version_that_the_operator_adds_is_also_accepted() {
    let signers = SIGNERS.clone().with_versions(&["2031-01-01".to_owned()]);
    for (version, is_accepted) in [
        ("2031-01-01", true),
        ("2031-01-02", false),
        ("2031-01-0", false),
        ("", false),
        ("2017-09-30", true),
        ("2010-08-31", true),
    ] {
        let json = document().to_json().replacen("2017-09-30", version, 1);
        let verified = signers.verify(&SIGNER.message(json.as_bytes()).to_base64());
        let expected = if is_accepted {
            Ok(())
        } else {
            Err(malformed("its version is unknown"))
        };
        assert_eq!(verified.map(drop), expected, "{version}");
    }
}

#[test]
fn missing_fields_and_wrong_types_are_denied() {
    for name in [
        "accountId",
        "availabilityZone",
        "instanceId",
        "pendingTime",
        "region",
        "version",
    ] {
        let there = format!("\"{name}\"");
        assert_eq!(
            denied(&there, "\"another\""),
            malformed(&format!("{name} is missing"))
        );
        for value in ["null", "7", "[]", "{}"] {
            let members = format!("\"{name}\" : {value}, \"another\"");
            assert_eq!(
                denied(&there, &members),
                malformed(&format!("{name} is not a string"))
            );
        }
    }
}

#[test]
fn malformed_document_fields_are_denied() {
    let other_forms = [
        (
            "accountId",
            "123456789012",
            vec!["", "12345678901", "1234567890123", "12345678901a"],
        ),
        (
            "instanceId",
            "i-0123456789abcdef0",
            vec![
                "",
                "i-",
                "i-0123456",
                "i-0123456789abcdef01",
                "i-0123456789ABCDEF0",
                "m-0123456789abcdef0",
                "0123456789abcdef0",
            ],
        ),
        (
            "availabilityZone",
            "eu-west-1a",
            vec![
                "",
                "eu-west-1",
                "eu-west-2a",
                "eu-west-1A",
                "eu-west-11a",
                "eu-west-1-",
                "eu-west-1-/..",
                &LONG_ZONE,
                "a",
            ],
        ),
        (
            "region",
            "eu-west-1\"",
            vec!["\"", "eu-west\"", "eu-west-1.example\"", "EU-WEST-1\""],
        ),
        (
            "pendingTime",
            "2026-01-01T00:00:00Z",
            vec![
                "",
                "2026-01-01",
                "2026-13-01T00:00:00Z",
                "now",
                "1767225600",
            ],
        ),
    ];
    for (name, valid, others) in other_forms {
        for other in others {
            assert_eq!(
                denied(valid, other),
                malformed(&format!("{name} has an invalid format")),
                "{other}"
            );
        }
    }
}

#[test]
fn local_and_wavelength_zones_belong_to_their_region() {
    assert_eq!(LONG_ZONE.len(), 65, "it is denied");
    let longest = LONG_ZONE.strip_suffix('a').unwrap();
    for zone in ["eu-west-1-lhr-1a", "eu-west-1-wl1-lon-wlz-1", longest] {
        let json = document().to_json().replace("eu-west-1a", zone);
        assert_eq!(verify_bytes(&json).unwrap().availability_zone, zone);
    }
}

#[test]
fn unused_document_fields_can_change_and_new_fields_are_accepted() {
    for (from, to) in [
        ("\"10.0.0.209\"", "null"),
        ("\"privateIp\"", "\"ipv6\""),
        ("\"t3.medium\"", "[ 7 ]"),
        ("{", "{ \"newField\" : { \"a\" : 1 },"),
    ] {
        assert_eq!(replaced(from, to), Ok(()), "{to}");
    }
}

#[test]
fn short_instance_ids_are_accepted() {
    assert_eq!(replaced("i-0123456789abcdef0", "i-01234567"), Ok(()));
}
