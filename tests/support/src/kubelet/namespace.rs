//! The mount namespace in which a kubelet runs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::process::Scratch;

/// The sysctls that a kubelet sets as root, with their values (pkg/kubelet/cm/container_manager_linux.go,
/// `setupKernelTunables`). A kubelet writes only values that differ, and no value differs in this namespace.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The directories in `/var/lib` that belong to the node. All other directories there belong to the machine.
const OF_THE_NODE: [&str; 2] = ["kubelet", "kubelet-authenticator"];

/// A shell script that mounts the triples of flag, source and target before `--`, and executes the remaining arguments.
const MOUNT: &str = r#"while [ "$1" != -- ]; do mount -n "$1" "$2" "$3"; shift 3; done
shift
exec "$@""#;

static UNSHARE: LazyLock<Vec<OsString>> = LazyLock::new(|| {
    let mut words = vec!["unshare", "--mount", "--propagation", "private"];
    if !is_root() {
        words.extend(["--user", "--map-root-user"]);
    }
    words.push("--");
    words.into_iter().map(OsString::from).collect()
});

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails the test if no namespace is available.
#[track_caller]
pub(super) fn require() {
    let (unshare, arguments) = UNSHARE.split_first().expect("it has a program");
    let tried = Command::new(unshare).args(arguments).arg("true").output();
    let trouble = match tried {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    panic!(
        "a kubelet needs its own mount namespace: run as root with CAP_SYS_ADMIN, or allow \
         user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces): \
         {trouble}"
    );
}

/// The directory that this kubelet sees as `/var/lib`.
pub(super) fn var_lib(scratch: &Scratch) -> PathBuf {
    scratch.join("var-lib")
}

/// Prepares the directories, and returns a command that mounts them and executes its last arguments.
pub(super) fn enter(scratch: &Scratch) -> Vec<OsString> {
    let var_lib = scratch.directory("var-lib");
    let machines = scratch.directory("machine-var-lib");
    share_with_machine(&var_lib, &machines);

    let mut command = UNSHARE.clone();
    command.extend(["sh", "-euc", MOUNT, "kubelet-namespace"].map(OsString::from));
    let mut mount = |flag: &str, source: PathBuf, target: PathBuf| {
        command.extend([
            flag.into(),
            source.into_os_string(),
            target.into_os_string(),
        ]);
    };
    mount("--rbind", "/var/lib".into(), machines);
    mount("--bind", var_lib, "/var/lib".into());
    mount("--bind", scratch.directory("var-log"), "/var/log".into());
    scratch.directory("sysctl");
    for (name, value) in SYSCTLS {
        let target = Path::new("/proc/sys").join(name);
        if target.exists() {
            let file = format!("sysctl/{}", name.replace('/', "."));
            mount("--bind", scratch.write(&file, format!("{value}\n")), target);
        }
    }
    command.push("--".into());
    command
}

/// Links the other directories in `/var/lib` to their usual paths, because the checkout can be in one of them.
fn share_with_machine(var_lib: &Path, machines: &Path) {
    for entry in fs::read_dir("/var/lib").into_iter().flatten().flatten() {
        let name = entry.file_name();
        if OF_THE_NODE.iter().all(|own| name != *own) {
            symlink(machines.join(&name), var_lib.join(&name)).expect("a new directory is empty");
        }
    }
}
