use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response};
use k8s_openapi::ByteString;
use kube::client::Body;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::verifier::Verifiers;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::tests::{Answer, discovery, whole};
use super::*;
use crate::management::condition_events::RATE;
use crate::management::flood::flooded;
use crate::management::{Controller, Settings};

fn failure(code: u16, reason: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": code, "reason": reason});
    whole(code, &status)
}

fn authentication(uid: &str, bootstrap_tokens: BootstrapTokens) -> Value {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {
            "name": "prod-1", "namespace": "default", "uid": uid, "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {
            "clusterName": "prod-1", "authorizedAttestors": ["null"],
            "bootstrapTokens": bootstrap_tokens,
        },
    })
}

/// The time at which the `KubeletAuthentication` is deleted.
const DELETED: Duration = Duration::from_secs(5);

/// The next events of a watch: first a deletion, and then a creation.
fn events(begun: Instant, case: Case) -> Answer {
    let created_again = case
        .created_again
        .map(|after| (DELETED + after, "ADDED", "again"));
    let to_come = [(DELETED, "DELETED", "ka")]
        .into_iter()
        .chain(created_again)
        .filter(move |(at, ..)| *at > begun.elapsed());
    let events = stream::iter(to_come).then(move |(at, kind, uid)| async move {
        sleep_until(begun + at).await;
        let event = json!({"type": kind, "object": authentication(uid, case.bootstrap_tokens)});
        Ok(Frame::data(Bytes::from(format!("{event}\n"))))
    });
    Response::new(StreamBody::new(events.chain(stream::pending())).boxed_unsync())
}

/// A management cluster whose Cluster has no CA and is therefore not served. Records the reasons of Events, and the
/// first status of the recreated object.
async fn management(
    request: Request<Body>,
    case: Case,
    begun: Instant,
    noted: Arc<Mutex<Noted>>,
) -> Answer {
    let uri = request.uri().clone();
    let is_watch = uri.query().is_some_and(|query| query.contains("watch="));
    if [Method::PUT, Method::POST].contains(request.method()) {
        let object = request.into_body().collect().await.unwrap().to_bytes();
        let object: Value = serde_json::from_slice(&object).unwrap();
        if object["kind"] == "Event" || !object["regarding"].is_null() {
            assert_eq!(object["regarding"]["kind"], "Cluster");
            let reason = object["reason"].as_str().unwrap();
            let told = &mut noted.lock().told;
            told.push(reason.to_owned());
            if case.events_fail && told.len() % 2 == 1 {
                return failure(503, "ServiceUnavailable");
            }
        }
        if object["metadata"]["uid"] == "again" {
            let served = &mut noted.lock().served_again;
            served.get_or_insert(begun.elapsed());
        }
        return whole(200, &object);
    }
    let list = |items: Vec<Value>| {
        let metadata = json!({"resourceVersion": "1"});
        let list =
            json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
        whole(200, &list)
    };
    let name = uri.path().rsplit('/').next().unwrap();
    match name {
        "kubeletauthentications" if is_watch => events(begun, case),
        _ if is_watch => Response::new(StreamBody::new(stream::pending()).boxed_unsync()),
        "kubeletauthentications" => list(vec![authentication("ka", case.bootstrap_tokens)]),
        "v1beta2" => whole(200, &discovery()),
        "clusters" => list(vec![json!({
            "apiVersion": CORE_API_VERSION, "kind": "Cluster",
            "metadata": {"name": "prod-1", "namespace": "default", "uid": "c", "resourceVersion": "1"},
            "spec": {"paused": case.paused},
        })]),
        "machines" | "machinepools" | "secrets" | "nodeidentities" => list(Vec::new()),
        _ => failure(404, "NotFound"),
    }
}

/// A deletion of a `KubeletAuthentication` whose Cluster is not served.
#[derive(Clone, Copy, Default)]
struct Case {
    /// Whether the Cluster is paused.
    paused: bool,
    /// The duration of the API server outage in the workload cluster.
    away: Duration,
    /// The time before each response from the workload cluster's API server.
    slow: Duration,
    /// Whether each Event is written only at the second attempt.
    events_fail: bool,
    /// The time between the deletion of the object and the creation of another object with the same name.
    created_again: Option<Duration>,
    bootstrap_tokens: BootstrapTokens,
    /// The time until which the API server refuses the calls for bootstrap tokens.
    tokens_refused: Duration,
}

