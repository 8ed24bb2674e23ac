//! Tests in which a Cluster is moved to another management cluster, and back.

use std::os::unix::fs::symlink;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::image::HOSTS;
use kubelet_authenticator_tests::management::WorkloadCluster;
use kubelet_authenticator_tests::page::{Desk, section};
use serde_json::{Value, json};

use kubelet_authenticator_tests::machines::objects::{
    client_requests, names, reads_well, record, renewals,
};
use kubelet_authenticator_tests::machines::{
    Infrastructure, Machines, PATIENCE, SITE, Scene, Site, joinable,
};

/// The lifetime of certificates in this test. It is short enough to wait for a renewal, and long enough for several
/// failed renewals on a busy machine.
const SECONDS: u32 = 240;

#[test]
fn nodes_renew_and_join_after_clusterctl_move_and_back() {
    let there = Site::start();
    for site in [&*SITE, &there] {
        site.allow_short_certificates();
    }
    let scene = Scene::unattended(joinable("moved"), Machines::Tpm(2));
    annotate(&SITE, "moved", "tpm");
    scene
        .authentication
        .wait_until_ready(SITE.management.kubectl());
    scene.change(&json!({
        "tpm": { "endorsementKeys": { "configMaps": [HOSTS] } },
        "certificate": { "expirationSeconds": SECONDS },
    }));
    let config = scene.config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let before = deployment.wait_until_running(1);
    let name = scene.wait_for_node_of(&before[0]);
    let record_before = scene.record(&name);
    assert_eq!(joins(&scene.cluster), 1);
    let Scene {
        cluster,
        authentication,
        infrastructure: Infrastructure::Generic(provider),
        ..
    } = scene
    else {
        panic!("no other is moved");
    };

    // These are the commands in operate.md. clusterctl does not move statuses, so the test writes them again
    // afterwards.
    let desk = Desk::new(SITE.management.admin_kubeconfig());
    let target = there.management.admin_kubeconfig();
    symlink(target, desk.files().join("there.kubeconfig")).unwrap();
    let steps = section("operate.md", "## Move a cluster").into_iter();
    let steps = steps.map(|(_, command)| command.replace("tenant-a", "moved"));
    let [pause, wait, moves, resume] = steps.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(
        moves,
        "clusterctl move --namespace moved --to-kubeconfig there.kubeconfig"
    );
    desk.follow(&format!("{pause}\n{wait}"));

    let (provider, cluster) = provider.moved(|| cluster.clusterctl_move(&there.management));

    desk.follow(&resume);
    let decided = decisions(&SITE, &cluster);
    assert_ne!(decided, 0);
    let moved = authentication.wait_until_ready(there.management.kubectl());
    let owner = &moved["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], cluster.get()["metadata"]["uid"], "{moved:#}");
    let deployment = deployment.moved_with(&cluster);
    let after = deployment.wait_until_running(1);
    assert_eq!(names(&after), names(&before));
    assert_eq!(
        record(&there, &cluster, &name)["spec"],
        record_before["spec"]
    );
    renews(&cluster, &name);
    assert_eq!(joins(&cluster), 1);
    deployment.scale(2);
    let both = deployment.wait_until_running(2);
    assert_eq!(joins(&cluster), 2);
    assert_eq!(decisions(&SITE, &cluster), decided);

    let (_provider, cluster) = provider.moved(|| cluster.clusterctl_move(&SITE.management));

    let decided = decisions(&there, &cluster);
    assert_ne!(decided, 0);
    authentication.wait_until_ready(SITE.management.kubectl());
    let deployment = deployment.moved_with(&cluster);
    let back = deployment.wait_until_running(2);
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let owned = |names: Vec<&str>| names.into_iter().map(ToOwned::to_owned).collect();
    assert_eq!(sorted(owned(names(&back))), sorted(owned(names(&both))));
    assert_eq!(
        record(&SITE, &cluster, &name)["spec"],
        record_before["spec"]
    );
    renews(&cluster, &name);
    assert_eq!(joins(&cluster), 2);
    assert_eq!(decisions(&there, &cluster), decided);
    reads_well(&SITE, &cluster, std::slice::from_ref(&name));
    // A different field manager owns the moved object, but the Cluster's annotation still applies.
    annotate(&SITE, "moved", "tpm,aws");
    let kubectl = SITE.management.kubectl();
    let authentications = ["kubeletauthentications", "-n", "moved"];
    kubectl.wait_for(&authentications, "another attestor", PATIENCE, |one| {
        one["spec"]["authorizedAttestors"] == json!(["tpm", "aws"])
    });
}

/// clusterctl is killed after it has created the Cluster in the target, and before it creates the NodeIdentities there.
#[test]
fn nodes_renew_after_an_interrupted_clusterctl_move_is_repeated() {
    const NAME: &str = "interrupted";
    let there = Site::start();
    for site in [&*SITE, &there] {
        site.allow_short_certificates();
    }
    let scene = Scene::unattended(joinable(NAME), Machines::Tpm(1));
    annotate(&SITE, NAME, "tpm");
    let here = SITE.management.kubectl();
    scene.authentication.wait_until_ready(here);
    scene.change(&json!({
        "tpm": { "endorsementKeys": { "configMaps": [HOSTS] } },
        "certificate": { "expirationSeconds": SECONDS },
    }));
    let config = scene.config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let before = deployment.wait_until_running(1);
    let name = scene.wait_for_node_of(&before[0]);
    let record_before = scene.record(&name);
    let Scene {
        cluster,
        authentication,
        infrastructure: Infrastructure::Generic(provider),
        ..
    } = scene
    else {
        panic!("no other is moved");
    };
    let paused = |value: &str| {
        let words = ["annotate", "kubeletauthentication", "prod-1", "-n", NAME];
        let annotation = format!("cluster.x-k8s.io/paused{value}");
        words.map(ToOwned::to_owned).into_iter().chain([annotation])
    };
    here.ok(paused("="));
    authentication.wait_for(here, "Ready", "False", "Paused");
    let target = there.management.kubectl();
    refuse_node_identities(target);

    let (_provider, cluster) = provider.moved(|| {
        cluster.interrupt_clusterctl_move(&there.management);

        // The node waits, because both controllers see a paused Cluster. The target does not contain any
        // NodeIdentities.
        authentication.wait_for(here, "Ready", "False", "Paused");
        assert_eq!(
            record(&SITE, &cluster, &name)["spec"],
            record_before["spec"]
        );
        assert!(identities(target, NAME).is_empty());
        for kind in [BINDING, POLICY] {
            target.ok(["delete", kind, REFUSAL]);
        }
        let is_permitted = poll(PATIENCE, || target.dry_run(&probe(), false).ok());
        assert!(is_permitted.is_some());
        // clusterctl refuses to move a paused Cluster.
        let resume = r#"{"spec": {"paused": false}}"#;
        let words = [
            "patch",
            "cluster",
            "prod-1",
            "-n",
            NAME,
            "--type=merge",
            "-p",
        ];
        here.ok(words.into_iter().chain([resume]));
        cluster.clusterctl_move(&there.management)
    });

    target.ok(paused("-"));
    authentication.wait_until_ready(target);
    let deployment = deployment.moved_with(&cluster);
    let after = deployment.wait_until_running(1);
    assert_eq!(names(&after), names(&before));
    assert_eq!(
        record(&there, &cluster, &name)["spec"],
        record_before["spec"]
    );
    assert!(identities(here, NAME).is_empty());
    renews(&cluster, &name);
    assert_eq!(joins(&cluster), 1);
}

const POLICY: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
const BINDING: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

/// The name of the policy that rejects NodeIdentities, and the policy's message.
const REFUSAL: &str = "no-node-identities";

/// Makes the API server reject new NodeIdentities, and waits until the policy is effective.
#[track_caller]
fn refuse_node_identities(kubectl: &Kubectl) {
    let version = "admissionregistration.k8s.io/v1";
    let rule = json!({
        "apiGroups": ["attestation.cluster.x-k8s.io"], "apiVersions": ["*"],
        "operations": ["CREATE"], "resources": ["nodeidentities"],
    });
    kubectl.apply_object(&json!({
        "apiVersion": version, "kind": "ValidatingAdmissionPolicy", "metadata": { "name": REFUSAL },
        "spec": {
            "failurePolicy": "Fail", "matchConstraints": { "resourceRules": [rule] },
            "validations": [{ "expression": "false", "message": REFUSAL }],
        },
    }));
    kubectl.apply_object(&json!({
        "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": REFUSAL },
        "spec": { "policyName": REFUSAL, "validationActions": ["Deny"] },
    }));
    let is_refusal = |error: &String| error.contains(REFUSAL);
    let refused = poll(PATIENCE, || {
        kubectl.dry_run(&probe(), false).err().filter(is_refusal)
    });
    assert!(refused.is_some(), "NodeIdentities are permitted");
}

/// A valid NodeIdentity.
fn probe() -> Value {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
        "metadata": { "name": "probe.node-1", "namespace": "default" },
        "spec": {
            "clusterName": "probe", "nodeName": "node-1", "uid": "0123456789abcdef0123456789abcdef",
            "providerID": "metal:///probe", "attestor": "tpm", "generation": 1,
            "notAfter": "2026-11-28T12:00:00Z",
            "opened": {
                "keySHA256": "c".repeat(64), "requestName": "a", "requestUID": "a",
                "time": "2026-11-21T12:00:00Z",
            },
        },
    })
}

