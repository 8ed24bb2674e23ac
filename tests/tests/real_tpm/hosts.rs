//! Tests of machines of a MachineDeployment on bare metal. The names of the machines are unknown before they exist, but
//! the names of the hosts are known.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;

use kubelet_authenticator_test_support::binaries::control_plane_binary;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_tests::absence::{Later, assert_all_unanswered};
use kubelet_authenticator_tests::fleet::condition_of;
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::page::commands;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

use crate::bed::{Plugin, SITE, cluster, endorsement_key, requester, requests, tpm};

const CONDITION: &str = "EndorsementKeyListsRead";

/// A Cluster whose hosts are listed in this ConfigMap.
fn racked(namespace: &str) -> Scene {
    let settings = json!({"tpm": {"endorsementKeys": {"configMaps": ["rack-1"]}}});
    cluster(namespace, settings)
}

/// Writes the whole ConfigMap.
fn write(scene: &Scene, entries: &[(&str, &str)]) {
    let entries: BTreeMap<_, _> = entries.iter().copied().collect();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "rack-1", "namespace": scene.cluster.namespace()},
        "data": entries,
    });
    scene.management().apply_object(&object);
}

/// Creates the ConfigMap from this file with the command on the page.
fn list(scene: &Scene, hosts: &str) -> Output {
    let scratch = Scratch::new("hosts");
    scratch.write("hosts.txt", hosts);
    let mut commands = commands("tpm.md", '$').into_iter();
    let command = commands.find(|one| one.starts_with("jq ")).unwrap();
    let metal = r#"namespace: "metal""#;
    assert!(command.contains(metal), "{command}");
    let ours = format!("namespace: {:?}", scene.cluster.namespace());
    let kubectl = control_plane_binary("kubectl");
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", kubectl.parent().unwrap().display());
    let (site, _) = &*SITE;
    Command::new("sh")
        .args(["-euc", &command.replace(metal, &ours)])
        .current_dir(scratch.path())
        .env("PATH", path)
        .env("KUBECONFIG", site.management.admin_kubeconfig())
        .output()
        .unwrap()
}

/// A Machine on this host.
fn machine(scene: &Scene, name: &str, host: &str) -> Machine {
    let id = format!("metal3://metal/{host}/{name}");
    scene.cluster.machine(name).provider_id(&id).create()
}

fn plugin<'a>(scene: &'a Scene, machine: &Machine, tpm: &Arc<Swtpm>) -> Plugin<'a> {
    Plugin::of(scene, machine, &tpm.tcti())
}

/// Waits until the condition has this reason. The controller checks the list once per minute. Returns the object.
#[track_caller]
fn wait_for(scene: &Scene, status: &str, reason: &str) -> Value {
    let namespace = scene.cluster.namespace();
    let resource = ["kubeletauthentications", "--namespace", namespace];
    scene
        .management()
        .wait_for(&resource, reason, SWEPT, |object| {
            let found = condition_of(object, CONDITION);
            found["status"] == status && found["reason"] == reason
        })
}

#[test]
fn a_machine_without_a_list_entry_joins_with_the_tpm_of_its_host() {
    let scene = racked("racked");
    let (seventh, eighth) = (tpm(), tpm());
    let digests = [endorsement_key(&seventh), "0f".repeat(32)];
    let mut hosts = format!("metal3://metal/host-7/ {}\n", digests[0]);
    writeln!(hosts, "metal3://metal/host-8/ {}", digests[1]).unwrap();
    let twice = format!("{hosts}metal3://metal/host-9/ {}\n", digests[1]);
    let output = list(&scene, &twice);
    let errors = String::from_utf8(output.stderr).unwrap();
    let twice = format!("twice: {}", digests[1]);
    assert!(
        !output.status.success() && errors.contains(&twice),
        "{errors}"
    );
    let output = list(&scene, &hosts);
    assert!(output.status.success(), "{output:?}");

    let joining = machine(&scene, "racked-md-0-x7f2p", "host-7");
    plugin(&scene, &joining, &seventh).joins();
    let record = &scene.record("racked-md-0-x7f2p")["spec"];
    assert_eq!(record["endorsementKeySHA256"], digests[0]);

    let of_another = machine(&scene, "racked-md-0-b9k4m", "host-8");
    plugin(&scene, &of_another, &eighth).is_denied("EndorsementKeyOfAnotherMachine");
    let unlisted = machine(&scene, "racked-md-0-c2d8n", "host-70");
    plugin(&scene, &unlisted, &eighth).is_denied("EndorsementKeyUnknown");
    wait_for(&scene, "True", "ListsRead");
}

#[test]
fn machines_wait_for_config_map_entries_which_apply_without_a_restart() {
    let scene = racked("racked-later");
    let (seventh, eighth) = (tpm(), tpm());
    let digests = [&seventh, &eighth].map(endorsement_key);
    let upper = digests[1].to_uppercase();
    let first = machine(&scene, "later-7", "host-7");
    let second = machine(&scene, "later-8", "host-8");

    // The ConfigMap is missing, and then has an invalid entry for another host.
    thread::scope(|scope| {
        scope.spawn(|| plugin(&scene, &first, &seventh).joins());
        let event = scene.wait_for_event("later-7", "VerifierUnavailable");
        let note = event["message"].as_str().unwrap();
        assert!(
            note.contains("ConfigMap racked-later/rack-1 does not exist"),
            "{note}"
        );
        let asked = || requests(&scene, &requester(&first));
        assert_all_unanswered(Later::event(&event), asked);
        write(
            &scene,
            &[
                (&digests[0], "metal3://metal/host-7/"),
                (&upper, "metal3://metal/host-8/"),
            ],
        );
    });
    let object = wait_for(&scene, "False", "EntriesMalformed");
    let message = condition_of(&object, CONDITION)["message"].clone();
    let message = message.as_str().unwrap();
    for word in ["racked-later/rack-1", &upper] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(condition_of(&object, "Ready")["status"], "True");

    // The machine on that host waits until the entry is corrected.
    thread::scope(|scope| {
        scope.spawn(|| plugin(&scene, &second, &eighth).joins());
        let event = scene.wait_for_event("later-8", "VerifierUnavailable");
        let note = event["message"].as_str().unwrap();
        assert!(note.contains(&upper), "{note}");
        write(
            &scene,
            &[
                (&digests[0], "metal3://metal/host-7/"),
                (&digests[1], "metal3://metal/host-8/"),
            ],
        );
    });
    wait_for(&scene, "True", "ListsRead");
}
