//! Tests of `clusterctl upgrade apply`, after nodes have joined with this project. The command upgrades Cluster API and
//! the controller, which is an AddonProvider.

use std::fs;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::process::{Process, Scratch};
use kubelet_authenticator_tests::control_planes::{TOKEN_TTL, records};
use kubelet_authenticator_tests::deploy::{NAME, NAMESPACE, kustomize, start_version};
use kubelet_authenticator_tests::fleet::{Manager, authorize, grant, kubelet};
use kubelet_authenticator_tests::image::{
    HOSTS, TOLD_BY_METADATA, hosts_with_tpms, list, machine, plugin, rendered,
};
use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::management::{
    CLUSTER_API_VERSION, Management, Order, Provider, WorkloadCluster, clusterctl,
};
use kubelet_authenticator_tests::node::INSECURE;
use kubelet_authenticator_tests::versions::Version;
use serde_json::{Value, json};

const PATHS_CLOSED: &str = "AutoApprovePathsClosed";

/// The number of hosts with TPMs.
const MACHINES: usize = 3;

/// The UIDs and generations of the records, keyed by node name.
fn generations(management: &Management, cluster: &WorkloadCluster) -> Vec<[Value; 3]> {
    let records = records(management, cluster).into_values();
    let fields = ["nodeName", "uid", "generation"];
    records
        .map(|record| fields.map(|field| record["spec"][field].clone()))
        .collect()
}

#[test]
fn nodes_renew_and_join_after_clusterctl_upgrades_cluster_api() {
    let (mut management, api) = Management::managed_by_older(TOKEN_TTL);
    grant(&management);
    let challenge_keys = Scratch::new("challenge-keys");
    challenge_keys.write("current", "0f".repeat(32));
    let keys = challenge_keys.path().display().to_string();
    let _manager = Manager::start(&management, NAME, &["--tpm-challenge-keys", &keys]);
    let namespace = "beneath";
    let cluster = management.cluster("prod-1").namespace(namespace);
    let cluster = cluster.apiserver_arg("--anonymous-auth=true").create();
    let plane = cluster.control_plane();
    plane.prepare_for_joins();
    let ids = (0..MACHINES).map(|n| format!("metal:///rack-1/{namespace}-{n}"));
    let hosts = hosts_with_tpms(ids);
    list(management.kubectl(), namespace, &hosts);
    let order = Order::Hosts(hosts.keys().cloned().collect());
    let tpms = hosts.into_iter().map(|(id, (_, tpm))| (id, tpm)).collect();
    let boot = machine(&cluster, Attestor::TPM, tpms);
    let provider = Provider::start(&cluster, order, boot);
    let settings = json!({
        "autoApproveBindings": "Remove",
        "tpm": { "endorsementKeys": { "configMaps": [HOSTS] } },
    });
    let authentication = authorize(&management, &cluster, &["tpm"], settings);
    authentication.wait_until_ready(management.kubectl());
    let config = rendered(&Attestor::TPM, &TOLD_BY_METADATA);
    let deployment = cluster.machine_deployment_of("pool-a", 1, config);
    let before = deployment.wait_until_running(1);
    let node = before[0]["status"]["nodeRef"]["name"].as_str().unwrap();
    authentication.wait_for(management.kubectl(), PATHS_CLOSED, "True", "Closed");
    let generations_before = generations(&management, &cluster);
    assert_eq!(generations_before.len(), 1, "{generations_before:?}");
    assert_ne!(api.versions(&management), [CLUSTER_API_VERSION; 2]);

    let paused = provider.paused();
    api.upgrade(&mut management);
    drop(paused);

    assert_eq!(api.versions(&management), [CLUSTER_API_VERSION; 2]);
    authentication.touch(management.kubectl(), "Ready");
    provider.on(node, |machine| {
        machine.ok(&[&plugin(&Attestor::TPM), "renew", "--force"]);
    });
    assert_eq!(generations(&management, &cluster), generations_before);
    deployment.scale(2);
    let after = deployment.wait_until_running(2);
    assert!(names(&after).contains(&names(&before)[0]), "{after:#?}");
    let records = records(&management, &cluster);
    for machine in &after {
        let node = machine["status"]["nodeRef"]["name"].as_str().unwrap();
        plane.wait_for_node_ready(node);
        let spec = &records[node]["spec"];
        assert_eq!(spec["providerID"], machine["spec"]["providerID"]);
        assert!(spec["tombstone"].is_null(), "{spec:#}");
    }
    authentication.wait_for(management.kubectl(), PATHS_CLOSED, "True", "Closed");
}

/// The names of the previous and the current version in clusterctl's repository. The names must differ, although the
/// sources of both versions contain the same version number.
const FIRST: &str = "v0.1.0";
const SECOND: &str = "v0.1.1";

/// The name of the AddonProvider.
const ADDON: &str = "kubelet-authenticator";

/// The manifests of this version, as one file of components for clusterctl.
#[track_caller]
fn components(version: &Version) -> String {
    let manifests = version.manifests();
    let components = kustomize(&[], &manifests.join("clusterctl"));
    // In the previous version, the components also contain the definitions.
    if components.contains("kind: CustomResourceDefinition") {
        return components;
    }
    let definitions = kustomize(&[], &manifests.join("crds"));
    format!("{definitions}\n---\n{components}")
}

