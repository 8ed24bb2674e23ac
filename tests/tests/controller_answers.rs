//! What the controller answers, to requests in an API server in this process.

use std::path::Path;

use kubelet_attestation::names::Provider;
use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Fault, Route, Step, Times, Verb,
};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::controller::{
    Application, Machine, PATIENCE, Setup, certificate_of, inventory, reason_of, wait_for_csr,
};
use kubelet_authenticator_tests::program;
use rustix::process::Signal;
use serde_json::{Value, json};

const ONE: Machine = Machine {
    name: "worker-1",
    token: "token1",
};
const TWO: Machine = Machine {
    name: "worker-2",
    token: "token2",
};
const UNKNOWN: Machine = Machine {
    name: "worker-3",
    token: "token3",
};

/// An API server, and a controller's files for it.
struct Bed {
    server: ApiServer,
    setup: Setup,
    _files: Scratch,
}

impl Bed {
    fn insecure() -> Self {
        let mut bed = Self::new(&program("node-attestation-controller"));
        bed.setup = bed.setup.args(&["--allow-insecure"]);
        bed
    }

    fn null() -> Self {
        Self::new(Path::new(env!("CARGO_BIN_EXE_null-attestation-controller")))
    }

    fn new(program: &Path) -> Self {
        let server = ApiServer::start();
        let files = Scratch::new("cluster");
        let kubeconfig = server.write_admin_kubeconfig(files.path());
        let (ca_cert, ca_key) = server.write_ca(files.path());
        let setup = Setup::new(program, &kubeconfig, (&ca_cert, &ca_key), &[ONE, TWO]);
        Self {
            server,
            setup,
            _files: files,
        }
    }

    /// A rubber-stamped request of this machine, and its name.
    fn stamped(&self, machine: Machine) -> String {
        Application::null(machine, self.server.ca_pem()).put(&self.server)
    }

    #[track_caller]
    fn wait_for_answer(&self, name: &str) -> Value {
        wait_for_csr(&self.server, name, answered)
    }

    /// Waits for an event of this reason on this request.
    #[track_caller]
    fn wait_for_event(&self, name: &str, reason: &str) -> Value {
        poll(PATIENCE, || {
            let mut events = self.server.events().into_iter();
            events.find(|event| event["regarding"]["name"] == name && event["reason"] == reason)
        })
        .unwrap_or_else(|| panic!("no event {reason}: {:#?}", self.server.events()))
    }

    /// How often one request's part was written.
    fn writes(&self, name: &str, part: &str) -> usize {
        let requests = self.server.requests();
        let writes = requests
            .iter()
            .filter(|it| it.name == name && it.subresource == part);
        writes.count()
    }
}

fn answered(csr: &Value) -> bool {
    is_issued(csr)
        || ["Denied", "Failed"]
            .iter()
            .any(|kind| reason_of(csr, kind).is_some())
}

fn is_issued(csr: &Value) -> bool {
    certificate_of(csr).is_some()
}

/// Whether somebody said yes, and nobody followed it up.
fn is_left_open(csr: &Value) -> bool {
    reason_of(csr, "Approved").is_some() && !answered(csr)
}

#[test]
fn a_machine_with_its_own_token_gets_its_certificate_and_the_log_says_how() {
    let bed = Bed::insecure();
    let mut controller = bed.setup.start();
    let name = Application::insecure(ONE).put(&bed.server);

    let csr = bed.wait_for_answer(&name);

    assert_eq!(reason_of(&csr, "Approved"), Some("NodeNameClaimed"));
    assert!(is_issued(&csr), "{csr:#}");
    let line = controller.wait_for_decision(&name);
    for (field, expected) in [
        ("outcome", "issued"),
        ("reason", "Issued"),
        ("node", "worker-1"),
        ("provider", "insecure"),
        ("check", "sign"),
        ("requester", "system:bootstrap:token1"),
    ] {
        assert_eq!(line[field], expected, "{field}");
    }
    assert!(
        line["millis"].as_f64().is_some_and(|millis| millis > 0.0),
        "{line}"
    );
    let checks: Vec<Value> = controller
        .lines()
        .into_iter()
        .map(|mut line| line["fields"].take())
        .filter(|fields| fields["message"] == "checked" && fields["csr"] == *name)
        .map(|mut fields| fields["check"].take())
        .collect();
    let all = [
        "triage",
        "parse",
        "conform_client",
        "locate",
        "attest",
        "settle",
        "claim",
        "sign",
    ];
    assert_eq!(checks, all);
    let event = bed.wait_for_event(&name, "Issued");
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(event["type"], "Normal");
    assert_eq!(controller.stop(), Some(0));
}

