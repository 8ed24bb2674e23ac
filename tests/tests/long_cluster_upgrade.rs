//! Tests in which Cluster API upgrades a cluster while attestation is enforced. The machines have TPMs. Cluster API
//! first upgrades the KubeadmControlPlane, and then the MachineDeployment. Finally, a MachineHealthCheck replaces a
//! control-plane Machine.

use std::collections::BTreeMap;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::{
    KUBERNETES_VERSION, kubernetes_version, older_kubernetes,
};
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::machine::{Endpoint, Machine};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::swtpm::Reset;
use kubelet_authenticator_tests::control_planes::{
    PATIENCE, TOKEN_TTL, check_health, control_plane_config, records, users_of_built_in_signer,
    wait_for_records, worker_config,
};
use kubelet_authenticator_tests::fleet::{Authentication, Manager, authorize, grant};
use kubelet_authenticator_tests::image::{
    HOSTS, Hosts, TOLD_BY_METADATA, hosts_with_tpms, list, on_host, plugin,
};
use kubelet_authenticator_tests::machines::objects::names;
use kubelet_authenticator_tests::management::{Boot, Management, Order, Provider, WorkloadCluster};
use kubelet_authenticator_tests::program;
use node_attestation_runtime::hardening::admission::POLICY_NAME;
use serde_json::{Value, json};

/// The minor version before the upgrade.
const OLDER: &str = "1.35";

const NAMESPACE: &str = "upgrades";

/// The number of hosts. The test starts 9 machines, each of which needs a new host.
const MACHINES: usize = 12;

const PATHS_CLOSED: &str = "AutoApprovePathsClosed";

/// A Cluster in which attestation is enforced, with a management cluster.
struct Scene {
    // This is the first field, so that the machines stop before their management cluster.
    provider: Provider,
    _manager: Manager,
    // The controller reads the file while it runs.
    _challenge_keys: Scratch,
    cluster: WorkloadCluster,
    authentication: Authentication,
    kubectl: Kubectl,
    management: Management,
    /// The name of the first Machine's node. This node has a certificate from kubeadm.
    first: String,
}

impl Scene {
    /// Waits until each of these Machines has a Node with a kubelet of its version, and a live record. There must be no
    /// other Node and no other live record.
    #[track_caller]
    fn are_attested(&self, groups: &[(&[Value], &str)]) {
        let mut machines = BTreeMap::new();
        let mut expected = BTreeMap::new();
        for (group, version) in groups {
            for machine in *group {
                machines.insert(node(machine), machine);
                expected.insert(node(machine), (*version).to_owned());
            }
        }
        let found = poll(PATIENCE, || {
            (self.kubelets().as_ref() == Some(&expected)).then_some(())
        });
        let seen = self.kubelets();
        assert!(found.is_some(), "{seen:?} and not {expected:?}");
        // The first node is an exempt node.
        machines.remove(&self.first);
        let attested: Vec<String> = machines.keys().cloned().collect();
        wait_for_records(&self.management, &self.cluster, &attested);
        let records = records(&self.management, &self.cluster);
        for (name, machine) in machines {
            let spec = &records[&name]["spec"];
            assert_eq!(spec["attestor"], "tpm", "{spec:#}");
            assert_eq!(spec["providerID"], machine["spec"]["providerID"]);
        }
    }

    /// The versions of the kubelets, keyed by node name. `None` if the API server does not respond.
    fn kubelets(&self) -> Option<BTreeMap<String, String>> {
        let list = self.kubectl.raw("/api/v1/nodes").ok()?;
        let list: Value = serde_json::from_str(&list).unwrap();
        let nodes = list["items"].as_array().unwrap().iter();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let kubelets = nodes.map(|node| {
            let version = &node["status"]["nodeInfo"]["kubeletVersion"];
            (word(&node["metadata"]["name"]), word(version))
        });
        Some(kubelets.collect())
    }

    /// Waits until the records of these Machines are retired. The first node did not have a record.
    #[track_caller]
    fn are_retired(&self, machines: &[Value]) {
        let nodes = machines.iter().map(node);
        let nodes: Vec<_> = nodes.filter(|name| *name != self.first).collect();
        let retired = || {
            let records = records(&self.management, &self.cluster);
            let is_retired = |name: &String| {
                let record = records.get(name);
                record.is_some_and(|record| record["spec"]["tombstone"].is_object())
            };
            nodes.iter().all(is_retired).then_some(())
        };
        let found = poll(PATIENCE, retired);
        let records = records(&self.management, &self.cluster);
        assert!(found.is_some(), "{nodes:?}: {:#}", json!(records));
    }

    /// The UID and the generation of the binding for the policy that rejects requests without evidence. If enforcement
    /// had ended, the binding would have been deleted, or would have another generation.
    #[track_caller]
    fn enforcement(&self) -> [Value; 2] {
        let words = ["get", "validatingadmissionpolicybindings", POLICY_NAME];
        let binding = self.kubectl.json(words);
        let actions = &binding["spec"]["validationActions"];
        assert_eq!(*actions, json!(["Deny"]), "{binding:#}");
        let metadata = &binding["metadata"];
        ["uid", "generation"].map(|field| metadata[field].clone())
    }

    /// Renews this node's certificate.
    #[track_caller]
    fn renews(&self, node: &str) {
        let plugin = plugin(&Attestor::TPM);
        self.provider.on(node, |machine| {
            machine.ok(&[&plugin, "renew", "--force"]);
        });
    }
}

