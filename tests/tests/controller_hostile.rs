//! The controller before an API server that means it harm, or is none.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{Fault, Route, Times, Verb};
use kubelet_authenticator_tests::controller::{
    Application, Bed, Controller, Machine, PATIENCE, is_issued,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const ONE: Machine = Machine::new("worker-1", "token1");
const TWO: Machine = Machine::new("worker-2", "token2");

/// More than the largest answer that is read.
const HUGE: usize = 80 * 1024 * 1024;

/// What the log says of a watch or a list that failed.
const WATCH_FAILED: &str = "the watch failed; it is tried again until it holds";

/// What the log says of a write that failed.
const UNANSWERED: &str = "the request was not answered";

/// Every answer that the controller reads, and how it tells that it could not.
fn answers() -> [(Route, &'static str); 4] {
    [
        (Route::list(), WATCH_FAILED),
        (Route::watch(), WATCH_FAILED),
        (Route::approval(), UNANSWERED),
        (Route::status(), UNANSWERED),
    ]
}

#[track_caller]
fn wait_for_error(controller: &mut Controller, message: &str, part: &str) {
    let has = |line: &Value| line["error"].as_str().is_some_and(|it| it.contains(part));
    controller.wait_for_line(message, has);
}

/// An answer with this object.
fn json_of(object: &Value) -> Fault {
    Fault::Answer {
        code: 200,
        content_type: "application/json".to_owned(),
        body: object.to_string().into_bytes(),
    }
}

#[test]
fn an_answer_without_end_is_not_read_and_the_next_is() {
    for (route, message) in answers() {
        let bed = Bed::null(&[ONE, TWO]);
        let huge = Fault::HugeBody { size: HUGE };
        bed.server.inject(route, Times::once(), huge);
        let mut controller = bed.setup.start();

        for machine in [ONE, TWO] {
            let name = bed.stamped(machine);
            assert!(is_issued(&bed.wait_for_answer(&name)));
        }
        wait_for_error(&mut controller, message, "is longer than");
    }
}

#[test]
fn no_redirection_takes_the_controller_to_another_server() {
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
fn answers_that_trickle_are_given_up_and_hold_nobody_up() {
    let every = Duration::from_secs(1);
    let machines: Vec<Machine> = ["a", "b", "c", "d"]
        .iter()
        .map(|letter| {
            Machine::new(
                format!("worker-{letter}").leak(),
                format!("token{letter}").leak(),
            )
        })
        .chain([ONE])
        .collect();
    let bed = Bed::null(&machines);
    let slow: Vec<String> = [
        (Route::approval(), Fault::TrickleHead { every }),
        (Route::approval(), Fault::TrickleBody { every }),
        (Route::status(), Fault::TrickleHead { every }),
        (Route::status(), Fault::TrickleBody { every }),
    ]
    .into_iter()
    .zip(&machines)
    .map(|((route, fault), machine)| {
        let application = Application::null(*machine, bed.server.ca_pem());
        let route = route.named(&application.name());
        bed.server.inject(route, Times::once(), fault);
        application.put(&bed.server)
    })
    .collect();
    let mut controller = bed.setup.start();
    bed.server
        .wait_for(2, PATIENCE, |request| request.subresource == "status");

    let name = bed.stamped(ONE);
    assert!(is_issued(&bed.wait_for_answer(&name)));

    for name in slow {
        let line = controller.wait_for_line(UNANSWERED, |line| line["csr"] == *name);
        assert!(
            line["error"].as_str().unwrap().contains("no answer in"),
            "{line}"
        );
        assert!(is_issued(&bed.wait_for_answer(&name)));
    }
}

#[test]
fn an_api_server_that_hands_no_uid_on_is_warned_of() {
    for (minor, warned) in [("32", true), ("33", false)] {
        let version = json!({
            "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
            "compiler": "", "platform": "",
        });
        let bed = Bed::null(&[ONE]);
        // A path that is no resource's; the controller reads no other.
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
        let line = controller.wait_for_line("the API server answers", |_| true);
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
