//! Tests of node identities, as administrators see and change them.

use std::process::{Command, Output};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, DEADLINE};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::{Contract, InfraCluster, Management};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::snapshot::{assert_file, stable};
use serde_json::{Value, json};

use crate::bed::{Manager, authorize, grant, kubelet, management};

fn identities(management: &Management, arguments: &[&str]) -> Output {
    Command::new(program("node-attestation-controller"))
        .arg("identities")
        .args(arguments)
        .arg("--kubeconfig")
        .arg(management.admin_kubeconfig())
        .output()
        .unwrap()
}

#[track_caller]
fn printed(management: &Management, arguments: &[&str]) -> String {
    let output = identities(management, arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

/// A command, followed by its complete output.
#[track_caller]
fn shown(management: &Management, arguments: &[&str]) -> String {
    let text = stable(&printed(management, arguments));
    // The controller writes the time of the first certificate later.
    let text = text.replace("Last renewal:      -\n", "Last renewal:      TIME\n");
    format!("$ identities {}\n{text}", arguments.join(" "))
}

#[test]
fn an_operator_can_show_revoke_and_reset_a_record() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let machine = cluster.machine("m1").node_name("node-1").create();
    let _manager = Manager::null(&management, &[]);
    let authentication = authorize(&management, &cluster, &["aws"], json!({}));
    authentication.wait_until_ready(management.kubectl());
    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    let kubectl = management.kubectl();

    let mut outputs = vec![
        shown(&management, &["list"]),
        shown(&management, &["show", "prod-1", "node-1"]),
    ];
    let json: Value = serde_json::from_str(&printed(&management, &["list", "-o", "json"])).unwrap();
    assert_eq!(json[0]["spec"]["nodeName"], "node-1");

    for act in ["revoke", "reset"] {
        let unconfirmed = identities(&management, &[act, "prod-1", "node-1"]);
        assert_eq!(unconfirmed.status.code(), Some(2), "{unconfirmed:?}");
        let rehearsed = identities(&management, &[act, "--dry-run", "prod-1", "node-1"]);
        assert_eq!(rehearsed.stdout, b"Nothing was changed.\n", "{rehearsed:?}");
        let effect = String::from_utf8_lossy(&rehearsed.stderr);
        assert!(effect.contains("node node-1"), "{effect}");
        // The JSON output for programs contains the unchanged node identity.
        let rehearsed = [act, "--dry-run", "-o", "json", "prod-1", "node-1"];
        let document: Value = serde_json::from_str(&printed(&management, &rehearsed)).unwrap();
        assert_eq!(document["spec"], json[0]["spec"], "{document}");
    }
    let unchanged: Value =
        serde_json::from_str(&printed(&management, &["list", "-o", "json"])).unwrap();
    let of = |list: &Value| {
        (
            list[0]["spec"].clone(),
            list[0]["metadata"]["annotations"].clone(),
        )
    };
    assert_eq!(of(&unchanged), of(&json));
    outputs.push(shown(&management, &["revoke", "--yes", "prod-1", "node-1"]));
    let uid = json[0]["spec"]["uid"].as_str().unwrap();
    let generation = json[0]["spec"]["generation"].as_u64().unwrap();
    let workload = cluster.control_plane().kubectl();
    workload.wait_for(
        &["revokednodecredentials"],
        "with the UID",
        DEADLINE,
        |list| list["spec"]["revoked"][uid]["lowestValidGeneration"] == generation + 1,
    );
    outputs.push(shown(&management, &["list"]));

    let refused = identities(&management, &["reset", "--yes", "prod-1", "node-1"]);
    assert!(!refused.status.success(), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--revoked"), "{said}");
    let reset = ["reset", "--revoked", "--yes", "prod-1", "node-1"];
    outputs.push(shown(&management, &reset));
    let generation = generation.to_string();
    let whole = outputs.join("\n").replace(&generation, "GENERATION");
    assert_file("tests/tests/real_fleet/identities.txt", &whole);
    let record = kubectl.json(["get", "nodeidentity", "prod-1.node-1"]);
    let annotations = &record["metadata"]["annotations"];
    assert_eq!(
        annotations["attestation.cluster.x-k8s.io/reset"],
        generation.as_str()
    );
    for reason in ["Revoked", "ResetRequested"] {
        let selector = format!("reason={reason}");
        let events = ["events", "--field-selector", &selector];
        let event = kubectl.wait_for(&events, reason, DEADLINE, |_| true);
        let note = event["message"].as_str().unwrap();
        assert!(note.contains("node-1") && note.contains("by "), "{note}");
    }

    let missing = identities(&management, &["show", "prod-1", "nobody"]);
    assert_eq!(missing.status.code(), Some(3));
    let listed = kubectl.ok(["get", "kubeletauthentications,nodeidentities", "-A"]);
    println!("{listed}");
}

#[test]
fn a_record_is_deleted_with_its_cluster() {
    // The cluster needs a garbage collector.
    let plane = ControlPlane::builder().controllers(Controllers::Default);
    let management = Management::on(plane.start(), Contract::V1Beta2);
    grant(&management);
    let cluster = management.cluster("prod-1").create();
    let machine = cluster.machine("m1").node_name("node-1").create();
    let _manager = Manager::null(&management, &[]);
    let authentication = authorize(&management, &cluster, &["aws"], json!({}));
    authentication.wait_until_ready(management.kubectl());
    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    let kubectl = management.kubectl();
    let record = kubectl.json(["get", "nodeidentity", "prod-1.node-1"]);
    let owners = record["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(owners[0]["kind"], "Cluster");
    assert_eq!(owners[0]["uid"], cluster.get()["metadata"]["uid"]);

    let named = ["clusters.cluster.x-k8s.io", "prod-1"];
    kubectl.ok(["delete", named[0], named[1], "--wait=false"]);
    // Cluster API also removes the finalizers after all objects of a Cluster are deleted.
    kubectl.patch(&named, &json!({"metadata": {"finalizers": null}}));

    let gone = poll(DEADLINE, || {
        let found = kubectl.run(["get", "nodeidentity", "prod-1.node-1", "--ignore-not-found"]);
        (found.status.success() && found.stdout.is_empty()).then_some(())
    });
    assert!(gone.is_some(), "the record is still there");
}

#[test]
fn the_signers_are_written_to_an_infra_cluster_with_the_fields() {
    let management = management();
    let with = management.cluster("with").create();
    let attested = management.cluster("attested").create();
    let without = management
        .cluster("without")
        .infrastructure(InfraCluster::WithoutSigners)
        .create();
    let _manager = Manager::null(&management, &[]);
    for (cluster, attestor) in [
        (&with, "insecure"),
        (&attested, "aws"),
        (&without, "insecure"),
    ] {
        let authentication = authorize(&management, cluster, &[attestor], json!({}));
        authentication.wait_until_ready(management.kubectl());
    }

    for (cluster, client, serving) in [
        (
            &with,
            "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure",
            Value::Null,
        ),
        (
            &attested,
            "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws",
            json!("kubernetes.io/kubelet-serving"),
        ),
    ] {
        let field = format!("metadata.name={}", cluster.name());
        let words = [
            "genericclusters.infrastructure.cluster.x-k8s.io",
            "--field-selector",
            &field,
        ];
        let kubectl = management.kubectl();
        let written = kubectl.wait_for(&words, "with a signer", DEADLINE, |object| {
            object["status"]["kubeletClientCertificateSigner"].is_string()
        });
        let status = &written["status"];
        assert_eq!(status["kubeletClientCertificateSigner"], client);
        assert_eq!(status["kubeletServingCertificateSigner"], serving);
        assert_eq!(status["initialization"]["provisioned"], true);
    }
    let status = &without.infra_cluster()["status"];
    for field in [
        "kubeletClientCertificateSigner",
        "kubeletServingCertificateSigner",
    ] {
        assert_eq!(status[field], Value::Null, "{field}");
    }
}