/// The name of the Machine's Node.
#[track_caller]
fn node(machine: &Value) -> String {
    let name = machine["status"]["nodeRef"]["name"].as_str();
    name.unwrap_or_else(|| panic!("{machine:#}")).to_owned()
}

/// Boots machines with the Kubernetes version of their Machines, as an infrastructure does that has an image for each
/// version.
fn infrastructure(hosts: Hosts, endpoint: Endpoint) -> impl Fn(&Boot) -> Machine + Send + 'static {
    let older = older_kubernetes(OLDER);
    move |boot| {
        let (_, tpm) = &hosts[&boot.provider_id];
        tpm.reset(Reset::Orderly);
        let name = "kubelet-authenticator-tpm";
        let builder = Machine::of_no_cluster(&boot.name);
        let mut builder = builder.program(&plugin(&Attestor::TPM), &program(name));
        let version = boot.version.as_deref().unwrap();
        if version != *KUBERNETES_VERSION {
            assert!(version.starts_with(&format!("v{OLDER}.")), "{version}");
            builder = builder.kubernetes(&older);
        }
        let metadata = [("provider_id", &*boot.provider_id)];
        let builder = on_host(builder, tpm).cloud_init(&boot.data, &metadata);
        let machine = builder.boot();
        if boot.data.contains("/etc/kubernetes/pki/ca.key") {
            endpoint.lead_to(&machine);
        }
        machine
    }
}

#[test]
fn cluster_api_upgrades_a_cluster_with_tpms_under_enforcement() {
    let before = kubernetes_version(&older_kubernetes(OLDER).join("kubeadm"));
    let after = KUBERNETES_VERSION.as_str();
    let management = Management::managed_with_control_planes(TOKEN_TTL);
    grant(&management);
    let challenge_keys = Scratch::new("challenge-keys");
    challenge_keys.write("current", "0f".repeat(32));
    let keys = challenge_keys.path().display().to_string();
    let arguments = ["--tpm-challenge-keys", &keys];
    let manager = Manager::start(&management, "node-attestation-controller", &arguments);
    let endpoint = Endpoint::start();
    let cluster = management.cluster("prod-1").namespace(NAMESPACE);
    let config = control_plane_config(&Attestor::TPM, &TOLD_BY_METADATA);
    let (cluster, control_plane) = cluster
        .version(&before)
        .create_with_kubeadm(endpoint.address(), config);
    let ids = (0..MACHINES).map(|n| format!("metal:///rack-1/{NAMESPACE}-{n}"));
    let hosts = hosts_with_tpms(ids);
    list(management.kubectl(), NAMESPACE, &hosts);
    let order = Order::HostsUsedOnce(hosts.keys().cloned().collect());
    let provider = Provider::start(&cluster, order, infrastructure(hosts, endpoint));
    let first = control_plane.wait_until_running(1);
    let kubectl = cluster.wait_for_kubectl();
    let settings = json!({
        "exemptNodes": ["ControlPlane"],
        "autoApproveBindings": "Remove",
        "tpm": { "endorsementKeys": { "configMaps": [HOSTS] } },
    });
    let authentication = authorize(&management, &cluster, &["tpm"], settings);
    let scene = Scene {
        provider,
        _manager: manager,
        _challenge_keys: challenge_keys,
        cluster,
        authentication,
        kubectl,
        management,
        first: node(&first[0]),
    };
    let of_management = scene.management.kubectl();
    scene.authentication.wait_until_ready(of_management);
    let config = worker_config(&Attestor::TPM, &TOLD_BY_METADATA);
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let workers = deployment.wait_until_running(1);
    scene
        .authentication
        .wait_for(of_management, PATHS_CLOSED, "True", "Closed");
    let enforcement = scene.enforcement();
    let by_kubeadm = users_of_built_in_signer(&scene.kubectl);
    control_plane.scale(3);
    let members = control_plane.wait_until_running(3);
    scene.are_attested(&[(&members, &before), (&workers, &before)]);

    control_plane.upgrade(after);

    let upgraded = control_plane.wait_until_replaced(3, &names(&members));
    scene.are_attested(&[(&upgraded, after), (&workers, &before)]);
    scene.are_retired(&members);

    deployment.upgrade(after);

    let upgraded_workers = deployment.wait_until_replaced(1, &names(&workers));
    scene.are_attested(&[(&upgraded, after), (&upgraded_workers, after)]);
    scene.are_retired(&workers);
    scene.renews(&node(&upgraded[1]));
    scene.renews(&node(&upgraded_workers[0]));

    // The kubelet of one control-plane node stops. KubeadmControlPlane deletes the Machine of this node before it
    // creates the next Machine.
    check_health(&scene.management, &scene.cluster);
    let broken = &upgraded[..1];
    scene.provider.on(&node(&broken[0]), |machine| {
        machine.ok(&["systemctl", "stop", "kubelet"]);
    });

    let remediated = control_plane.wait_until_replaced(3, &names(broken));
    scene.are_attested(&[(&remediated, after), (&upgraded_workers, after)]);
    scene.are_retired(broken);
    scene
        .authentication
        .wait_for(of_management, PATHS_CLOSED, "True", "Closed");
    assert_eq!(scene.enforcement(), enforcement);
    assert_eq!(users_of_built_in_signer(&scene.kubectl), by_kubeadm);
}
