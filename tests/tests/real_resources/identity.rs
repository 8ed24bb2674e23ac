//! Tests of values that NodeIdentity rejects: the valid object with one change.

use node_attestation_core::crd::object_name;
use serde_json::{Value, json};

use super::{Subject, identity, kubectl};

fn valid() -> Subject {
    identity("prod-1", "node-1")
}

#[track_caller]
fn each_is_refused(cases: &[(&str, Value, &str)]) {
    valid().refuses_each(cases);
}

#[test]
fn a_record_with_all_fields_is_stored_unchanged() {
    let valid = identity("prod-1", "node-1");

    let stored = valid.accepts("/metadata/namespace", &json!("default"));

    assert_eq!(stored["spec"], valid.object["spec"]);
}

#[test]
fn unknown_machine_facts_can_be_omitted() {
    for field in [
        "instance",
        "machineName",
        "endorsementKeySHA256",
        "formerUntil",
        "tombstone",
        "revoked",
    ] {
        let stored = identity("prod-1", "node-1").accepts(&format!("/spec/{field}"), &json!(null));

        assert_eq!(stored["spec"][field], json!(null));
    }
}

#[test]
fn a_record_must_have_the_name_of_its_cluster_and_node() {
    let message =
        "must follow the Cluster's name in the object's name: a node name has one NodeIdentity";
    for (pointer, value) in [
        ("/metadata/name", "prod-1.second"),
        ("/spec/nodeName", "node-2"),
        ("/spec/clusterName", "prod-2"),
    ] {
        valid().refuses(pointer, &json!(value), "spec.nodeName", message);
    }
}

#[test]
fn the_digest_of_a_long_record_name_is_accepted() {
    let node = [
        "n".repeat(63),
        "n".repeat(63),
        "n".repeat(63),
        "n".repeat(61),
    ]
    .join(".");
    for (cluster, node) in [("prod-1", node.as_str()), ("prod.eu", "node-1")] {
        let mut record = identity(cluster, node);
        record.object["metadata"]["name"] = json!(object_name(cluster, node));

        record.accepts("/spec/generation", &json!(3));
    }
}

#[test]
fn malformed_record_fields_are_refused() {
    each_is_refused(&[
        ("uid", json!("0123"), "should match"),
        (
            "uid",
            json!("0123456789ABCDEF0123456789ABCDEF"),
            "should match",
        ),
        ("uid", json!(null), "Required value"),
        ("providerID", json!("i-0123"), "should match"),
        ("providerID", json!("aws:///a b"), "should match"),
        ("attestor", json!("AWS"), "should match"),
        ("instance", json!("i 0"), "should match"),
        ("machineName", json!("M"), "should match"),
        ("endorsementKeySHA256", json!("e"), "should match"),
        ("opened.keySHA256", json!("c"), "should match"),
        ("opened.time", json!("noon"), "must be of type date-time"),
        ("opened", json!(null), "Required value"),
        ("notAfter", json!(null), "Required value"),
        (
            "tombstone.reason",
            json!("Old"),
            "\"MachineGone\", \"Renamed\"",
        ),
    ]);
}

#[test]
fn contradictory_times_and_generations_are_refused() {
    each_is_refused(&[
        (
            "tombstone.until",
            json!("2026-11-21T12:00:00Z"),
            "must not be before since",
        ),
        (
            "revoked.generation",
            json!(4),
            "a generation after the current one cannot be revoked",
        ),
    ]);
}

/// Stores a separate node identity.
fn stored(node: &str) -> Subject {
    let stored = identity("prod-1", node);
    stored.store();
    stored
}

#[test]
fn a_generation_starts_at_1_and_can_only_increase() {
    let mut stored = identity("prod-1", "grows");
    stored.object["spec"]["revoked"] = json!(null);
    stored.refuses(
        "/spec/generation",
        &json!(1),
        "spec.formerUntil",
        "the first generation has no earlier generation",
    );
    stored.object["spec"]["formerUntil"] = json!(null);
    let least = "should be greater than or equal to 1";
    stored.refuses("/spec/generation", &json!(0), "spec.generation", least);
    stored.store();

    stored.stays(
        "/spec/generation",
        &json!(2),
        "spec.generation",
        "can only increase",
    );
    stored.may_become(&[("/spec/generation", json!(4))]);
}

#[test]
fn the_identity_fields_of_a_record_are_immutable() {
    // The object's name does not contain these values.
    let mut stored = identity("prod.eu", "same");
    stored.object["metadata"]["name"] = json!(object_name("prod.eu", "same"));
    stored.store();

    for (field, value) in [
        ("uid", "f".repeat(32)),
        ("clusterName", "prod.us".to_owned()),
        ("nodeName", "other".to_owned()),
    ] {
        let (pointer, path) = (format!("/spec/{field}"), format!("spec.{field}"));
        stored.stays(&pointer, &json!(value), &path, "cannot be changed");
    }
}

#[test]
fn the_holder_of_a_name_changes_only_with_a_new_generation() {
    let stored = stored("hands");
    let changes = [
        (
            "/spec/providerID",
            json!("aws:///eu-west-1a/i-0fedcba9876543210"),
            "spec.providerID",
        ),
        ("/spec/attestor", json!("tpm"), "spec.attestor"),
        (
            "/spec/opened/keySHA256",
            json!("d".repeat(64)),
            "spec.opened.keySHA256",
        ),
    ];

    for (pointer, value, field) in &changes {
        stored.stays(
            pointer,
            value,
            field,
            "cannot be changed within a generation",
        );
    }
    let mut all: Vec<_> = changes.map(|(pointer, value, _)| (pointer, value)).into();
    all.push(("/spec/generation", json!(4)));
    stored.may_become(&all);
}

#[test]
fn informational_fields_can_be_updated() {
    stored("current").may_become(&[
        ("/spec/machineName", json!("prod-1-md-0-fghij")),
        ("/spec/notAfter", json!("2026-11-29T12:00:00Z")),
        ("/spec/tombstone", json!(null)),
        ("/spec/revoked/generation", json!(3)),
    ]);
}

#[test]
fn a_status_written_with_a_record_spec_is_ignored() {
    let mut both = identity("prod-1", "both");
    both.object["status"] = json!({"serial": "0a"});
    both.store();

    let record = kubectl().json(["get", "nodeid", "prod-1.both"]);

    assert_eq!(record["status"], Value::Null);
}
