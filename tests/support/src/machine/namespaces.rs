//! The namespaces of a machine, with systemd as their first process.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use super::SYSTEMD;
use super::cgroups::ControlGroup;
use super::network::Network;
use crate::process::{Launch, Process, Scratch};

/// A shell script that joins the control groups `$1`, and executes the remaining arguments, which are a command that
/// waits for the first process in the namespaces. The first process is killed together with this command.
///
/// PATH contains only the directories of a system, because the machine has a separate root directory. That root
/// directory does not contain all directories on the PATH of the tests.
const ENTER: &str = r#"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
group=$1
shift
for procs in "/sys/fs/cgroup/$group/cgroup.procs" /sys/fs/cgroup/*/"$group/cgroup.procs"; do
  [ ! -e "$procs" ] || echo 0 >"$procs"
done
exec unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child -- "$@""#;

const INIT: &str = include_str!("init.sh");

/// Fails the test if no machine can be created.
#[track_caller]
pub(super) fn require() {
    assert!(
        rustix::process::geteuid().is_root(),
        "a machine needs its own namespaces, mounts and devices: run as root with CAP_SYS_ADMIN"
    );
    for program in ["systemd", "systemd-socket-proxyd", "systemd-journald"] {
        assert!(
            Path::new(SYSTEMD).join(program).exists(),
            "a machine needs {SYSTEMD}/{program}: install the Debian package systemd"
        );
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    assert!(
        filesystems
            .lines()
            .any(|line| line.trim_end().ends_with("\toverlay")),
        "a machine needs overlayfs, which this kernel does not offer: modprobe overlay"
    );
}

/// Starts the machine. `layers` are the layers of its root directory, and `placed` contains the triples for `init.sh`.
#[track_caller]
pub(super) fn start(
    name: &str,
    (network, address): (&Network, Ipv4Addr),
    group: &ControlGroup,
    scratch: &Scratch,
    layers: &str,
    placed: Vec<String>,
) -> Process {
    for directory in ["root", "journal"] {
        scratch.directory(directory);
    }
    scratch.write("kmsg", "");
    Launch::new(name, "sh")
        .args(["-euc", ENTER, "enter", group.name()])
        .args(["sh", "-euc", INIT, "init"])
        .arg(scratch.path())
        .args([name, &address.to_string()])
        .args([network.host().to_string(), network.switch().to_string()])
        .arg(layers)
        .args(placed)
        .spawn(&scratch.join("machine.log"))
}
