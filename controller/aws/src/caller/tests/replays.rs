//! C11: a signature that was seen before.

use super::super::replay::{Sighting, Signatures};
use super::super::request::{Call, rebuild};
use super::fixture::*;

#[tokio::test]
async fn c11_a_signature_that_was_confirmed_for_another_key_is_a_replay() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    bed.show(&proof, &node).await.unwrap();
    let attacker = Node {
        spki: b"the attacker's key".to_vec(),
        ..node.clone()
    };

    let denied = denial(bed.show(&proof, &attacker).await);

    assert_eq!(denied, AwsDenial::EvidenceReplayed);
    assert_eq!(bed.outcomes(), ["OK"], "nobody was asked");
}

#[tokio::test]
async fn c11_the_same_signature_for_the_same_key_is_our_own_retry_and_costs_no_call() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let first = bed.show(&proof, &node).await.unwrap();

    let later = now() + minutes(13);
    let second = bed.show_at(&proof, &node, now(), later).await.unwrap();

    assert_eq!(first, second);
    assert_eq!(bed.outcomes(), ["OK"]);
    let late = now() + minutes(15);
    assert_expired(&bed.show_at(&proof, &node, now(), late).await);
}

#[tokio::test]
async fn c11_the_same_key_with_other_claims_is_for_sts_to_refuse() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    bed.show(&proof, &node).await.unwrap();
    let mut renamed = node;
    renamed.document.digest = [8; 32];

    assert_eq!(denial(bed.show(&proof, &renamed).await), mismatch());
    assert_eq!(bed.outcomes(), ["OK", "SignatureDoesNotMatch"]);
}

#[tokio::test]
async fn c11_a_copy_that_comes_first_is_refused_and_spoils_nothing() {
    let bed = Bed::start();
    let node = bed.instance();
    let proof = node.proof();
    let attacker = Node {
        spki: b"the attacker's key".to_vec(),
        ..node.clone()
    };

    assert_eq!(denial(bed.show(&proof, &attacker).await), mismatch());

    bed.show(&proof, &node).await.unwrap();
}

/// A caller as STS confirmed it, and a call of it with this key.
fn confirmed(node: &Node) -> (Call, KeyDigest) {
    let host = EndpointHost::sts(REGION).unwrap();
    let call = rebuild(&node.proof(), &node.binding(), &host).unwrap();
    (call, KeyDigest::of(&node.spki))
}

#[tokio::test]
async fn a_full_memory_makes_requests_wait_and_forgets_nothing_early() {
    let bed = Bed::start();
    let node = bed.instance();
    let caller = bed.verify(&node).await.unwrap();
    let other_instance = bed.node(Principal::instance(ACCOUNT, OTHER_INSTANCE));
    let until = now() + minutes(15);
    let signed = |second: usize| {
        let mut node = node.clone();
        node.date = format!("20260101T1200{second:02}Z");
        confirmed(&node)
    };
    for (all, of_instance) in [(2, 9), (9, 2)] {
        let memory = Signatures::with_limits(all, of_instance);
        for second in [1, 2] {
            let (call, key) = signed(second);
            assert_eq!(memory.look(&call, &key, INSTANCE, now()), Sighting::New);
            let remembered = memory.remember(&call, key, &caller, until);
            assert_eq!(remembered, Sighting::New);
        }
        let (third, key) = signed(3);

        assert_eq!(memory.look(&third, &key, INSTANCE, now()), Sighting::Full);
        assert_eq!(memory.remember(&third, key, &caller, until), Sighting::Full);

        // Another instance waits only where there is no room at all.
        let (call, key) = confirmed(&other_instance);
        let expected = if all == 2 {
            Sighting::Full
        } else {
            Sighting::New
        };
        assert_eq!(memory.look(&call, &key, OTHER_INSTANCE, now()), expected);

        // What is there is still known, for its key and for another.
        let (first, key) = signed(1);
        let known = memory.look(&first, &key, INSTANCE, until);
        assert_eq!(known, Sighting::Confirmed(caller.clone()));
        let other = KeyDigest::of(b"another");
        let known = memory.look(&first, &other, INSTANCE, until);
        assert_eq!(known, Sighting::AnotherKey);
        assert_eq!(
            memory.remember(&first, other, &caller, until),
            Sighting::AnotherKey
        );

        // After its time there is room again.
        let after = until + Duration::from_secs(1);
        let (third, key) = signed(3);
        assert_eq!(memory.look(&third, &key, INSTANCE, after), Sighting::New);
        assert_eq!(memory.remember(&third, key, &caller, after), Sighting::New);
    }
}

#[tokio::test]
async fn a_request_waits_while_there_is_no_room_to_remember_it() {
    let mut bed = Bed::start();
    bed.verifier.signatures = Signatures::with_limits(0, 1);
    let node = bed.instance();

    let words = outage(bed.verify(&node).await);

    assert!(words.contains("too many signatures"), "{words}");
    assert_eq!(bed.outcomes(), [""; 0]);
}
