//! Tests of a ClusterClass with a KubeadmControlPlane, and with the variable and the patch that `render` prints for
//! workers and control planes. Cluster API's own managers create the Clusters, whose machines have TPMs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::machine::{Endpoint, KUBELET_PATCHES, Machine};
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Reset;
use kubelet_authenticator_tests::control_planes::{PATIENCE, TOKEN_TTL, wait_for_records};
use kubelet_authenticator_tests::fleet::{Authentication, Manager, grant};
use kubelet_authenticator_tests::image::{self, Hosts, TOLD_BY_METADATA, render};
use kubelet_authenticator_tests::management::{Boot, Management, Order, Provider};
use kubelet_authenticator_tests::{page, program};
use serde_json::{Map, Value, json};

/// The number of machines: three of the control plane, and one worker.
const MACHINES: usize = 4;

/// Only one test runs at a time, because a test with a control plane needs 4 GB.
static TURN: Mutex<()> = Mutex::new(());

/// The turn of a test. If a test fails, the next test can still run.
fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a ClusterClass `class`, whose kubeadm templates have this API version.
#[track_caller]
fn define_class(kubectl: &Kubectl, namespace: &str, version: &str) {
    kubectl.apply_object(&json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace },
    }));
    let needed = image::needed().into_iter();
    let needed: Map<_, _> = needed
        .map(|(field, value)| (field.to_owned(), value))
        .collect();
    let join = json!({
        "nodeRegistration": needed, "patches": { "directory": KUBELET_PATCHES },
    });
    let mut init = join.clone();
    // Skip these add-ons, because their images do not refer to a program on the machines.
    init["skipPhases"] = json!(["addon/coredns", "addon/kube-proxy"]);
    let of_control_plane = json!({
        "kubeadmConfigSpec": { "initConfiguration": init, "joinConfiguration": join },
    });
    let infrastructure = "infrastructure.cluster.x-k8s.io/v1beta2".to_owned();
    let templates = [
        (infrastructure.clone(), "GenericClusterTemplate", json!({})),
        (infrastructure, "GenericMachineTemplate", json!({})),
        (
            format!("controlplane.cluster.x-k8s.io/{version}"),
            "KubeadmControlPlaneTemplate",
            of_control_plane,
        ),
        (
            format!("bootstrap.cluster.x-k8s.io/{version}"),
            "KubeadmConfigTemplate",
            json!({ "joinConfiguration": join }),
        ),
    ];
    let references = templates.map(|(api_version, kind, spec)| {
        kubectl.create_object(&json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": { "name": "class", "namespace": namespace },
            "spec": { "template": { "spec": spec } },
        }));
        json!({ "templateRef": { "apiVersion": api_version, "kind": kind, "name": "class" } })
    });
    let [infrastructure, machines, mut control_plane, bootstrap] = references;
    control_plane["machineInfrastructure"] = machines.clone();
    let words = [
        "cluster-class",
        "--api-version",
        version,
        "--control-plane",
        "--absent",
        "files,preKubeadmCommands,kubeletExtraArgs",
        "--control-plane-absent",
        "files,preKubeadmCommands,kubeletExtraArgs,timeouts",
    ];
    let words = [&words[..], &TOLD_BY_METADATA].concat();
    let rendered: Value = serde_saphyr::from_str(&render(&Attestor::TPM, &words)).unwrap();
    let workers = json!([{
        "class": "worker", "bootstrap": bootstrap, "infrastructure": machines,
    }]);
    kubectl.create_object(&json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "ClusterClass",
        "metadata": { "name": "class", "namespace": namespace },
        "spec": {
            "infrastructure": infrastructure,
            "controlPlane": control_plane,
            "workers": { "machineDeployments": workers },
            "variables": rendered["variables"],
            "patches": rendered["patches"],
        },
    }));
    let class = ["clusterclasses.cluster.x-k8s.io", "-n", namespace];
    kubectl.wait_for(&class, "its variables known", PATIENCE, |class| {
        !class["status"]["variables"].is_null()
    });
}

/// The topology of a Cluster of the class, in which attestation is enabled.
fn topology() -> Value {
    json!({
        "classRef": { "name": "class" },
        "version": *KUBERNETES_VERSION,
        "controlPlane": { "replicas": 1 },
        "variables": [{ "name": "kubeletAuthentication", "value": { "enabled": true } }],
        "workers": { "machineDeployments": [
            { "class": "worker", "name": "md-0", "replicas": 1 },
        ] },
    })
}

/// The KubeadmConfigSpec of the only control plane in the namespace. Asserts that it has the drop-in.
#[track_caller]
fn patched_control_plane(kubectl: &Kubectl, namespace: &str) -> Value {
    let kind = "kubeadmcontrolplanes.v1beta2.controlplane.cluster.x-k8s.io";
    let created = kubectl.json(["get", kind, "-n", namespace]);
    let spec = &created["items"][0]["spec"]["kubeadmConfigSpec"];
    let drop_in = render(&Attestor::TPM, &["kubelet-drop-in"]);
    assert_eq!(spec["files"][0]["content"], drop_in, "{spec:#}");
    let commands = json!(["systemctl daemon-reload"]);
    assert_eq!(spec["preKubeadmCommands"], commands, "{spec:#}");
    let [_, provider_id, _, name] = TOLD_BY_METADATA;
    let argument = json!({ "name": "provider-id", "value": provider_id });
    for configuration in ["initConfiguration", "joinConfiguration"] {
        let registration = &spec[configuration]["nodeRegistration"];
        assert_eq!(registration["name"], name, "{spec:#}");
        let arguments = &registration["kubeletExtraArgs"];
        assert_eq!(*arguments, json!([argument]), "{spec:#}");
    }
    spec.clone()
}

