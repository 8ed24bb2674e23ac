//! The controller's Deployment on a machine with containerd and runc, from its image, installed with the commands in
//! install.md. It takes a long time to build the content of the image, so this test runs only in `make test-long`.
//!
//! kube-proxy does not run. The Service `kubernetes` has an address of the machine, which forwards to the API server.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::binaries::{build_part, control_plane_binary};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, has_condition,
};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, free_port, poll};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::deploy::{NAME, NAMESPACE, lease};
use kubelet_authenticator_tests::fleet::{authorize, kubelet_of_tpm};
use kubelet_authenticator_tests::machines::PATIENCE;
use kubelet_authenticator_tests::management::{
    Contract, Management, WorkloadCluster, workload_kubeconfig,
};
use kubelet_authenticator_tests::page::{Desk, repository, section};
use kubelet_authenticator_tests::tpm::provider_id;
use serde_json::{Value, json};

/// The name of the image in install.md.
const IMAGE: &str = "registry.example.com/me/node-attestation-controller";

/// The address of the Service `kubernetes`: the first address of the API server's range.
const KUBERNETES: &str = "10.96.0.1:443";

/// The node that runs the Pods.
const NODE: &str = "infra-1";

/// A management cluster with a node whose containers are real. The cluster is its own workload cluster.
struct Bed {
    // The machine is the first field, so that it stops before its API server.
    machine: Machine,
    _scheduler: Process,
    management: Management,
    _files: Scratch,
}

impl Bed {
    fn start() -> Self {
        let files = Scratch::new("containerd");
        let controller = image(&files);
        let pause = repository().join("tests/containerd/pause");
        let pause = build_part(&pause, files.path().to_str().unwrap());
        let plane = ControlPlane::builder()
            .anonymous_auth()
            .controllers(Controllers::Default);
        let plane = plane.start();
        let token = plane.prepare_for_joins();
        let scheduler = scheduler(&plane, &files);
        let server: SocketAddr = plane
            .server()
            .trim_start_matches("https://")
            .parse()
            .unwrap();
        let machine = Machine::builder(&plane, NODE)
            .containerd()
            .service(KUBERNETES.parse().unwrap(), server)
            .boot();
        for archive in [&pause, &controller] {
            machine.import_image(archive);
        }
        let joined = machine.kubeadm_join(&token.bearer(), &[]);
        assert!(joined.status.success(), "{joined:?}\n{}", machine.journal());
        let node = plane.wait_for_node_ready(NODE);
        let runtime = &node["status"]["nodeInfo"]["containerRuntimeVersion"];
        let runtime = runtime.as_str().unwrap();
        assert!(runtime.starts_with("containerd://"), "{runtime}");
        // Other nodes join only with evidence.
        plane.remove_binding(KubeadmBinding::NodeAutoapproveBootstrap);
        plane.remove_binding(KubeadmBinding::NodeAutoapproveCertificateRotation);
        Self {
            machine,
            _scheduler: scheduler,
            management: Management::on(plane, Contract::V1Beta2),
            _files: files,
        }
    }

    /// Creates a Cluster whose kubeconfig contains the API server's address in Pods.
    fn cluster(&self) -> WorkloadCluster {
        let cluster = self.management.cluster("prod-1").self_hosted().create();
        let plane = self.management.control_plane();
        let kubeconfig = workload_kubeconfig(cluster.name(), plane);
        let in_pods = kubeconfig.replace(plane.server(), &format!("https://{KUBERNETES}"));
        assert_ne!(in_pods, kubeconfig);
        cluster.write_kubeconfig(&in_pods);
        cluster
    }

    /// The name of the leader in the Lease.
    fn holder(&self) -> Option<String> {
        let lease = lease(&self.management, NAMESPACE)?;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }

    /// Waits until another process leads, and returns its name.
    #[track_caller]
    fn wait_for_leader_after(&self, before: &str) -> String {
        let led = poll(PATIENCE, || {
            self.holder().filter(|now| !now.is_empty() && now != before)
        });
        led.unwrap_or_else(|| panic!("{before} still leads"))
    }

    /// Waits until the status of a Pod's container satisfies `condition`.
    #[track_caller]
    fn wait_for_pod(&self, name: &str, what: &str, mut condition: impl FnMut(&Value) -> bool) {
        let pods = ["pods", "-n", NAMESPACE];
        let kubectl = self.management.kubectl();
        kubectl.wait_for(&pods, &format!("{name} {what}"), PATIENCE, |pod| {
            pod["metadata"]["name"] == name && condition(&pod["status"]["containerStatuses"][0])
        });
    }

    /// The number of ready Pods.
    #[track_caller]
    fn ready_pods(&self) -> usize {
        let kubectl = self.management.kubectl();
        let pods = kubectl.json(["get", "pods", "-n", NAMESPACE]);
        let pods = pods["items"].as_array().unwrap().iter();
        pods.filter(|pod| has_condition(pod, "Ready")).count()
    }

