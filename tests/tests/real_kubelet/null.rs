//! Kubelets whose certificates are renewed, and end, within a test.

use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Watch};
use kubelet_authenticator_test_support::process::poll;
use rustix::process::Signal;
use serde_json::Value;

use crate::node::{
    LEASE_GRACE, Machine, Node, conditions, controller, prepare, requests_for, started,
};

const PLUGIN: &str = "kubelet-authenticator-null";
const CONTROLLER: &str = "null-attestation-controller";

/// Renewed after 20 to 28 seconds.
const SHORT: &str = "40s";
const LONG_ENOUGH: Duration = Duration::from_secs(120);

#[test]
fn a_short_certificate_is_renewed_while_watches_reopen_and_the_lease_is_never_late() {
    const RENEWS: Machine = Machine::new("renews-1", "renew1");
    let plane = ControlPlane::start();
    prepare(&plane);
    let setup = controller(&plane, CONTROLLER, &[RENEWS]).args(&["--certificate-duration", SHORT]);
    let mut controller = started(&setup);
    let node = Node::new(&plane, PLUGIN, RENEWS);
    let kubelet = node.start();
    kubelet.wait_until_ready();
    let mut lease = kubelet.watch_lease();
    let closed_before = closed_watches(&plane);
    let open_before = open_watches(&plane);

    let deadline = Instant::now() + LONG_ENOUGH;
    let renewals = || {
        node.requests()
            .iter()
            .filter(|csr| csr["spec"]["username"] == "system:node:renews-1")
            .count()
    };
    let mut renewed_at: Vec<Value> = Vec::new();
    while renewals() < 2 {
        assert!(
            Instant::now() < deadline,
            "{} renewals; the kubelet's log:\n{}",
            renewals(),
            kubelet.log()
        );
        renewed_at.push(next_renewal(&mut lease));
    }
    for _ in 0..2 {
        renewed_at.push(next_renewal(&mut lease));
    }

    assert_never_late(&renewed_at);
    let reopened = poll(LONG_ENOUGH, || {
        (open_watches(&plane) >= open_before).then_some(())
    });
    assert!(
        reopened.is_some(),
        "the kubelet's watches are not open again"
    );
    assert!(
        closed_watches(&plane) > closed_before,
        "no watch was closed, so the new certificate is not in use"
    );
    let calls = kubelet.metrics();
    let failures = calls.sum(
        "rest_client_exec_plugin_call_total",
        &[("call_status", "plugin_execution_error")],
    );
    assert_eq!(failures, 0.0, "{}", calls.text());
    let issued = controller.wait_for_line("decided", |fields| {
        fields["outcome"] == "issued" && fields["requester"] == "system:node:renews-1"
    });
    assert_eq!(issued["provider"], "null");
}

#[test]
fn a_node_whose_certificate_has_expired_comes_back_with_its_bootstrap_token() {
    const CALLS: &str = "rest_client_exec_plugin_call_total";
    const EXPIRES: Machine = Machine::new("expires-1", "expir1");
    let plane = ControlPlane::start();
    prepare(&plane);
    let setup = controller(&plane, CONTROLLER, &[EXPIRES]).args(&["--certificate-duration", "20s"]);
    let controller = started(&setup);
    let node = Node::new(&plane, PLUGIN, EXPIRES).setting("TIMEOUT_SECONDS", "3");
    let kubelet = node.start();
    kubelet.wait_until_ready();

    // Nobody answers while the certificate ends: the ledger stays, so this is no first use.
    controller.process.signal(Signal::STOP);
    // On a busy machine the join may have waited too long before it succeeded.
    let unanswered = [("code", "11")];
    let before = kubelet.metrics().sum(CALLS, &unanswered);
    kubelet.wait_for_metric(CALLS, &unanswered, |calls| calls > before);
    let issued = || {
        let requests = node.requests().into_iter();
        let issued = requests.filter(|csr| csr["status"]["certificate"].is_string());
        issued.count()
    };
    let issued_before = issued();
    let mark = kubelet.log_mark();
    controller.process.signal(Signal::CONT);

    // Only the token can fetch what is issued now, also where the certificate still made the request.
    kubelet.wait_for_lease_renewal();
    assert!(
        issued() > issued_before,
        "{:#?}\n{}",
        node.requests(),
        kubelet.log_since(mark)
    );
}

#[test]
fn approval_and_certificate_come_from_two_runs_that_both_crashed() {
    const CRASHES: Machine = Machine::new("crashes-1", "crash1");
    let plane = ControlPlane::start();
    prepare(&plane);
    let setup = controller(&plane, CONTROLLER, &[CRASHES]);
    let mut first = setup.start_with(&["--crash-after", "approve"]);
    first.wait_until_it_watches();
    let node = Node::new(&plane, PLUGIN, CRASHES);
    let kubelet = node.start();

    first.wait_until_it_crashed();
    let requests = requests_for(&plane, CRASHES.name);
    let [approved] = requests.as_slice() else {
        panic!("{requests:#?}")
    };
    assert_eq!(
        conditions(approved),
        [("Approved".to_owned(), "NodeNameClaimed".to_owned())]
    );
    assert!(approved["status"]["certificate"].is_null());

    let mut second = setup.start_with(&["--crash-after", "publish"]);
    second.wait_until_it_crashed();
    kubelet.wait_until_ready();

    let requests = requests_for(&plane, CRASHES.name);
    let [issued] = requests.as_slice() else {
        panic!("{requests:#?}")
    };
    assert_eq!(
        conditions(issued),
        [("Approved".to_owned(), "NodeNameClaimed".to_owned())]
    );
    assert!(issued["status"]["certificate"].is_string());
}

/// The next time at which the Lease was renewed, which must come within its grace.
#[track_caller]
fn next_renewal(lease: &mut Watch) -> Value {
    let event = lease
        .next(LEASE_GRACE)
        .expect("the Lease is renewed in time");
    event.object["spec"]["renewTime"].clone()
}

fn assert_never_late(renewed_at: &[Value]) {
    let seconds = |value: &Value| {
        value
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
            .as_second()
    };
    let times: Vec<i64> = renewed_at.iter().map(seconds).collect();
    let grace = i64::try_from(LEASE_GRACE.as_secs()).unwrap();
    assert!(times.len() >= 3, "{times:?}");
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] < grace),
        "{times:?}"
    );
}

/// Watches of what a kubelet watches, as the API server counts them: those that ended.
fn closed_watches(plane: &ControlPlane) -> u64 {
    metric(
        plane,
        "apiserver_request_total",
        &["resource=\"runtimeclasses\"", "verb=\"WATCH\""],
    )
}

/// The same: those that are open.
fn open_watches(plane: &ControlPlane) -> u64 {
    metric(
        plane,
        "apiserver_longrunning_requests",
        &["resource=\"runtimeclasses\"", "verb=\"WATCH\""],
    )
}

fn metric(plane: &ControlPlane, name: &str, labels: &[&str]) -> u64 {
    let text = plane.kubectl().ok(["get", "--raw", "/metrics"]);
    let samples = text
        .lines()
        .filter(|line| line.starts_with(&format!("{name}{{")));
    let samples = samples.filter(|line| labels.iter().all(|label| line.contains(label)));
    samples
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
        .sum()
}