#[test]
fn a_join_costs_two_writes_and_no_read() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();

    let name = bed.stamped(ONE);
    bed.wait_for_answer(&name);
    controller.wait_for_decision(&name);

    assert_eq!(bed.writes(&name, "approval"), 1);
    assert_eq!(bed.writes(&name, "status"), 1);
    assert_eq!(bed.writes(&name, ""), 0, "reads of the request");
    for request in bed.server.requests() {
        let agent = request.user_agent;
        assert!(
            agent.starts_with("node-attestation-controller/"),
            "{agent:?}"
        );
    }
}

#[test]
fn a_contradiction_is_denied_with_its_reason() {
    let bed = Bed::insecure();
    let mut controller = bed.setup.start();
    let name = Application::insecure(ONE)
        .with_token_of(TWO)
        .put(&bed.server);

    let csr = bed.wait_for_answer(&name);

    let reason = reason_of(&csr, "Denied").expect("a denial").to_owned();
    assert!(!is_issued(&csr));
    let line = controller.wait_for_decision(&name);
    assert_eq!(
        (&line["outcome"], &line["reason"]),
        (&"denied".into(), &reason.as_str().into())
    );
    let event = bed.wait_for_event(&name, &reason);
    assert_eq!(event["type"], "Warning");
}

#[test]
fn evidence_of_another_version_fails_and_the_annotation_says_which_would_do() {
    let bed = Bed::null();
    let _controller = bed.setup.start();
    let evidence = br#"{"version":"v2","audience":"a"}"#.to_vec();
    let name = Application::new(ONE, Provider::NULL, Some(evidence)).put(&bed.server);

    let csr = bed.wait_for_answer(&name);

    assert_eq!(
        reason_of(&csr, "Failed"),
        Some("UnsupportedAttestationVersion")
    );
    let annotations = &csr["metadata"]["annotations"];
    assert_eq!(
        annotations["attestation.cluster.x-k8s.io/supported-versions"],
        "v1"
    );
    bed.wait_for_event(&name, "UnsupportedAttestationVersion");
}

#[test]
fn a_machine_that_is_not_listed_yet_waits_untouched_and_is_served_once_it_is() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    let name = bed.stamped(UNKNOWN);
    let before = bed.server.csr(&name).unwrap();

    let line = controller.wait_for_line("decided", |line| line["csr"] == *name);
    assert_eq!(line["outcome"], "deferred");
    assert_eq!(bed.server.csr(&name).unwrap(), before);
    bed.wait_for_event(&name, line["reason"].as_str().unwrap());

    bed.setup.write_inventory(&inventory(&[ONE, UNKNOWN]));
    let csr = bed.wait_for_answer(&name);

    assert!(is_issued(&csr), "{csr:#}");
    assert_eq!(
        bed.server
            .events()
            .iter()
            .filter(|it| it["action"] == "Defer")
            .count(),
        1
    );
}

#[test]
fn a_broken_inventory_is_told_of_once_and_changes_nothing() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    bed.setup.write_inventory("machines: [");

    for machine in [ONE, TWO] {
        let csr = bed.wait_for_answer(&bed.stamped(machine));
        assert!(is_issued(&csr), "{csr:#}");
    }

    let broken = |line: &Value| {
        line["fields"]["message"]
            .as_str()
            .unwrap()
            .contains("inventory")
    };
    assert_eq!(
        controller
            .lines()
            .iter()
            .filter(|line| broken(line))
            .count(),
        1
    );
}

#[test]
fn an_approval_by_somebody_else_does_not_get_a_bad_request_signed() {
    let bed = Bed::insecure();
    let name = Application::insecure(ONE)
        .with_token_of(TWO)
        .put(&bed.server);
    bed.server.add_condition(&name, "Approved", "ByHand", "");

    let _controller = bed.setup.start();
    let csr = bed.wait_for_answer(&name);

    assert!(reason_of(&csr, "Failed").is_some(), "{csr:#}");
    assert_eq!(reason_of(&csr, "Approved"), Some("ByHand"));
    assert!(!is_issued(&csr));
}

#[test]
fn requests_of_before_the_start_are_answered() {
    let bed = Bed::null();
    let names = [bed.stamped(ONE), bed.stamped(TWO)];

    let _controller = bed.setup.start();

    for name in names {
        assert!(is_issued(&bed.wait_for_answer(&name)));
    }
}

