//! The paths of the programs that are built once for all tests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The variable with the directory of the programs. The Makefile sets it.
pub const DIRECTORY_VARIABLE: &str = "KUBELET_AUTHENTICATOR_CONTROL_PLANE";

/// The variable with the allowed builds, separated by colons. Each build has the name of the directory that contains
/// its script. If the variable is not set, all builds are allowed.
const BUILDS_VARIABLE: &str = "KUBELET_AUTHENTICATOR_BUILDS";

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    std::env::var_os(DIRECTORY_VARIABLE).map_or_else(control_plane, PathBuf::from)
});

/// The path of one of the programs: `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kubelet`,
/// `kubectl`, `kubeadm` or `fakecri`.
///
/// The variable `KUBELET_AUTHENTICATOR_CONTROL_PLANE` contains the directory of the programs. If it is not set,
/// `tests/control-plane/build` prints the directory, and first builds the programs if necessary.
///
/// # Panics
///
/// Panics if the programs cannot be built, or do not include this program, because a test that needs the program cannot
/// pass.
#[track_caller]
pub fn control_plane_binary(name: &str) -> PathBuf {
    let path = DIRECTORY.join(name);
    assert!(
        path.is_file(),
        "no {name} in {}: unset {DIRECTORY_VARIABLE} to have it built",
        DIRECTORY.display()
    );
    path
}

/// The Kubernetes version of these programs, such as `v1.36.3`.
pub static KUBERNETES_VERSION: LazyLock<String> =
    LazyLock::new(|| kubernetes_version(&control_plane_binary("kubeadm")));

/// The Kubernetes version of this kubeadm, such as `v1.36.3`.
///
/// # Panics
///
/// Panics if kubeadm fails.
#[track_caller]
pub fn kubernetes_version(kubeadm: &Path) -> String {
    let mut kubeadm = Command::new(kubeadm);
    let output = kubeadm.args(["version", "--output", "short"]).output();
    let output = output.expect("kubeadm can be started");
    assert!(output.status.success(), "{output:?}");
    let version = String::from_utf8_lossy(&output.stdout);
    version.trim_end().to_owned()
}

/// The directory with the same programs in an older minor version of Kubernetes, such as `1.35`. If necessary,
/// `tests/older-kubernetes/build` first builds the directory.
///
/// # Panics
///
/// Panics if the programs cannot be built.
#[track_caller]
pub fn older_kubernetes(minor: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../older-kubernetes/build");
    build_part(&script, minor)
}

fn control_plane() -> PathBuf {
    build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../control-plane/build"))
}

/// Returns the directory that this script prints. If necessary, the script first builds the directory.
///
/// # Panics
///
/// Panics if the build fails, because a test that needs the directory cannot pass.
#[track_caller]
pub fn build(script: &Path) -> PathBuf {
    built(&mut Command::new(script), script)
}

/// Like [`build`], but builds only one part of the programs. The argument of the script is the name of the part.
///
/// # Panics
///
/// Panics if the build fails, because a test that needs the directory cannot pass.
#[track_caller]
pub fn build_part(script: &Path, part: &str) -> PathBuf {
    built(Command::new(script).arg(part), script)
}

#[track_caller]
fn built(command: &mut Command, script: &Path) -> PathBuf {
    let folder = script.parent().and_then(Path::file_name);
    let folder = folder.unwrap_or_default().to_string_lossy();
    let may_be_used = std::env::var(BUILDS_VARIABLE)
        .map_or(true, |list| list.split(':').any(|name| name == folder));
    assert!(
        may_be_used,
        "{folder} is not in {BUILDS_VARIABLE}: the suite belongs to those of `make test-all`; see tests/suites"
    );
    // Standard error is inherited, because a first build takes minutes and prints a message about this.
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    assert!(
        output.status.success(),
        "{} failed ({}); its messages are above",
        script.display(),
        output.status
    );
    let mut printed = output.stdout;
    while printed.pop_if(|byte| byte.is_ascii_whitespace()).is_some() {}
    PathBuf::from(<OsString as std::os::unix::ffi::OsStringExt>::from_vec(
        printed,
    ))
}
