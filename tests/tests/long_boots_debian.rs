//! Tests of machines with Debian that boot with firmware, Secure Boot and a TPM that the kernel drives. systemd starts
//! the kubelet with the plugin's drop-in. One machine runs Pods, and two machines enforce SELinux.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::binaries::build_part;
use kubelet_authenticator_test_support::control_plane::{Kubectl, has_condition};
use kubelet_authenticator_test_support::machine::PAUSE;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::virtual_machine::{Boot, Image, SecureBoot};
use kubelet_authenticator_tests::boots::{HELPER, Host, NODE_STARTS, RENEW, cluster, confined};
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::scene::Scene;
use serde_json::{Value, json};

/// The deadline for a boot, a join and the first Pods.
const PATIENCE: Duration = Duration::from_secs(20 * 60);

/// The commands from the file README of the package `kubelet-authenticator-selinux`, and the labels of the other files
/// that the test has written to the disk. The module is already loaded. SELinux confines restorecon, so its output is
/// piped.
const LABELS: &str = "{
  systemd-tmpfiles --create kubelet-authenticator.conf
  restorecon -R /usr/bin /usr/local/bin /usr/lib/kubelet-authenticator /var/lib/kubelet-authenticator
  restorecon -R /etc /var/lib/kubelet
} 2>&1 | cat >&2
";

