//! Tests of the commands in the README, with the packages and the controller that its commands build. `make readme`
//! runs this suite.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::settings::{self, DROP_INS};
use kubelet_authenticator_tests::cloud::{Cloud, Instance, OWNED};
use kubelet_authenticator_tests::fleet::Authentication;
use kubelet_authenticator_tests::management::{Management, WorkloadCluster};
use kubelet_authenticator_tests::page::{self, Desk};

/// The variable with the directory of the packages.
const PACKAGES: &str = "KUBELET_AUTHENTICATOR_PACKAGES";

/// The path of the package with the plugin for EC2.
#[track_caller]
fn package() -> PathBuf {
    let directory = std::env::var(PACKAGES).expect("the directory of the packages");
    let files = fs::read_dir(directory).unwrap();
    let is_package = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        let extension = path.extension();
        name.starts_with("kubelet-authenticator-aws_") && extension.is_some_and(|it| it == "deb")
    };
    let paths = files.map(|file| file.unwrap().path());
    let packages: Vec<PathBuf> = paths.filter(is_package).collect();
    let [package] = packages.as_slice() else {
        panic!("not one package: {packages:?}");
    };
    package.clone()
}

/// An instance whose image does not contain the plugin, and to which an operator has copied the package.
fn boot(cluster: &WorkloadCluster, cloud: &Cloud, instance: &Instance) -> Machine {
    let package = package();
    let name = package.file_name().unwrap().to_string_lossy();
    let endpoints = settings::file(instance.services(cloud));
    Machine::builder(cluster.control_plane(), instance.node_name())
        .file(&format!("/root/{name}"), 0o644, fs::read(&package).unwrap())
        .file(&format!("{DROP_INS}/30-tests.yaml"), 0o644, endpoints)
        .reaches(instance.imds.address())
        .boot()
}

#[test]
fn a_node_joins_with_the_readme_commands_and_the_built_package() {
    let cloud = Cloud::start();
    let management = Management::start();
    let cluster = management.cluster("prod-1").namespace("tenant-a");
    let cluster = cluster.apiserver_arg("--anonymous-auth=true").create();
    let plane = cluster.control_plane();
    plane.prepare_for_joins();
    let desk = Desk::new(management.admin_kubeconfig());
    let steps = page::section("../README.md", "## Install").into_iter();
    let (of_operator, on_node): (Vec<_>, Vec<_>) = steps.partition(|(prompt, _)| *prompt == '$');

    let mut controllers = Vec::new();
    for (_, command) in of_operator {
        if command.starts_with("node-attestation-controller run ") {
            let options = cloud.manager_arguments().join(OsStr::new(" "));
            let shell = desk.shell(&command).env("RUN_OPTIONS", options);
            let credentials = cloud.manager_environment().into_iter();
            let shell = credentials.fold(shell, |shell, (name, value)| shell.env(name, value));
            controllers.push(shell.spawn(&desk.files().join("run")));
        } else {
            desk.follow(&command);
        }
    }
    assert_eq!(controllers.len(), 1, "the README runs a controller");
    let authentication = Authentication {
        namespace: "tenant-a".to_owned(),
        name: "prod-1".to_owned(),
    };
    authentication.wait_until_ready(management.kubectl());

    let instance = cloud.launch(&[OWNED]);
    let node = instance.node_name();
    let member = cluster.machine("worker-1").node_name(node);
    let member = member.provider_id(&instance.provider_id()).create();
    plane.wait_for_discovery(member.token());
    let machine = boot(&cluster, &cloud, &instance);
    let mut joins = 0;
    for (_, command) in on_node {
        let command = if command.starts_with("kubeadm join ") {
            joins += 1;
            machine.join_command(&command, &member.token().bearer())
        } else {
            command
        };
        machine.ok(&["sh", "-euc", &format!("cd /root\n{command}")]);
    }
    assert_eq!(joins, 1, "the README joins a node");

    plane.wait_for_node_ready(node);
    let record = format!("prod-1.{node}");
    let record = ["get", "nodeidentity", &record, "-n", "tenant-a"];
    let record = management.kubectl().json(record);
    assert_eq!(record["spec"]["attestor"], "aws", "{record:#}");
    assert_eq!(record["spec"]["providerID"], instance.provider_id());
    let status = machine.ok(&["sh", "-euc", "/usr/bin/kubelet-authenticator-aws status"]);
    assert!(status.contains(node), "{status}");
}
