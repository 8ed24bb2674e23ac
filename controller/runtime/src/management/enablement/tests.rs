use std::convert::Infallible;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use node_attestation_core::unshared::Unshared;
use serde_json::{Value, json};

use super::step::{EnableError, taken};
use super::*;
use crate::log_lines::ClusterLines;
use crate::management::condition_events::RATE;
use crate::management::flood::flooded;
use crate::turns::FairRate;

fn wanted(attestor: &str) -> Wanted {
    let attestors = vec![attestor.to_owned()];
    Wanted {
        cluster_uid: "uid".to_owned(),
        attestors: OwnAttestors::Named(attestors.clone()),
        step: discriminant(&Step::Create {
            attestors,
            watch_filter: None,
        }),
    }
}

/// The wait in seconds before the next step for `next`, after this number of steps for `aws`, the last of which ended
/// with this result.
fn wait(outcome: StepOutcome, tries: u32, next: &str) -> u64 {
    let at = Instant::now();
    let last = Last {
        wanted: wanted("aws"),
        tries,
        at,
        outcome: Some(outcome),
    };
    let due = due_at(Some(&last), &wanted(next), at).unwrap();
    due.duration_since(at).as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_refused_step_is_retried_later_than_an_outage() {
    for (outcome, tries, same, another) in [
        (StepOutcome::Written, 1, 4, 2),
        (StepOutcome::Written, 2, 8, 2),
        (StepOutcome::Written, 40, 600, 2),
        (StepOutcome::Unavailable, 1, 4, 2),
        (StepOutcome::Unavailable, 40, 60, 2),
        (StepOutcome::Refused, 1, 600, 30),
        (StepOutcome::Refused, 40, 600, 30),
        (StepOutcome::Unreported, 1, 4, 30),
        (StepOutcome::Unreported, REPORT_TRIES - 1, 32, 30),
        (StepOutcome::Unreported, REPORT_TRIES, 600, 30),
    ] {
        let waits = [wait(outcome, tries, "aws"), wait(outcome, tries, "tpm")];
        assert_eq!(waits, [same, another], "{outcome:?} {tries}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_differs_from_the_last_one_is_retried_sooner() {
    let at = Instant::now();
    let last = Last {
        wanted: Wanted {
            step: discriminant(&Step::Report(EnableError::MadeByPerson)),
            ..wanted("aws")
        },
        tries: 9,
        at,
        outcome: Some(StepOutcome::Refused),
    };

    let due = due_at(Some(&last), &wanted("aws"), at);
    assert_eq!(due, Some(at + ANOTHER));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_has_one_step_at_a_time_without_an_initial_delay() {
    let now = Instant::now();
    let last = Last {
        wanted: wanted("aws"),
        tries: 1,
        at: now,
        outcome: None,
    };

    assert_eq!(due_at(Some(&last), &wanted("tpm"), now), None);
    assert_eq!(due_at(None, &wanted("tpm"), now), Some(now));
}

#[tokio::test(start_paused = true)]
async fn frequently_changing_clusters_are_enabled_last() {
    let now = Instant::now();
    let due = |name: &str, last: Option<Instant>| DueStep {
        last,
        key: ObjectKey::new("tenant", name),
    };
    let mut all: Vec<_> = (0..1000)
        .map(|number| due(&format!("a{number}"), Some(now)))
        .collect();
    all.push(due("new", None));
    all.push(due("waiting", Some(now - Duration::from_secs(3))));

    let chosen = in_turn(all, &HashMap::new());

    let names: Vec<_> = chosen.iter().take(3).map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["new", "waiting", "a0"]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_many_new_clusters_gets_every_second_step() {
    let now = Instant::now();
    let due = |namespace: &str, name: &str, last| DueStep {
        last,
        key: ObjectKey::new(namespace, name),
    };
    let all = || {
        let flood = (0..1000).map(|number| due("a", &format!("{number:03}"), None));
        let victims = ["1", "2"].map(|name| due("b", name, Some(now)));
        flood.chain(victims).collect::<Vec<_>>()
    };
    let running = |running| LastOfNamespace {
        running,
        at: Some(now),
    };

    for (last, expected) in [
        (HashMap::new(), ["a/000", "b/1", "a/001", "b/2"]),
        (
            HashMap::from([("a".to_owned(), running(1))]),
            ["b/1", "b/2", "a/000", "a/001"],
        ),
        (
            HashMap::from([("a".to_owned(), running(0))]),
            ["b/1", "a/000", "b/2", "a/001"],
        ),
    ] {
        let chosen = in_turn(all(), &last);

        let names: Vec<_> = chosen.iter().take(4).map(ToString::to_string).collect();
        assert_eq!(names, expected);
    }
}

/// Steps for this number of Clusters of one tenant.
fn steps(count: usize, attestor: &str) -> Vec<(ObjectKey, Wanted)> {
    let key = |number| ObjectKey::new("tenant", format!("{number:04}"));
    (0..count)
        .map(|number| (key(number), wanted(attestor)))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_next_due_step_starts_without_a_new_search() {
    let now = Instant::now();
    let mut schedule = Schedule::new(now);
    schedule.found(steps(1000, "aws"), now);
    let mut running = VecDeque::new();
    let mut done = 0;

    while done < 1000 {
        while let Some(key) = schedule.next() {
            assert_eq!(schedule.begin(&key, wanted("aws"), now), Some(false));
            running.push_back(key);
        }
        assert_eq!(running.len(), AT_ONCE.min(1000 - done));
        let key = running.pop_front().unwrap();
        schedule.ended(&key, StepOutcome::Written, now);
        assert_eq!(schedule.search_at, now + PAUSE);
        done += 1;
    }

    assert!(!schedule.has_next());
}

#[tokio::test(start_paused = true)]
async fn searches_are_a_second_apart_even_if_steps_are_due() {
    let mut schedule = Schedule::new(Instant::now());
    let begin = Instant::now();
    let mut searches = 0;
    // The attestors of 1,000 Clusters change constantly. Each step takes a few milliseconds.
    while begin.elapsed() < Duration::from_mins(1) {
        let now = Instant::now();
        let attestor = now.duration_since(begin).as_millis().to_string();
        if schedule.search_at <= now {
            searches += 1;
            schedule.found(steps(1000, &attestor), now);
        }
        while let Some(key) = schedule.next() {
            if schedule.begin(&key, wanted(&attestor), now).is_some() {
                schedule.ended(&key, StepOutcome::Written, now);
                break;
            }
        }
        schedule.search_by(now + GATHER);
        tokio::time::advance(Duration::from_millis(7)).await;
    }

    assert!((30..=61).contains(&searches), "{searches}");
}

#[tokio::test(start_paused = true)]
async fn a_queued_cluster_that_changed_runs_its_current_step() {
    let now = Instant::now();
    let mut schedule = Schedule::new(now);
    schedule.found(steps(1, "aws"), now);
    let key = schedule.next().unwrap();
    assert_eq!(schedule.begin(&key, wanted("tpm"), now), Some(false));
    assert_eq!(
        schedule.begin(&key, wanted("aws"), now),
        None,
        "it is running"
    );
    schedule.ended(&key, StepOutcome::Refused, now);

    assert_eq!(schedule.begin(&key, wanted("aws"), now), None);
    assert_eq!(
        schedule.begin(&key, wanted("aws"), now + ANOTHER),
        Some(false)
    );
    schedule.ended(&key, StepOutcome::Unavailable, now + ANOTHER);
    schedule.forget(|_| true);
    assert!(schedule.last.is_empty());
}

#[tokio::test(start_paused = true)]
async fn step_events_of_a_flooding_namespace_leave_turns_to_others() {
    let kind = json!({
        "name": "clusters", "kind": "Cluster", "namespaced": true, "singularName": "", "verbs": ["list"],
    });
    let kinds = json!({
        "kind": "APIResourceList", "groupVersion": "cluster.x-k8s.io/v1beta2", "resources": [kind],
    });
    let kinds = Bytes::from(kinds.to_string());
    let answer = move |path: &str| {
        if path.ends_with("/v1beta2") {
            kinds.clone()
        } else {
            Bytes::from_static(b"{}")
        }
    };
    let flooded = flooded(RATE, answer, |client, rate, key| async move {
        let lines = ClusterLines::of(&key);
        let step = Step::Report(EnableError::MadeByPerson);
        let taken = taken((&client, &*rate), (&key, &lines), "uid", step);
        Box::pin(taken).await.unwrap()
    });
    let flooded = flooded.await;

    assert_eq!(flooded.victim, StepOutcome::Refused);
    let reported = flooded.flood.iter();
    let reported = reported.filter(|one| **one == StepOutcome::Refused).count();
    assert!((100..200).contains(&reported), "{reported}");
    assert_eq!(flooded.calls, [reported, 1]);
}

/// The outcome of creating a `KubeletAuthentication`, and the mode and the exempt Nodes in each attempt. The API server
/// rejects the first attempts with these messages.
async fn created(refusals: &'static [&'static str]) -> (StepOutcome, Vec<Value>) {
    let asked: Arc<Unshared<Vec<Value>>> = Arc::default();
    let noted = asked.clone();
    let kind = json!({
        "name": "clusters", "kind": "Cluster", "namespaced": true, "singularName": "", "verbs": ["list"],
    });
    let kinds = json!({
        "kind": "APIResourceList", "groupVersion": "cluster.x-k8s.io/v1beta2", "resources": [kind],
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let (kinds, noted) = (kinds.clone(), noted.clone());
        async move {
            let path = request.uri().path().to_owned();
            let is_creation = path.ends_with("/kubeletauthentications");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (status, answer) = if is_creation {
                let object: Value = serde_json::from_slice(&body).unwrap();
                let attempt = noted.lock().len();
                let spec = &object["spec"];
                noted
                    .lock()
                    .push(json!([spec["autoApproveBindings"], spec["exemptNodes"]]));
                match refusals.get(attempt) {
                    Some(message) => (403_u16, refusal(message)),
                    None => (201, object),
                }
            } else if path.ends_with("/v1beta2") {
                (200, kinds)
            } else {
                (200, json!({}))
            };
            let answer = Full::new(Bytes::from(answer.to_string()));
            let response = Response::builder().status(status).body(answer).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    let client = Client::new(service, "default");
    let (key, rate) = (ObjectKey::new("tenant-a", "prod-1"), FairRate::new(RATE));
    let step = Step::Create {
        attestors: vec!["aws".to_owned()],
        watch_filter: None,
    };
    let lines = ClusterLines::of(&key);
    let taken = Box::pin(taken((&client, &rate), (&key, &lines), "uid", step)).await;
    let modes = asked.lock().clone();
    (taken.unwrap(), modes)
}

fn refusal(message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden",
        "message": message, "code": 403,
    })
}

#[tokio::test(start_paused = true)]
async fn a_floor_that_refuses_the_default_gets_an_enforcing_object() {
    const FLOOR: &str =
        "ValidatingAdmissionPolicy 'node-attestation-floor-settings' denied request";

    let unset = json!([null, null]);
    assert_eq!(
        created(&[]).await,
        (StepOutcome::Written, vec![unset.clone()])
    );
    let enforcing = vec![unset.clone(), json!(["Remove", []])];
    assert_eq!(
        created(&[FLOOR]).await,
        (StepOutcome::Written, enforcing.clone())
    );
    assert_eq!(
        created(&[FLOOR, FLOOR]).await,
        (StepOutcome::Refused, enforcing)
    );
    assert_eq!(
        created(&["exceeded quota"]).await,
        (StepOutcome::Refused, vec![unset])
    );
}

#[tokio::test(start_paused = true)]
async fn a_rejected_step_whose_event_fails_is_not_reported() {
    for (code, expected) in [
        (200_u16, StepOutcome::Refused),
        (500, StepOutcome::Unreported),
    ] {
        let kind = json!({
            "name": "clusters", "kind": "Cluster", "namespaced": true, "singularName": "", "verbs": ["list"],
        });
        let kinds = json!({
            "kind": "APIResourceList", "groupVersion": "cluster.x-k8s.io/v1beta2", "resources": [kind],
        });
        let kinds = Bytes::from(kinds.to_string());
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let (status, answer) = if path.ends_with("/v1beta2") {
                (200, kinds.clone())
            } else if path.ends_with("/events") {
                (code, Bytes::from_static(b"{}"))
            } else {
                (200, Bytes::from_static(b"{}"))
            };
            async move {
                let response = Response::builder().status(status);
                Ok::<_, Infallible>(response.body(Full::new(answer)).unwrap())
            }
        });
        let client = Client::new(service, "default");
        let (key, rate) = (ObjectKey::new("tenant-a", "prod-1"), FairRate::new(RATE));
        let lines = ClusterLines::of(&key);
        let step = Step::Report(EnableError::MadeByPerson);

        let taken = Box::pin(taken((&client, &rate), (&key, &lines), "uid", step)).await;

        assert_eq!(taken.unwrap(), expected);
    }
}
