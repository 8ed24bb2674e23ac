//! Tests of the conditions and metrics about firmware that does not measure, and about certificates that expire.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use kubelet_authenticator_test_support::clock::{now, since_epoch};
use kubelet_authenticator_test_support::ek_ca::vendors;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::scrape::value;
use serde_json::json;

use crate::bed::{DIAGNOSTICS, Plugin, cluster, machine};

const NAMESPACE: &str = "findings";

/// 60 days, in seconds. The controller reports a certificate 90 days before it expires.
const SOON: u64 = 60 * 24 * 3600;

#[test]
fn an_unmeasured_boot_and_an_expiring_ca_are_in_conditions_and_metrics() {
    let tpms = [(); 2].map(|()| Arc::new(Swtpm::unmeasured()));
    let key = TpmMachine::new(tpms[0].clone(), EndorsementKey::P384).ek_spki();
    let expiry = since_epoch(now()).as_secs() + SOON;
    let end = UNIX_EPOCH + Duration::from_secs(expiry);
    let authorities = [
        tpms[0].maker().intermediates_pem().to_owned(),
        vendors::ending(&key, end, end).root_pem(),
    ];
    let scene = cluster(
        NAMESPACE,
        json!({"tpm": {"endorsementKeys": {"requireCA": authorities}}}),
    );
    let first = machine(&scene, "joined", &tpms[0]);
    let second = machine(&scene, "denied", &tpms[1]);

    let words = ["\"CN=an ending root\" (requireCA) expires on 20"];
    scene.wait_for_condition(
        "EndorsementCertificatesValid",
        "False",
        "CertificateExpires",
        &words,
    );
    Plugin::of(&scene, &first, &tpms[0].tcti()).joins();

    let words = ["joined (registers 0, 1, 2, 3, 4, 5, 6, 7)"];
    scene.wait_for_condition("BootMeasured", "False", "NotMeasured", &words);
    let labels = format!("{{namespace=\"{NAMESPACE}\",cluster=\"prod-1\"}}");
    let count = format!("node_attestation_unmeasured_machines{labels} 1.0");
    let metrics = DIAGNOSTICS.wait_for(&[&count]);
    let series =
        format!("node_attestation_endorsement_certificate_expiry_timestamp_seconds{labels}");
    let reported = value(&metrics, &series).map(Duration::from_secs_f64);
    assert_eq!(reported, Some(Duration::from_secs(expiry)), "{metrics}");

    // A policy need not contain a register that the firmware extends.
    let policy = json!({"allowed": [{"12": "0".repeat(64)}]});
    scene.change(&json!({"tpm": {"pcrPolicy": policy}}));
    scene.wait_for_condition("BootMeasured", "True", "NotApplicable", &["pcrPolicy"]);
    Plugin::of(&scene, &second, &tpms[1].tcti()).is_denied("RegisterNotMeasured");
}
