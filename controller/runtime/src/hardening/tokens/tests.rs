mod former;
mod pools;

use k8s_openapi::ByteString;
use serde_json::json;

use super::*;

fn at(hours: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(hours * 3600).unwrap()).unwrap()
}

fn secret(kind: &str, expiration: Option<&str>) -> String {
    let expiration = expiration.map(|text| ByteString(text.as_bytes().to_vec()));
    let applied = r#"{"stringData":{"token-secret":"0123456789abcdef"}}"#;
    serde_json::json!({
        "metadata": {
            "name": "bootstrap-token-abcdef", "resourceVersion": "7",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied},
        },
        "type": kind,
        "data": {"expiration": expiration, "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg=="},
    })
    .to_string()
}

fn life(kind: &str, expiration: Option<&str>) -> Option<Life> {
    TokenSecret::parse(&secret(kind, expiration)).map(|(_, life)| life)
}

#[test]
fn the_labels_of_a_token_are_not_kept() {
    let mut text: Value = serde_json::from_str(&secret(SECRET_TYPE, None)).unwrap();
    text["metadata"]["labels"] = json!({EXTENDED: "true", "a": "b"});
    text["data"]["expiration"] = json!(ByteString(b"2026-01-01T00:00:00Z".to_vec()));

    let (token, life) = TokenSecret::parse(&text.to_string()).unwrap();

    assert!(matches!(life, Life::Extended(_)), "{life:?}");
    assert!(token.metadata.labels.is_none());
}

#[test]
fn a_token_is_extended_after_half_of_its_lifetime() {
    // The controller's token lifetime (TTL) is 6 hours.
    for (end, expected) in [
        (0, Some(16)),
        (11, Some(16)),
        (12, Some(16)),
        (13, None),
        (50, None),
    ] {
        let extended = Life::Ends(at(end)).extended(at(10));
        assert_eq!(extended, expected.map(at), "ends {end}");
    }
}

#[test]
fn a_token_without_an_expiry_gets_no_expiry() {
    let endless = life(SECRET_TYPE, None).unwrap();
    for now in [at(10), Timestamp::MAX] {
        assert_eq!(endless.extended(now), None);
    }
}

#[test]
fn a_secret_that_is_not_a_token_or_has_no_valid_expiry_is_ignored() {
    assert_eq!(life("Opaque", Some("2026-01-01T00:00:00Z")), None);
    assert_eq!(life(SECRET_TYPE, Some("tomorrow")), None);
    let no_base64 = r#"{"metadata":{"resourceVersion":"7"},"type":"bootstrap.kubernetes.io/token",
        "data":{"expiration":"?"}}"#;
    for text in [no_base64, "{}", ""] {
        assert!(TokenSecret::parse(text).is_none(), "{text}");
    }
}

#[test]
fn a_token_with_a_long_version_is_not_kept() {
    let mut text: Value =
        serde_json::from_str(&secret(SECRET_TYPE, Some("2026-01-01T00:00:00Z"))).unwrap();
    for (len, is_kept) in [(16 * 1024, true), (16 * 1024 + 1, false)] {
        text["metadata"]["resourceVersion"] = json!("7".repeat(len));
        let token = TokenSecret::parse(&text.to_string());
        assert_eq!(token.is_some(), is_kept, "{len}");
    }
}

#[test]
fn a_token_expiry_patch_is_rfc3339_and_has_the_resource_version() {
    let text = secret(SECRET_TYPE, Some("1970-01-01T01:00:00Z"));
    let (found, life) = TokenSecret::parse(&text).unwrap();
    assert_eq!(life, Life::Ends(at(1)));

    let patch = found.ending_at(at(2), true);

    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let written: ByteString = serde_json::from_value(patch["data"]["expiration"].clone()).unwrap();
    assert_eq!(written.0, b"1970-01-01T02:00:00Z");
}

#[test]
fn only_a_token_with_the_label_counts_as_extended_by_the_controller() {
    let mut labelled: Value =
        serde_json::from_str(&secret(SECRET_TYPE, Some("1970-01-01T01:00:00Z"))).unwrap();
    labelled["metadata"]["labels"] = json!({EXTENDED: "true"});

    let (_, life) = TokenSecret::parse(&labelled.to_string()).unwrap();

    assert_eq!(life, Life::Extended(at(1)));
}

#[test]
fn the_secret_part_of_a_token_is_not_kept() {
    let (found, _) = TokenSecret::parse(&secret(SECRET_TYPE, None)).unwrap();
    let shown = format!("{found:?}");
    for secret in ["MDEyMzQ1Njc4OWFiY2RlZg", "0123456789abcdef"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_missing_token_is_read_with_backoff_up_to_once_a_day() {
    let (mut life, mut waits) = (None, Vec::new());
    for _ in 0..12 {
        let begin = Duration::from_hours(1);
        let missing = Life::missing(life, begin);
        let Life::Missing { next, .. } = missing else {
            panic!("{missing:?}");
        };
        waits.push((next.as_secs() - begin.as_secs()) / 60);
        let second = Duration::from_secs(1);
        // The wall clock is first set back, and then set forward.
        for now in [at(0), at(1), Timestamp::MAX] {
            let before = next.saturating_sub(second);
            assert!(!missing.is_due(now, before, TTL) && missing.is_due(now, next, TTL));
        }
        life = Some(missing);
    }
    let doubled = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1440];
    assert_eq!(waits, doubled);
}

#[test]
fn a_token_counts_as_deleted_after_several_minutes() {
    let token = |id| TokenId::parse(id).unwrap();
    let mut tokens = Tokens::new(Duration::ZERO);
    let mut put = |id, life| {
        let unwanted_since = None;
        tokens.known.insert(
            token(id),
            Known {
                life,
                term: TTL,
                has_owner: true,
                unwanted_since,
            },
        );
    };
    put("aaaaaa", Life::Ends(at(1)));
    put("bbbbbb", Life::Extended(at(1)));
    let mut life = None;
    for id in ["cccccc", "dddddd", "eeeeee", "ffffff"] {
        life = Some(Life::missing(life, Duration::ZERO));
        put(id, life.unwrap());
    }

    assert_eq!(tokens.gone(), [&token("ffffff")].into());
}

#[test]
fn a_hostile_value_in_an_unread_field_does_not_hide_a_token() {
    let good: Value =
        serde_json::from_str(&secret(SECRET_TYPE, Some("2026-01-01T00:00:00Z"))).unwrap();
    for value in crate::testing::hostile_values() {
        for place in [
            "",
            "/metadata",
            "/metadata/annotations",
            "/metadata/labels",
            "/data",
        ] {
            let mut hostile = good.clone();
            hostile["metadata"]["labels"] = json!({EXTENDED: "true"});
            let fields = hostile.pointer_mut(place).and_then(Value::as_object_mut);
            fields.unwrap().insert("unread".to_owned(), value.clone());
            let read = TokenSecret::parse(&hostile.to_string());
            assert!(matches!(read, Some((_, Life::Extended(_)))), "{place}");
        }
    }
}
