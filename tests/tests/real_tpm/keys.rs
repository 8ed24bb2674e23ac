//! Tests of challenge keys: a Secret that is mounted or not mounted, and that changes.

use std::fs;
use std::thread;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use kubelet_authenticator_tests::absence::{Later, assert_all_unanswered};
use kubelet_authenticator_tests::controller::{PATIENCE, reason_of};
use kubelet_authenticator_tests::fleet::{Manager, authorize, condition_of, management};
use kubelet_authenticator_tests::scene::{Scene, Site};
use serde_json::json;

use crate::bed::{Plugin, SITE, USUAL, challenger, key, machine, requester, requests, tpm};

/// The delay of a TPM. It is longer than the time to replace a key after a challenge.
const MEANWHILE: Duration = Duration::from_secs(4);

#[test]
fn an_open_challenge_is_answered_after_its_key_is_replaced() {
    let (_, keys) = &*SITE;
    let scene = &*USUAL;
    let [slow, next] = [tpm(), tpm()];
    let challenged = machine(scene, "challenged", &slow);
    let proxy = TpmProxy::before(&slow);
    let fault = Fault::Slow(MEANWHILE);
    proxy.inject(
        Commands::One(command::ACTIVATE_CREDENTIAL),
        Times::once(),
        fault,
    );
    let plugin = Plugin::of(scene, &challenged, &proxy.tcti());
    let requester = requester(&challenged);

    thread::scope(|scope| {
        scope.spawn(|| plugin.joins());
        let plane = scene.cluster.control_plane();
        plane.wait_for_csr("a challenge", |csr| {
            csr["spec"]["username"] == requester
                && reason_of(csr, "Failed") == Some("ChallengeIssued")
        });
        keys.write(&[("current", key(2)), ("former", key(1))]);
    });

    assert_eq!(requests(scene, &requester).len(), 2);
    let later = machine(scene, "challenged-later", &next);
    Plugin::of(scene, &later, &next.tcti()).joins();
}

#[test]
fn missing_challenge_keys_set_a_condition_and_requests_wait() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let keys = Scratch::new("challenge-keys");
    let mut manager = Manager::start(&management, "node-attestation-controller", &[]);
    let authentication = authorize(&management, &cluster, &["tpm"], json!({}));
    let kubectl = management.kubectl();

    let object = authentication.wait_for(kubectl, "Ready", "False", "AttestorUnusable");
    let message = condition_of(&object, "Ready")["message"].clone();
    let message = message.as_str().unwrap();
    for word in ["tpm", "--tpm-challenge-keys"] {
        assert!(message.contains(word), "{message}");
    }

    // If the mounted Secret is empty, the controller does not start.
    manager.process.kill();
    manager = challenger(&management, keys.path(), &[]);
    assert_eq!(manager.process.wait(PATIENCE).code(), Some(3));
    let log = manager.process.log().text();
    assert!(log.contains("cannot read --tpm-challenge-keys"), "{log}");

    let current = keys.write("current", key(1));
    let manager = challenger(&management, keys.path(), &[]);
    authentication.wait_until_ready(kubectl);
    fs::remove_file(&current).unwrap();
    let tpm = tpm();
    let site = Site {
        management,
        manager,
    };
    let scene = Scene {
        site: site.into(),
        cluster,
        authentication,
    };
    let machine = machine(&scene, "waits", &tpm);
    let plugin = Plugin::of(&scene, &machine, &tpm.tcti());
    thread::scope(|scope| {
        scope.spawn(|| plugin.joins());
        let event = scene.wait_for_event("waits", "VerifierUnavailable");
        let note = event["message"].as_str().unwrap();
        assert!(note.contains("cannot read --tpm-challenge-keys"), "{note}");
        let asked = || requests(&scene, &requester(&machine));
        assert_all_unanswered(Later::event(&event), asked);
        fs::write(&current, key(1)).unwrap();
    });
}
