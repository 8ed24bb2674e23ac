//! What RevokedNodeCredentials refuses.

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

#[test]
fn entries_are_certificate_uids_with_times() {
    let uid = format!("{}.3", "0".repeat(32));
    let valid = revoked(json!({&uid: "2026-11-28T12:00:00Z"}));
    let name = "/metadata/name";
    let kept = valid.accepts(name, &json!("kept"));
    assert_eq!(kept["spec"], valid.object["spec"]);

    let form = "a certificate's UID is 32 lower-case hexadecimal digits, '.' and a generation";
    for other in [
        "0.3",
        &"0".repeat(32),
        &format!("{}.0", "0".repeat(32)),
        &uid.replace('0', "A"),
    ] {
        valid.refuses(
            "/spec/revoked",
            &json!({other: "2026-11-28T12:00:00Z"}),
            "spec.revoked",
            form,
        );
    }
    let field = format!("spec.revoked.{uid}");
    valid.refuses(
        "/spec/revoked",
        &json!({&uid: "later"}),
        &field,
        "must be of type date-time",
    );
}

#[test]
fn as_many_fit_as_the_schema_allows() {
    let entries = |count: usize| -> Value {
        (0..count)
            .map(|n| (format!("{n:032x}.1"), json!("2026-11-28T12:00:00Z")))
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
