//! Tests of upgrades from the previous version of this project, and of rollbacks to the previous version.

mod bed;

use kubelet_authenticator_tests::versions::Version;
use serde_json::Value;

use self::bed::{ATTESTORS, Bed, Node};

/// A node that works, and its record.
type Kept = (Node, Value);

/// Joins a node with each attestation provider.
#[track_caller]
fn join_each(bed: &Bed, name: &str) -> Vec<Kept> {
    let joined = ATTESTORS.into_iter().map(|attestor| {
        let node = Node::join(bed, attestor, &format!("{name}-{attestor}"));
        let record = bed.record(&node);
        (node, record)
    });
    joined.collect()
}

/// Asserts that these nodes still work, and that the names of nodes with TPMs belong to their TPMs.
#[track_caller]
fn hold(bed: &Bed, kept: &[Kept]) {
    for (node, record) in kept {
        node.holds(bed, record);
        if record["attestor"] == "tpm" {
            node.refuses_another_tpm();
            assert_eq!(bed.record(node), *record, "{}", node.name);
        }
    }
}

#[test]
fn records_and_revocations_hold_after_an_upgrade_and_after_a_rollback() {
    let (previous, current) = (Version::previous(), Version::CURRENT);
    let mut bed = Bed::start(&previous);
    let mut kept = join_each(&bed, "kept");
    let [revoked, mut reset] = [("aws", "revoked"), ("tpm", "reset")]
        .map(|(attestor, name)| Node::join(&bed, attestor, name));
    let of_revoked = revoked.certificate();
    let of_reset = reset.certificate();
    bed.identities(&previous, "revoke", &revoked);
    bed.identities(&previous, "reset", &reset);
    revoked.is_refused(&of_revoked);
    let record_of_revoked = bed.record(&revoked);
    let generation = |bed: &Bed| bed.record(&reset)["generation"].as_u64().unwrap();
    let before = generation(&bed);
    bed.is_enforced();
    hold(&bed, &kept);
    // The plugins can also be upgraded before the controller.
    bed.install(&current);
    hold(&bed, &kept);
    kept.extend(join_each(&bed, "early"));
    bed.install(&previous);

    bed.run(&current);

    bed.is_enforced();
    // Check the nodes first with plugins of the previous version, and then with plugins of the new version.
    hold(&bed, &kept);
    bed.install(&current);
    hold(&bed, &kept);
    revoked.is_refused(&of_revoked);
    revoked.cannot_renew();
    assert_eq!(bed.record(&revoked), record_of_revoked);
    // The reset still allows the machine to use a new key, which revokes the previous generation.
    reset.lose_state();
    let renewed = reset.renew();
    assert!(renewed.status.success(), "{renewed:?}");
    assert!(generation(&bed) > before, "{:#}", bed.record(&reset));
    reset.is_refused(&of_reset);
    reset.kubelet.restart();
    kept.extend(join_each(&bed, "later"));
    let record_of_reset = bed.record(&reset);
    kept.push((reset, record_of_reset));
    hold(&bed, &kept);

    bed.install(&previous);
    bed.run(&previous);

    bed.is_enforced();
    hold(&bed, &kept);
    revoked.is_refused(&of_revoked);
    revoked.cannot_renew();
    assert_eq!(bed.record(&revoked), record_of_revoked);
    hold(&bed, &join_each(&bed, "last"));
}
