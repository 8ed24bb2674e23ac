//! Tests of MachineDeployments whose infrastructure providers use each possible order of steps.

use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::Order;
use kubelet_authenticator_tests::metrics_server::MetricsServer;
use kubelet_authenticator_tests::pods;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::machines::{Machines, PATIENCE, SITE, Scene, joinable};

/// Certificates that were copied from the machines, keyed by node name.
type Stolen = Vec<(String, PathBuf)>;

/// Scales from zero to three and to one, and rolls out new machines: every node joins, and a deleted node cannot write.
fn lives(scene: &Scene, requests_of_a_join: usize) {
    let deployment = scene
        .cluster
        .machine_deployment_of("pool-a", 0, scene.config());

    deployment.scale(3);

    let three = deployment.wait_until_running(3);
    let nodes: Vec<String> = three
        .iter()
        .map(|one| scene.wait_for_node_of(one))
        .collect();
    let stolen: Stolen = nodes
        .iter()
        .map(|name| (name.clone(), scene.stolen(name)))
        .collect();
    scene.reads_well(&nodes);
    if scene.serves() {
        answers_of_pods(scene, &nodes);
    }
    for (name, kubeconfig) in &stolen {
        let said = scene.label(kubeconfig, name, "lives");
        assert!(said.contains("labeled"), "{said}");
    }

    deployment.scale(1);

    let one = deployment.wait_until_running(1);
    let left = scene.wait_for_node_of(&one[0]);
    for (name, kubeconfig) in stolen.iter().filter(|(name, _)| *name != left) {
        scene.wait_for_tombstone(name);
        scene.reads_as_gone(name);
        refused(scene, kubeconfig, name);
    }

    deployment.roll_out();

    let after = deployment.wait_until_replaced(1, &names(&one));
    let node = scene.wait_for_node_of(&after[0]);
    scene.reads_well(&[node]);
    let requests = scene.client_requests();
    assert_eq!(requests.len(), 4 * requests_of_a_join, "{requests:#?}");
}

/// Checks that `kubectl logs`, `exec` and `top` work with each of these nodes.
#[track_caller]
fn answers_of_pods(scene: &Scene, nodes: &[String]) {
    let kubectl = scene.plane().kubectl();
    let metrics_server = MetricsServer::start(scene.plane());
    for (number, node) in nodes.iter().enumerate() {
        let pod = format!("pod-{number}");
        pods::run(kubectl, &pod, node);
        let logs = pods::logs(kubectl, &pod);
        assert!(logs.starts_with("it runs on "), "{logs}");
        pods::exec(kubectl, &pod);
    }
    for resource in ["nodes", "pods"] {
        metrics_server.top(kubectl, resource, nodes.len());
    }
    // Otherwise, Cluster API would evict the pods, and check the node again only after 20 seconds. The Cluster API demo
    // drains a node with pods.
    kubectl.ok(["delete", "pods", "--all", "--timeout=180s"]);
}

/// Waits until this certificate cannot recreate the Node that Cluster API has deleted. At that time, the certificate
/// cannot write at all.
#[track_caller]
fn refused(scene: &Scene, kubeconfig: &PathBuf, name: &str) {
    let mut said = String::new();
    let refused = poll(PATIENCE, || {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        });
        let kubectl = scene.plane().kubectl_with(kubeconfig);
        said = kubectl.try_create(&node).err().unwrap_or_default();
        said.contains("revoked").then_some(())
    });
    assert!(refused.is_some(), "{name} may write: {said}");
    let metadata = json!({ "name": name, "namespace": "kube-node-lease" });
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
        "spec": { "holderIdentity": name },
    });
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{name}"));
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "name": format!("{name}-again") },
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
            "request": BASE64_STANDARD.encode(pem),
        },
    });
    let kubectl = scene.plane().kubectl_with(kubeconfig);
    for object in [lease, request] {
        let said = kubectl.try_create(&object).unwrap_err();
        assert!(said.contains("revoked"), "{said}");
    }
}