/// A shell script that prints the mode of SELinux, and the SELinux types of the kubelet and of the files.
const TYPES: &str = r#"
{
  echo "$(getenforce)"
  pid=$(systemctl show --property=MainPID --value kubelet)
  echo "the kubelet $(tr -d '\0' <"/proc/$pid/attr/current")"
  stat --format='%n %C' /usr/bin/kubelet* /usr/lib/kubelet-authenticator/* /etc/kubernetes/kubelet.conf
  find /var/lib/kubelet-authenticator -printf 'state %Z\n' | sort -u
} | sed -E 's/[a-z_]+:[a-z_]+:([a-z_]+):s0/\1/'
"#;

/// The plugin, and the command that starts it as root does in a login shell.
const OF_ROOT: &str = "runcon unconfined_u:unconfined_r:unconfined_t:s0 \
    /bin/sh -c '/usr/bin/kubelet-authenticator-tpm \"$@\"' sh";

/// A shell script that waits until the kubelet has removed the Pod from the API server. It then prints the number of
/// running containers, which belong to the static Pod.
const PODS: &str = r#"
removed=
for try in $(seq 480); do
  if grep -qF '"SyncLoop REMOVE" source="api"' /report/kubelet; then removed=yes; break; fi
  sleep 1
done
ctr --namespace k8s.io tasks ls >/report/tasks
if [ ! "$removed" ]; then
  cat /report/tasks >&2
  tail -n 40 /report/kubelet >&2
  exit 1
fi
grep -c RUNNING /report/tasks
"#;

/// Whether SELinux has logged that this domain has started the program without a transition to another domain.
fn has_run(boot: &Boot, domain: &str, program: &str) -> bool {
    let words = [
        "granted  { execute_no_trans }".to_owned(),
        format!("path=\"{program}\""),
        format!(":{domain}:s0 tcontext=system_u:object_r:bin_t:s0 "),
    ];
    let log = boot.kernel_log();
    log.lines()
        .any(|line| words.iter().all(|word| line.contains(word)))
}

/// The denials of SELinux in the domains of the kubelet and for the programs of this repository.
fn denials(boot: &Boot) -> Vec<String> {
    let is_ours = |line: &&str| {
        let of = ["kubelet_t:", "comm=\"kubelet"];
        line.contains("avc:  denied") && of.iter().any(|it| line.contains(it))
    };
    let log = boot.kernel_log();
    log.lines().filter(is_ours).map(str::to_owned).collect()
}

/// Asserts that the node has joined with evidence from its TPM, and that its runtime is containerd.
#[track_caller]
fn has_joined(scene: &Scene, name: &str) {
    let record = scene.record(name);
    assert_eq!(record["spec"]["attestor"], "tpm", "{record:#}");
    let node = scene.cluster.control_plane().wait_for_node(name);
    let runtime = &node["status"]["nodeInfo"]["containerRuntimeVersion"];
    let runtime = runtime.as_str().unwrap();
    assert!(runtime.starts_with("containerd://"), "{runtime}");
    let signer = Provider::TPM.client_signer();
    let mut requests = scene.cluster.control_plane().csrs().into_iter();
    assert!(requests.any(|csr| csr["spec"]["signerName"] == signer && is_issued(&csr)));
}

#[test]
fn a_machine_that_enforces_selinux_joins_and_renews() {
    let scene = cluster("selinux");
    let host = Host::debian_node(&scene, "selinux");
    let plugin = "/usr/bin/kubelet-authenticator-tpm";
    let [of_root, when_confined] =
        [OF_ROOT, &confined()].map(|started| format!("renew {started} >&2; echo $?\n"));
    // The label of container-selinux, without the package kubelet-authenticator-selinux.
    let commands = format!(
        "{LABELS}{NODE_STARTS}{TYPES}{RENEW}{of_root}{when_confined}\
         chcon -t kubelet_exec_t {plugin}\n{of_root}"
    );

    let boot = host
        .hardware
        .boot(Image::UnifiedSelinux, SecureBoot::On, &commands);

    let expected = format!(
        "Enforcing\nthe kubelet kubelet_t\n/usr/bin/kubelet kubelet_exec_t\n{plugin} bin_t\n{HELPER} bin_t\n\
         /etc/kubernetes/kubelet.conf kubernetes_file_t\nstate container_var_lib_t\n0\n0\n0\n"
    );
    assert_eq!(boot.output(), expected, "{}", boot.account());
    has_joined(&scene, "selinux");
    let none: [String; 0] = [];
    assert_eq!(denials(&boot), none, "{}", boot.account());
    let log = boot.kernel_log();
    assert!(has_run(&boot, "kubelet_t", plugin), "{log}");
    for domain in ["kubelet_t", "unconfined_t", "confined_kubelet_t"] {
        assert!(has_run(&boot, domain, HELPER), "{domain}\n{log}");
    }
    // With the other label, the plugin of root runs in the domain of the kubelet.
    assert!(has_run(&boot, "unconfined_t", plugin), "{log}");
    let moves = |line: &str| {
        let words = [
            "granted  { transition }",
            &format!("path=\"{plugin}\""),
            ":unconfined_t:s0 tcontext=unconfined_u:system_r:kubelet_t:s0 ",
        ];
        words.iter().all(|word| line.contains(word))
    };
    assert!(log.lines().any(moves), "{log}");
    let renewals = host.renewals().into_iter().filter(is_issued);
    assert_eq!(renewals.count(), 3, "{:#?}", host.renewals());
}

#[test]
fn a_confined_plugin_fails_with_a_wrong_label_until_restorecon() {
    let scene = cluster("labels");
    let host = Host::debian(&scene, "labels");
    let state = "/var/lib/kubelet-authenticator";
    let confined = confined();
    let [run, doctor] = [format!("renew {confined}"), format!("{confined} doctor")]
        .map(|command| format!("{command} 2>&1; echo \"exit $?\"; echo ===\n"));
    let restored = |path: &str| format!("restorecon -R {path} 2>&1 | cat >&2\n");
    // The labels of Debian's policy, without the package kubelet-authenticator-selinux.
    let commands = [
        format!("{LABELS}{RENEW}"),
        format!("chcon -t lib_t {HELPER}\n{run}{doctor}"),
        restored(HELPER),
        format!("chcon -R -t var_lib_t {state}\n{run}"),
        restored(state),
        run.clone(),
    ];

    let boot = host
        .hardware
        .boot(Image::UnifiedSelinux, SecureBoot::On, &commands.concat());

    let output = boot.output();
    let parts: Vec<_> = output.split("===\n").collect();
    let [helper, report, directory, valid, ""] = parts[..] else {
        panic!("{output}{}", boot.account())
    };
    let refused = format!("cannot start {HELPER}: Permission denied (os error 13)");
    let failed = format!("error: cannot use the TPM: {refused}\n");
    assert!(helper.contains(&failed), "{helper}{}", boot.account());
    let hint = format!("restorecon -v {HELPER}\n");
    assert!(helper.contains(&hint), "{helper}");
    assert!(helper.ends_with("exit 6\n"), "{helper}");
    // doctor wraps its lines.
    let words: Vec<_> = report.split_whitespace().collect();
    assert!(words.join(" ").contains(&refused), "{report}");
    assert!(report.ends_with("exit 20\n"), "{report}");
    let denied = format!("error: cannot lock {state}/");
    assert!(directory.contains(&denied), "{directory}");
    let reason = ": Permission denied (os error 13)\n";
    assert!(directory.contains(reason), "{directory}");
    assert!(directory.ends_with("exit 4\n"), "{directory}");
    assert!(valid.ends_with("exit 0\n"), "{valid}{}", boot.account());
    let log = denials(&boot);
    let with = |words: [&str; 2]| {
        log.iter()
            .any(|line| words.iter().all(|it| line.contains(it)))
    };
    assert!(with(["{ execute_no_trans }", HELPER]), "{log:#?}");
    assert!(with([":confined_kubelet_t:", ":var_lib_t:"]), "{log:#?}");
    let record = scene.record("labels");
    assert_eq!(record["spec"]["attestor"], "tpm", "{record:#}");
}

/// A Pod whose process waits. The image is on the machine.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{ "name": "main", "image": PAUSE, "imagePullPolicy": "Never" }],
        },
    })
}

/// Waits until `condition` returns a value, or until the machine is off.
fn while_on<T>(off: &AtomicBool, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let waited = poll(PATIENCE, || match condition() {
        Some(value) => Some(Some(value)),
        None => off.load(Ordering::Relaxed).then_some(None),
    });
    waited.flatten()
}

/// Creates a Pod with the first name on the node when the node is registered, waits until the Pods with these names are
/// ready, and deletes the first one. Returns the ready Pods. `None` if the machine is off earlier.
fn run_pods(
    kubectl: &Kubectl,
    node_name: &str,
    names: [&str; 2],
    off: &AtomicBool,
) -> Option<[Value; 2]> {
    while_on(off, || {
        let output = kubectl.run(["get", "node", node_name]);
        output.status.success().then_some(())
    })?;
    let [name, _] = names;
    let mut of_api = pod(name);
    of_api["spec"]["nodeName"] = json!(node_name);
    while_on(off, || kubectl.try_create(&of_api).ok())?;
    let ready = while_on(off, || {
        let all = kubectl.json(["get", "pods", "--namespace", "default"]);
        let all = all["items"].as_array()?;
        let ready = names.map(|name| {
            let mut pods = all.iter();
            pods.find(|pod| pod["metadata"]["name"] == name && has_condition(pod, "Ready"))
        });
        let [Some(first), Some(second)] = ready else {
            return None;
        };
        Some([first.clone(), second.clone()])
    })?;
    kubectl.ok(["delete", "pod", name, "--wait=false"]);
    Some(ready)
}

#[test]
fn a_node_with_containerd_runs_a_static_pod_and_a_pod_from_the_api() {
    let scene = cluster("pods");
    let host = Host::debian_node(&scene, "pods");
    let files = Scratch::new("pause");
    let pause = repository().join("tests/containerd/pause");
    let pause = build_part(&pause, files.path().to_str().unwrap());
    let archive = "/usr/lib/machine/pause.tar";
    host.hardware.program(archive, &pause);
    let manifest = pod("static").to_string();
    host.hardware
        .file("/etc/kubernetes/manifests/static.json", 0o600, manifest);
    let import = format!("ctr --namespace k8s.io images import {archive} >&2 || exit 1\n");
    let commands = format!("{import}{NODE_STARTS}{PODS}");
    let off = AtomicBool::new(false);
    let kubectl = scene.kubectl();

    let (boot, pods) = thread::scope(|scope| {
        let pods = scope.spawn(|| run_pods(kubectl, "pods", ["from-api", "static-pods"], &off));
        let boot = host
            .hardware
            .boot(Image::Unified, SecureBoot::On, &commands);
        off.store(true, Ordering::Relaxed);
        (boot, pods.join().unwrap())
    });

    let [of_api, of_file] = pods.unwrap_or_else(|| panic!("{}", boot.account()));
    // The process that keeps the namespaces of the static Pod, and its container.
    assert_eq!(boot.output(), "2\n", "{}", boot.account());
    has_joined(&scene, "pods");
    for pod in [&of_api, &of_file] {
        assert_eq!(pod["spec"]["nodeName"], "pods");
        let id = &pod["status"]["containerStatuses"][0]["containerID"];
        assert!(id.as_str().unwrap().starts_with("containerd://"), "{id}");
        // The address is from the network of the Pods.
        let address = pod["status"]["podIP"].as_str().unwrap();
        assert!(address.starts_with("10.85."), "{address}");
    }
    let source = &of_file["metadata"]["annotations"]["kubernetes.io/config.source"];
    assert_eq!(source, "file");
    assert_eq!(host.renewals().len(), 0);
}
