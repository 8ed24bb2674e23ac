//! Tests of the limit on concurrent signatures with CA keys.

use futures::executor::block_on;
use futures::future::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use node_attestation_core::decide::{Context, Decision, decide};
use node_attestation_core::testing::{cluster, now, valid};

use super::*;
use crate::object_key::ObjectKey;
use crate::turns::{CALCULATIONS, FairTurns, SigningTurns};

#[test]
fn ca_signatures_take_turns_by_namespace() {
    let secret = secret_of(&ca());
    let turns = FairTurns::new(CALCULATIONS);
    let keys = (0..9).map(|number| ObjectKey::new("a", number.to_string()));
    let clusters = keys.chain([ObjectKey::new("b", "1")]).map(|key| {
        let line = turns.line(&key);
        let ca = ClusterCa::in_turns(&secret, Arc::new(SigningTurns(line.clone()))).unwrap();
        let context = Context {
            signer: ca.signer().unwrap().clone(),
            ..cluster()
        };
        (key.namespace, line, context)
    });
    let clusters: Vec<_> = clusters.collect();
    // No turn is free while the requests arrive.
    let first = [0, 9].map(|index| clusters[index].1.try_turn().unwrap());
    let request = valid();
    let decisions = clusters.iter().map(|(namespace, _, context)| {
        let decided = decide(&request, context, now(), || Duration::ZERO).boxed();
        decided.map(move |decided| (namespace.as_str(), decided.decision))
    });
    let mut decisions: FuturesUnordered<_> = decisions.collect();
    // Loops until all requests wait.
    for _ in 0..100 {
        assert!(decisions.next().now_or_never().is_none());
    }

    drop(first);
    let decided: Vec<_> = block_on(decisions.collect());

    let all = decided.iter();
    let issued = all.filter(|(_, decision)| matches!(decision, Decision::Issue(_)));
    assert_eq!(issued.count(), 10);
    let at = decided.iter().position(|(namespace, _)| *namespace == "b");
    assert!(at.is_some_and(|at| at <= 2), "{at:?}");
}
