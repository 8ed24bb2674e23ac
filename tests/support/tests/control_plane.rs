//! The real control plane and the real kubelet, by themselves: what the other suites build on.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use kubelet_authenticator_test_support::control_plane::{
    BOOTSTRAPPERS, CaKey, ControlPlane, Controllers, DEADLINE, Exec, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::process::poll;
use serde_json::{Value, json};

/// A cluster as kubeadm leaves it.
static STOCK: LazyLock<ControlPlane> = LazyLock::new(|| {
    let cluster = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    cluster.install_kubeadm_bindings();
    cluster
});

#[test]
fn a_stock_kubelet_joins_and_leaves_the_machine_as_it_was() {
    let before = machine();
    let token = STOCK.add_bootstrap_token("stock1", "0123456789abcdef");
    let bootstrap = STOCK.bootstrap_kubeconfig(&token);

    let started = Instant::now();
    let mut kubelet = STOCK
        .kubelet("stock-1")
        .bootstrap_kubeconfig(bootstrap)
        .start();
    let csr = STOCK.wait_for_csr("of stock1 with a certificate", |csr| {
        csr["spec"]["username"] == "system:bootstrap:stock1"
            && csr["status"]["certificate"].is_string()
    });
    let issued = started.elapsed();
    let node = STOCK.wait_for_node("stock-1");
    let registered = started.elapsed();
    STOCK.wait_for_node_ready("stock-1");
    println!(
        "issued {issued:?}, registered {registered:?}, ready {:?}",
        started.elapsed()
    );

    assert_eq!(
        csr["spec"]["signerName"],
        "kubernetes.io/kube-apiserver-client-kubelet"
    );
    let version = STOCK.kubectl().json(["version"]);
    assert_eq!(
        node["status"]["nodeInfo"]["kubeletVersion"],
        version["serverVersion"]["gitVersion"]
    );
    assert!(
        fs::read_to_string(kubelet.kubeconfig())
            .unwrap()
            .contains("kubelet-client-current.pem")
    );
    assert!(
        kubelet
            .var_lib()
            .join("kubelet/pki/kubelet-client-current.pem")
            .is_symlink()
    );
    kubelet.wait_for_log("Successfully registered node");
    assert!(
        kubelet
            .metrics()
            .sum("rest_client_requests_total", &[("code", "201")])
            >= 2.0
    );

    drop(kubelet);
    assert_eq!(machine(), before);
}

#[test]
fn a_restarted_kubelet_keeps_its_certificate() {
    let token = STOCK.add_bootstrap_token("stock2", "0123456789abcdef");
    let bootstrap = STOCK.bootstrap_kubeconfig(&token);
    let mut kubelet = STOCK
        .kubelet("stock-2")
        .bootstrap_kubeconfig(bootstrap)
        .start();
    STOCK.wait_for_node_ready("stock-2");
    let first = kubelet.pid();

    kubelet.restart();
    kubelet.wait_for_log("Successfully registered node");

    assert_ne!(kubelet.pid(), first);
    let by_token = |csr: &&Value| csr["spec"]["username"] == "system:bootstrap:stock2";
    assert_eq!(STOCK.csrs().iter().filter(by_token).count(), 1);
}

/// Runs the test above in a process of its own, and kills that once its kubelet is up.
#[test]
fn nothing_survives_a_test_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_restarted_kubelet_keeps_its_certificate"])
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let children = poll(DEADLINE, || {
        let children = children_of(test.id());
        let has_kubelet = children.iter().any(|pid| program(*pid) == "kubelet");
        has_kubelet.then_some(children)
    });

    test.kill().unwrap();
    test.wait().unwrap();

    // etcd, the API server, the controller manager, the runtime, the kubelet, and who cleans up.
    let children = children.expect("the test starts a kubelet");
    assert!(children.len() >= 6, "{children:?}");
    let gone = poll(DEADLINE, || {
        let alive = children
            .iter()
            .any(|pid| Path::new(&format!("/proc/{pid}")).exists());
        let left = fs::read_dir(directory.path()).unwrap().count();
        (!alive && left == 0).then_some(())
    });
    assert!(
        gone.is_some(),
        "left: {:?}",
        children.iter().map(|pid| program(*pid)).collect::<Vec<_>>()
    );
}

