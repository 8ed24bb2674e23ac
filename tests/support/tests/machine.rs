//! Machines by themselves: they join as nodes do, and leave nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, DEADLINE};
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::poll;
use serde_json::Value;

/// The beginning of the names of machines' control groups.
const GROUP: &str = "kubelet-authenticator-";

/// A cluster that `kubeadm join` takes for one of kubeadm's.
static CLUSTER: LazyLock<ControlPlane> = LazyLock::new(|| {
    ControlPlane::builder()
        .anonymous_auth()
        .controllers(Controllers::Certificates)
        .start()
});

#[test]
fn cloud_init_carries_out_user_data_with_what_it_is_told_of_the_machine() {
    let user_data = "\
## template: jinja
#cloud-config
write_files:
- path: /etc/written
  permissions: '0600'
  content: \"{{ ds.meta_data.local_hostname }} {{ ds.meta_data.rack }}\"
runcmd:
- cat /etc/written > /run/after
";
    let machine = Machine::builder(&CLUSTER, "machine-cloud")
        .cloud_init(user_data, &[("rack", "r7")])
        .boot();

    machine.wait_for_cloud_init();

    assert_eq!(machine.ok(&["cat", "/run/after"]), "machine-cloud r7");
    let units = ["systemctl", "is-active", "cloud-init.target", "cloud-final"];
    // What cloud-init says that it has done, its unit ends a moment later.
    let active = poll(DEADLINE, || {
        let said = machine.run(&units).stdout;
        (said == b"active\nactive\n").then_some(())
    });
    assert!(active.is_some(), "{}", machine.journal());
    let failed = ["systemctl", "--failed", "--plain", "--no-legend"];
    assert_eq!(machine.ok(&failed), "", "{}", machine.journal());
}

#[test]
fn a_machine_joins_by_kubeadm_as_on_a_node() {
    let token = CLUSTER.prepare_for_joins();
    let started = Instant::now();
    let machine = Machine::builder(&CLUSTER, "machine-1")
        .file("/etc/placed/file", 0o640, "placed\n")
        .kubelet_arg("--node-labels=of=machine-1")
        .boot();
    let booted = started.elapsed();

    let joined = machine.kubeadm_join(&token.bearer(), &[("provider-id", "generic:///machine-1")]);
    let after_join = started.elapsed();
    let succeeded = joined.status.success();
    assert!(succeeded, "{joined:?}\n{}", machine.journal());
    let node = CLUSTER.wait_for_node("machine-1");
    CLUSTER.wait_for_node_ready("machine-1");
    println!(
        "booted {booted:?}, joined {after_join:?}, ready {:?}",
        started.elapsed()
    );

    assert_eq!(node["spec"]["providerID"], "generic:///machine-1");
    assert_eq!(node["metadata"]["labels"]["of"], "machine-1");
    let user = format!("system:bootstrap:{}", token.id());
    let by_token = |csr: &&Value| csr["spec"]["username"] == user.as_str();
    assert_eq!(CLUSTER.csrs().iter().filter(by_token).count(), 1);
    let kubeconfig = machine.read("/etc/kubernetes/kubelet.conf").unwrap();
    let kubeconfig = String::from_utf8(kubeconfig).unwrap();
    assert!(kubeconfig.contains("/var/lib/kubelet/pki/kubelet-client-current.pem"));
    let certificate = machine.read("/var/lib/kubelet/pki/kubelet-client-current.pem");
    assert!(certificate.unwrap().starts_with(b"-----BEGIN"));
    assert!(!machine.exists("/etc/kubernetes/bootstrap-kubelet.conf"));
    assert_eq!(machine.ok(&["uname", "-n"]), "machine-1\n");
    let placed = machine.ok(&["stat", "-c", "%a", "/etc/placed/file"]);
    assert_eq!(placed, "640\n");
    machine.ok(&["systemctl", "is-enabled", "kubelet"]);
    let own = machine.ok(&["journalctl", "--no-pager", "--unit=kubelet"]);
    assert!(own.contains("Started kubelet.service"), "{own}");
    assert!(machine.journal().contains("Started kubelet.service"));
}

#[test]
fn files_of_a_machine_are_written_and_removed_in_it_alone() {
    let machine = Machine::builder(&CLUSTER, "machine-2").boot();
    let path = "/etc/kubernetes/of-a-machine/file";
    assert!(!machine.exists(path));
    assert_eq!(machine.read(path), None);

    machine.write(path, 0o600, b"\0first");
    machine.write(path, 0o644, b"\0second");

    assert_eq!(machine.read(path).unwrap(), b"\0second");
    assert_eq!(machine.ok(&["stat", "-c", "%a", path]), "644\n");
    assert!(!Path::new(path).exists());
    machine.remove("/etc/kubernetes/of-a-machine");
    assert!(!machine.exists(path));
}

