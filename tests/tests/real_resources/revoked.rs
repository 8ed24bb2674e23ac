//! Tests of values that RevokedNodeCredentials rejects.

use serde_json::{Value, json};

use super::{API_VERSION, Subject};

fn revoked(entries: Value) -> Subject {
    let object = json!({
        "apiVersion": API_VERSION, "kind": "RevokedNodeCredentials",
        "metadata": {"name": "node-attestation-controller"},
        "spec": {"revoked": entries},
    });
    Subject { object }
}

fn before(generation: u64) -> Value {
    json!({"lowestValidGeneration": generation, "until": "2026-11-28T12:00:00Z"})
}

#[test]
fn each_revocation_entry_has_a_record_a_generation_and_a_time() {
    let uid = "0".repeat(32);
    let valid = revoked(json!({&uid: before(3)}));
    let name = "/metadata/name";
    let kept = valid.accepts(name, &json!("kept"));
    assert_eq!(kept["spec"], valid.object["spec"]);

    let form = "a record's UID must have 32 lower-case hexadecimal digits";
    for other in ["0", &format!("{uid}.3"), &uid.replace('0', "A")] {
        valid.refuses(
            "/spec/revoked",
            &json!({other: before(3)}),
            "spec.revoked",
            form,
        );
    }
    for (field, value, message) in [
        ("until", json!("later"), "must be of type date-time"),
        ("until", json!(null), "Required value"),
        ("lowestValidGeneration", json!(null), "Required value"),
        (
            "lowestValidGeneration",
            json!(1),
            "should be greater than or equal to 2",
        ),
    ] {
        let mut entry = before(3);
        entry[field] = value;
        valid.refuses(
            "/spec/revoked",
            &json!({&uid: entry}),
            &format!("spec.revoked.{uid}.{field}"),
            message,
        );
    }
}

#[test]
fn the_maximum_number_of_revocation_entries_can_be_stored() {
    let entries = |count: usize| -> Value {
        (0..count)
            .map(|n| (format!("{n:032x}"), before(2)))
            .collect()
    };
    let valid = revoked(entries(10_000));
    valid.accepts("/metadata/name", &json!("many"));

    valid.refuses(
        "/spec/revoked",
        &entries(10_001),
        "spec.revoked",
        "must have at most 10000 items",
    );
}
