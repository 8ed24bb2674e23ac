//! Tests of the commands that an operator copies from the pages in docs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::KUBERNETES_VERSION;
use kubelet_authenticator_test_support::process::{Launch, poll};
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::image::{hosts_with_tpms, instance, machine, needed};
use kubelet_authenticator_tests::management::{
    AwaitedCluster, InfraCluster, Instances, Maker, Management, Order, Provider, WorkloadCluster,
};
use kubelet_authenticator_tests::page::{self, Desk, commands, steps};
use serde_json::{Map, Value, json};

use kubelet_authenticator_tests::machines::{
    CLOUD, Machines, NETWORK, PATIENCE, SITE, Scene, TOKEN_TTL, joinable,
};

/// An operator who has the prerequisites of tutorial-tpm.md.
fn desk_of_hosts(hosts: &str, cluster: &[Value], kubeconfig: &Path) -> Desk {
    let workers = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "GenericMachineTemplate",
        "metadata": { "name": "workers", "namespace": "tenant-a" },
        "spec": { "template": { "spec": {} } },
    });
    let desk = desk_of_cluster(&[cluster, &[workers]].concat(), kubeconfig);
    desk.files().write("hosts.txt", hosts);
    desk
}

/// An operator who has these objects in `cluster.yaml`, which is the only file that tutorial-ec2.md requires.
fn desk_of_cluster(objects: &[Value], kubeconfig: &Path) -> Desk {
    let desk = Desk::new(kubeconfig);
    let objects = objects.iter().map(Value::to_string);
    let objects = objects.collect::<Vec<_>>().join("\n---\n");
    desk.files().write("cluster.yaml", objects);
    desk
}

/// A script with the commands from a page, and with the additional settings that the test machines need.
fn script(commands: Vec<String>) -> String {
    let registration: Map<_, _> = needed()
        .into_iter()
        .map(|(field, value)| (field.to_owned(), value))
        .collect();
    let needed = json!({ "spec": { "template": { "spec": {
        "joinConfiguration": { "nodeRegistration": registration },
    } } } });
    commands
        .into_iter()
        .map(|command| match &*command {
            "kubectl apply -n tenant-a -f workers.yaml" => format!(
                "{command}\nkubectl patch kubeadmconfigtemplate workers -n tenant-a --type merge -p '{needed}'\n"
            ),
            _ => command + "\n",
        })
        .collect()
}

/// The script from a tutorial, and from pages about the same Cluster, for the Kubernetes version in the tests.
fn script_of(pages: &[&str]) -> String {
    let commands = pages.iter().flat_map(|page| commands(page, '$'));
    let script = script(commands.collect());
    // The page contains the current version, but Cluster API does not create a Machine that is newer than the control
    // plane.
    script.replace("v1.36.3", &KUBERNETES_VERSION)
}

/// Runs a script that creates this Cluster, and waits until the script succeeds. `start` starts the provider of its
/// machines.
#[track_caller]
fn follow_to_the_end<P>(
    shell: &Launch,
    log: &Path,
    cluster: AwaitedCluster,
    start: impl FnOnce(&WorkloadCluster) -> P,
) -> (WorkloadCluster, P) {
    let mut shell = shell.spawn(log);
    // If the script ends early, the test reports the log of the script, which shows the reason. If the test only waited
    // for the Cluster, the test's message would not contain the reason.
    let applied = poll(PATIENCE, || {
        let said = fs::read_to_string(log).unwrap_or_default();
        (said.contains("/prod-1 created") || shell.exit_status().is_some()).then_some(())
    });
    let said = || fs::read_to_string(log).unwrap_or_default();
    assert!(
        applied.is_some() && shell.exit_status().is_none(),
        "{}",
        said()
    );
    let cluster = cluster.wait();
    let provider = start(&cluster);
    let ended = poll(2 * PATIENCE, || shell.exit_status());
    assert!(ended.is_some_and(|status| status.success()), "{}", said());
    (cluster, provider)
}

