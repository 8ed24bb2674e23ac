//! Serving certificates of kubelets whose machines proved themselves by their TPMs.

use std::net::{IpAddr, Ipv4Addr};

use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_tests::controller::serving::{ServingRequest, uid_of};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::tpm::provider_id;
use node_attestation_core::crd::TpmSettings;
use serde_json::json;

use crate::world::{FIRST, World};

/// The address that the infrastructure knows of the machine.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

#[test]
fn a_node_that_proved_itself_by_its_tpm_may_serve_at_its_own_address() {
    let id = provider_id(&FIRST);
    let listed = vec![(0, id.clone())];
    let world = World::listing(&TpmSettings::default(), listed, &["--serving"]);
    world.bed.write_machines(vec![json!({
        "name": "n0", "providerID": id, "tokenID": "to0000", "addresses": [OWN],
    })]);
    let joined = world.join(0, &world.requester(0), &FIRST);
    let uid = uid_of(&joined);
    let own = Provider::TPM.serving_signer();
    let asked = |name: &str, signer: &str, address| {
        let request = ServingRequest {
            name,
            node: "n0",
            signer,
            uid: &uid,
            address,
        };
        world.bed.asked_to_serve(&request)
    };

    let ours = asked("ours", &own, OWN);
    assert!(is_issued(&ours), "{ours:#}");

    // kube-controller-manager signs these.
    let built_in = asked("built-in", BUILT_IN_SERVING_SIGNER, OWN);
    assert!(reason_of(&built_in, "Approved").is_some(), "{built_in:#}");

    let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 8));
    for (name, signer) in [("ours-2", &*own), ("built-in-2", BUILT_IN_SERVING_SIGNER)] {
        let answer = asked(name, signer, other);
        assert!(reason_of(&answer, "Denied").is_some(), "{answer:#}");
    }
}
