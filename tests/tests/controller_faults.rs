//! Tests of the controller during faults: concurrent writes, lost responses, a controller crash, and an unavailable API
//! server.

use kubelet_authenticator_test_support::api_server::{Fault, Route, Step, Times, Verb};
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::{Application, Bed, Machine, PATIENCE, is_issued};
use rustix::process::Signal;
use serde_json::json;

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");

/// Matches the creation of a node identity.
fn identity() -> Route {
    Route::new(Verb::Create, "nodeidentities")
}

#[test]
fn a_concurrently_changed_request_is_decided_again() {
    for route in [Route::approval(), Route::status()] {
        let bed = Bed::null(&[ONE, TWO]);
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
        controller.wait_for_line("the request has changed since it was read", |line| {
            line["csr"] == *name
        });
        assert_eq!(bed.server.gets(), 1);
    }
}

#[test]
fn a_failed_or_unacknowledged_write_is_retried() {
    for fault in [
        Fault::status(500),
        Fault::status(503),
        Fault::too_many_requests(1),
        Fault::Cut,
        Fault::LoseAnswer,
        Fault::not_json(),
    ] {
        for route in [identity(), Route::approval(), Route::status()] {
            let bed = Bed::null(&[ONE, TWO]);
            bed.server.inject(route, Times::once(), fault.clone());
            let _controller = bed.setup.start();

            let csr = bed.wait_for_answer(&bed.stamped(ONE));

            assert!(is_issued(&csr), "{fault:?}: {csr:#}");
        }
    }
}

#[test]
fn a_panic_affects_only_its_own_request() {
    let bed = Bed::null(&[ONE, TWO]);
    let mut controller = bed.setup.start_with(&["--panic-for", ONE.name]);
    let bad = bed.stamped(ONE);
    let good = bed.stamped(TWO);

    let csr = bed.wait_for_answer(&good);
    controller.wait_for_line(
        "the checks panicked; the controller retries the request later",
        |line| line["csr"] == *bad,
    );

    assert!(is_issued(&csr));
    assert_unanswered(Later::answer(&csr), || bed.server.csr(&bad).unwrap());
    assert!(controller.process.is_running());
}

#[test]
fn a_slow_api_server_response_does_not_block_other_requests() {
    let bed = Bed::null(&[ONE, TWO]);
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
fn kill_9_at_each_step_of_a_write_is_recovered() {
    for route in [identity(), Route::approval(), Route::status()] {
        for step in [Step::Received, Step::Stored] {
            let null = Bed::null(&[ONE, TWO]);
            let stamped = Application::null(ONE, null.server.ca_pem());
            let insecure = Bed::insecure(&[ONE, TWO]);
            for (bed, application) in [(null, stamped), (insecure, Application::insecure(ONE))] {
                let name = application.put(&bed.server);
                let gate = bed.server.hold(route.clone(), step);
                let mut controller = bed.setup.start();
                gate.wait(1, PATIENCE);
                controller.process.kill();
                gate.cut();

                let _controller = bed.setup.start();
                let csr = bed.wait_for_answer(&name);

                assert!(is_issued(&csr), "{route:?} {step:?}: {csr:#}");
                let identities = bed.server.all("nodeidentities");
                let [identity] = identities.as_slice() else {
                    panic!("{route:?} {step:?}: {identities:#?}");
                };
                assert_eq!(identity["spec"]["generation"], 1, "{route:?} {step:?}");
            }
        }
    }
}

#[test]
fn a_shutdown_waits_for_the_request_in_progress() {
    let bed = Bed::null(&[ONE, TWO]);
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
