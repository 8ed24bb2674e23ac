//! Tests of changes in the boot state of machines that are already nodes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::swtpm::{Reset, Swtpm};
use kubelet_authenticator_test_support::tpm_proxy::{TpmProxy, command};
use kubelet_authenticator_tests::controller::{is_issued, reason_of};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::scene::{SWEPT, Scene};
use serde_json::{Value, json};

use crate::bed::{cluster, hex, kubelet, machine, node_user, requester, requests, tpm};

/// A lifetime for which the renewal is after 30 to 42 seconds.
const SECONDS: u32 = 60;

/// A lease duration that makes the kubelet send frequent requests, so that a renewal happens soon after it is due.
const LEASE: u32 = 12;

/// A Cluster with short-lived certificates, which allow tests to observe renewals.
static SHORT: LazyLock<Scene> = LazyLock::new(|| short("short"));

fn short(namespace: &str) -> Scene {
    cluster(
        namespace,
        json!({"certificate": {"expirationSeconds": SECONDS}}),
    )
}

/// The current values of the registers, in the format that a policy uses.
fn registers(tpm: &Swtpm, numbers: &[u8]) -> Value {
    let values = numbers
        .iter()
        .map(|number| (number.to_string(), hex(&tpm.pcr(*number))));
    json!(values.collect::<BTreeMap<_, _>>())
}

/// Waits for a request that uses the machine's certificate and satisfies `is`.
#[track_caller]
fn wait_for(scene: &Scene, machine: &Machine, is: impl Fn(&Value) -> bool) -> Value {
    let user = node_user(machine);
    let found = poll(SWEPT, || requests(scene, &user).into_iter().find(&is));
    found.unwrap_or_else(|| panic!("{:#?}", requests(scene, &user)))
}

/// The TPM's reset counter in each quote from this machine, from the controller's log.
fn resets_of(scene: &Scene, machine: &str) -> Vec<u64> {
    let log = scene.site.manager.process.log().text();
    let lines = log.lines();
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let quotes = lines.filter_map(|mut line| {
        let fields = line["fields"].take();
        let quote = fields["quote"].as_str()?.strip_prefix("resets ")?;
        let (resets, _) = quote.split_once(',')?;
        (fields["machine"] == machine).then(|| resets.parse().unwrap())
    });
    quotes.collect()
}

#[test]
fn a_renewal_attests_again_and_records_the_reboot() {
    let scene = &*SHORT;
    let tpm = tpm();
    let machine = machine(scene, "renews", &tpm);
    let proxy = TpmProxy::before(&tpm);
    let kubelet = kubelet(scene, &machine, &proxy.tcti())
        .lease_duration(LEASE)
        .start();
    kubelet.wait_until_ready();
    let joined = scene.record("renews");
    tpm.reset(Reset::Orderly);

    wait_for(scene, &machine, is_issued);

    let user = node_user(&machine);
    let [enrolment, response] = requests(scene, &user).try_into().unwrap();
    assert_eq!(reason_of(&enrolment, "Failed"), Some("ChallengeIssued"));
    assert!(is_issued(&response));
    assert_eq!(proxy.count(command::ACTIVATE_CREDENTIAL), 2);
    assert_eq!(proxy.count(command::QUOTE), 2);
    assert_eq!(requests(scene, &requester(&machine)).len(), 2);
    kubelet.wait_for_lease_renewal();
    // The controller records the value after it has issued the certificate.
    let mut renewed =
        scene.wait_for_record("renews", |record| record["spec"]["lastTpmBoot"].is_object());
    let renewed = renewed["spec"].as_object_mut().unwrap();
    let first = joined["spec"]["tpmBoot"]["resetCount"].as_u64().unwrap();
    let last = renewed.remove("lastTpmBoot").unwrap();
    assert_eq!(last["boot"]["resetCount"], first + 1);
    let until = renewed.remove("renewedUntil").unwrap();
    assert!(
        until.as_str() > joined["spec"]["notAfter"].as_str(),
        "{until}"
    );
    assert_eq!(json!(renewed), joined["spec"], "nothing else has changed");
    let resets = resets_of(scene, "renews");
    assert_eq!(resets, [first, first + 1]);
}

#[test]
fn a_changed_boot_chain_denies_the_renewal_and_keeps_the_certificate() {
    let scene = short("enforced");
    let tpm = tpm();
    let machine = machine(&scene, "changed", &tpm);
    let kubelet = kubelet(&scene, &machine, &tpm.tcti())
        .lease_duration(LEASE)
        .start();
    kubelet.wait_until_ready();
    let store = kubelet
        .var_lib()
        .join("kubelet-authenticator/kubelet-client.pem");
    let certificate = std::fs::read(&store).unwrap();
    let allowed = registers(&tpm, &[0, 2, 4, 7]);

    scene.change(&json!({"tpm": {"pcrPolicy": {"allowed": [allowed]}}}));
    tpm.extend(4, &[1; 32]);

    let refused = wait_for(&scene, &machine, |csr| reason_of(csr, "Denied").is_some());
    assert_eq!(reason_of(&refused, "Denied"), Some("RegisterNotAllowed"));
    let event = scene.wait_for_event("changed", "RegisterNotAllowed");
    assert_eq!(event["type"], "Warning");
    let note = event["message"].as_str().unwrap();
    let told = format!("register 4 is {}", hex(&tpm.pcr(4)));
    assert!(note.contains(&told), "{note}");
    assert_eq!(std::fs::read(&store).unwrap(), certificate);
    kubelet.wait_for_lease_renewal();
    assert!(
        kubelet.log().contains("RegisterNotAllowed"),
        "{}",
        kubelet.log()
    );
}