#[test]
fn a_drop_in_is_in_force_after_a_daemon_reload() {
    let machine = Machine::builder(&CLUSTER, "machine-3").boot();
    let drop_in = "/etc/systemd/system/kubelet.service.d/20-test.conf";
    machine.write(drop_in, 0o644, "[Service]\nEnvironment=COLOUR=green\n");

    machine.ok(&["systemctl", "daemon-reload"]);

    let environment = machine.ok(&["systemctl", "show", "-p", "Environment", "kubelet"]);
    for expected in ["COLOUR=green", "KUBELET_CONFIG_ARGS="] {
        assert!(environment.contains(expected), "{environment}");
    }
}

#[test]
fn nothing_of_a_machine_is_left_when_it_is_dropped() {
    let before = host();
    let machine = Machine::builder(&CLUSTER, "machine-4").boot();
    let groups = control_groups(machine.pid());
    let processes = processes_beside(machine.pid());
    assert!(!groups.is_empty());
    // Systemd, journald, the container runtime.
    assert!(processes.len() >= 3, "{processes:?}");

    drop(machine);

    assert_eq!(left(&processes, &groups), Vec::<PathBuf>::new());
    assert_eq!(host(), before);
}

/// Runs the first test in a process of its own, and kills that once its machine is up.
#[test]
fn nothing_of_a_machine_survives_a_test_that_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_machine_joins_by_kubeadm_as_on_a_node"])
        .env("TMPDIR", directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let id = i32::try_from(test.id()).unwrap();
    let first = poll(DEADLINE, || {
        let below = children_of(id).into_iter().flat_map(children_of);
        below.into_iter().find(|pid| program(*pid) == "systemd")
    });
    let found = first.map(|first| (processes_beside(first), control_groups(first)));

    test.kill().unwrap();
    test.wait().unwrap();

    let (processes, groups) = found.expect("the test boots a machine");
    assert!(!groups.is_empty());
    let gone = poll(DEADLINE, || {
        let files = fs::read_dir(directory.path()).unwrap().count();
        (left(&processes, &groups).is_empty() && files == 0).then_some(())
    });
    assert!(gone.is_some(), "{:?}", left(&processes, &groups));
}

/// Those of these that are still there.
fn left(processes: &[i32], groups: &[PathBuf]) -> Vec<PathBuf> {
    let processes = processes
        .iter()
        .map(|pid| PathBuf::from(format!("/proc/{pid}")));
    let all = processes.chain(groups.iter().cloned());
    all.filter(|path| path.exists()).collect()
}

/// The directories of the control groups in which a machine's process is.
fn control_groups(pid: i32) -> Vec<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let name = groups
        .split(['/', '\n'])
        .find(|part| part.starts_with(GROUP));
    let Some(name) = name else {
        return Vec::new();
    };
    let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let hierarchies = hierarchies.map(|entry| entry.path());
    let all = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]);
    all.map(|hierarchy| hierarchy.join(name))
        .filter(|group| group.exists())
        .collect()
}

/// The processes in the process namespace of this one.
fn processes_beside(pid: i32) -> Vec<i32> {
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let wanted = namespace(pid);
    assert_ne!(wanted, None);
    let beside = processes().filter(|pid| namespace(*pid) == wanted);
    beside.collect()
}

fn children_of(parent: i32) -> Vec<i32> {
    let of_parent = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| *line == format!("PPid:\t{parent}"))
    };
    processes().filter(of_parent).collect()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn program(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}

/// All that a machine with fewer walls around it changes.
fn host() -> BTreeMap<String, String> {
    let files = [
        "/proc/sys/fs/file-max",
        "/proc/sys/fs/nr_open",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/panic",
        "/proc/sys/kernel/panic_on_oops",
        "/proc/sys/vm/overcommit_memory",
    ];
    let read = |path: &str| {
        let contents = fs::read_to_string(path).unwrap_or_default();
        (path.to_owned(), contents)
    };
    let directories = ["/etc/kubernetes", "/etc/systemd/system", "/var/lib/kubelet"];
    let list = |path: &str| {
        let entries = fs::read_dir(path).map(|entries| entries.flatten().count());
        (path.to_owned(), format!("{:?}", entries.ok()))
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let all = files.map(read).into_iter().chain(directories.map(list));
    all.chain([("mounts".to_owned(), mounts)]).collect()
}
