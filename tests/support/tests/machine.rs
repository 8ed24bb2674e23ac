//! Tests that a machine does not leave anything behind, regardless of the way in which its test ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, DEADLINE};
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::poll;

/// The name prefix of the machines' control groups.
const GROUP: &str = "kubelet-authenticator-";

/// The environment variable for the test process that is killed.
const HOLD: &str = "MACHINE_HOLD";

static CLUSTER: LazyLock<ControlPlane> = LazyLock::new(ControlPlane::start);

#[test]
fn a_dropped_machine_leaves_nothing_behind() {
    let before = host();
    let machine = Machine::builder(&CLUSTER, "machine-1").boot();
    let groups = control_groups(machine.pid());
    let processes = processes_beside(machine.pid());
    assert!(!groups.is_empty());
    // The processes are systemd, journald, and the container runtime.
    assert!(processes.len() >= 3, "{processes:?}");

    drop(machine);

    assert_eq!(left(&processes, &groups), Vec::<PathBuf>::new());
    assert_eq!(host(), before);
}

#[test]
fn a_killed_test_leaves_no_parts_of_a_machine_behind() {
    if std::env::var_os(HOLD).is_some() {
        let _machine = Machine::builder(&CLUSTER, "machine-2").boot();
        std::thread::park();
    }
    let directory = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_killed_test_leaves_no_parts_of_a_machine_behind",
        ])
        .env(HOLD, "yes")
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

/// The processes and groups from these lists that still exist.
fn left(processes: &[i32], groups: &[PathBuf]) -> Vec<PathBuf> {
    let processes = processes
        .iter()
        .map(|pid| PathBuf::from(format!("/proc/{pid}")));
    let all = processes.chain(groups.iter().cloned());
    all.filter(|path| path.exists()).collect()
}

/// The directories of the control groups that contain a machine's process.
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

/// The processes in the same PID namespace as this process.
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

/// The part of the host's state that a less isolated machine would change.
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