/// The NodeIdentities in the namespace.
fn identities(kubectl: &Kubectl, namespace: &str) -> Vec<Value> {
    let list = kubectl.json(["get", "nodeidentities", "-n", namespace]);
    list["items"].as_array().unwrap().clone()
}

/// Annotates the Cluster `prod-1` in this namespace with these attestors.
fn annotate(site: &Site, namespace: &str, attestors: &str) {
    let annotation = "attestation.cluster.x-k8s.io/authorized-attestors";
    let patch = json!({ "metadata": { "annotations": { annotation: attestors } } });
    let target = ["clusters.cluster.x-k8s.io", "prod-1", "-n", namespace];
    site.management.kubectl().patch(&target, &patch);
}

/// The number of certificates that were issued to bootstrap tokens. Asserts that no request was denied.
#[track_caller]
fn joins(cluster: &WorkloadCluster) -> usize {
    let requests = client_requests(cluster, &Attestor::TPM);
    let is_join = |csr: &&Value| {
        let user = csr["spec"]["username"].as_str().unwrap();
        user.starts_with("system:bootstrap:") && csr["status"]["certificate"].is_string()
    };
    requests.iter().filter(is_join).count()
}

/// Waits until the node has renewed its certificate.
#[track_caller]
fn renews(cluster: &WorkloadCluster, node: &str) {
    let signer = Attestor::TPM.client_signer();
    let count = || renewals(cluster.control_plane(), &signer, node);
    let before = count();
    let renewed = poll(PATIENCE, || (count() > before).then_some(()));
    assert!(renewed.is_some(), "{node} does not renew");
}

/// The number of decisions by the site's controller on requests from the Cluster.
fn decisions(site: &Site, cluster: &WorkloadCluster) -> usize {
    let requests = cluster.control_plane().csrs();
    let of_cluster = |line: &&str| {
        let mut names = requests.iter().map(|csr| &csr["metadata"]["name"]);
        line.contains(r#""decided""#) && names.any(|name| line.contains(name.as_str().unwrap()))
    };
    let log = site.manager.process.log().text();
    log.lines().filter(of_cluster).count()
}
