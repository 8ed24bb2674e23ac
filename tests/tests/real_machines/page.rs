//! docs/cluster-api.md, followed by an operator who copies its commands.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::binaries::{KUBERNETES_VERSION, control_plane_binary};
use kubelet_authenticator_test_support::process::{Launch, Scratch, poll};
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::image::{hosts_with_tpms, machine, needed};
use kubelet_authenticator_tests::management::{Management, Order, Provider};
use kubelet_authenticator_tests::page::{commands, repository};
use kubelet_authenticator_tests::program;
use serde_json::{Map, Value, json};

use kubelet_authenticator_tests::machines::{PATIENCE, TOKEN_TTL};

/// An operator's working directory: the repository's files, the programs, and the page's prerequisites.
fn desk(hosts: &str, cluster: &[Value], kubeconfig: &Path) -> Scratch {
    let desk = Scratch::new("desk");
    symlink(kubeconfig, desk.directory(".kube").join("config")).unwrap();
    symlink(repository().join("packaging"), desk.join("packaging")).unwrap();
    desk.write("hosts.txt", hosts);
    let workers = json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "GenericMachineTemplate",
        "metadata": { "name": "workers", "namespace": "tenant-a" },
        "spec": { "template": { "spec": {} } },
    });
    let objects = cluster.iter().chain([&workers]).map(Value::to_string);
    desk.write("cluster.yaml", objects.collect::<Vec<_>>().join("\n---\n"));
    let programs = desk.directory("bin");
    symlink(control_plane_binary("kubectl"), programs.join("kubectl")).unwrap();
    for name in ["kubelet-authenticator-aws", "kubelet-authenticator-tpm"] {
        symlink(program(name), programs.join(name)).unwrap();
    }
    // API servers of tests are on loopback, and rounds of the controller need not be a minute apart.
    let controller = program("node-attestation-controller");
    let wrapper = format!(
        "#!/bin/sh\n[ \"$1\" = run ] || exec {0} \"$@\"\nshift\n\
         exec setpriv --pdeathsig KILL -- {0} run --insecure-allow-loopback --sync-period=10s \"$@\"\n",
        controller.display()
    );
    let path = desk.write("bin/node-attestation-controller", wrapper);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    desk
}

#[test]
fn whoever_copies_the_commands_of_the_page_has_attested_nodes() {
    let management = Management::managed(TOKEN_TTL);
    let cluster = management.cluster("prod-1").namespace("tenant-a");
    let cluster = cluster.apiserver_arg("--anonymous-auth=true");
    let (manifests, cluster) = cluster.manifests();
    cluster.control_plane().prepare_for_joins();
    let hosts =
        hosts_with_tpms(["worker-7", "worker-8"].map(|host| format!("metal:///rack-1/{host}")));
    let lines: String = hosts
        .iter()
        .map(|(id, (digest, _))| format!("{id} {digest}\n"))
        .collect();
    let order = Order::Hosts(hosts.keys().cloned().collect());
    let tpms = hosts.into_iter().map(|(id, (_, tpm))| (id, tpm)).collect();
    let desk = desk(&lines, &manifests, management.admin_kubeconfig());
    let registration: Map<_, _> = needed()
        .into_iter()
        .map(|(field, value)| (field.to_owned(), value))
        .collect();
    let needed = json!({ "spec": { "template": { "spec": {
        "joinConfiguration": { "nodeRegistration": registration },
    } } } });
    let script: String = commands('$')
        .into_iter()
        .map(|command| match &*command {
            "kubectl apply -n tenant-a -f workers.yaml" => format!(
                "{command}\nkubectl patch kubeadmconfigtemplate workers -n tenant-a --type merge -p '{needed}'\n"
            ),
            _ => command + "\n",
        })
        .collect();
    // The page has the current version; Cluster API creates no Machine that is newer than its control plane.
    let script = script.replace("v1.36.3", &KUBERNETES_VERSION);

    let log = desk.join("log");
    let path = std::env::var("PATH").unwrap();
    let mut shell = Launch::new("desk", "bash")
        .args(["-xeuo", "pipefail", "-c"])
        .arg(format!("cd {}\n{script}", desk.path().display()))
        .env("PATH", format!("{}:{path}", desk.join("bin").display()))
        .env("HOME", desk.path())
        .spawn(&log);

    // If the script ends early, its log shows the reason: a wait for the Cluster would not.
    let applied = poll(PATIENCE, || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        (said.contains("/prod-1 created") || shell.exit_status().is_some()).then_some(())
    });
    let said = || fs::read_to_string(&log).unwrap_or_default();
    assert!(
        applied.is_some() && shell.exit_status().is_none(),
        "{}",
        said()
    );
    let cluster = cluster.wait();
    let _provider = Provider::start(&cluster, order, machine(&cluster, Attestor::TPM, tpms));
    let ended = poll(2 * PATIENCE, || shell.exit_status());
    assert!(ended.is_some_and(|status| status.success()), "{}", said());
    for node in ["worker-7", "worker-8"] {
        cluster.control_plane().wait_for_node_ready(node);
        let record = format!("prod-1.{node}");
        let words = ["get", "nodeidentity", &record, "-n", "tenant-a"];
        let record = management.kubectl().json(words);
        assert_eq!(record["spec"]["attestor"], "tpm", "{record:#}");
        assert_eq!(
            record["spec"]["providerID"],
            format!("metal:///rack-1/{node}"),
            "{record:#}"
        );
    }
    let words = ["get", "kubeletauthentication", "prod-1", "-n", "tenant-a"];
    let authentication = management.kubectl().json(words);
    let closed = condition_of(&authentication, "AutoApprovePathsClosed");
    assert_eq!(closed["status"], "True", "{closed:#}");
}
