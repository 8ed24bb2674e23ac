//! Tests of TPMs that belong to other machines, and of TPMs that have changed.

use std::sync::{Arc, LazyLock};

use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use kubelet_authenticator_tests::fleet::assert_first_generation;
use kubelet_authenticator_tests::scene::Scene;
use serde_json::{Value, json};

use crate::bed::{Plugin, USUAL, cluster, endorsement_key, kubelet, machine, tpm};

#[test]
fn a_second_tpm_with_the_same_node_name_and_token_is_refused() {
    let scene = &*USUAL;
    let first = tpm();
    let machine = machine(scene, "wanted", &first);

    let second = tpm();
    Plugin::of(scene, &machine, &second.tcti()).is_denied("EndorsementKeyOfAnotherMachine");

    let event = scene.wait_for_event("wanted", "EndorsementKeyOfAnotherMachine");
    assert_eq!(event["type"], "Warning");
    let note = event["message"].as_str().unwrap();
    for key in [endorsement_key(&first), endorsement_key(&second)] {
        assert!(note.contains(&key), "{note}");
    }
    // The legitimate owner of the name can claim it at any time.
    let kubelet = kubelet(scene, &machine, &first.tcti()).start();
    kubelet.wait_until_ready();
}

#[test]
fn a_tpm_with_lower_counters_causes_a_warning_event() {
    let scene = &*USUAL;
    let tpm = tpm();
    let machine = machine(scene, "cloned", &tpm);
    // The copy is like a snapshot, because the machine boots after the copy is made.
    let copy = Swtpm::copy_of(&tpm);
    for _ in 0..3 {
        tpm.reset(Reset::Orderly);
    }
    assert!(copy.clock().reset_count < tpm.clock().reset_count);
    let kubelet = kubelet(scene, &machine, &tpm.tcti()).start();
    kubelet.wait_until_ready();

    Plugin::of(scene, &machine, &copy.tcti()).is_denied("TpmRanBackwards");

    let event = scene.wait_for_event("cloned", "TpmRanBackwards");
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["kind"], "Machine");
    assert_eq!(event["reportingComponent"], "node-attestation-controller");
    let note = event["message"].as_str().unwrap();
    assert!(note.contains("cloned"), "{note}");
    assert!(note.contains(machine.provider_id()), "{note}");
    kubelet.wait_for_lease_renewal();
    assert_first_generation(&scene.record("cloned"));
}

/// A Cluster with a list of keys, and the TPMs in this list.
struct Listed {
    scene: Scene,
    first: Arc<Swtpm>,
    second: Arc<Swtpm>,
}

static LISTED: LazyLock<Listed> = LazyLock::new(|| {
    let (first, second) = (tpm(), tpm());
    let scene = cluster(
        "listed",
        list(&[("has-a-tpm", &first), ("shares", &second)]),
    );
    Listed {
        scene,
        first,
        second,
    }
});

fn list(entries: &[(&str, &Arc<Swtpm>)]) -> Value {
    let entries = entries.iter().map(|(machine, tpm)| {
        let digest = endorsement_key(tpm);
        json!({"machine": machine, "ekSha256": digest})
    });
    let entries: Vec<_> = entries.collect();
    json!({"tpm": {"endorsementKeys": {"allowList": entries}}})
}

#[test]
fn a_changed_list_entry_cannot_change_the_tpm_of_a_known_machine() {
    let Listed {
        scene,
        first,
        second,
    } = &*LISTED;
    let machine = scene.cluster.machine("has-a-tpm").create();
    Plugin::of(scene, &machine, &first.tcti()).joins();
    let known = &scene.record("has-a-tpm")["spec"]["endorsementKeySHA256"];
    assert_eq!(*known, endorsement_key(first));

    let other = tpm();
    scene.change(&list(&[("has-a-tpm", &other), ("shares", second)]));
    let plugin = Plugin::of(scene, &machine, &other.tcti());

    plugin.is_denied("AnotherInstance");
}

#[test]
fn a_list_entry_cannot_assign_the_tpm_of_a_node_to_another_machine() {
    let Listed { scene, second, .. } = &*LISTED;
    let holder = machine(scene, "named-by-its-tpm", second);
    Plugin::of(scene, &holder, &second.tcti()).joins();

    let other = scene.cluster.machine("shares").create();
    let plugin = Plugin::of(scene, &other, &second.tcti());

    plugin.is_denied("TpmOfAnotherMachine");
}