/// Asserts that the nodes with these provider IDs are ready and have a record with this attestor, and that no path
/// around attestation is open.
#[track_caller]
fn are_attested(
    management: &Management,
    cluster: &WorkloadCluster,
    attestor: &Attestor,
    nodes: &[(String, String)],
) {
    let kubectl = management.kubectl();
    let (name, namespace) = (cluster.name(), cluster.namespace());
    for (provider_id, node) in nodes {
        cluster.control_plane().wait_for_node_ready(node);
        let record = format!("{name}.{node}");
        let record = kubectl.json(["get", "nodeidentity", &record, "-n", namespace]);
        assert_eq!(record["spec"]["attestor"], attestor.as_str(), "{record:#}");
        let claimed = &record["spec"]["providerID"];
        assert_eq!(*claimed, provider_id.as_str(), "{record:#}");
    }
    let authentication = kubectl.json(["get", "kubeletauthentication", name, "-n", namespace]);
    let closed = condition_of(&authentication, "AutoApprovePathsClosed");
    assert_eq!(closed["status"], "True", "{closed:#}");
}

#[test]
fn the_documented_commands_and_the_tpm_tutorial_attest_nodes() {
    let management = Management::managed(TOKEN_TTL);
    let cluster = management.cluster("prod-1").namespace("tenant-a");
    let cluster = cluster.apiserver_arg("--anonymous-auth=true");
    let (manifests, cluster) = cluster.manifests();
    cluster.control_plane().prepare_for_joins();
    let nodes = ["worker-7", "worker-8"];
    let nodes = nodes.map(|node| (format!("metal:///rack-1/{node}"), node.to_owned()));
    let hosts = hosts_with_tpms(nodes.iter().map(|(id, _)| id.clone()));
    let lines: String = hosts
        .iter()
        .map(|(id, (digest, _))| format!("{id} {digest}\n"))
        .collect();
    let order = Order::Hosts(hosts.keys().cloned().collect());
    let tpms = hosts.into_iter().map(|(id, (_, tpm))| (id, tpm)).collect();
    let desk = desk_of_hosts(&lines, &manifests, management.admin_kubeconfig());
    // Follow the tutorial, and then the commands on the pages about the same Cluster.
    let script = script_of(&[
        "tutorial-tpm.md",
        "enable-cluster.md",
        "conditions.md",
        "custom-resources.md",
        "manage-identities.md",
    ]);
    let shell = desk.shell(&script);
    let log = desk.files().join("log");

    let (cluster, _provider) = follow_to_the_end(&shell, &log, cluster, |cluster| {
        Provider::start(cluster, order, machine(cluster, Attestor::TPM, tpms))
    });

    are_attested(&management, &cluster, &Attestor::TPM, &nodes);
    let signer = Attestor::TPM.client_signer();
    let requests = cluster.control_plane().csrs();
    let ours = requests
        .iter()
        .find(|csr| csr["spec"]["signerName"] == signer);
    look(&desk, ours.unwrap()["metadata"]["name"].as_str().unwrap());
}

#[test]
fn the_ec2_tutorial_commands_create_attested_instances() {
    let management = Management::managed(TOKEN_TTL);
    management.define_aws();
    let cluster = management.cluster("prod-1").namespace("tenant-a");
    let cluster = cluster.apiserver_arg("--anonymous-auth=true");
    let cluster = cluster.infrastructure(InfraCluster::Aws(NETWORK.clone()));
    let (manifests, cluster) = cluster.manifests();
    cluster.control_plane().prepare_for_joins();
    let desk = desk_of_cluster(&manifests, management.admin_kubeconfig());
    // The operator uses a simulated AWS. The commands on the page do not need an option for a Cluster without an
    // identity.
    let endpoints = CLOUD.arguments_without_fallback();
    let endpoints = endpoints.iter().map(|word| word.display().to_string());
    let endpoints = endpoints.collect::<Vec<_>>().join(" ");
    let run = "node-attestation-controller run";
    let script = script_of(&["tutorial-ec2.md"]);
    assert_eq!(script.matches(run).count(), 1, "{script}");
    let script = script.replace(run, &format!("{run} {endpoints}"));
    let credentials = CLOUD.manager_environment().into_iter();
    let shell = credentials.fold(desk.shell(&script), |shell, (name, value)| {
        shell.env(name, value)
    });
    let log = desk.files().join("log");

    let (cluster, instances) = follow_to_the_end(&shell, &log, cluster, |cluster| {
        let boot = instance(cluster, Attestor::AWS, &CLOUD);
        Instances::start(cluster, &CLOUD, Maker::Test, boot)
    });

    let nodes = instances.each(|one, _| (one.provider_id(), one.node_name().to_owned()));
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    are_attested(&management, &cluster, &Attestor::AWS, &nodes);
}

