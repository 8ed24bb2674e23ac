//! Tests of the controller's image in the Deployment's container. The build of the image's content takes a long time,
//! so this test runs only in `make test-long`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use kubelet_authenticator_test_support::binaries::build_part;
use kubelet_authenticator_test_support::control_plane::DEADLINE;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch};
use kubelet_authenticator_tests::deploy::{
    NAME, NAMESPACE, apply, arguments, components, deployment, lease, token,
};
use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::scrape::Diagnostics;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

/// The directory with a Pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The image, converted to a bundle for runc.
fn bundle(files: &Scratch) -> PathBuf {
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/controller/image");
    let archive = build_part(&image, files.path().to_str().unwrap());
    let layout = files.directory("layout").display().to_string();
    let archive = archive.display().to_string();
    run(
        "tar",
        &["--extract", "--directory", &layout, "--file", &archive],
    );
    let bundle = files.join("bundle");
    let layout = format!("{layout}:v{}", env!("CARGO_PKG_VERSION"));
    run(
        "umoci",
        &["unpack", "--image", &layout, bundle.to_str().unwrap()],
    );
    bundle
}

/// Writes the specification of the Deployment's container as the kubelet would start it, but in the network of the
/// machine, because the API server of the tests is in this network. Therefore, the container uses different ports.
fn specify(bundle: &Path, container: &Value, arguments: &[String], account: &Path, server: &str) {
    let path = bundle.join("config.json");
    let mut spec: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let security = &container["securityContext"];
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    let process = &mut spec["process"];
    let command = container["command"].as_array().unwrap();
    assert_eq!(process["args"], json!(command), "the entry point");
    assert_eq!(process["user"], json!({"uid": 65532, "gid": 65532}));
    process["args"] = command
        .iter()
        .cloned()
        .chain(arguments.iter().map(|argument| json!(argument)))
        .collect();
    process["terminal"] = false.into();
    process["capabilities"] = json!({});
    process["noNewPrivileges"] = true.into();
    let (host, port) = server
        .strip_prefix("https://")
        .and_then(|server| server.rsplit_once(':'))
        .unwrap();
    let variables = process["env"].as_array_mut().unwrap();
    variables.push(format!("KUBERNETES_SERVICE_HOST={host}").into());
    variables.push(format!("KUBERNETES_SERVICE_PORT={port}").into());
    spec["root"]["readonly"] = true.into();
    let namespaces = spec["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|namespace| namespace["type"] != "network");
    spec["mounts"].as_array_mut().unwrap().push(json!({
        "destination": SERVICE_ACCOUNT, "type": "bind", "source": account, "options": ["bind", "ro"],
    }));
    std::fs::write(&path, spec.to_string()).unwrap();
}

/// Starts the container. The container stops with the test, because all its processes are in the PID namespace of a
/// process that stops with the test.
fn start(bundle: &Path, files: &Scratch) -> Process {
    let name = format!("{NAME}-{}", std::process::id());
    Launch::new("container", "unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["runc", "--root"])
        .arg(files.directory("runc"))
        .args(["run", "--bundle"])
        .arg(bundle)
        .arg(name)
        .spawn(&files.join("container.log"))
}

#[test]
fn the_image_runs_in_its_deployment_as_leader_and_stops() {
    let files = Scratch::new("image");
    let bundle = bundle(&files);
    let management = Management::start();
    apply(&management, &components());
    let account = files.directory("account");
    let plane = management.control_plane();
    let ca = std::fs::read(plane.ca_cert_path()).unwrap();
    for (name, content) in [
        ("token", token(&management, NAMESPACE).into_bytes()),
        ("namespace", NAMESPACE.as_bytes().to_vec()),
        ("ca.crt", ca),
    ] {
        std::fs::write(account.join(name), content).unwrap();
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(account.join(name), readable).unwrap();
    }
    std::fs::set_permissions(&account, std::fs::Permissions::from_mode(0o755)).unwrap();
    let diagnostics = Diagnostics::default();
    let deployment = deployment(&management, NAMESPACE);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = arguments(&deployment, diagnostics);
    specify(&bundle, container, &arguments, &account, plane.server());

    let mut container = start(&bundle, &files);
    container.poll_alive("become ready", DEADLINE, |_| {
        diagnostics
            .probe("/readyz")
            .filter(|answer| answer.status == 200)
    });
    diagnostics.wait_for(&[&format!(r#"node_attestation_leader{{lease="{NAME}"}} 1.0"#)]);
    assert!(lease(&management, NAMESPACE).is_some());

    let group = Pid::from_raw(container.pid().cast_signed()).unwrap();
    kill_process_group(group, Signal::TERM).unwrap();
    let ended = container.wait(DEADLINE);
    assert!(ended.success(), "{ended}{}", container.log());
}
