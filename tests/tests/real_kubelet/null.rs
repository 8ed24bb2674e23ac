//! Tests of kubelets whose certificates are renewed, and expire, during a test.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Watch};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::Controller;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::{LEASE_GRACE, Machine, Node, controller, prepare, started};
use crate::recovery::{latest, not_after};

const PLUGIN: &str = "kubelet-authenticator-null";
const CONTROLLER: &str = "null-attestation-controller";

/// A lifetime for which the renewal is after 20 to 28 seconds.
const SHORT: &str = "40s";
const LONG_ENOUGH: Duration = Duration::from_secs(120);

#[test]
fn the_lease_is_renewed_in_time_while_renewals_reopen_watches() {
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

/// A lifetime of which one fifth is longer than 20 seconds. In this last fifth, a slow device would get a run with a
/// longer time limit.
const OUTLIVES: &str = "110s";

/// The time between two renewals of the Lease. A kubelet renews its Lease every 10 seconds. A run of the plugin takes 5
/// seconds, or 25 seconds with a slow device.
const SHORT_GAP: Duration = Duration::from_secs(25);

/// Starts a node whose kubelet renews its Lease until its first certificate expires. After the node is ready, `disturb`
/// receives the controller. The result of `disturb` is kept until the certificate expires.
///
/// Returns the number of requests without a certificate, and whether the node has a later certificate.
#[track_caller]
fn leases_in_time<T>(machine: Machine, disturb: impl FnOnce(Controller) -> T) -> (usize, bool) {
    let plane = ControlPlane::start();
    prepare(&plane);
    let arguments = ["--certificate-duration", OUTLIVES];
    let setup = controller(&plane, CONTROLLER, &[machine]).args(&arguments);
    let controller = started(&setup);
    let node = Node::new(&plane, PLUGIN, machine);
    let kubelet = node.start();
    kubelet.wait_until_ready();
    let _disturbed = disturb(controller);
    let mut lease = kubelet.watch_lease();

    let end = not_after(&latest(&node));
    let mut renewed_at: Vec<Value> = Vec::new();
    // After the certificate expires, the API server rejects the certificate, and the kubelet cannot renew its Lease.
    while let Ok(left) = Duration::try_from(end.duration_since(jiff::Timestamp::now()))
        && let Some(event) = lease.next(left)
    {
        renewed_at.push(event.object["spec"]["renewTime"].clone());
    }
    renewed_at.push(json!(end.to_string()));

    assert_never_later(&renewed_at, SHORT_GAP);
    let requests = node.requests();
    let undecided = requests
        .iter()
        .filter(|csr| csr["status"]["certificate"].is_null());
    (undecided.count(), not_after(&latest(&node)) > end)
}

#[test]
fn the_lease_is_renewed_until_expiry_without_a_controller() {
    const ALONE: Machine = Machine::new("alone-1", "alone1");
    let outcome = leases_in_time(ALONE, Controller::stop);
    assert_eq!(outcome, (1, false));
}

#[test]
fn the_lease_is_renewed_until_expiry_while_the_controller_hangs() {
    const HANGS: Machine = Machine::new("hangs-1", "hangs1");
    let outcome = leases_in_time(HANGS, |controller| {
        // The stopped controller keeps its connections, its watches and its Lease, but does not process requests.
        controller.process.signal(Signal::STOP);
        controller
    });
    assert_eq!(outcome, (1, false));
}

/// The time in which the controller answers pending requests.
const AWAKE: Duration = Duration::from_secs(1);

/// A duration that is longer than a run of the plugin with a valid certificate, and shorter than the deadline for the
/// leader's renewals.
const SLOW: Duration = Duration::from_secs(8);

#[test]
fn the_lease_is_renewed_in_time_with_a_slow_controller() {
    const SLOWED: Machine = Machine::new("slowed-1", "slow01");
    let (_, has_later) = leases_in_time(SLOWED, |controller| {
        let (ended, until) = channel::<()>();
        let slowed = std::thread::spawn(move || {
            let pause = |signal, time| {
                controller.process.signal(signal);
                until.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
            };
            while pause(Signal::STOP, SLOW) && pause(Signal::CONT, AWAKE) {}
        });
        (ended, slowed)
    });
    assert!(has_later);
}

/// Waits for the next renewal of the Lease, which must happen within the grace period. Returns the time of this
/// renewal.
#[track_caller]
fn next_renewal(lease: &mut Watch) -> Value {
    let event = lease
        .next(LEASE_GRACE)
        .expect("the Lease is renewed in time");
    event.object["spec"]["renewTime"].clone()
}

fn assert_never_late(renewed_at: &[Value]) {
    assert_never_later(renewed_at, LEASE_GRACE);
}

fn assert_never_later(renewed_at: &[Value], grace: Duration) {
    let seconds = |value: &Value| {
        value
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
            .as_second()
    };
    let times: Vec<i64> = renewed_at.iter().map(seconds).collect();
    let grace = i64::try_from(grace.as_secs()).unwrap();
    assert!(times.len() >= 3, "{times:?}");
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] < grace),
        "{times:?}"
    );
}

/// The number of closed watches on the resources that a kubelet watches, according to the API server.
fn closed_watches(plane: &ControlPlane) -> u64 {
    metric(
        plane,
        "apiserver_request_total",
        &["resource=\"runtimeclasses\"", "verb=\"WATCH\""],
    )
}

/// The number of open watches on the same resources.
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
