//! Tests of the controller with a hostile API server, or with a server that is not an API server.

use std::io::ErrorKind;
use std::net::TcpListener;

use kubelet_authenticator_test_support::api_server::{Fault, Route, Times, Verb};
use kubelet_authenticator_tests::controller::{Bed, Machine, PATIENCE, is_issued};
use rustix::process::Signal;
use serde_json::{Value, json};

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");

/// The log message about a failed watch or list.
const WATCH_FAILED: &str = "the watch failed; the controller retries it";

/// The log message about a failed write.
const UNANSWERED: &str = "the request was not answered";

/// The requests whose responses the controller reads, each with the log message about an invalid response.
fn answers() -> [(Route, &'static str); 4] {
    [
        (Route::list(), WATCH_FAILED),
        (Route::watch(), WATCH_FAILED),
        (Route::approval(), UNANSWERED),
        (Route::status(), UNANSWERED),
    ]
}

/// A response that contains this object.
fn json_of(object: &Value) -> Fault {
    Fault::Answer {
        code: 200,
        content_type: "application/json".to_owned(),
        body: object.to_string().into_bytes(),
    }
}

#[test]
fn the_controller_does_not_follow_redirects_to_another_server() {
    for (route, _) in answers() {
        let bed = Bed::null(&[ONE, TWO]);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        let to = format!("https://{}", other.local_addr().unwrap());
        bed.server
            .inject(route.clone(), Times::once(), Fault::Redirect { to });
        let _controller = bed.setup.start();

        for machine in [ONE, TWO] {
            let name = bed.stamped(machine);
            assert!(is_issued(&bed.wait_for_answer(&name)));
        }

        let called = other.accept().map_err(|error| error.kind());
        assert_eq!(called.unwrap_err(), ErrorKind::WouldBlock, "{route:?}");
    }
}

#[test]
fn an_api_server_that_does_not_forward_uids_causes_a_warning() {
    for (minor, warned) in [("32", true), ("33", false)] {
        let version = json!({
            "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
            "compiler": "", "platform": "",
        });
        let bed = Bed::null(&[ONE]);
        // This path does not belong to a resource. It is the only path of this kind that the controller reads.
        bed.server.inject(
            Route::new(Verb::Get, ""),
            Times::always(),
            json_of(&version),
        );
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "metadata": {}, "spec": {}, "status": {"allowed": true},
        });
        let reviews = Route::new(Verb::Create, "selfsubjectaccessreviews");
        bed.server
            .inject(reviews, Times::always(), json_of(&review));
        let mut controller = bed.setup.start();
        let line = controller.wait_for_line("the API server responds", |_| true);
        assert_eq!(line["version"], format!("v1.{minor}.0"));
        controller.process.signal(Signal::TERM);
        controller.process.wait(PATIENCE);

        let warning = "the API server is older than 1.33";
        let lines = controller.lines();
        let warning = lines.iter().find(|line| {
            let message = line["fields"]["message"].as_str();
            message.is_some_and(|message| message.starts_with(warning))
        });
        assert_eq!(warning.is_some(), warned, "{lines:#?}");
        if let Some(line) = warning {
            assert_eq!(line["level"], "WARN");
        }
    }
}
