//! Cluster API's own managers make Machines, and their nodes join and leave through the plugin.

use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Exec, User};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{Authentication, Manager, authorize, grant};
use kubelet_authenticator_tests::management::{Boot, Management, Order, Provider, WorkloadCluster};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

/// How long a bootstrap token of Cluster API lives here: a rotation can be waited for.
const TOKEN_TTL: Duration = Duration::from_secs(60);

/// For what Cluster API does in a minute, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// The plugin in the machines' image, and its settings.
const PLUGIN: &str = "/usr/bin/kubelet-authenticator-insecure";
const SETTINGS: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";

/// A management cluster with Cluster API and our controller.
struct Site {
    management: Management,
    _manager: Manager,
}

impl Site {
    fn start() -> Self {
        let management = Management::managed(TOKEN_TTL);
        grant(&management);
        let manager = Manager::insecure(&management, &[]);
        Self {
            management,
            _manager: manager,
        }
    }
}

/// The one of all tests, each of which has a namespace of its own.
static SITE: LazyLock<Site> = LazyLock::new(Site::start);

/// A Cluster whose machines prove nothing, and that is looked after.
fn cluster(namespace: &str) -> (WorkloadCluster, Authentication) {
    let cluster = SITE.management.cluster("prod-1").namespace(namespace);
    let cluster = cluster.create();
    let authentication = authorize(&SITE.management, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(SITE.management.kubectl());
    (cluster, authentication)
}

/// A machine is a kubelet with the plugin.
fn machine(plane: &Arc<ControlPlane>) -> impl Fn(&Boot) -> Kubelet + Send + 'static {
    let plane = plane.clone();
    move |boot| {
        let bootstrap = plane.kubeconfig(User::Token(boot.token.clone()));
        let exec = Exec::new(program("kubelet-authenticator-insecure"))
            .provide_cluster_info()
            .env(
                "KUBELET_AUTHENTICATOR_BOOTSTRAP_KUBECONFIG",
                bootstrap.display().to_string(),
            )
            .env("KUBELET_AUTHENTICATOR_PROVIDER_ID", &boot.provider_id);
        let kubeconfig = plane.kubeconfig(User::Exec(exec));
        let kubelet = plane.kubelet(&boot.name).kubeconfig(kubeconfig);
        kubelet
            .arg(format!("--provider-id={}", boot.provider_id))
            .start()
    }
}

/// The record of this node's name.
fn record(site: &Site, cluster: &WorkloadCluster, node_name: &str) -> Value {
    let name = format!("{}.{node_name}", cluster.name());
    let words = ["get", "nodeidentities", &name, "-n", cluster.namespace()];
    site.management.kubectl().json(words)
}

fn names(machines: &[Value]) -> Vec<&str> {
    let names = machines.iter();
    names
        .map(|machine| machine["metadata"]["name"].as_str().unwrap())
        .collect()
}

#[test]
fn a_machine_deployments_machines_run_and_what_is_scaled_away_is_a_tombstone() {
    let (cluster, _) = cluster("deployed");
    let boot = machine(cluster.control_plane());
    let _provider = Provider::start(&cluster, Order::ProviderIdFirst, boot);

    let deployment = cluster.machine_deployment("pool-a", 2);

    let before = deployment.wait_until_running(2);
    for machine in &before {
        let node_name = machine["status"]["nodeRef"]["name"].as_str().unwrap();
        cluster.control_plane().wait_for_node_ready(node_name);
        let record = record(&SITE, &cluster, node_name);
        assert_eq!(
            record["spec"]["providerID"], machine["spec"]["providerID"],
            "{record:#}"
        );
    }

    deployment.scale(1);

    let after = deployment.wait_until_running(1);
    let left = names(&after)[0];
    let gone = names(&before).into_iter().find(|name| *name != left);
    let gone = gone.unwrap();
    let buried = poll(PATIENCE, || {
        let record = record(&SITE, &cluster, gone);
        (!record["spec"]["tombstone"].is_null()).then_some(())
    });
    assert!(buried.is_some(), "{:#}", record(&SITE, &cluster, gone));
    assert!(record(&SITE, &cluster, left)["spec"]["tombstone"].is_null());
}

