//! Tests of keys whose certificates were revoked.

use crate::ledger::*;
use crate::refusal::Denial;
use crate::testing::records::{World, claim, insecure, opened_at, policy};

#[test]
fn only_a_new_key_opens_a_generation_after_a_revocation() {
    let evidence: [fn(Claim) -> Claim; 2] = [|claim| claim, insecure];
    for claim_of in evidence {
        let world = World::with(policy());
        world.claims(&claim_of(claim("m1", "n1", 1, 0)), 0).unwrap();
        world.revoke("n1", 1);
        world.reset("n1");

        assert!(matches!(
            world.denied(&claim_of(claim("m1", "n1", 1, 2)), 2),
            Denial::IdentityRevoked(_, 1)
        ));
        assert_eq!(
            world.granted(&claim_of(claim("m1", "n1", 2, 2)), 2),
            opened_at(2)
        );
    }
}