#[test]
fn requests_to_other_signers_are_left_alone() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    let other = Application::insecure(ONE).put(&bed.server);
    let before = bed.server.csr(&other).unwrap();

    let ours = bed.stamped(TWO);
    bed.wait_for_answer(&ours);
    controller.wait_for_decision(&ours);

    assert_eq!(bed.server.csr(&other).unwrap(), before);
    assert!(
        bed.server
            .requests()
            .iter()
            .all(|request| request.name != other)
    );
}

#[test]
fn a_change_under_its_hands_is_decided_on_anew() {
    for route in [Route::approval(), Route::status()] {
        let bed = Bed::null();
        let mut controller = bed.setup.start();
        let gate = bed.server.hold(route, Step::Received);
        let name = bed.stamped(ONE);
        gate.wait(1, PATIENCE);
        let mut other = bed.server.csr(&name).unwrap();
        other["metadata"]["annotations"] = json!({"example.com/note": "read it"});
        bed.server.put_csr(other);
        gate.open();

        let csr = bed.wait_for_answer(&name);

        assert!(is_issued(&csr), "{csr:#}");
        assert_eq!(
            csr["metadata"]["annotations"]["example.com/note"],
            "read it"
        );
        controller.wait_for_line("changed meanwhile", |line| line["csr"] == *name);
        assert_eq!(bed.server.gets(), 1);
    }
}

#[test]
fn writes_that_fail_or_lose_their_answer_are_made_good() {
    for fault in [
        Fault::status(500),
        Fault::status(503),
        Fault::too_many_requests(1),
        Fault::Cut,
        Fault::LoseAnswer,
        Fault::not_json(),
    ] {
        for route in [Route::approval(), Route::status()] {
            let bed = Bed::null();
            bed.server.inject(route, Times::once(), fault.clone());
            let _controller = bed.setup.start();

            let csr = bed.wait_for_answer(&bed.stamped(ONE));

            assert!(is_issued(&csr), "{fault:?}: {csr:#}");
        }
    }
}

#[test]
fn an_event_that_cannot_be_written_hinders_nothing() {
    let bed = Bed::null();
    let events = Route::new(Verb::Create, "events");
    bed.server
        .inject(events, Times::always(), Fault::status(403));
    let mut controller = bed.setup.start();

    for machine in [ONE, TWO] {
        let name = bed.stamped(machine);
        assert!(is_issued(&bed.wait_for_answer(&name)));
        assert_eq!(controller.wait_for_decision(&name)["outcome"], "issued");
    }
}

#[test]
fn a_watch_that_is_lost_is_found_again_and_told_of_once() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    bed.server
        .inject(Route::watch(), Times::first(4), Fault::status(503));
    bed.server.drop_connections();
    controller.wait_for_line("the watch failed again", |_| true);

    let csr = bed.wait_for_answer(&bed.stamped(ONE));

    assert!(is_issued(&csr));
    let told = |text: &str| {
        let lines = controller.lines();
        lines
            .iter()
            .filter(|line| line["fields"]["message"] == text)
            .count()
    };
    assert_eq!(
        told("the watch failed; it is tried again until it holds"),
        1
    );
}

#[test]
fn a_watch_whose_version_is_gone_begins_anew() {
    for fault in [
        Fault::WatchGone,
        Fault::WatchGarbage,
        Fault::WatchCut { after: 0 },
    ] {
        let bed = Bed::null();
        bed.server.inject(Route::watch(), Times::once(), fault);
        let _controller = bed.setup.start();
        bed.server
            .wait_for(1, PATIENCE, |request| request.query.contains("watch="));

        let csr = bed.wait_for_answer(&bed.stamped(ONE));

        assert!(is_issued(&csr));
    }
}

#[test]
fn an_api_server_that_is_down_at_the_start_is_waited_for() {
    let bed = Bed::null();
    bed.server
        .inject_connection(Times::first(3), ConnectionFault::Close);
    let mut controller = bed.setup.start();
    controller.wait_for_line("the watch failed; it is tried again until it holds", |_| {
        true
    });

    let csr = bed.wait_for_answer(&bed.stamped(ONE));

    assert!(is_issued(&csr));
}

#[test]
fn a_panic_concerns_its_own_request_alone() {
    let bed = Bed::null();
    let mut controller = bed.setup.start_with(&["--panic-for", ONE.name]);
    let bad = bed.stamped(ONE);
    let good = bed.stamped(TWO);

    let csr = bed.wait_for_answer(&good);
    controller.wait_for_line(
        "the checks panicked; the request is tried again later",
        |line| line["csr"] == *bad,
    );

    assert!(is_issued(&csr));
    assert!(!answered(&bed.server.csr(&bad).unwrap()));
    assert!(controller.process.is_running());
}