#[test]
fn a_machine_whose_provider_id_comes_after_its_node_joins() {
    let (cluster, _) = cluster("named-late");
    let boot = machine(cluster.control_plane());
    let _provider = Provider::start(&cluster, Order::NodeFirst, boot);

    let deployment = cluster.machine_deployment("pool-a", 1);

    let running = deployment.wait_until_running(1);
    let record = record(&SITE, &cluster, names(&running)[0]);
    let provider_id = &running[0]["spec"]["providerID"];
    assert!(provider_id.is_string(), "{running:#?}");
    assert_eq!(record["spec"]["providerID"], *provider_id);
    assert!(record["spec"]["tombstone"].is_null(), "{record:#}");
}

#[test]
fn every_machine_of_a_rollout_joins() {
    let (cluster, _) = cluster("rolled");
    let boot = machine(cluster.control_plane());
    let _provider = Provider::start(&cluster, Order::ProviderIdFirst, boot);
    let deployment = cluster.machine_deployment("pool-a", 2);
    let before = deployment.wait_until_running(2);

    deployment.roll_out();

    let after = deployment.wait_until_replaced(2, &names(&before));
    for name in names(&after) {
        cluster.control_plane().wait_for_node_ready(name);
        assert!(record(&SITE, &cluster, name)["spec"]["tombstone"].is_null());
    }
    let denied = |csr: &Value| {
        let conditions = csr["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|one| one["type"] != "Approved"))
    };
    let requests = cluster.control_plane().csrs();
    assert_eq!(requests.len(), 4, "{requests:#?}");
    assert!(!requests.iter().any(denied), "{requests:#?}");
}

#[test]
fn after_clusterctl_move_no_node_joins_again_and_others_join_there() {
    let there = Site::start();
    let (cluster, authentication) = cluster("moved");
    let boot = machine(cluster.control_plane());
    let provider = Provider::start(&cluster, Order::ProviderIdFirst, boot);
    let deployment = cluster.machine_deployment("pool-a", 1);
    let before = deployment.wait_until_running(1);
    let name = names(&before)[0];
    let record_before = record(&SITE, &cluster, name);

    let (_provider, cluster) = provider.moved(|| cluster.clusterctl_move(&there.management));

    authentication.wait_until_ready(there.management.kubectl());
    let deployment = deployment.moved_with(&cluster);
    let after = deployment.wait_until_running(1);
    assert_eq!(names(&after), [name]);
    let record_after = record(&there, &cluster, name);
    assert_eq!(record_after["spec"], record_before["spec"]);
    assert_eq!(cluster.control_plane().csrs().len(), 1);
    deployment.scale(2);
    deployment.wait_until_running(2);
    assert_eq!(cluster.control_plane().csrs().len(), 2);
}

#[test]
fn the_token_of_a_pool_goes_on_being_replaced_by_cluster_api() {
    let (cluster, _) = cluster("pooled");
    let provider_id = "generic:///pooled/a";
    let pool = cluster.machine_pool("pool-b", &[provider_id]);
    let first = poll(PATIENCE, || pool.token_id()).expect("a token");
    // Cluster API extends the token until the pool has a Node, and replaces it from then on.
    let kubectl = cluster.control_plane().kubectl();
    kubectl.create_object(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "pooled-a" },
        "spec": { "providerID": provider_id },
    }));

    let second = poll(PATIENCE, || pool.token_id().filter(|id| *id != first));

    assert!(second.is_some(), "{first} stays: {:#}", pool.get());
}

