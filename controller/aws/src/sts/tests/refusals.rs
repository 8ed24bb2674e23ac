//! Tests of the refusal cache at its limit, and of the expiry of its entries.

use hyper::Request;
use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;
use sha2::{Digest as _, Sha256};
use tokio::time::advance;

use super::super::refusal_cache::{MAX_OF_NAMESPACE, MAX_REFUSED, Refused};
use super::super::request::Call;
use super::fixture::*;

fn call(number: usize) -> Call {
    Call {
        request: Request::new(""),
        signature: Sha256::digest(number.to_be_bytes()).into(),
        content: [7; 32],
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_refusal_cache_keeps_each_refusal_until_it_expires() {
    let node = Bed::start().instance();
    let (proof, document) = (node.proof(), &node.document);
    let memory = Refused::default();
    let refusal = Refusal::from(mismatch());
    // No namespace is at its limit before the cache is full.
    let remember = |number: usize| {
        let namespace = format!("tenant-{number}");
        memory.remember(&namespace, &refusal, &call(number), &proof, document);
    };
    let is_known = |number: usize| {
        let known = memory.look(&call(number), &proof, document);
        assert!(known.is_none() || known == Some(mismatch()));
        known.is_some()
    };

    (0..MAX_REFUSED).for_each(remember);
    advance(Duration::from_secs(59)).await;
    remember(MAX_REFUSED);

    assert!((0..MAX_REFUSED).all(is_known));
    assert!(!is_known(MAX_REFUSED), "it is full");
    advance(Duration::from_secs(1)).await;
    assert!(!(0..MAX_REFUSED).any(is_known));
    // After the first entry is removed, there is space for only one new entry.
    remember(MAX_REFUSED);
    assert!(!is_known(MAX_REFUSED));
    remember(MAX_REFUSED);
    assert!(is_known(MAX_REFUSED));
}

#[tokio::test(start_paused = true)]
async fn refusals_of_one_namespace_leave_room_for_other_namespaces() {
    let node = Bed::start().instance();
    let (proof, document) = (node.proof(), &node.document);
    let memory = Refused::default();
    let refusal = Refusal::from(mismatch());
    let remember = |namespace: &str, number: usize| {
        memory.remember(namespace, &refusal, &call(number), &proof, document);
        memory.look(&call(number), &proof, document)
    };
    for number in 0..MAX_OF_NAMESPACE {
        assert_eq!(remember("tenant-a", number), Some(mismatch()));
    }

    for number in MAX_OF_NAMESPACE..2 * MAX_REFUSED {
        assert_eq!(remember("tenant-a", number), None);
    }
    assert_eq!(remember("tenant-b", 2 * MAX_REFUSED), Some(mismatch()));

    // The expired refusals of the namespace make room for its other refusals.
    advance(Duration::from_mins(1)).await;
    let all = (0..MAX_OF_NAMESPACE).filter(|number| remember("tenant-a", *number).is_some());
    assert!(all.count() > MAX_OF_NAMESPACE / 2);
}

#[tokio::test(start_paused = true)]
async fn refusals_of_many_namespaces_leave_room_for_another() {
    let node = Bed::start().instance();
    let (proof, document) = (node.proof(), &node.document);
    let memory = Refused::default();
    let refusal = Refusal::from(mismatch());
    let remember = |namespace: &str, number: usize| {
        memory.remember(namespace, &refusal, &call(number), &proof, document);
        memory.look(&call(number), &proof, document)
    };
    for number in 0..2 * MAX_REFUSED {
        let namespace = format!("tenant-{}", number / MAX_OF_NAMESPACE);
        remember(&namespace, number);
    }

    assert_eq!(remember("another", 2 * MAX_REFUSED), Some(mismatch()));
}

#[tokio::test]
async fn the_lookup_of_a_cached_refusal_visits_few_others() {
    let node = Bed::start().instance();
    let (proof, refused) = (node.proof(), Refused::default());
    let refusal = Refusal::from(mismatch());
    let refuse = |number: usize| {
        refused.remember("tenant-a", &refusal, &call(number), &proof, &node.document);
        refused.look(&call(number), &proof, &node.document)
    };
    (0..5000).for_each(|number| drop(refuse(number)));

    let visited = most_visited(|| assert_eq!(refuse(0), Some(mismatch())));

    assert!(visited[&Lock::StsRefusals] <= 64, "{visited:?}");
}
