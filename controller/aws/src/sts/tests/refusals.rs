//! The refusal cache, at its limit and when its entries expire.

use hyper::Request;
use node_attestation_runtime::shared::Lock;
use node_attestation_runtime::shared::testing::most_visited;
use sha2::{Digest as _, Sha256};
use tokio::time::advance;

use super::super::refusal_cache::{MAX_REFUSED, Refused};
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
    let remember = |number: usize| memory.remember(&refusal, &call(number), &proof, document);
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
    // The first one only makes room.
    remember(MAX_REFUSED);
    assert!(!is_known(MAX_REFUSED));
    remember(MAX_REFUSED);
    assert!(is_known(MAX_REFUSED));
}

#[tokio::test]
async fn the_lookup_of_a_cached_refusal_visits_few_others() {
    let node = Bed::start().instance();
    let (proof, refused) = (node.proof(), Refused::default());
    let refusal = Refusal::from(mismatch());
    let refuse = |number: usize| {
        refused.remember(&refusal, &call(number), &proof, &node.document);
        refused.look(&call(number), &proof, &node.document)
    };
    (0..5000).for_each(|number| drop(refuse(number)));

    let visited = most_visited(|| assert_eq!(refuse(0), Some(mismatch())));

    assert!(visited[&Lock::StsRefusals] <= 64, "{visited:?}");
}