#[derive(Debug, Clone, Default)]
struct Noted {
    /// The times of the responses to deletions of the policy's binding.
    deletions: Vec<Duration>,
    /// The calls for bootstrap tokens that succeeded, with their times.
    token_calls: Vec<(String, Duration)>,
    /// The reasons of Events.
    told: Vec<String>,
    /// The time at which the recreated object gets a status.
    served_again: Option<Duration>,
}

/// The answer to a call for this path: one extended token, or the list of extended tokens.
fn extended_token(path: &str) -> Value {
    if path.ends_with("/secrets") {
        let item = json!({"metadata": {"name": "bootstrap-token-aaaaaa"}});
        return json!({"metadata": {}, "items": [item]});
    }
    let end = node_attestation_core::time::text(now() + Duration::from_hours(1));
    json!({
        "metadata": {
            "name": "bootstrap-token-aaaaaa", "resourceVersion": "7",
            "labels": {"attestation.cluster.x-k8s.io/extended": "true"},
        },
        "type": "bootstrap.kubernetes.io/token",
        "data": {"expiration": ByteString(end.into_bytes())},
    })
}

/// The calls that expire the extended token.
const EXPIRY: [&str; 3] = [
    "GET ",
    "GET /bootstrap-token-aaaaaa",
    "PATCH /bootstrap-token-aaaaaa",
];

fn calls(noted: &Noted) -> Vec<&str> {
    let calls = noted.token_calls.iter();
    calls.map(|(call, _)| &**call).collect()
}