/// Boots machines with TPMs. Their image contains the plugin.
fn infrastructure(hosts: Hosts, endpoint: Endpoint) -> impl Fn(&Boot) -> Machine + Send + 'static {
    move |boot| {
        let (_, tpm) = &hosts[&boot.provider_id];
        tpm.reset(Reset::Orderly);
        let plugin = program("kubelet-authenticator-tpm");
        let builder = Machine::of_no_cluster(&boot.name);
        let builder = builder.program(&image::plugin(&Attestor::TPM), &plugin);
        let metadata = [("provider_id", &*boot.provider_id)];
        let builder = image::on_host(builder, tpm).cloud_init(&boot.data, &metadata);
        let machine = builder.boot();
        if boot.data.contains("/etc/kubernetes/pki/ca.key") {
            endpoint.lead_to(&machine);
        }
        machine
    }
}

/// The names of the Nodes of these Machines.
fn nodes(machines: &[Value]) -> Vec<String> {
    let names = machines
        .iter()
        .map(|machine| machine["status"]["nodeRef"]["name"].as_str().unwrap());
    names.map(ToOwned::to_owned).collect()
}

#[test]
fn control_plane_machines_of_a_class_join_with_their_tpms() {
    let _turn = turn();
    let namespace = "of-class";
    let management = Management::managed_with_control_planes(TOKEN_TTL);
    grant(&management);
    let challenge_keys = Scratch::new("challenge-keys");
    challenge_keys.write("current", "0f".repeat(32));
    let keys = challenge_keys.path().display().to_string();
    let arguments = ["--tpm-challenge-keys", &keys];
    let _manager = Manager::start(&management, "node-attestation-controller", &arguments);
    let kubectl = management.kubectl();
    define_class(kubectl, namespace, "v1beta2");
    let ids = (0..MACHINES).map(|n| format!("metal:///rack-1/{namespace}-{n}"));
    let hosts = image::hosts_with_tpms(ids);
    image::list(kubectl, namespace, &hosts);
    let endpoint = Endpoint::start();
    let cluster = management.cluster("prod-1").namespace(namespace);

    let (cluster, control_plane) = cluster.create_of_kubeadm_class(endpoint.address(), topology());

    let spec = patched_control_plane(kubectl, namespace);
    let timeouts = &spec["joinConfiguration"]["timeouts"];
    assert_eq!(timeouts["kubernetesAPICallSeconds"], 600, "{spec:#}");
    // The variable creates a KubeletAuthentication with the default settings, which enforce attestation.
    let authentications = ["kubeletauthentications", "-n", namespace];
    kubectl.wait_for(&authentications, "of the Cluster", PATIENCE, |_| true);
    let authentication = Authentication {
        namespace: namespace.to_owned(),
        name: cluster.name().to_owned(),
    };
    let name = ["kubeletauthentication", cluster.name(), "-n", namespace];
    let keys = json!({ "endorsementKeys": { "configMaps": [image::HOSTS] } });
    kubectl.patch(&name, &json!({ "spec": { "tpm": keys } }));
    let order = Order::HostsUsedOnce(hosts.keys().cloned().collect());
    let provider = Provider::start(&cluster, order, infrastructure(hosts, endpoint));
    let first = nodes(&control_plane.wait_until_running(1));
    cluster.wait_for_kubectl();
    let workers = cluster.machine_deployment_of_topology("md-0");
    let worker = nodes(&workers.wait_until_running(1));
    wait_for_records(&management, &cluster, &worker);
    // The first node has kubeadm's certificate, and is exempt.
    authentication.wait_for(kubectl, "AutoApprovePathsClosed", "True", "Closed");

    cluster.scale_control_plane(3);

    let grown = nodes(&control_plane.wait_until_running(3));
    let joined = grown.iter().filter(|name| !first.contains(name));
    let joined: Vec<String> = joined.chain(&worker).cloned().collect();
    assert_eq!(joined.len(), 3, "{joined:?}");
    wait_for_records(&management, &cluster, &joined);

    // The first node has a record after its adoption, with the evidence of its TPM.
    provider.on(&first[0], |machine| {
        page::take_over(machine, &Attestor::TPM);
    });
    wait_for_records(&management, &cluster, &[grown, worker].concat());
}

#[test]
fn a_class_in_the_older_api_patches_its_control_plane() {
    let _turn = turn();
    let namespace = "of-older-class";
    let management = Management::managed_with_control_planes(TOKEN_TTL);
    let kubectl = management.kubectl();
    define_class(kubectl, namespace, "v1beta1");
    let endpoint = Endpoint::start();
    let cluster = management.cluster("prod-1").namespace(namespace);

    let _created = cluster.create_of_kubeadm_class(endpoint.address(), topology());

    // The older API version does not have the timeout field.
    let spec = patched_control_plane(kubectl, namespace);
    let timeouts = &spec["joinConfiguration"]["timeouts"];
    assert!(timeouts["kubernetesAPICallSeconds"].is_null(), "{spec:#}");
}
