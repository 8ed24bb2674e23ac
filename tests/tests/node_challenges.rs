//! Tests of a controller that challenges the machine: the plugin sends two requests with the same key, regardless of
//! the events between them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::csr::parse::CertificationRequest;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::tpm::{CHALLENGE_ANNOTATION, Challenge, ChallengeId, Expiry};
use kubelet_authenticator_test_support::api_server::{ApiServer, Issuance, Signer};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::node::{Node, PATIENCE, Run, UNDER_TEST, is_pair};
use kubelet_authenticator_tests::steps;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(5);

const LATER: &str = "2100-01-01T00:00:00Z";
const LONG_AGO: &str = "2001-01-01T00:00:00Z";

/// The controller's answer to a request.
#[derive(Clone, Copy)]
enum Verdict {
    /// A challenge that expires at this time.
    Challenge(&'static str),
    /// An invalid challenge.
    Nonsense,
    Fail(&'static str),
    Issue,
    IssueOld,
    Wait,
}

use Verdict::{Challenge as Ask, Fail, Issue, IssueOld, Nonsense, Wait};

struct Bed {
    server: ApiServer,
    node: Node,
}

impl Bed {
    fn new() -> Self {
        let server = ApiServer::start();
        let mut node = Node::new(UNDER_TEST, &server);
        node.set_env("ANSWERS", "answer:");
        Self { server, node }
    }

    /// Runs the plugin, while the controller answers each new request with the next of `verdicts`.
    #[track_caller]
    fn run(&self, verdicts: &[Verdict]) -> Run {
        self.run_with(&[], verdicts)
    }

    #[track_caller]
    fn run_with(&self, environment: &[(&str, &str)], verdicts: &[Verdict]) -> Run {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let controller = scope.spawn(|| self.control(&over, verdicts));
            let run = self.node.run_as(UNDER_TEST, environment);
            over.store(true, Ordering::Relaxed);
            controller.join().unwrap();
            run
        })
    }

    fn control(&self, over: &AtomicBool, verdicts: &[Verdict]) {
        let name = |csr: &Value| csr["metadata"]["name"].as_str().unwrap().to_owned();
        let csrs = self.server.csrs().into_iter();
        let decided = csrs.filter(|csr| csr["status"]["conditions"].is_array());
        let mut decided: BTreeSet<String> = decided.map(|csr| name(&csr)).collect();
        let mut verdicts = verdicts.iter();
        let ended = poll(PATIENCE, || {
            // The number is checked again after the plugin ends, because the plugin might have sent another request.
            let last = over.load(Ordering::Relaxed);
            for csr in self.server.csrs() {
                if decided.insert(name(&csr)) {
                    let verdict = verdicts.next().expect("there is another request");
                    self.decide(csr, *verdict);
                }
            }
            last.then_some(())
        });
        ended.expect("the plugin ends");
    }

    fn decide(&self, mut csr: Value, verdict: Verdict) {
        let name = csr["metadata"]["name"].as_str().unwrap().to_owned();
        let challenge = match verdict {
            Wait => return,
            Issue => return self.server.decide(&name, &Signer::issue()),
            IssueOld => {
                return self.server.decide(
                    &name,
                    &Signer::Issue(Issuance {
                        lifetime: Some(Duration::from_secs(3600)),
                        backdate: Duration::from_secs(3 * 3600),
                        ..Issuance::default()
                    }),
                );
            }
            Fail(reason) => return self.server.decide(&name, &Signer::fail(reason, "no")),
            Ask(end) => challenge(end).to_annotation(),
            Nonsense => "?".to_owned(),
        };
        csr["metadata"]["annotations"][CHALLENGE_ANNOTATION] = challenge.into();
        csr["status"]["conditions"] = json!([{
            "type": "Failed", "status": "True", "reason": "ChallengeIssued", "message": "open it",
        }]);
        self.server.put_csr(csr);
    }

    /// The audience in the evidence of each request. All requests have the same key.
    #[track_caller]
    fn sent(&self) -> Vec<String> {
        let mut keys = BTreeSet::new();
        let bodies = self.server.created_bodies().into_iter();
        let audiences = bodies.map(|body| {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let request = STANDARD.decode(body["spec"]["request"].as_str().unwrap());
            let envelope = Envelope::parse(&request.unwrap()).unwrap();
            let csr = CertificationRequest::from_der(&envelope.csr).unwrap();
            keys.insert(csr.spki_der().to_vec());
            let header = Header::parse(&envelope.evidence.unwrap()).unwrap();
            match header.audience.as_str().split_once(':') {
                Some(("answer", _)) => "answer".to_owned(),
                _ => "enrol".to_owned(),
            }
        });
        let audiences = audiences.collect();
        assert_eq!(keys.len(), 1, "one key");
        audiences
    }
}

