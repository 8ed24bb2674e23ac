//! Tests of exempt Nodes whose machines are in the revocation list.

use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::NodeName;

use super::built_in::stock_renewal;
use crate::crd::{ExemptNodes, RevokedKey, RevokedNodeCredentialsSpec};
use crate::decide::*;
use crate::inventory::StaticInventory;
use crate::testing::cluster::machine;
use crate::testing::{cluster, decided, now};

/// A cluster in which this entry exempts the control-plane node `n1`.
fn exempting(entry: &str) -> Context {
    let mut machine = machine("m1", "n1", None);
    machine.control_plane = true;
    Context {
        exempt_nodes: [entry].iter().collect(),
        inventory: Arc::new(StaticInventory::new(vec![machine]).unwrap()),
        ..cluster()
    }
}

/// A list with one entry. The record with the revocation is lost.
fn list_with(provider_id: Option<&str>) -> RevokedNodeCredentialsSpec {
    let key = RevokedKey {
        node_name: "n1".to_owned(),
        generation: 7,
        provider_id: provider_id.map(str::to_owned),
        revoked_at: now(),
        until: now() + Duration::from_hours(1),
    };
    RevokedNodeCredentialsSpec {
        revoked_keys: [("0".repeat(64), key)].into(),
        ..RevokedNodeCredentialsSpec::default()
    }
}

#[test]
fn a_revoked_machine_without_a_record_gets_no_exempt_renewal() {
    for entry in ["n1", ExemptNodes::CONTROL_PLANE] {
        let cluster = exempting(entry);
        let revocations = cluster.ledger.revocations();

        revocations.read(list_with(Some("metal:///rack/m1")));

        let decision = decided(&stock_renewal(), &cluster);
        let Decision::Deny(denial) = decision else {
            panic!("{entry}: not denied: {decision:?}")
        };
        let n1 = NodeName::parse("n1").unwrap();
        assert_eq!(denial, Denial::IdentityRevoked(n1, 7), "{entry}");
    }
}

#[test]
fn a_released_or_another_machine_gets_an_exempt_renewal() {
    for revoked in [None, Some("metal:///rack/m2")] {
        let cluster = exempting(ExemptNodes::CONTROL_PLANE);
        cluster.ledger.revocations().read(list_with(revoked));

        let decision = decided(&stock_renewal(), &cluster);

        assert!(matches!(decision, Decision::Approve(_)), "{decision:?}");
    }
}