#[test]
fn machines_with_an_early_provider_id_join_leave_and_roll_out() {
    lives(
        &Scene::attended("id-first", Machines::Insecure(Order::ProviderIdFirst)),
        1,
    );
}

#[test]
fn machines_with_a_late_provider_id_join_leave_and_roll_out() {
    lives(
        &Scene::attended("node-first", Machines::Insecure(Order::NodeFirst)),
        1,
    );
}

#[test]
fn machines_on_hosts_with_tpms_join_leave_and_roll_out() {
    lives(&Scene::attended("metal", Machines::Tpm(4)), 2);
}

#[test]
fn hosts_with_a_late_provider_id_join_with_their_tpms() {
    lives(&Scene::attended("metal-late", Machines::TpmNodeFirst(4)), 2);
}

#[test]
fn a_machine_whose_provider_id_differs_from_its_claim_is_revoked() {
    let scene = Scene::attended("differs", Machines::Insecure(Order::NodeFirst));
    let config = scene.config().to_string();
    let config = config.replace("docker:////", "docker:////not-");
    let config = serde_json::from_str(&config).unwrap();

    scene.cluster.machine_deployment_of("pool-a", 1, config);

    let warnings = "reason=ProviderIdDiffers,type=Warning";
    let events = ["events", "-n", "differs", "--field-selector", warnings];
    let kubectl = SITE.management.kubectl();
    let event = kubectl.wait_for(&events, "of a record", PATIENCE, |_| true);
    let record = event["involvedObject"]["name"].as_str().unwrap();
    let node = record.strip_prefix("prod-1.").unwrap();
    scene.wait_for_tombstone(node);
    let id = scene.record(node)["spec"]["providerID"].clone();
    assert!(id.as_str().unwrap().starts_with("docker:////not-"), "{id}");
    refused(&scene, &scene.stolen(node), node);
}

#[test]
fn deployments_scale_from_zero_under_enforcement_with_the_plugin() {
    let scene = Scene::unattended(joinable("from-zero"), Machines::Tpm(2));
    let deployment = |name, config| scene.cluster.machine_deployment_of(name, 0, config);
    let ours = deployment("ours", scene.config());
    let stock = deployment("stock", scene.stock_config());
    scene.attend_with_defaults();

    let told = scene.wait_for_paths("False", "WaitingForRecords");
    let words = "could not join: MachineDeployment stock (add the plugin";
    assert!(told.contains(words), "{told}");

    stock.bootstrap_as(&ours);

    scene.wait_for_paths("True", "Closed");
    for deployment in [&ours, &stock] {
        deployment.scale(1);
        let machine = deployment.wait_until_running(1).remove(0);
        let node = scene.wait_for_node_of(&machine);
        assert_eq!(scene.record(&node)["spec"]["attestor"], "tpm");
    }
}

#[test]
fn remove_now_does_not_wait_for_a_template_without_the_plugin() {
    let scene = Scene::unattended(joinable("at-once"), Machines::Tpm(1));
    let config = scene.stock_config();
    scene.cluster.machine_deployment_of("stock", 0, config);
    scene.attend_with_defaults();
    let told = scene.wait_for_paths("False", "WaitingForRecords");
    assert!(told.contains("MachineDeployment stock (add"), "{told}");

    scene.change(&json!({"autoApproveBindings": "RemoveNow"}));

    scene.wait_for_paths("True", "Closed");
}

/// The order is as with Cluster API Provider AWS: the AWSMachine gets the provider ID first, and the Machine gets the
/// provider ID after the AWSMachine is ready.
#[test]
fn instances_without_a_machine_provider_id_join_leave_and_roll_out() {
    let scene = Scene::attended("ec2", Machines::Ec2(Attestor::AWS));
    // Each instance gets a certificate for the first request that it sends.
    lives(&scene, 1);
}

#[test]
fn instances_with_nitro_tpms_join_leave_and_roll_out() {
    lives(&Scene::attended("nitro", Machines::Ec2(Attestor::TPM)), 2);
}
