//! Tests of the bootstrap tokens of pools.

use super::*;

/// Lifetimes that a bootstrap provider can set for its tokens.
fn lifetimes() -> [Duration; 7] {
    let days = |days: u64| Duration::from_hours(24 * days);
    [
        Duration::from_mins(3),
        Duration::from_mins(15),
        Duration::from_hours(6),
        days(1),
        days(2),
        days(7),
        days(90),
    ]
}

fn plus(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap()
}

/// The Secret of a token that has this expiry time and this label.
fn with_label(end: Timestamp, label: Option<&str>) -> String {
    let mut text: Value =
        serde_json::from_str(&secret(SECRET_TYPE, Some(&end.to_string()))).unwrap();
    text["metadata"]["labels"] = json!({EXTENDED: label});
    text.to_string()
}

/// The expiry time and the label after the controller processes a pool's token at `now`. `None` if the Secret does not
/// change.
fn looked_at(text: &str, now: Timestamp) -> Option<(Timestamp, String)> {
    let (found, life) = TokenSecret::parse(text).unwrap();
    let term = found.pool_term(life, now);
    let end = life.extended_of_pool(now, term)?;
    let patch = found.ending_of_pool(end, term);
    let label = patch["metadata"]["labels"][EXTENDED].as_str().unwrap();
    Some((end, label.to_owned()))
}

#[test]
fn a_pool_token_is_never_replaced_by_the_bootstrap_provider() {
    for lifetime in lifetimes() {
        // The bootstrap provider replaces the token when less than half of its own lifetime is left.
        let is_replaced = |end: Timestamp, now: Timestamp| end < plus(now, lifetime / 2);
        for passed in [Duration::ZERO, lifetime / 3] {
            let mut now = plus(at(1000), passed);
            let mut end = plus(at(1000), lifetime);
            assert!(!is_replaced(end, now), "{lifetime:?}");
            let (extended, mut label) = looked_at(&with_label(end, None), now).unwrap();
            assert!(extended > end, "{lifetime:?}");
            end = extended;
            for round in 0..2000 {
                now = plus(now, Duration::from_hours(1));
                if let Some(extended) = looked_at(&with_label(end, Some(&label)), now) {
                    (end, label) = extended;
                }
                assert!(!is_replaced(end, now), "{lifetime:?} {round}");
            }
        }
    }
}

#[test]
fn a_pool_token_is_written_once_a_day_at_most() {
    let (mut end, mut label) = looked_at(
        &with_label(plus(at(0), Duration::from_mins(15)), None),
        at(0),
    )
    .unwrap();
    assert_eq!((end, &*label), (at(48), "48"));
    let mut writes = Vec::new();
    for hour in 1..100 {
        if let Some(extended) = looked_at(&with_label(end, Some(&label)), at(hour)) {
            (end, label) = extended;
            writes.push(hour);
        }
    }
    assert_eq!(writes, [25, 50, 75]);
}

#[test]
fn an_expired_pool_token_stays_expired() {
    for label in [None, Some("true"), Some("48")] {
        for end in [0, 9, 10] {
            assert_eq!(looked_at(&with_label(at(end), label), at(10)), None);
        }
        assert!(looked_at(&with_label(at(11), label), at(10)).is_some());
    }
}

#[test]
fn a_pool_token_without_an_expiry_gets_no_expiry() {
    assert_eq!(looked_at(&secret(SECRET_TYPE, None), at(10)), None);
}

#[test]
fn a_hostile_label_does_not_extend_a_pool_token_beyond_a_year() {
    let label = u32::MAX.to_string();
    let (end, _) = looked_at(&with_label(at(11), Some(&label)), at(10)).unwrap();

    assert_eq!(end, plus(at(10), Duration::from_hours(365 * 24)));
}

#[test]
fn an_extended_token_that_is_no_longer_of_a_pool_can_be_expired() {
    for (end, label, is_ours) in [
        (at(58), Some("48"), true),
        (at(59), Some("48"), false),
        (at(16), Some("true"), true),
        (at(17), Some("true"), false),
        (at(16), None, true),
    ] {
        let (found, _) = TokenSecret::parse(&with_label(end, label)).unwrap();
        assert_eq!(end <= found.latest_end(at(10)), is_ours, "{label:?}");
    }
}
