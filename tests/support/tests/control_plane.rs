//! Tests that real kubelets and control planes do not leave anything behind on the machine that runs the tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, DEADLINE};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::poll;

/// The environment variable for the test process that is killed.
const HOLD: &str = "CONTROL_PLANE_HOLD";

/// A cluster in the state in which kubeadm creates it.
static STOCK: LazyLock<ControlPlane> = LazyLock::new(|| {
    let cluster = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    cluster.install_kubeadm_bindings();
    cluster
});

fn join(name: &str) -> Kubelet {
    let token = STOCK.add_bootstrap_token("stock1", "0123456789abcdef");
    let bootstrap = STOCK.bootstrap_kubeconfig(&token);
    let kubelet = STOCK.kubelet(name).bootstrap_kubeconfig(bootstrap).start();
    STOCK.wait_for_node_ready(name);
    kubelet
}

#[test]
fn a_stock_kubelet_joins_and_leaves_no_changes_on_the_host() {
    let before = machine();

    drop(join("stock-1"));

    assert_eq!(machine(), before);
}

#[test]
fn a_killed_test_leaves_no_processes_behind() {
    if std::env::var_os(HOLD).is_some() {
        let _kubelet = join("stock-2");
        std::thread::park();
    }
    let directory = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_test_leaves_no_processes_behind"])
        .env(HOLD, "yes")
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

    // The processes are etcd, the API server, the controller manager, the runtime, the kubelet, and the cleaner.
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

/// The part of the machine's state that a less isolated kubelet would change.
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
