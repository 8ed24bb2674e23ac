use serde_json::{Value, json};

use super::floor::{floor_of, seconds};
use super::*;

#[test]
fn an_error_about_a_wrong_name_has_the_command_that_lists_the_names() {
    let not_found = IdentitiesError::NotFound {
        namespace: "team-a".to_owned(),
        name: "prod-1.n1".to_owned(),
    };
    let no_authentication = IdentitiesError::NoAuthentication(ObjectKey::new("team-a", "prod-1"));
    for (error, text, command) in [
        (
            not_found,
            "NodeIdentity team-a/prod-1.n1 does not exist",
            "node-attestation-controller identities list -n team-a",
        ),
        (
            no_authentication,
            "Cluster team-a/prod-1 has no KubeletAuthentication",
            "node-attestation-controller clusters",
        ),
    ] {
        let error = hinted(error.into());

        assert_eq!(error.to_string(), text);
        let hint = &error.downcast_ref::<Hinted>().unwrap().hint;
        assert!(hint.ends_with(command), "{hint}");
    }
    let other = hinted(IdentitiesError::FloorInFuture(7).into());
    assert!(other.downcast_ref::<Hinted>().is_none(), "{other}");
}

#[test]
fn a_time_for_the_floor_is_converted_to_seconds_or_refused() {
    assert_eq!(seconds("2026-11-30T19:32:39Z").unwrap(), 1_796_067_159);
    let error = seconds("yesterday").unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid time yesterday (must be YYYY-MM-DDTHH:MM:SSZ)"
    );
}

/// JSON and YAML get one valid document, and the terminal gets a text.
#[test]
fn a_command_that_changes_no_record_prints_one_document() {
    let machine = json!({"name": "n1"});
    assert_eq!(unchanged(Format::Table, &machine).unwrap(), UNCHANGED);
    let text = unchanged(Format::Json, &machine).unwrap();
    assert_eq!(text, "{\n  \"name\": \"n1\"\n}\n");
    assert_eq!(unchanged(Format::Yaml, &machine).unwrap(), "name: n1\n");

    assert_eq!(ONLY_RELEASED.print(Format::Table).unwrap(), RELEASED);
    assert_eq!(ONLY_RELEASED.print(Format::Json).unwrap(), "null\n");

    let floor = floor_of(&ObjectKey::new("team-a", "prod-1"), 7);
    let text = Format::Json.print(&floor, String::new).unwrap();
    let expected = json!({"namespace": "team-a", "cluster": "prod-1", "lowestValidGeneration": 7});
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn the_text_of_a_revocation_shows_whether_writes_are_refused() {
    let identity: NodeIdentity = serde_json::from_value(json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
        "metadata": {"name": "prod-1.n1"},
        "spec": {
            "clusterName": "prod-1", "nodeName": "n1", "uid": "0".repeat(32),
            "providerID": "metal:///m1", "attestor": "tpm", "generation": 7,
            "opened": {
                "keySHA256": "0".repeat(64), "requestName": "r", "requestUID": "u",
                "time": "2026-01-01T00:00:00Z",
            },
            "notAfter": "2026-01-08T00:00:00Z",
        },
    }))
    .unwrap();
    let refuses = "the workload cluster refuses every write with the revoked certificates";
    let accepts = "The workload cluster accepts the current certificate until it expires";

    for (is_listed, expected, other) in [(true, refuses, accepts), (false, accepts, refuses)] {
        for text in [
            effect_of_revocation(&identity, is_listed),
            said_of_revocation(&identity, "kube-system", is_listed),
        ] {
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains(other), "{text}");
        }
    }
}