fn challenge(end: &str) -> Challenge {
    Challenge {
        id: ChallengeId::new([7; 16]),
        expiry: Expiry::parse(end).unwrap(),
        credential_blob: vec![1],
        encrypted_secret: vec![2],
    }
}

#[test]
fn a_challenge_is_answered_in_another_request_with_the_same_key() {
    let bed = Bed::new();

    bed.run(&[Ask(LATER), Issue]).succeeded();

    assert_eq!(bed.sent(), ["enrol", "answer"]);
    assert!(is_pair(&bed.node.file("kubelet-client.pem")));
}

#[test]
fn a_run_killed_after_any_step_is_finished_with_the_same_key() {
    for step in steps::RUN.into_iter().chain(steps::CHALLENGE) {
        let bed = Bed::new();
        let name = format!("{step:?}");
        let verdicts = [Ask(LATER), Issue];

        let killed = bed.run_with(&[("KILL_AT", &name)], &verdicts);
        assert_eq!(killed.code, None, "{step:?}: {killed:#?}");
        let undecided = &verdicts[bed.server.csrs().len().min(2)..];
        bed.run(undecided).succeeded();

        assert_eq!(bed.sent(), ["enrol", "answer"], "{step:?}");
    }
}

#[test]
fn an_expired_challenge_from_an_earlier_run_is_not_answered() {
    let bed = Bed::new();
    bed.run_with(&[("KILL_AT", "Challenged")], &[Ask(LONG_AGO)]);

    bed.run(&[Ask(LATER), Issue]).succeeded();

    assert_eq!(bed.sent(), ["enrol", "enrol", "answer"]);
}

#[test]
fn the_expiry_of_a_fresh_challenge_is_left_to_the_controller() {
    let bed = Bed::new();

    bed.run(&[Ask(LONG_AGO), Issue]).succeeded();

    assert_eq!(bed.sent(), ["enrol", "answer"]);
}

#[test]
fn a_late_response_is_challenged_once_more() {
    let bed = Bed::new();

    bed.run(&[Ask(LATER), Fail("EvidenceExpired"), Ask(LATER), Issue])
        .succeeded();

    assert_eq!(bed.sent(), ["enrol", "answer", "enrol", "answer"]);
}

#[test]
fn the_number_of_challenges_in_a_run_is_limited() {
    let late = Fail("EvidenceExpired");
    for (verdicts, sent) in [
        (
            &[Ask(LATER), late, Ask(LATER), late][..],
            &["enrol", "answer", "enrol", "answer"][..],
        ),
        (
            &[Ask(LATER), Ask(LATER), Ask(LATER)],
            &["enrol", "answer", "answer"],
        ),
        (&[late], &["enrol"]),
        (&[Ask(LATER), Fail("Other")], &["enrol", "answer"]),
    ] {
        let bed = Bed::new();

        bed.run(verdicts).failed(13);

        assert_eq!(bed.sent(), sent);
        assert!(bed.node.json("pending.json")["request"].is_null());
    }
}

#[test]
fn an_undecodable_challenge_exits_with_13() {
    let bed = Bed::new();

    bed.run(&[Nonsense])
        .failed(13)
        .saying("has an invalid challenge");

    assert!(bed.node.json("pending.json")["request"].is_null());
}

#[test]
fn a_provider_without_challenge_support_fails_with_the_message() {
    let mut bed = Bed::new();
    bed.node.unset_env("ANSWERS");

    bed.run(&[Ask(LATER)])
        .failed(13)
        .saying("(ChallengeIssued): open it");
}

#[test]
fn an_unanswerable_challenge_is_replaced_and_a_postponed_one_is_kept() {
    for (answers, code, sent) in [
        ("cannot", 7, &["enrol", "enrol", "answer"][..]),
        ("not now", 6, &["enrol", "answer"]),
    ] {
        let bed = Bed::new();
        bed.run_with(&[("ANSWERS", answers)], &[Ask(LATER)])
            .failed(code)
            .saying(answers);
        let rest = if code == 7 {
            &[Ask(LATER), Issue][..]
        } else {
            &[Issue]
        };

        let joined = poll(PATIENCE, || (bed.run(rest).code == Some(0)).then_some(()));

        assert!(joined.is_some());
        assert_eq!(bed.sent(), sent);
    }
}

#[test]
fn a_renewal_that_takes_too_long_is_completed_by_the_next_run() {
    let bed = Bed::new();
    let first = bed.run(&[Ask(LATER), IssueOld]).succeeded();

    let second = bed.run(&[Ask(LATER), Wait]).succeeded().within(LIMIT);

    assert_eq!(second.pair(), first.pair());
    let waiting = bed.node.json("pending.json")["request"].clone();
    assert_eq!(waiting["answers"], true);
    bed.server
        .approve_and_issue(waiting["name"].as_str().unwrap());
    let third = bed.run(&[]).succeeded();
    assert_ne!(third.pair(), first.pair());
    assert_eq!(bed.server.csrs().len(), 4);
}
