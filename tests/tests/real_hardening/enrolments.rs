//! Tests of a machine that enrolls often: none of its earlier certificates becomes valid again.

use std::sync::Arc;
use std::time::Duration;

use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_authenticator_test_support::control_plane::Controllers;
use node_attestation_core::crd::RevokedNodeCredentialsSpec;
use node_attestation_core::identifiers::{CertificateUid, KeyDigest};
use node_attestation_core::inventory::{Machine, StaticInventory};
use node_attestation_core::ledger::{
    Claim, Claimant, LedgerPolicy, RecordLedger, RequestRef, Revocations,
};
use node_attestation_core::verifier::{Assurance, AttestedIdentity, Identity};
use node_attestation_runtime::hardening::revocation;

use crate::bed::{Bed, assert_done, assert_refused};
use crate::revocation::{add_node, label, now, wait_until, week};

#[test]
fn after_40_enrollments_only_the_newest_certificate_can_write() {
    const NODE: &str = "enrolled-often";
    let bed = &Bed::start(Controllers::None, &[]);
    add_node(&bed.cluster, NODE);
    let world = EnrolledOften::new(NODE);
    let mut granted = Vec::new();
    for key in 1..=41 {
        granted.push(world.enrol(bed, key));
    }
    let newest = granted.pop().unwrap();
    assert_eq!(granted.len(), 40);
    assert!(newest.generation > granted[39].generation);
    let thief = bed.node_with_uid(NODE, &granted[39].to_string());

    let revocation = bed.run(revocation::apply(
        bed.client(),
        &Revocations::unread(),
        &world.revoked(bed),
        now(),
    ));

    assert_eq!(revocation.unwrap().listed, 1);
    wait_until(&thief, NODE, true);
    for uid in &granted {
        let former = bed.node_with_uid(NODE, &uid.to_string());
        assert_refused(&label(&former, NODE, 0), &format!("{uid} of system:node"));
    }
    let rightful = bed.node_with_uid(NODE, &newest.to_string());
    assert_done(&label(&rightful, NODE, 1));
}

/// A machine whose Node is down, so that each key starts a generation.
struct EnrolledOften {
    node: NodeName,
    ledger: RecordLedger,
}

impl EnrolledOften {
    fn new(node: &str) -> Self {
        let mut machine = Machine::new("m1");
        machine.provider_id = Some(Self::provider_id());
        let machines = StaticInventory::new(vec![machine]).unwrap();
        let policy = LedgerPolicy::new(Duration::from_hours(7 * 24));
        Self {
            node: NodeName::parse(node).unwrap(),
            ledger: RecordLedger::in_memory(Arc::new(machines), policy),
        }
    }

    fn provider_id() -> ProviderId {
        ProviderId::parse("metal:///m1").unwrap()
    }

    fn enrol(&self, bed: &Bed, key: u8) -> CertificateUid {
        let identity = AttestedIdentity::vouched(Identity::of(Self::provider_id()));
        let claim = Claim {
            node_name: self.node.clone(),
            claimant: Claimant::Token,
            assurance: Assurance::Attested(identity),
            provider: Provider::NULL,
            machine_name: None,
            key: KeyDigest::of(&[key]),
            request: RequestRef::default(),
            asked: now(),
            not_after: week(),
        };
        let granted = bed.run(self.ledger.claim(&claim, now()));
        granted.unwrap().uid
    }

    fn revoked(&self, bed: &Bed) -> RevokedNodeCredentialsSpec {
        let records = bed.run(self.ledger.records().all()).unwrap();
        let week = Duration::from_hours(7 * 24);
        let records = records.iter().map(|stored| &stored.record);
        RevokedNodeCredentialsSpec::of_records(records, week, now())
    }
}
