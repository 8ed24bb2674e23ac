//! Tests of an instance that is stopped and started again after its node has joined.

use base64::prelude::*;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::reason_of;
use serde_json::Value;

use crate::instances::{Bed, OWNED};
use crate::witness::{
    PATIENCE, issued, none_is_refused, requests, uid_of, wait_for_certificate, wait_until_ready,
};

/// The signed document in a request.
fn rsa2048(csr: &Value) -> String {
    let request = BASE64_STANDARD.decode(csr["spec"]["request"].as_str().unwrap());
    let blocks = pem::parse_many(request.unwrap()).unwrap();
    let evidence: Value = serde_json::from_slice(blocks[2].contents()).unwrap();
    evidence["rsa2048"].as_str().unwrap().to_owned()
}

#[test]
fn a_restarted_instance_renews_only_with_its_new_document() {
    let bed = Bed::start();
    let mut instance = bed.cloud.launched_an_hour_ago(&[OWNED]);
    let mut kubelet = bed.join_as("worker-1", &instance);
    let plane = bed.cluster.control_plane();
    let node = instance.node_name().to_owned();
    let (old, mut metadata) = (instance.rsa2048.clone(), None);
    instance.imds.update(|now| metadata = Some(now.clone()));
    assert_eq!(rsa2048(&issued(plane, &node)[0]), old);

    kubelet.kill();
    bed.cloud.restart(&mut instance);
    kubelet.start();

    let known = issued(plane, &node).len();
    let renewed = wait_for_certificate(plane, &node, known, |_| true);
    assert_eq!(rsa2048(&renewed), instance.rsa2048);
    assert_ne!(instance.rsa2048, old);
    assert_eq!(
        uid_of(&renewed),
        uid_of(&issued(plane, &node)[0]),
        "it is the same node"
    );
    assert_eq!(renewed["spec"]["username"], format!("system:node:{node}"));
    kubelet.wait_for_lease_renewal();
    wait_until_ready(plane, &node);
    none_is_refused(plane);

    // The old document is no longer valid, so even this instance cannot renew with it.
    instance.imds.set(metadata.unwrap());
    let denied = poll(PATIENCE, || {
        let mut requests = requests(plane, &node).into_iter();
        requests.find(|csr| reason_of(csr, "Denied").is_some())
    });
    let denied = denied.expect("a request with the old document that is denied");
    assert_eq!(
        reason_of(&denied, "Denied"),
        Some("DocumentOfEarlierLaunch")
    );
    assert_eq!(rsa2048(&denied), old);
}
