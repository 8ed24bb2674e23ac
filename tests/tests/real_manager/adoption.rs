//! Tests of nodes that had joined before the controller was installed.

use std::process::Command;

use kubelet_authenticator_test_support::control_plane::{Exec, User};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::settings::option;
use kubelet_authenticator_tests::controller::reason_of;
use kubelet_authenticator_tests::fleet::{
    assert_first_generation, authorize, first_exec, join_stock, kubelet_with,
};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

use crate::SITE;

/// The first request from this node's user to the signer `null`.
fn request_of(scene: &Scene, node_name: &str) -> Option<Value> {
    let csrs = scene.cluster.control_plane().csrs();
    csrs.into_iter().find(|csr| {
        let signer = csr["spec"]["signerName"].as_str().unwrap_or_default();
        csr["spec"]["username"] == format!("system:node:{node_name}") && signer.ends_with("-null")
    })
}

#[test]
fn a_kubeadm_node_is_adopted_with_its_certificate_and_evidence() {
    let cluster = Scene::unattended(&SITE, "adopts");
    let machine = cluster.machine("stock").create();
    let (mut kubelet, kubeconfig) = join_stock(&cluster, &machine);
    let settings = json!({"adoption": "Allow", "autoApproveBindings": "Remove"});
    let scene = Scene::attend(&SITE, cluster, settings);
    scene.wait_for_paths("False", "WaitingForRecords", &["stock"]);
    let node = scene.cluster.control_plane().wait_for_node("stock");

    kubelet.kill();
    let plane = scene.cluster.control_plane();
    let exec = first_exec(&kubeconfig, "kubelet-authenticator-null");
    let exec = exec.setting("providerID", machine.provider_id());
    let kubelet = kubelet_with(&scene.cluster, &machine, exec).start();

    let asked = poll(SWEPT, || {
        request_of(&scene, "stock").filter(|csr| reason_of(csr, "Approved").is_some())
    });
    let asked = asked.unwrap_or_else(|| panic!("{}", kubelet.log()));
    assert_eq!(reason_of(&asked, "Approved"), Some("NodeNameClaimed"));
    assert!(asked["spec"]["uid"].as_str().unwrap_or_default().is_empty());
    let record = scene.wait_for_record("stock", |record| record["spec"]["generation"].is_u64());
    assert_first_generation(&record);
    assert_eq!(record["spec"]["providerID"], machine.provider_id());
    kubelet.wait_for_lease_renewal();
    let same = plane.wait_for_node("stock");
    assert_eq!(same["metadata"]["uid"], node["metadata"]["uid"]);
    scene.wait_for_paths("True", "Closed", &[]);
}

#[test]
fn setup_adopts_a_kubeadm_node_with_only_its_kubelet_certificate() {
    let cluster = Scene::unattended(&SITE, "adopts-bare");
    let machine = cluster.machine("stock").create();
    let (mut kubelet, kubeconfig) = join_stock(&cluster, &machine);
    let node = cluster.control_plane().wait_for_node("stock");
    let settings = json!({"adoption": "AllowWithoutEvidence"});
    let authentication = authorize(&SITE.management, &cluster, &["insecure"], settings);
    authentication.wait_until_ready(SITE.management.kubectl());
    let scene = Scene {
        site: SITE.clone(),
        cluster,
        authentication,
    };
    let files = Scratch::new("adopted");
    let settings = [
        ("bootstrapKubeconfig", "bootstrap.kubeconfig"),
        ("stateDirectory", "state"),
    ];
    let settings = settings.map(|(name, file)| (name, files.join(file).display().to_string()));
    let settings = settings.into_iter().chain([
        ("providerID", machine.provider_id().to_owned()),
        ("nodeName", "stock".to_owned()),
    ]);
    let settings: Vec<_> = settings.collect();
    let insecure = program("kubelet-authenticator-insecure");

    let setup = Command::new(&insecure)
        .arg("setup")
        .arg("--from")
        .arg(&kubeconfig)
        .arg("--kubelet-kubeconfig")
        .arg(&kubeconfig)
        .arg("--environment-file")
        .arg(files.join("kubelet.env"))
        .args(settings.iter().map(|(key, value)| option(key, value)))
        .output()
        .unwrap();

    assert!(setup.status.success(), "{setup:?}");
    let written = std::fs::read_to_string(&kubeconfig).unwrap();
    let command = insecure.display().to_string();
    assert!(written.contains(&command), "{written}");
    let record = scene.record("stock");
    assert_eq!(record["spec"]["providerID"], machine.provider_id());
    assert_eq!(record["spec"]["attestor"], "insecure");
    scene.wait_for_event("stock", "NodeAdopted");

    kubelet.kill();
    let plane = scene.cluster.control_plane();
    let exec = Exec::new(&insecure).provide_cluster_info();
    let exec = settings
        .into_iter()
        .fold(exec, |exec, (key, value)| exec.setting(key, value));
    let exec = plane.kubeconfig(User::Exec(exec));
    let kubelet = plane.kubelet("stock").kubeconfig(exec).start();
    kubelet.wait_for_lease_renewal();
    let same = plane.wait_for_node("stock");
    assert_eq!(same["metadata"]["uid"], node["metadata"]["uid"]);
    assert_first_generation(&scene.record("stock"));
}