/// What `render` of the plugin prints for this path on the machines.
#[track_caller]
fn render(words: &[&str]) -> String {
    let output = Command::new(program("kubelet-authenticator-insecure"))
        .args(["render", "--command", PLUGIN])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Does with Cluster API's bootstrap data what cloud-init does: writes the files, runs the commands.
#[track_caller]
fn bootstrap(machine: &Machine, data: &str) {
    let data: Value = serde_saphyr::from_str(data).unwrap();
    for file in data["write_files"].as_array().unwrap() {
        let [path, mode, content] =
            ["path", "permissions", "content"].map(|field| file[field].as_str().unwrap());
        machine.write(path, u32::from_str_radix(mode, 8).unwrap(), content);
    }
    for command in data["runcmd"].as_array().unwrap() {
        machine.ok(&["sh", "-c", command.as_str().unwrap()]);
    }
}

#[test]
fn the_rendered_configuration_is_all_that_machines_need_whose_image_has_the_plugin() {
    let cluster = SITE.management.cluster("prod-1").namespace("rendered");
    let cluster = cluster.apiserver_arg("--anonymous-auth=true").create();
    let plane = cluster.control_plane();
    plane.prepare_for_joins();
    let authentication = authorize(&SITE.management, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(SITE.management.kubectl());
    let template: Value = serde_saphyr::from_str(&render(&["kubeadm-config"])).unwrap();
    let mut config = template["spec"]["template"]["spec"].clone();
    // What the machines of the tests need, whoever gives them a certificate.
    let registration = &mut config["joinConfiguration"]["nodeRegistration"];
    registration["criSocket"] = json!("unix:///run/fakecri.sock");
    registration["ignorePreflightErrors"] = json!(["SystemVerification"]);
    let boot = {
        let plane = plane.clone();
        move |boot: &Boot| {
            // An image for machines that prove nothing is told who they are by its infrastructure.
            let settings = format!(
                "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
                 kind: KubeletAuthenticatorConfiguration\nproviderID: {}\n",
                boot.provider_id
            );
            let machine = Machine::builder(&plane, &boot.name)
                .program(PLUGIN, &program("kubelet-authenticator-insecure"))
                .file(SETTINGS, 0o644, settings)
                .kubelet_arg(format!("--provider-id={}", boot.provider_id))
                .boot();
            bootstrap(&machine, &boot.data);
            machine
        }
    };
    let _provider = Provider::start(&cluster, Order::ProviderIdFirst, boot);

    let deployment = cluster.machine_deployment_of("pool-a", 2, config);

    let machines = deployment.wait_until_running(2);
    for name in names(&machines) {
        plane.wait_for_node_ready(name);
        assert!(record(&SITE, &cluster, name)["spec"]["tombstone"].is_null());
    }
    let client = |csr: &Value| csr["spec"]["signerName"] != "kubernetes.io/kubelet-serving";
    let requests: Vec<Value> = plane.csrs().into_iter().filter(client).collect();
    let signers: Vec<_> = requests
        .iter()
        .map(|csr| &csr["spec"]["signerName"])
        .collect();
    assert_eq!(
        signers,
        ["cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure"; 2]
    );
}

#[test]
fn the_rendered_configuration_is_accepted_by_cluster_api_in_both_versions_and_formats() {
    let kubectl = SITE.management.kubectl();
    let drop_in = render(&["kubelet-drop-in"]);
    for version in ["v1beta1", "v1beta2"] {
        for format in ["cloud-config", "ignition"] {
            let name = format!("{version}-{format}");
            let choice = [
                "--api-version",
                version,
                "--format",
                format,
                "--name",
                &name,
            ];

            kubectl.apply(&render(&[&["kubeadm-config"], &choice[..]].concat()));

            let kind = "kubeadmconfigtemplates.v1beta2.bootstrap.cluster.x-k8s.io";
            let stored = kubectl.json(["get", kind, &name]);
            let spec = &stored["spec"]["template"]["spec"];
            assert_eq!(spec["format"], format, "{stored:#}");
            assert_eq!(spec["files"][0]["content"], drop_in, "{stored:#}");
            let registration = &spec["joinConfiguration"]["nodeRegistration"];
            assert_eq!(
                registration["kubeletExtraArgs"],
                json!([{ "name": "rotate-server-certificates", "value": "true" }]),
                "{stored:#}"
            );
        }
    }
}