fn children_of(parent: u32) -> Vec<u32> {
    let of_parent = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| *line == format!("PPid:\t{parent}"))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(of_parent).collect()
}

fn program(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}

/// An exec plugin in the fewest lines: tells what it was told, then prints a credential or fails.
fn plugin(cluster: &ControlPlane, node: &str) -> PathBuf {
    let pair = cluster.client_certificate(&format!("system:node:{node}"), Some("system:nodes"));
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {
            "clientCertificateData": pair.certificate_pem,
            "clientKeyData": pair.key_pem,
        },
    });
    let directory = cluster.directory("plugin");
    fs::write(directory.join("credential"), credential.to_string()).unwrap();
    let script = directory.join("plugin");
    let text = "#!/bin/sh\necho \"plugin: $1 $COLOUR ${HOME-homeless} $KUBERNETES_EXEC_INFO\" >&2\n\
        cat \"${0%/*}/credential\" || exit 7\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[test]
fn a_kubelet_joins_with_what_its_exec_plugin_gives_it() {
    let cluster = ControlPlane::builder()
        .controllers(Controllers::Default)
        .start();
    let exec = Exec::new(plugin(&cluster, "exec-1"))
        .arg("argument")
        .env("COLOUR", "green")
        .config(json!({ "shape": "round" }));

    let mut kubelet = cluster
        .kubelet("exec-1")
        .kubeconfig(cluster.exec_kubeconfig(exec))
        .lease_duration(4)
        .server_tls_bootstrap()
        .start();

    let said = kubelet.wait_for_log("plugin: ");
    assert!(said.contains("plugin: argument green homeless {"), "{said}");
    assert!(said.contains(r#""config":{"shape":"round"}"#), "{said}");
    kubelet.wait_until_ready();
    kubelet.wait_for_lease_renewal();
    let csr = cluster.wait_for_csr("of a serving certificate", |_| true);
    assert_eq!(csr["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(csr["spec"]["username"], "system:node:exec-1");
    let csr = csr["metadata"]["name"].as_str().unwrap();
    cluster.kubectl().ok(["certificate", "approve", csr]);
    let calls = kubelet.metrics().sum(
        "rest_client_exec_plugin_call_total",
        &[("call_status", "no_error")],
    );
    assert!(calls >= 1.0, "{calls}");
}

#[test]
fn a_failing_exec_plugin_shows_in_the_metrics_and_the_kubelet_goes_on_when_it_recovers() {
    let plugin = plugin(&STOCK, "exec-2");
    let credential = plugin.with_file_name("credential");
    let kept = plugin.with_file_name("kept");
    fs::rename(&credential, &kept).unwrap();
    let kubeconfig = STOCK.exec_kubeconfig(Exec::new(plugin));

    let kubelet = STOCK.kubelet("exec-2").kubeconfig(kubeconfig).start();
    kubelet.wait_for_metric(
        "rest_client_exec_plugin_call_total",
        &[("code", "7")],
        |n| n > 0.0,
    );
    fs::rename(kept, credential).unwrap();

    kubelet.wait_until_registered();
}

#[test]
fn two_control_planes_run_side_by_side_and_end_with_their_fixtures() {
    let rsa = ControlPlane::builder().ca_key(CaKey::Rsa).start();
    let other = ControlPlane::start();

    rsa.kubectl().ok(["create", "namespace", "only-here"]);

    assert!(
        !other
            .kubectl()
            .run(["get", "namespace", "only-here"])
            .status
            .success()
    );
    assert!(
        fs::read_to_string(rsa.ca_key_path())
            .unwrap()
            .starts_with("-----BEGIN PRIVATE KEY")
    );
    let processes = [rsa.etcd(), rsa.apiserver(), other.etcd(), other.apiserver()].map(|p| p.pid());
    let directory = rsa.ca_cert_path().parent().unwrap().to_owned();
    drop((rsa, other));
    assert!(
        processes
            .iter()
            .all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    );
    assert!(!directory.exists());
}

#[test]
fn every_kind_of_kubeconfig_authenticates() {
    let token = STOCK.add_bootstrap_token("files1", "0123456789abcdef");
    let node = STOCK.client_certificate("system:node:files-1", Some("system:nodes"));

    for (user, name) in [
        (User::Token(token.bearer()), "system:bootstrap:files1"),
        (User::Certificate(node), "system:node:files-1"),
    ] {
        for kubeconfig in [
            STOCK.kubeconfig(user.clone()),
            STOCK.kubeconfig_with_files(user),
        ] {
            let user = STOCK.kubectl_with(kubeconfig).json(["auth", "whoami"]);
            assert_eq!(user["status"]["userInfo"]["username"], name);
        }
    }
}

#[test]
fn a_binding_that_was_removed_is_out_of_force() {
    let cluster = ControlPlane::start();
    let token = cluster.add_bootstrap_token("abcdef", "0123456789abcdef");
    let holder = cluster.kubectl_with(cluster.bootstrap_kubeconfig(&token));

    cluster.install_kubeadm_bindings();
    assert!(
        holder
            .run(["get", "certificatesigningrequests"])
            .status
            .success()
    );

    cluster.remove_binding(KubeadmBinding::KubeletBootstrap);
    assert!(
        !holder
            .run(["get", "certificatesigningrequests"])
            .status
            .success()
    );
}

#[test]
fn kubeadm_brings_the_auto_approve_bindings_back() {
    let cluster = ControlPlane::start();
    cluster.install_kubeadm_bindings();
    let auto_approve = [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ];
    for binding in auto_approve {
        cluster.remove_binding(binding);
    }
    let kubectl = cluster.kubectl();
    let installed = |binding: &KubeadmBinding| {
        let found = kubectl.run(["get", "clusterrolebinding", binding.name(), "-o", "json"]);
        let object: Value = serde_json::from_slice(&found.stdout).ok()?;
        Some((
            object["roleRef"]["name"].clone(),
            object["subjects"][0]["name"].clone(),
        ))
    };
    assert_eq!(auto_approve.iter().filter_map(installed).count(), 0);

    cluster.kubeadm_bootstrap_token_phase();

    let roles = "system:certificates.k8s.io:certificatesigningrequests";
    assert_eq!(
        auto_approve.iter().map(installed).collect::<Vec<_>>(),
        [
            Some((json!(format!("{roles}:nodeclient")), json!(BOOTSTRAPPERS))),
            Some((
                json!(format!("{roles}:selfnodeclient")),
                json!("system:nodes")
            )),
        ]
    );
}

#[test]
fn kubeadm_uploads_its_configuration_and_says_why_it_fails() {
    let cluster = ControlPlane::start();

    let output = cluster.kubeadm(["init", "phase", "upload-config", "kubeadm"]);
    assert!(output.status.success(), "{output:?}");
    let kubectl = cluster.kubectl();
    kubectl.ok(["get", "configmap", "-n", "kube-system", "kubeadm-config"]);

    let output = cluster.kubeadm(["init", "phase", "no-such-phase"]);
    assert!(!output.status.success());
    assert!(!output.stderr.is_empty());
}

#[test]
fn an_api_server_that_starts_again_keeps_its_address_and_its_objects() {
    let mut cluster = ControlPlane::start();
    cluster.kubectl().ok(["create", "namespace", "kept"]);
    let first = cluster.apiserver().pid();

    cluster.restart_apiserver();

    assert_ne!(cluster.apiserver().pid(), first);
    cluster.kubectl().ok(["get", "namespace", "kept"]);
}

/// What a kubelet with fewer walls around it changes.
fn machine() -> BTreeMap<String, String> {
    let files = [
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/panic_on_oom",
        "/proc/sys/kernel/panic",
        "/proc/sys/kernel/panic_on_oops",
        "/proc/sys/kernel/keys/root_maxkeys",
        "/proc/sys/kernel/keys/root_maxbytes",
    ];
    let read = |path: &str| {
        let contents = fs::read_to_string(path).unwrap_or_default();
        (path.to_owned(), contents)
    };
    let directories = ["/var/lib/kubelet", "/var/log/containers", "/var/log/pods"];
    let list = |path: &str| {
        let entries = fs::read_dir(path).map(|entries| entries.flatten().count());
        (path.to_owned(), format!("{:?}", entries.ok()))
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains("kubelet"));
    let mounts = ("mounts".to_owned(), mounts.collect());
    let all = files.map(read).into_iter().chain(directories.map(list));
    all.chain([mounts]).collect()
}