/// The controller's actions within 30 minutes.
async fn released(case: Case) -> Noted {
    let begun = Instant::now();
    let noted: Arc<Mutex<Noted>> = Arc::default();
    let told = noted.clone();
    let access =
        ClusterAccess::in_memory(move |request| management(request, case, begun, told.clone()));
    let deleted = noted.clone();
    let workload = ClusterAccess::in_memory(move |request: Request<Body>| {
        let is_deletion = request.method() == Method::DELETE;
        let is_away = begun.elapsed() < case.away;
        let is_of_binding = request.uri().path().contains("bindings");
        let refuses = begun.elapsed() < case.tokens_refused;
        let path = request.uri().path().to_owned();
        let of_token = path.strip_prefix("/api/v1/namespaces/kube-system/secrets");
        let of_token = of_token.map(|name| format!("{} {name}", request.method()));
        let noted = deleted.clone();
        async move {
            sleep(case.slow).await;
            if is_away {
                return failure(503, "ServiceUnavailable");
            }
            if let Some(call) = of_token {
                if refuses {
                    return failure(403, "Forbidden");
                }
                noted.lock().token_calls.push((call, begun.elapsed()));
                return whole(200, &extended_token(&path));
            }
            if is_deletion && is_of_binding {
                noted.lock().deletions.push(begun.elapsed());
            }
            failure(404, "NotFound")
        }
    });
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    let controller = Controller::new(&access, Settings::default(), Arc::new(verifiers))
        .connecting_by(Arc::new(move |_| workload.clone()));
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(controller.run(async move { drop(stopped.await) }));

    sleep(Duration::from_mins(30)).await;

    drop(stop);
    running.await.unwrap();
    noted.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_an_unserved_cluster_is_removed_after_its_deletion() {
    let Noted {
        deletions, told, ..
    } = released(Case::default()).await;

    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(deletions[0] < DELETED * 2, "{deletions:?}");
    assert_eq!(told, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn extended_tokens_expire_before_the_policy_is_removed() {
    let noted = released(Case::default()).await;

    assert_eq!(calls(&noted), EXPIRY);
    assert_eq!(noted.deletions.len(), 1);
    assert!(noted.token_calls[2].1 <= noted.deletions[0], "{noted:?}");
}

#[tokio::test(start_paused = true)]
async fn no_token_expires_after_the_deletion_if_tokens_are_ignored() {
    let noted = released(Case {
        bootstrap_tokens: BootstrapTokens::Ignore,
        ..Case::default()
    });
    let noted = noted.await;

    assert_eq!(calls(&noted), [""; 0]);
    assert_eq!(noted.deletions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_call_is_retried_and_does_not_delay_the_policy() {
    let refused = Duration::from_secs(20);
    let noted = released(Case {
        tokens_refused: refused,
        ..Case::default()
    });
    let noted = noted.await;

    assert_eq!(noted.deletions.len(), 1, "{noted:?}");
    assert!(noted.deletions[0] < DELETED * 2, "{noted:?}");
    assert_eq!(calls(&noted), EXPIRY);
    assert!(noted.token_calls[0].1 >= refused, "{noted:?}");
    assert_eq!(noted.told, [""; 0]);
}

/// An outage that is longer than the first attempts of a release.
const AWAY: Duration = Duration::from_mins(10);

#[tokio::test(start_paused = true)]
async fn a_failed_policy_removal_is_reported_and_retried() {
    let noted = released(Case {
        away: AWAY,
        ..Case::default()
    });
    let Noted {
        deletions, told, ..
    } = noted.await;

    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(deletions[0] < AWAY + RESTART.longest * 2, "{deletions:?}");
    assert_eq!(told, ["PolicyNotRemoved", "PolicyRemoved"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_about_a_policy_removal_that_fails_is_written_again() {
    let noted = released(Case {
        away: AWAY,
        events_fail: true,
        ..Case::default()
    });

    let [failed, removed] = ["PolicyNotRemoved", "PolicyRemoved"];
    assert_eq!(noted.await.told, [failed, failed, removed, removed]);
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_paused_cluster_stays_after_the_deletion() {
    let noted = released(Case {
        paused: true,
        ..Case::default()
    });
    let Noted {
        deletions, told, ..
    } = noted.await;

    assert_eq!((deletions, told), (Vec::new(), Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_cluster_recreated_before_its_release_is_kept() {
    let noted = released(Case {
        away: AWAY,
        created_again: Some(AWAY / 2),
        ..Case::default()
    });
    let Noted {
        deletions,
        served_again,
        ..
    } = noted.await;

    assert!(deletions.is_empty(), "{deletions:?}");
    let soon = DELETED + AWAY / 2 + LOOK_AGAIN;
    assert!(served_again.is_some_and(|at| at < soon), "{served_again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_recreated_cluster_is_served_only_after_its_release_completes() {
    let slow = Duration::from_secs(2);
    let noted = released(Case {
        slow,
        created_again: Some(slow / 2),
        bootstrap_tokens: BootstrapTokens::Ignore,
        ..Case::default()
    });
    let Noted {
        deletions,
        served_again,
        ..
    } = noted.await;

    assert_eq!(deletions.len(), 1, "{deletions:?}");
    assert!(
        served_again >= Some(deletions[0]),
        "{served_again:?} {deletions:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_recreated_during_its_release_keeps_tokens_and_policy() {
    let slow = Duration::from_secs(40);
    let noted = released(Case {
        slow,
        created_again: Some(slow / 2),
        ..Case::default()
    });
    let noted = noted.await;

    assert!(noted.deletions.is_empty(), "{noted:?}");
    let changes = calls(&noted).into_iter();
    assert_eq!(changes.filter(|call| call.starts_with("PATCH")).count(), 0);
    let soon = DELETED + slow / 2 + LOOK_AGAIN;
    assert!(noted.served_again.is_some_and(|at| at < soon), "{noted:?}");
}

#[tokio::test(start_paused = true)]
async fn release_events_of_a_flooding_namespace_leave_turns_to_others() {
    let nothing = |_: &str| Bytes::from_static(b"{}");
    let flooded = flooded(RATE, nothing, |client, rate, key| async move {
        let words = ("Normal", "Release", "PolicyRemoved", String::new());
        write_event((&client, &*rate), &key, "uid", words).await
    });
    let [flood, victim] = flooded.await.calls;

    assert!((100..200).contains(&flood), "{flood}");
    assert_eq!(victim, 1);
}