/// Runs the commands on the pages that only show a cluster and this request.
#[track_caller]
fn look(desk: &Desk, request: &str) {
    for (page, heading) in [
        ("cluster-check.md", "## Run the checks"),
        ("operate.md", "## Check the status every day"),
        ("troubleshooting.md", "## Pending"),
        ("troubleshooting.md", "## Denied and Failed"),
        ("troubleshooting.md", "## Cluster"),
        ("upgrade.md", "## Steps"),
        (
            "verification.md",
            "### Reasons that indicate a copied machine",
        ),
    ] {
        let steps = page::section(page, heading).into_iter();
        for (_, command) in steps.filter(|(prompt, _)| *prompt == '$') {
            let command = command
                .replace("NAME", request)
                .replace("CLUSTER", "tenant-a/prod-1")
                .replace("team-a/", "tenant-a/");
            // The exit code of a failed check is also a valid result.
            let answer = if command.contains(" cluster check") {
                " || [ $? = 20 ]"
            } else {
                ""
            };
            desk.follow(&format!("{command}{answer}"));
        }
    }
}

#[test]
fn the_quickstart_commands_attest_instances_and_show_a_broken_setting() {
    let scene = Scene::unattended(joinable("tenant-a"), Machines::Ec2(Attestor::AWS));
    let desk = Desk::new(SITE.management.admin_kubeconfig());
    let mut commands = commands("start.md", '$');
    commands.retain(|command| !command.starts_with("make "));
    let enforced = commands
        .iter()
        .position(|command| command.contains("AutoApprovePathsClosed"));
    let (before, after) = commands.split_at(enforced.unwrap());
    let config = scene.config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 0, config);

    desk.follow(&script(before.to_vec()));
    let target = ["machinedeployment", "pool-a", "-n", "tenant-a"];
    SITE.management
        .kubectl()
        .patch(&target, &json!({ "spec": { "replicas": 1 } }));

    let machine = deployment.wait_until_running(1).remove(0);
    let node = scene.wait_for_node_of(&machine);
    assert_eq!(scene.record(&node)["spec"]["attestor"], "aws");
    let mut of_aws = page::commands("aws.md", '$').into_iter();
    let show = of_aws.find(|command| command.starts_with("kubectl get "));
    let show = show.unwrap().replace("NAMESPACE", "tenant-a");
    desk.follow(&format!("{show} > objects.txt"));
    let shown = fs::read_to_string(desk.files().join("objects.txt")).unwrap();
    assert!(shown.contains(&format!("prod-1.{node}")), "{shown}");
    desk.follow(&script(after.to_vec()));
    scene.wait_for_paths("True", "Closed");

    // Take the commands in install.md for a node, except the commands that install packages.
    let mut of_install = page::commands("install.md", '#');
    of_install.retain(|command| !command.contains("node-attestation-controller"));
    let [package, version, identify, doctor] = of_install.as_slice() else {
        panic!("{of_install:?}");
    };
    assert!(package.starts_with("apt install ./"), "{package}");
    scene.on(&node, |machine| {
        let ok = |script: &str| machine.ok(&["sh", "-euc", script]);
        let version = ok(version);
        assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
        let claimed = ok(identify);
        assert!(claimed.contains(&node), "{claimed}");
    });
    let healthy = |said: &str, code| code == Some(0) && said.contains(" 0 fail, ");
    let broken = |said: &str, code| {
        let first = said.lines().find(|line| line.starts_with("fail"));
        code == Some(20)
            && first.is_some_and(|line| line.starts_with("fail  metadata-service: "))
            && said.contains("http://127.0.0.1:9:")
    };
    doctor_says(&scene, &node, doctor, healthy);
    for (page, heading) in [
        ("troubleshooting.md", "## Kubelet journal"),
        ("troubleshooting.md", "## Node that is NotReady"),
        ("upgrade.md", "## Steps"),
    ] {
        let steps = page::section(page, heading).into_iter();
        for (_, command) in steps.filter(|(prompt, _)| *prompt == '#') {
            // On a busy machine, a check can exceed its time limit.
            if command.ends_with(" doctor") {
                doctor_says(&scene, &node, &command, healthy);
                continue;
            }
            let (code, said) = on_node(&scene, &node, &command);
            // journalctl exits with 1 if no line matches.
            let is_empty = command.starts_with("journalctl ") && code == Some(1);
            assert!(code == Some(0) || is_empty, "{command}: {said}");
        }
    }
    for (change, state) in [(BREAK, broken as fn(&str, _) -> _), (MEND, healthy)] {
        scene.on(&node, |machine| machine.ok(&["sh", "-euc", change]));
        doctor_says(&scene, &node, doctor, state);
    }
}

