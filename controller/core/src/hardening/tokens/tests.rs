use super::*;

fn at(hours: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(hours * 3600).unwrap()).unwrap()
}

fn secret(kind: &str, expiration: Option<&str>) -> TokenSecret {
    let expiration = expiration.map(|text| ByteString(text.as_bytes().to_vec()));
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "bootstrap-token-abcdef", "resourceVersion": "7"},
        "type": kind,
        "data": {"expiration": expiration, "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg=="},
    }))
    .unwrap()
}

#[test]
fn a_token_is_extended_once_half_of_its_time_has_passed() {
    // TTL is six hours.
    for (end, until, expected) in [
        (0, 100, Some(16)),
        (11, 100, Some(16)),
        (12, 100, Some(16)),
        (13, 100, None),
        (50, 100, None),
        (12, 14, Some(14)),
        (12, 12, None),
        (12, 11, None),
    ] {
        let extended = Life::Ends(at(end)).extended(at(until), at(10));
        assert_eq!(
            extended,
            expected.map(at),
            "ends {end}, wanted until {until}"
        );
    }
}

#[test]
fn a_token_without_an_end_gets_none() {
    assert_eq!(Life::Endless.extended(at(100), at(10)), None);
    let secret = secret(SECRET_TYPE, None);
    assert_eq!(secret.life(), Some(Life::Endless));
}

#[test]
fn what_is_no_token_or_ends_at_no_time_is_not_touched() {
    let opaque = secret("Opaque", Some("2026-01-01T00:00:00Z"));
    assert_eq!(opaque.life(), None);
    assert_eq!(secret(SECRET_TYPE, Some("tomorrow")).life(), None);
}

#[test]
fn the_end_is_written_as_kubernetes_reads_it_and_over_what_was_read_only() {
    let found = secret(SECRET_TYPE, Some("1970-01-01T01:00:00Z"));
    assert_eq!(found.life(), Some(Life::Ends(at(1))));

    let patch = found.ending(at(2));

    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let written: ByteString = serde_json::from_value(patch["data"]["expiration"].clone()).unwrap();
    assert_eq!(written.0, b"1970-01-01T02:00:00Z");
}

#[test]
fn the_secret_half_is_not_kept() {
    let shown = format!("{:?}", secret(SECRET_TYPE, None));
    assert!(!shown.contains("MDEyMzQ1Njc4OWFiY2RlZg"), "{shown}");
    assert!(!shown.contains("token-secret"), "{shown}");
}
