//! Tests of the turns for the signatures of a service.

use std::pin::pin;
use std::time::Duration;

use futures::executor::block_on;
use futures::future::FutureExt as _;
use node_attestation_core::decide::{Context, Decision, decide};
use node_attestation_core::testing::{cluster, now, valid};

use super::*;
use crate::turns::calculations;

#[test]
fn a_service_signs_in_the_turns_of_its_cluster() {
    let mut world = world();
    world.authentication.metadata.namespace = Some("signs".to_owned());
    let signer = world.plan().unwrap().unwrap().configuration.signer;
    let context = Context {
        signer,
        ..cluster()
    };
    let request = valid();
    let line = calculations(&ObjectKey::new("signs", "prod-1"));
    let turn = block_on(line.turn());
    let mut decided = pin!(decide(&request, &context, now(), || Duration::ZERO));

    for _ in 0..10 {
        assert!(decided.as_mut().now_or_never().is_none());
    }
    drop(turn);
    let decision = block_on(decided).decision;

    assert!(matches!(decision, Decision::Issue(_)), "{decision:?}");
}