/// Writes clusterctl's configuration, and a repository with both versions.
#[track_caller]
fn write_repositories(home: &Scratch, versions: [(&str, &Version); 2]) {
    for (name, version) in versions {
        let folder = home.directory(&format!("addon-{ADDON}/{name}"));
        fs::write(folder.join("addon-components.yaml"), components(version)).unwrap();
        let metadata = version.manifests().join("clusterctl/metadata.yaml");
        fs::copy(metadata, folder.join("metadata.yaml")).unwrap();
    }
    let core = home.directory(&format!("cluster-api/{CLUSTER_API_VERSION}"));
    let metadata = json!({
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata",
        "releaseSeries": [{ "major": 1, "minor": 14, "contract": "v1beta2" }],
    });
    fs::write(core.join("metadata.yaml"), metadata.to_string()).unwrap();
    let addon = home.join(&format!("addon-{ADDON}/{FIRST}/addon-components.yaml"));
    let core = core.join("core-components.yaml");
    let configuration = json!({ "providers": [
        { "name": "cluster-api", "type": "CoreProvider", "url": core },
        { "name": ADDON, "type": "AddonProvider", "url": addon },
    ] });
    home.write("clusterctl.yaml", configuration.to_string());
}

/// Whether the definition of KubeletAuthentication contains a field from this version.
fn has_new_field(management: &Management) -> bool {
    let name = "kubeletauthentications.attestation.cluster.x-k8s.io";
    let definition = management.kubectl().json(["get", "crd", name]);
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["exemptNodes"].is_object()
}

#[test]
fn clusterctl_upgrades_and_rolls_back_the_controller_with_its_records() {
    let (previous, current) = (Version::previous(), Version::CURRENT);
    let management = Management::start_with_manifests(&previous.manifests());
    let kubectl = management.kubectl();
    let home = Scratch::new("clusterctl");
    write_repositories(&home, [(FIRST, &previous), (SECOND, &current)]);
    // These are the commands in docs/install.md. `clusterctl init` also installs cert-manager, and then adds the
    // provider to the inventory.
    let addon = format!("{ADDON}:{FIRST}");
    let manifests = clusterctl(home.path(), &["generate", "provider", "--addon", &addon]);
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    let applied = kubectl.run_with_input(apply, &manifests);
    assert!(applied.status.success(), "{applied:?}");
    management.take_inventory_with_addon(ADDON, NAMESPACE, FIRST);
    let start = |version: &Version, name: &str| -> Process {
        let (process, _) = start_version(version, &management, NAMESPACE, &home, name);
        process
    };
    let upgrade_to = |version: &str| {
        let addon = format!("{ADDON}:{version}");
        let kubeconfig = management.admin_kubeconfig().display().to_string();
        let words = ["upgrade", "apply", "--kubeconfig", &kubeconfig, "--addon"];
        clusterctl(home.path(), &[&words[..], &[&*addon]].concat());
        let name = format!("addon-{ADDON}");
        let provider = "providers.clusterctl.cluster.x-k8s.io";
        let provider = kubectl.json(["get", provider, &name, "-n", NAMESPACE]);
        assert_eq!(provider["version"], version, "{provider:#}");
    };
    let process = start(&previous, "first");
    let cluster = management.cluster("prod-1").namespace("tenant-a").create();
    let settings = json!({ "autoApproveBindings": "Remove" });
    let authentication = authorize(&management, &cluster, &["insecure"], settings);
    let uid = authentication.wait_until_ready(kubectl)["metadata"]["uid"].clone();
    let join = |name: &str| {
        let machine = cluster.machine(name).create();
        let kubelet = kubelet(&cluster, &machine, INSECURE).start();
        kubelet.wait_until_ready();
        kubelet
    };
    // The controller has observed these settings under the new definitions. No object was recreated.
    let serves = || {
        let object = authentication.touch(kubectl, "Ready");
        assert_eq!(object["metadata"]["uid"], uid, "{object:#}");
        authentication.wait_until_ready(kubectl);
        authentication.wait_for(kubectl, PATHS_CLOSED, "True", "Closed");
    };
    let first = join("first");
    serves();
    let by_first = generations(&management, &cluster);
    assert_eq!(by_first.len(), 1, "{by_first:?}");
    assert!(!has_new_field(&management));

    drop(process);
    upgrade_to(SECOND);
    let process = start(&current, "second");

    assert!(has_new_field(&management));
    serves();
    assert_eq!(generations(&management, &cluster), by_first);
    first.wait_for_lease_renewal();
    let second = join("second");
    let by_second = generations(&management, &cluster);
    assert_eq!(by_second.len(), 2, "{by_second:?}");

    drop(process);
    upgrade_to(FIRST);
    let _process = start(&previous, "third");

    assert!(!has_new_field(&management));
    serves();
    assert_eq!(generations(&management, &cluster), by_second);
    for kubelet in [&first, &second] {
        kubelet.wait_for_lease_renewal();
    }
    join("third");
}
