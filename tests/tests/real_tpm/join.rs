//! Tests of a machine that becomes a node.

use kubelet_authenticator_test_support::tpm_proxy::{TpmProxy, command};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};

use crate::bed::{USUAL, endorsement_key, kubelet, machine, node_user, requester, requests, tpm};

#[test]
fn a_machine_joins_with_two_requests_a_challenge_and_a_quote() {
    let scene = &*USUAL;
    let tpm = tpm();
    let (booted, digest) = (tpm.clock(), endorsement_key(&tpm));
    let machine = machine(scene, "joins", &tpm);
    let proxy = TpmProxy::before(&tpm);

    let kubelet = kubelet(scene, &machine, &proxy.tcti()).start();
    kubelet.wait_until_ready();

    let [enrolment, response] = requests(scene, &requester(&machine)).try_into().unwrap();
    assert_eq!(reason_of(&enrolment, "Failed"), Some("ChallengeIssued"));
    assert!(is_issued(&response), "{response:#}");
    for request in [&enrolment, &response] {
        let annotations = &request["metadata"]["annotations"];
        assert_eq!(annotations["cluster.x-k8s.io/tpm-endorsement-key"], digest);
    }
    assert!(requests(scene, &node_user(&machine)).is_empty());
    assert_eq!(proxy.count(command::ACTIVATE_CREDENTIAL), 1);
    assert_eq!(proxy.count(command::QUOTE), 1);

    scene.wait_for_event("joins", "FirstJoin");
    let spec = &scene.record("joins")["spec"];
    assert_eq!(spec["attestor"], "tpm");
    assert_eq!(spec["providerID"], machine.provider_id());
    assert_eq!(spec["endorsementKeySHA256"], digest);
    let boot = &spec["tpmBoot"];
    assert_eq!(boot["resetCount"], booted.reset_count);
    assert_eq!(boot["restartCount"], booted.restart_count);
    let clock = boot["clock"].as_u64().unwrap();
    assert!(
        (booted.clock..=tpm.clock().clock).contains(&clock),
        "{boot}"
    );
}
