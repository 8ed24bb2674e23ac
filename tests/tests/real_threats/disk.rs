//! Tests of a copied disk, and of a request name that another client has taken.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kubelet_authenticator_test_support::kubelet::KubeletBuilder;
use kubelet_authenticator_test_support::settings::option;
use kubelet_authenticator_tests::fleet::{assert_first_generation, exec, kubelet_with};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::node::UNDER_TEST;
use kubelet_authenticator_tests::program;
use serde_json::Value;

use crate::SCENE;

/// A kubelet whose plugin keeps its store at this path.
fn kubelet_with_store(machine: &Machine, store: &Path) -> KubeletBuilder {
    let exec = exec(machine, UNDER_TEST)
        .setting("providerID", machine.provider_id())
        .setting("stateDirectory", store);
    kubelet_with(&SCENE.cluster, machine, exec)
}

/// The kernel and firmware data about a machine, below a separate root.
fn hardware(directory: &Path, uuid: &str) -> String {
    for (file, value) in [
        ("proc/sys/kernel/random/boot_id", format!("boot-of-{uuid}")),
        ("sys/class/dmi/id/product_uuid", uuid.to_owned()),
    ] {
        let path = directory.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }
    directory.display().to_string()
}

/// Copies the files of a store unchanged.
fn copy_store(from: &Path, to: &Path) {
    let output = Command::new("cp").arg("-a").arg(from).arg(to).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_cloned_disk_does_not_impersonate_its_source() {
    let source = SCENE.cluster.machine("disk-source").create();
    let clone = SCENE.cluster.machine("disk-clone").create();
    let directory = SCENE.cluster.control_plane().directory("disks");
    let stores: [PathBuf; 2] = ["source", "clone"].map(|name| directory.join(name));
    let first = kubelet_with_store(&source, &stores[0])
        .env("MACHINE_ROOT", hardware(&directory.join("a"), "uuid-1"))
        .start();
    first.wait_until_ready();
    copy_store(&stores[0], &stores[1]);

    let second = kubelet_with_store(&clone, &stores[1])
        .env("MACHINE_ROOT", hardware(&directory.join("b"), "uuid-2"))
        .start();
    second.wait_until_ready();

    let aside = stores[1].join("kubelet-client.pem.set-aside.1");
    assert!(aside.exists(), "{}", second.log());
    for machine in [&source, &clone] {
        let record = SCENE.record(machine.node_name());
        assert_first_generation(&record);
        assert_eq!(record["spec"]["providerID"], machine.provider_id());
    }
    first.wait_for_lease_renewal();
}

#[test]
fn a_request_name_taken_by_an_attacker_does_not_block_the_join() {
    let victim = SCENE.cluster.machine("name-victim").create();
    let squatter = SCENE.cluster.machine("name-squatter").create();
    let directory = SCENE.cluster.control_plane().directory("names");
    let store = directory.join("store");
    let killed = Command::new(program(UNDER_TEST))
        .arg("credential")
        .arg(option("stateDirectory", &store))
        .arg(option("bootstrapKubeconfig", victim.bootstrap_kubeconfig()))
        .arg(option("providerID", victim.provider_id()))
        .arg(option("nodeName", victim.node_name()))
        .env_clear()
        .env("KILL_AT", "RequestSaved")
        .output()
        .unwrap();
    assert_eq!(killed.status.code(), None, "{killed:?}");
    let pending = fs::read_to_string(store.join("pending.json")).unwrap();
    let pending: Value = serde_json::from_str(&pending).unwrap();
    let name = pending["request"]["name"].as_str().unwrap();
    let mut squatted = SCENE.rightful(&victim).to_json();
    squatted["metadata"]["name"] = name.into();
    let plane = SCENE.cluster.control_plane();
    let kubectl = plane.kubectl_with(squatter.bootstrap_kubeconfig());
    kubectl.create_object(&squatted);

    let kubelet = kubelet_with_store(&victim, &store).start();
    kubelet.wait_until_ready();

    SCENE.assert_denied(name, "TokenOfAnotherMachine");
    let squatter = format!("system:bootstrap:{}", squatter.token().id());
    assert_eq!(SCENE.request(name)["spec"]["username"], squatter);
    assert_first_generation(&SCENE.record("name-victim"));
}