/// Waits for this result of `doctor`, because checks that do not complete in time on a busy machine also fail.
#[track_caller]
pub(crate) fn doctor_says(
    scene: &Scene,
    node: &str,
    command: &str,
    is: impl Fn(&str, Option<i32>) -> bool,
) {
    let mut last = String::new();
    let found = poll(PATIENCE, || {
        let (code, said) = on_node(scene, node, command);
        let is_it = is(&said, code);
        last = said;
        is_it.then_some(())
    });
    assert!(found.is_some(), "{last}");
}

/// A command that moves the metadata service to an address at which no service runs.
const BREAK: &str = "printf 'apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\nkind: \
    KubeletAuthenticatorConfiguration\naws: {metadataEndpoint: \"http://127.0.0.1:9\"}\n' \
    > /etc/kubernetes/kubelet-authenticator/config.d/99-mistake.yaml
    systemctl restart kubelet";

const MEND: &str = "rm /etc/kubernetes/kubelet-authenticator/config.d/99-mistake.yaml
    systemctl restart kubelet";

/// Runs a command from a page on a node. Returns the exit code and the output of the command.
fn on_node(scene: &Scene, node: &str, command: &str) -> (Option<i32>, String) {
    scene.on(node, |machine| {
        let output = machine.run(&["sh", "-euc", command]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    })
}

#[test]
fn the_documented_commands_adopt_a_plain_instance_and_undo_it() {
    let machines = Machines::Ec2(Attestor::AWS);
    let scene = Scene::unattended(joinable("stock-ec2"), machines);
    let config = scene.stock_config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let machine = deployment.wait_until_running(1).remove(0);
    let node = machine["status"]["nodeRef"]["name"].as_str().unwrap();
    let desk = Desk::new(SITE.management.admin_kubeconfig());
    let workload = scene.plane().admin_kubeconfig();
    symlink(workload, desk.files().join("prod-1.kubeconfig")).unwrap();

    let adopted = steps("adopt.md", "# Adopt").into_iter();
    let undone = steps("operate.md", "## Uninstall").into_iter();
    let mut doctors = 0;
    let mut shown = Vec::new();
    for (prompt, command) in adopted.chain(undone) {
        let command = command.replace("tenant-a", "stock-ec2");
        match (prompt, &*command) {
            // These commands also show the clusters of other tests, or need the package or the manifests. The test does
            // not install the package or the manifests.
            ('$', "node-attestation-controller cluster check" | "kubectl delete -k overlay")
            | ('#', "apt purge kubelet-authenticator-aws") => {}
            ('$', _) => desk.follow(&command),
            ('#', "kubeadm init phase bootstrap-token") => {
                scene.plane().kubeadm_bootstrap_token_phase();
            }
            ('#', "kubelet-authenticator-aws doctor") => {
                let is_adopted = doctors > 0;
                doctor_says(&scene, node, &command, |said, code| {
                    if is_adopted {
                        code == Some(0)
                    } else {
                        code == Some(20) && said.contains("fail  kubelet-kubeconfig: ")
                    }
                });
                doctors += 1;
            }
            _ => {
                let (code, said) = on_node(&scene, node, &command);
                assert_eq!(code, Some(0), "{command}: {said}");
            }
        }
        if command.starts_with("kubectl apply") {
            let kubectl = SITE.management.kubectl();
            scene.authentication.wait_until_ready(kubectl);
            shown.push("ready");
        }
        if command.contains("reason=NodeAdopted") {
            assert_eq!(scene.record(node)["spec"]["attestor"], "aws");
            assert_eq!(scene.wait_for_node_of(&machine), node);
            shown.push("adopted");
        }
        if command.contains("for=condition=AutoApprovePathsClosed") {
            scene.wait_for_paths("True", "Closed");
            shown.push("closed");
        }
    }
    assert_eq!(shown, ["ready", "adopted", "closed"]);

    assert_eq!(doctors, 2);
    let (_, kubeconfig) = on_node(&scene, node, "cat /etc/kubernetes/kubelet.conf");
    assert!(!kubeconfig.contains("exec:"), "{kubeconfig}");
    scene.plane().wait_for_node_ready(node);
}