#[test]
fn a_slow_answer_does_not_hold_others_up() {
    let bed = Bed::null();
    let slow = Application::null(ONE, bed.server.ca_pem());
    bed.server.inject(
        Route::approval().named(&slow.name()),
        Times::once(),
        Fault::Hang,
    );
    let _controller = bed.setup.start();
    slow.put(&bed.server);
    bed.server
        .wait_for(1, PATIENCE, |request| request.subresource == "approval");

    let csr = bed.wait_for_answer(&bed.stamped(TWO));

    assert!(is_issued(&csr));
}

#[test]
fn after_a_crash_between_any_two_steps_the_next_run_finishes() {
    for (point, approved) in [("claim", false), ("approve", true), ("publish", true)] {
        let bed = Bed::null();
        let name = bed.stamped(ONE);
        bed.setup
            .start_with(&["--crash-after", point])
            .wait_until_it_crashed();
        let between = bed.server.csr(&name).unwrap();
        assert_eq!(
            reason_of(&between, "Approved").is_some(),
            approved,
            "{point}"
        );
        assert_eq!(is_issued(&between), point == "publish", "{point}");

        let _controller = bed.setup.start();
        let csr = bed.wait_for_answer(&name);

        assert!(is_issued(&csr), "{point}: {csr:#}");
    }
}

#[test]
fn after_a_crash_that_followed_a_refusal_nothing_is_left_open() {
    for approved in [false, true] {
        let bed = Bed::null();
        let bad = Application::null(ONE, bed.server.ca_pem()).with_token_of(TWO);
        let name = bad.put(&bed.server);
        let point = if approved { "publish" } else { "approve" };
        if approved {
            bed.server.add_condition(&name, "Approved", "ByHand", "");
        }
        bed.setup
            .start_with(&["--crash-after", point])
            .wait_until_it_crashed();
        let refused = bed.server.csr(&name).unwrap();

        let mut controller = bed.setup.start();
        controller.wait_until_it_watches();
        bed.wait_for_answer(&bed.stamped(TWO));

        assert_eq!(bed.server.csr(&name).unwrap(), refused);
        assert!(!is_left_open(&refused), "{refused:#}");
    }
}

#[test]
fn kill_9_at_the_api_servers_every_step_is_made_good() {
    for route in [Route::approval(), Route::status()] {
        for step in [Step::Received, Step::Stored] {
            let bed = Bed::null();
            let name = bed.stamped(ONE);
            let gate = bed.server.hold(route.clone(), step);
            let mut controller = bed.setup.start();
            gate.wait(1, PATIENCE);
            controller.process.kill();
            gate.cut();

            let _controller = bed.setup.start();
            let csr = bed.wait_for_answer(&name);

            assert!(is_issued(&csr), "{route:?} {step:?}: {csr:#}");
        }
    }
}

#[test]
fn a_stop_waits_for_what_is_being_answered() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    controller.wait_until_it_watches();
    let gate = bed.server.hold(Route::status(), Step::Received);
    let name = bed.stamped(ONE);
    gate.wait(1, PATIENCE);

    controller.process.signal(Signal::TERM);
    controller.wait_for_line("stopping", |_| true);
    gate.open();

    assert_eq!(controller.process.wait(PATIENCE).code(), Some(0));
    assert!(is_issued(&bed.server.csr(&name).unwrap()));
}

#[test]
fn the_log_has_no_key_no_request_and_no_evidence() {
    let bed = Bed::null();
    let mut controller = bed.setup.start();
    let good = Application::null(ONE, bed.server.ca_pem());
    let bad = Application::null(ONE, bed.server.ca_pem()).with_token_of(TWO);
    for application in [&good, &bad] {
        application.put(&bed.server);
        bed.wait_for_answer(&application.name());
        controller.wait_for_decision(&application.name());
    }

    let log = controller.process.log().text();

    for application in [good, bad] {
        let object = application.to_json();
        let request = object["spec"]["request"].as_str().unwrap();
        assert!(!log.contains(&request[100..140]), "the request");
    }
    let key = bed.server.client_ca().key_pem.clone();
    for line in key.lines() {
        assert!(!log.contains(line), "the CA's key");
    }
    for word in ["PRIVATE KEY", "BEGIN CERTIFICATE", "\"version\""] {
        assert!(!log.contains(word), "{word}");
    }
}