    /// Starts a kubelet that joins with evidence from its TPM, and waits until its Node is ready.
    #[track_caller]
    fn join(&self, cluster: &WorkloadCluster, name: &str) -> (Kubelet, TpmMachine) {
        let tpm = TpmMachine::new(Swtpm::start().into(), EndorsementKey::P384);
        let machine = cluster.machine(name).provider_id(&provider_id(&tpm));
        let machine = machine.create();
        let kubelet = kubelet_of_tpm(cluster, &machine, &tpm.tpm().tcti());
        // The runtime of this kubelet does not run images.
        let taint = json!([{ "key": "runs-no-images", "effect": "NoSchedule" }]);
        let kubelet = kubelet.configuration("registerWithTaints", taint).start();
        kubelet.wait_until_ready();
        let signer = Provider::TPM.client_signer();
        let mut csrs = self.management.control_plane().csrs().into_iter();
        assert!(csrs.any(|csr| csr["spec"]["signerName"] == signer && is_issued(&csr)));
        (kubelet, tpm)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{}", self.machine.pod_logs(), self.machine.journal());
        }
    }
}

/// Builds the controller's image with its name in install.md. Returns the path of the archive.
fn image(files: &Scratch) -> PathBuf {
    let output = Command::new(repository().join("packaging/controller/image"))
        .arg(files.path())
        .env("IMAGE", IMAGE)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}

fn scheduler(plane: &ControlPlane, files: &Scratch) -> Process {
    let kubeconfig = plane.client_cert_kubeconfig("system:kube-scheduler", None);
    let flags = [
        "--kubeconfig",
        "--authentication-kubeconfig",
        "--authorization-kubeconfig",
    ];
    Launch::new("kube-scheduler", control_plane_binary("kube-scheduler"))
        .args(flags.map(|flag| format!("{flag}={}", kubeconfig.display())))
        .args(["--leader-elect=false", "--bind-address=127.0.0.1"])
        .arg(format!("--secure-port={}", free_port()))
        .arg(format!("--cert-dir={}", files.path().display()))
        .spawn(&files.join("kube-scheduler.log"))
}

/// The commands in install.md that install the controller with kustomize, for the provider `tpm`.
fn installation() -> String {
    let page = fs::read_to_string(repository().join("docs/install.md")).unwrap();
    let (_, section) = page.split_once("\n### kustomize\n").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert!(block.contains(IMAGE), "{block}");
    let rollout = format!("kubectl rollout status deployment/{NAME} -n {NAMESPACE}\n");
    assert!(block.ends_with(&rollout), "{block}");
    block.to_owned()
}

/// The Pod of a process that has written this name to the Lease.
fn pod_of(holder: &str) -> &str {
    holder.rsplit_once('_').unwrap().0
}

#[test]
fn the_documented_deployment_leads_in_pods_that_are_replaced() {
    let bed = Bed::start();
    let kubectl = bed.management.kubectl();
    let desk = Desk::new(bed.management.admin_kubeconfig());
    desk.files().directory("challenge-keys");
    desk.files()
        .write("challenge-keys/current", "0f".repeat(32));

    desk.follow(&installation());

    let checks = section("install.md", "### Check the installation").into_iter();
    let checks: Vec<String> = checks.map(|(_, command)| command).collect();
    let leader = bed.wait_for_leader_after("");
    desk.follow(&checks.join("\n"));
    let pod = kubectl.json(["get", "pod", pod_of(&leader), "-n", NAMESPACE]);
    assert_eq!(pod["spec"]["nodeName"], NODE);
    assert_ne!(pod["status"]["podIP"], pod["status"]["hostIP"]);
    let cluster = bed.cluster();
    authorize(&bed.management, &cluster, &["tpm"], json!({})).wait_until_ready(kubectl);
    let _first = bed.join(&cluster, "w-1");

    // The kubelet restarts a killed container, and one of the two processes becomes the leader.
    let id = &pod["status"]["containerStatuses"][0]["containerID"];
    let id = id.as_str().unwrap().strip_prefix("containerd://").unwrap();
    bed.machine.kill_container(id);
    let next = bed.wait_for_leader_after(&leader);
    bed.wait_for_pod(pod_of(&leader), "restarted", |container| {
        container["restartCount"] == 1 && container["ready"] == true
    });

    // The Deployment replaces a deleted Pod.
    kubectl.ok(["delete", "pod", pod_of(&next), "-n", NAMESPACE]);
    let last = bed.wait_for_leader_after(&next);
    assert_ne!(pod_of(&last), pod_of(&next));
    let replaced = poll(PATIENCE, || (bed.ready_pods() == 2).then_some(()));
    assert!(replaced.is_some(), "{} are ready", bed.ready_pods());
    desk.follow(&checks[0]);
    let _second = bed.join(&cluster, "w-2");
}
