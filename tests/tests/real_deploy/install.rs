//! Tests of the installation methods in install.md, for an operator who copies the commands on the page.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::deploy::{NAME, NAMESPACE, lead, lease};
use kubelet_authenticator_tests::machines::PATIENCE;
use kubelet_authenticator_tests::management::{Management, clusterctl_program};
use kubelet_authenticator_tests::page::{self, Desk, repository};
use kubelet_authenticator_tests::program;
use serde_json::json;

use crate::chart::HELM;

/// The operator's commands in the section with this heading.
#[track_caller]
fn section(page: &str, heading: &str) -> Vec<String> {
    let steps = page::section(page, heading).into_iter();
    let steps = steps.filter(|(prompt, _)| *prompt == '$');
    steps.map(|(_, command)| command).collect()
}

/// Installs with a method from the page, and checks the result with the page's commands. No Pod runs. A controller that
/// has the permissions and the arguments of the Deployment replaces the Pods.
#[track_caller]
fn follow(method: &str, prepare: impl FnOnce(&Desk)) {
    let management = Management::start();
    let desk = Desk::new(management.admin_kubeconfig());
    prepare(&desk);

    desk.follow(&section("install.md", method).join("\n"));

    let files = Scratch::new("install");
    let _manager = lead(&management, NAMESPACE, &files);
    let checks = section("install.md", "### Check the installation");
    let [rollout, lease, check] = checks.as_slice() else {
        panic!("{checks:?}");
    };
    assert_eq!(section("deploy.md", "## Check the controller"), checks[1..]);
    let deployment = format!("kubectl rollout status deployment/{NAME} -n {NAMESPACE}");
    assert_eq!(*rollout, deployment);
    desk.follow(&format!(
        "kubectl get deployment/{NAME} -n {NAMESPACE}\n{lease}\n{check}"
    ));
}

/// Runs this script from packaging as `make` does, with this output directory.
#[track_caller]
fn make(files: &Scratch, script: &str, directory: &str) {
    let mut build = Command::new(repository().join("packaging").join(script));
    let build = build.arg(files.join(directory)).output().unwrap();
    assert!(build.status.success(), "{build:?}");
}

/// Builds the components for clusterctl, and writes clusterctl's settings, which refer to the components, to this file.
#[track_caller]
pub fn provide_to_clusterctl(files: &Scratch, settings: &str) {
    let release = concat!("addon-kubelet-authenticator/v", env!("CARGO_PKG_VERSION"));
    make(files, "clusterctl/build", release);
    let url = files.join(release).join("addon-components.yaml");
    let provider = json!({"name": "kubelet-authenticator", "type": "AddonProvider", "url": url});
    files.write(settings, json!({"providers": [provider]}).to_string());
}

/// Writes the overlay from the page, without TPMs.
#[track_caller]
pub fn write_overlay(desk: &Desk) {
    let page = repository().join("docs/install.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, overlay) = page
        .split_once("cat > overlay/kustomization.yaml <<END\n")
        .unwrap();
    let (overlay, _) = overlay.split_once("secretGenerator:\n").unwrap();
    desk.files().directory("overlay");
    desk.files().write("overlay/kustomization.yaml", overlay);
}

#[test]
fn the_documented_clusterctl_command_installs_a_leading_controller() {
    follow("### clusterctl", |desk| {
        let files = desk.files();
        files.directory(".config/cluster-api");
        provide_to_clusterctl(files, ".config/cluster-api/clusterctl.yaml");
        symlink(clusterctl_program(), files.join("bin/clusterctl")).unwrap();
    });
}

#[test]
fn the_documented_helm_command_installs_a_leading_controller() {
    follow("### Helm", |desk| {
        make(desk.files(), "chart/build", "target/chart");
        symlink(&*HELM, desk.files().join("bin/helm")).unwrap();
    });
}

#[test]
fn the_documented_kustomize_command_installs_a_leading_controller() {
    follow("### kustomize", write_overlay);
}

#[test]
fn the_readme_commands_run_a_leading_controller_and_enable_a_cluster() {
    let management = Management::start();
    let _cluster = management.cluster("prod-1").namespace("tenant-a").create();
    let desk = Desk::new(management.admin_kubeconfig());
    let commands = section("../README.md", "## Install");
    let by_hand = section("install.md", "### By hand");
    assert_eq!(commands[..3], by_hand);
    let [definitions, rights, run, annotate, clusters] = commands.as_slice() else {
        panic!("{commands:?}");
    };
    desk.follow(&format!("{definitions}\n{rights}"));

    let process = desk.shell(run).spawn(&desk.files().join("run"));

    let leads = || lease(&management, "default");
    let held = poll(PATIENCE, leads).unwrap_or_else(|| panic!("{}", process.log()));
    assert!(held["spec"]["holderIdentity"].is_string(), "{held:#}");
    desk.follow(annotate);
    let listed = poll(PATIENCE, || {
        desk.follow(&format!("{clusters} > clusters.txt"));
        let listed = fs::read_to_string(desk.files().join("clusters.txt")).unwrap();
        let mut rows = listed
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>());
        rows.any(|row| row.contains(&"prod-1") && row.contains(&"aws"))
            .then_some(())
    });
    assert!(listed.is_some(), "{}", process.log());
}

#[test]
fn a_viewer_reads_clusters_and_identities_and_writes_nothing() {
    let management = Management::start();
    let _cluster = management.cluster("prod-1").namespace("tenant-a").create();
    let (kubectl, plane) = (management.kubectl(), management.control_plane());
    let role = repository().join("packaging/rbac/viewer.yaml");
    kubectl.ok(["apply", "-f", role.to_str().unwrap()]);
    let role = "--clusterrole=node-attestation-viewer";
    kubectl.ok([
        "create",
        "clusterrolebinding",
        "viewers",
        role,
        "--user=viewer",
    ]);
    let kubeconfig = plane.client_cert_kubeconfig("viewer", None);
    let viewer = plane.kubectl_with(&kubeconfig);
    let can = |verb: &str, resource: &str| {
        let answer = viewer.run(["auth", "can-i", verb, resource, "-n", "tenant-a"]);
        String::from_utf8_lossy(&answer.stdout).trim() == "yes"
    };
    // The test waits, because the API server receives the binding with a watch.
    let is_bound = poll(PATIENCE, || can("list", "nodeidentities").then_some(()));
    assert!(is_bound.is_some());

    for command in [&["clusters"][..], &["identities", "list"]] {
        let output = Command::new(program(NAME))
            .args(command)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    for (verb, resource) in [
        ("patch", "nodeidentities"),
        ("create", "kubeletauthentications"),
        ("delete", "machines.cluster.x-k8s.io"),
        ("get", "secrets"),
    ] {
        assert!(!can(verb, resource), "{verb} {resource}");
    }
}
