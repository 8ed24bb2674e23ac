//! Tests for C10: the age according to the controller's clock, and according to messages from STS.

use super::fixture::*;

#[tokio::test]
async fn expired_evidence_is_not_sent_to_sts() {
    let bed = Bed::start();
    let node = bed.instance();
    let late = now() + minutes(14) + Duration::from_secs(1);

    assert_expired(&bed.show_at(&node.proof(), &node, now(), late).await);
    assert_expired(&bed.show_at(&node.proof(), &node, late, now()).await);
    assert_expired(
        &bed.show_at(
            &node.proof(),
            &node,
            now() - minutes(16),
            now() - minutes(16),
        )
        .await,
    );
    assert_eq!(bed.outcomes(), [""; 0]);

    let last = now() + minutes(14);
    bed.show_at(&node.proof(), &node, now(), last)
        .await
        .unwrap();
    assert_eq!(bed.outcomes(), ["OK"]);
}

#[tokio::test]
async fn an_age_error_from_sts_is_not_a_denial() {
    let bed = Bed::start();
    let node = bed.instance();

    // A controller whose clock is 15 minutes slow does not detect the age, but STS detects it.
    bed.service.stop_clock(now() + minutes(16));
    assert_expired(&bed.verify(&node).await);

    // The node's clock and the controller's clock are both fast by this time.
    bed.service.stop_clock(now() - minutes(16));
    assert_expired(&bed.verify(&node).await);
    assert_eq!(
        bed.outcomes(),
        ["SignatureDoesNotMatch", "SignatureDoesNotMatch"]
    );

    bed.service.stop_clock(now());
    bed.verify(&node).await.unwrap();
}

#[tokio::test]
async fn credentials_that_expire_before_the_sts_call_are_not_denied() {
    let bed = Bed::start();
    let mut node = bed.instance();
    let principal = Principal::instance(ACCOUNT, INSTANCE);
    node.credentials = bed.service.credentials_until(principal, now());

    assert_expired(&bed.verify(&node).await);
    assert_eq!(bed.outcomes(), ["ExpiredToken"]);
}

#[tokio::test]
async fn a_clock_skew_of_10_minutes_is_accepted() {
    let early = now() - minutes(10);
    let late = now() + minutes(10);
    // Change the clocks of the API server, of the controller and of STS, one after the other.
    for (asked, ours, of_sts) in [
        (early, now(), now()),
        (late, now(), now()),
        (now(), early, now()),
        (now(), late, now()),
        (now(), now(), early),
        (now(), now(), late),
    ] {
        let bed = Bed::start();
        let node = bed.instance();
        bed.service.stop_clock(of_sts);

        bed.show_at(&node.proof(), &node, asked, ours)
            .await
            .unwrap();
    }
    // The date comes from the node's clock.
    for date in ["20260101T115000Z", "20260101T121000Z"] {
        let bed = Bed::start();
        let mut node = bed.instance();
        date.clone_into(&mut node.date);

        bed.verify(&node).await.unwrap();
    }
}
