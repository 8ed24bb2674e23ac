//! Tests of kubectl's output for administrators.

use std::time::Duration;

use kubelet_authenticator_test_support::process::poll;
use serde_json::json;

use super::{authentication, identity, kubectl};

const PATIENCE: Duration = Duration::from_secs(180);

/// The lines of a table, split into columns at the positions in the header.
fn table(text: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines();
    let header = lines.next().unwrap();
    // Columns are separated by three spaces, and words in a title by one space.
    let begins =
        |at: &usize| header[at - 3..].starts_with("   ") && !header[*at..].starts_with(' ');
    let starts: Vec<_> = (3..header.len()).filter(begins).collect();
    let cut = |line: &str| {
        let edges: Vec<_> = [0]
            .into_iter()
            .chain(starts.clone())
            .chain([line.len()])
            .collect();
        let cells = edges
            .windows(2)
            .map(|edge| line[edge[0].min(line.len())..edge[1].min(line.len())].trim());
        cells.map(str::to_owned).collect()
    };
    [header].into_iter().chain(lines).map(cut).collect()
}

/// The header, and the line with this name, without the age.
fn read(resource: &str, name: &str, wide: bool) -> (Vec<String>, Vec<String>) {
    let flags = if wide { vec!["-owide"] } else { Vec::new() };
    let rows = table(&kubectl().ok([vec!["get", resource, name], flags].concat()));
    let [header, mut line] = <[_; 2]>::try_from(rows).unwrap();
    let age = header.iter().position(|title| title == "AGE").unwrap();
    line[age] = String::new();
    (header, line)
}

#[test]
fn printed_authentications_show_ready_and_the_reason() {
    authentication("read").store();
    let now = "2026-11-21T12:00:00Z";
    let message = "the key of Secret read-ca is not that of its certificate";
    let status = json!({"status": {
        "earliestExpiry": "2026-11-28T12:00:00Z",
        "identities": {"live": 42, "tombstones": 3},
        "conditions": [
            {
                "type": "Ready", "status": "False", "reason": "CAKeyMismatch",
                "message": message, "lastTransitionTime": now,
            },
            {
                "type": "AutoApprovePathsClosed", "status": "True", "reason": "Closed",
                "message": "", "lastTransitionTime": now,
            },
        ],
    }});
    let patch = status.to_string();
    let subresource = "--subresource=status";
    kubectl().ok([
        "patch",
        "kubeauth",
        "read",
        subresource,
        "--type=merge",
        "-p",
        &patch,
    ]);

    let (header, line) = read("kubeauth", "read", true);
    assert_eq!(
        header,
        [
            "NAME",
            "READY",
            "REASON",
            "ATTESTORS",
            "PATHS CLOSED",
            "NODES",
            "EARLIEST EXPIRY",
            "AGE",
            "MESSAGE",
        ]
    );
    assert_eq!(
        line,
        [
            "read",
            "False",
            "CAKeyMismatch",
            r#"["aws","tpm"]"#,
            "True",
            "42",
            "2026-11-28T12:00:00Z",
            "",
            message,
        ]
    );
    assert_eq!(read("kubeauth", "read", false).0, header[..8]);
}

#[test]
fn printed_records_show_the_holder_and_the_tombstone() {
    let mut live = identity("read", "live");
    for field in ["tombstone", "revoked", "formerUntil"] {
        live.object["spec"][field] = json!(null);
    }
    live.store();
    identity("read", "gone").store();
    let id = "aws:///eu-west-1a/i-0123456789abcdef0";
    let status = r#"{"status":{"notAfter":"2026-11-28T12:00:00Z"}}"#;
    kubectl().ok([
        "patch",
        "nodeid",
        "read.live",
        "--subresource=status",
        "--type=merge",
        "-p",
        status,
    ]);

    let (header, line) = read("nodeid", "read.live", false);
    assert_eq!(
        header,
        [
            "NAME",
            "CLUSTER",
            "NODE",
            "PROVIDER ID",
            "ATTESTOR",
            "GEN",
            "REVOKED",
            "RETIRED",
            "EXPIRES",
            "AGE",
        ]
    );
    assert_eq!(
        line,
        [
            "read.live",
            "read",
            "live",
            id,
            "aws",
            "3",
            "",
            "",
            "2026-11-28T12:00:00Z",
            ""
        ]
    );
    let (header, line) = read("nodeid", "read.gone", true);
    assert_eq!(header[10..], ["MACHINE", "OPENED BY"]);
    assert_eq!(
        line,
        [
            "read.gone",
            "read",
            "gone",
            id,
            "aws",
            "3",
            "2",
            "MachineGone",
            "",
            "",
            "prod-1-md-0-abcde",
            "kubelet-authenticator-abc",
        ]
    );
}

#[test]
fn both_resources_are_in_the_cluster_api_category() {
    authentication("together").store();
    identity("together", "node-1").store();

    for resources in ["kubeletauthentications,nodeidentities", "cluster-api"] {
        let names = kubectl().ok(["get", resources, "-oname"]);
        for name in [
            "kubeletauthentication.attestation.cluster.x-k8s.io/together\n",
            "nodeidentity.attestation.cluster.x-k8s.io/together.node-1\n",
        ] {
            assert!(names.contains(name), "{names}");
        }
    }
}

#[test]
fn kubectl_explain_describes_each_enum_value() {
    // The API server publishes the schema of a definition later than the definition is established.
    let explained = poll(PATIENCE, || {
        let output = kubectl().run(["explain", "kubeauth.spec.bootstrapTokens"]);
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.success().then_some(text)
    });
    let text = explained.expect("kubectl does not find the field");
    assert!(text.contains("ENUM:\n    Manage\n    Ignore\n"), "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "`Ignore`: the controller does not change tokens.";
    assert!(text.contains(words), "{text}");
}

/// The labels are from the clusterctl provider contract, section "Move", and from the API version labels in the
/// provider contract.
#[test]
fn clusterctl_moves_user_objects_and_records() {
    let definitions = |label: &str| kubectl().ok(["get", "crd", "-oname", "-l", label]);
    for label in [
        "clusterctl.cluster.x-k8s.io",
        "clusterctl.cluster.x-k8s.io/move",
        "cluster.x-k8s.io/v1beta1=v1alpha1",
        "cluster.x-k8s.io/v1beta2=v1alpha1",
    ] {
        let group = "attestation.cluster.x-k8s.io";
        let definition = "customresourcedefinition.apiextensions.k8s.io";
        let own = format!(
            "{definition}/kubeletauthentications.{group}\n{definition}/nodeidentities.{group}\n"
        );
        // The labels in the contract mark the kinds of a provider. The identity kind is not a provider kind.
        let identity = "awsserviceaccountidentities.infrastructure.cluster.x-k8s.io";
        let expected = if label.starts_with("clusterctl") {
            format!("{definition}/{identity}\n{own}")
        } else {
            own
        };
        assert_eq!(definitions(label), expected);
    }
}
