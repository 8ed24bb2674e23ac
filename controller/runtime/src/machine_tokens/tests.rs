use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;

/// The Secrets in the workload cluster as of their last apply, keyed by name.
type Secrets = Arc<Mutex<Vec<(String, Value)>>>;

fn answer(status: u16, body: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(body.to_string()));
    Response::builder().status(status).body(body).unwrap()
}

fn forbidden() -> Response<Full<Bytes>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "not allowed",
    });
    answer(403, &status)
}

fn missing() -> Response<Full<Bytes>> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found",
    });
    answer(404, &status)
}

fn machine(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "team-a", "uid": name,
            "labels": {"cluster.x-k8s.io/cluster-name": "prod-1"},
        },
        "spec": {
            "clusterName": "prod-1",
            "bootstrap": {"configRef": {
                "apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name,
            }},
        },
    })
}

/// A Machine whose reference has this version, for example because an operator mistyped it.
fn machine_with_version(version: &str, name: &str) -> Value {
    let mut machine = machine(name);
    machine["spec"]["bootstrap"]["configRef"] = json!({
        "apiVersion": format!("bootstrap.cluster.x-k8s.io/{version}"), "kind": "KubeadmConfig", "name": name,
    });
    machine
}

/// Two Machines that each have a token, the first Machine of a control plane, and a Machine that is being deleted.
fn management() -> ClusterAccess {
    management_with(Vec::new())
}

/// Like [`management`], but with these Machines before the others.
fn management_with(machines: Vec<Value>) -> ClusterAccess {
    slow_management_with(machines, Duration::ZERO)
}

/// Like [`management_with`], but with this delay before each response. A Machine whose name begins with `n` has a
/// token.
fn slow_management_with(mut machines: Vec<Value>, delay: Duration) -> ClusterAccess {
    let mut deleted = machine("gone");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-21T12:00:00Z");
    machines.extend(["m1", "m2", "first"].map(machine));
    machines.push(deleted);
    let config = |token: &str| json!({"spec": {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}});
    let resources = |group_version: &str, name: &str, kind: &str| {
        let resource = json!({
            "name": name, "kind": kind, "singularName": "", "namespaced": true, "verbs": ["get"],
        });
        json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": [resource]})
    };
    ClusterAccess::in_memory(move |request: Request<Body>| {
        let configs = "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/team-a/kubeadmconfigs/";
        let path = request.uri().path().to_owned();
        let answer = match path.as_str() {
            "/apis/cluster.x-k8s.io/v1beta2" => answer(
                200,
                &resources("cluster.x-k8s.io/v1beta2", "machines", "Machine"),
            ),
            "/apis" => {
                let version = json!({"groupVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "version": "v1beta2"});
                let group = json!({"name": "bootstrap.cluster.x-k8s.io", "versions": [version]});
                answer(200, &json!({"kind": "APIGroupList", "groups": [group]}))
            }
            "/apis/bootstrap.cluster.x-k8s.io/v1beta2" => {
                let group = "bootstrap.cluster.x-k8s.io/v1beta2";
                answer(200, &resources(group, "kubeadmconfigs", "KubeadmConfig"))
            }
            "/apis/cluster.x-k8s.io/v1beta2/namespaces/team-a/machines" => answer(
                200,
                &json!({"metadata": {"resourceVersion": "1"}, "items": machines}),
            ),
            _ => match path.strip_prefix(configs) {
                Some("m1") => answer(200, &config("aaaaaa.0123456789abcdef")),
                Some("m2") => answer(200, &config("bbbbbb.fedcba9876543210")),
                Some("first") => answer(200, &json!({"spec": {"initConfiguration": {}}})),
                Some("secret") => forbidden(),
                Some(name) if name.starts_with('n') => {
                    answer(200, &config(&format!("{name:0>6}.0123456789abcdef")))
                }
                Some("broken") => answer(
                    500,
                    &json!({"kind": "Status", "code": 500, "message": "webhook"}),
                ),
                _ => missing(),
            },
        };
        async move {
            sleep(delay).await;
            answer
        }
    })
}

/// A workload cluster that contains tokens with these expiry times.
fn workload(
    is_enforced: bool,
    tokens: &'static [(&'static str, &'static str)],
) -> (ClusterAccess, Secrets) {
    slow_workload(is_enforced, tokens, Duration::ZERO)
}

/// Like [`workload`], but with this delay before each response.
fn slow_workload(
    is_enforced: bool,
    tokens: &'static [(&'static str, &'static str)],
    delay: Duration,
) -> (ClusterAccess, Secrets) {
    let applied = Secrets::default();
    let told = applied.clone();
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "node-attestation"},
        "spec": {"policyName": "node-attestation", "validationActions": ["Deny"]},
    });
    let access = ClusterAccess::in_memory(move |request: Request<Body>| {
        let (told, binding) = (told.clone(), binding.clone());
        async move {
            sleep(delay).await;
            let path = request.uri().path().to_owned();
            let name = path.rsplit('/').next().unwrap().to_owned();
            if path.contains("validatingadmissionpolicybindings") {
                let mut binding = binding;
                binding["metadata"]["name"] = json!(name);
                binding["spec"]["policyName"] = json!(name);
                return if is_enforced {
                    answer(200, &binding)
                } else {
                    missing()
                };
            }
            if request.method() == Method::PATCH {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let object: Value = serde_json::from_slice(&body).unwrap();
                told.lock().unwrap().push((name, object.clone()));
                let metadata = json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": object["metadata"],
                });
                return answer(200, &metadata);
            }
            let id = name.strip_prefix("bootstrap-token-").unwrap();
            match tokens.iter().find(|(known, _)| *known == id) {
                None => missing(),
                Some((_, end)) => {
                    let end = data_encoding::BASE64.encode(end.as_bytes());
                    let secret = json!({
                        "metadata": {"name": name, "resourceVersion": "7"},
                        "type": "bootstrap.kubernetes.io/token", "data": {"expiration": end},
                    });
                    answer(200, &secret)
                }
            }
        }
    });
    (access, applied)
}

const HOUR: Duration = Duration::from_hours(1);

async fn recreate(
    workload: &(ClusterAccess, Secrets),
    machines: &[&str],
    permitted: bool,
) -> Result<Vec<MachineToken>, MachineTokensError> {
    recreate_in(&management(), workload, machines, permitted).await
}

async fn recreate_in(
    management: &ClusterAccess,
    (workload, _): &(ClusterAccess, Secrets),
    machines: &[&str],
    permitted: bool,
) -> Result<Vec<MachineToken>, MachineTokensError> {
    let cluster = ObjectKey::new("team-a", "prod-1");
    let egress = EgressPolicy::STRICT;
    let tokens =
        MachineTokens::of_cluster(management, &cluster, Some(workload.clone()), egress).await?;
    let machines = machines.iter().map(|&name| name.to_owned()).collect();
    tokens
        .recreate(&machines, HOUR, permitted, UNIX_EPOCH)
        .await
}

fn token(machine: &str, token: Option<(&str, &str)>) -> MachineToken {
    MachineToken {
        machine: machine.to_owned(),
        token_id: token.map(|(id, _)| id.to_owned()),
        expires: token.map(|(_, expires)| expires.to_owned()),
        error: None,
    }
}

fn data(secrets: &Secrets, number: usize, key: &str) -> String {
    let secrets = secrets.lock().unwrap();
    let text = secrets[number].1["data"][key].as_str().unwrap();
    String::from_utf8(data_encoding::BASE64.decode(text.as_bytes()).unwrap()).unwrap()
}

#[tokio::test]
async fn a_recreated_machine_token_has_its_original_secret() {
    let workload = workload(true, &[]);

    let recreated = recreate(&workload, &["m1"], false).await.unwrap();

    assert_eq!(
        recreated,
        [token("m1", Some(("aaaaaa", "1970-01-01T01:00:00Z")))]
    );
    let (_, secrets) = workload;
    assert_eq!(secrets.lock().unwrap().len(), 1);
    assert_eq!(secrets.lock().unwrap()[0].0, "bootstrap-token-aaaaaa");
    for (key, value) in [
        ("token-id", "aaaaaa"),
        ("token-secret", "0123456789abcdef"),
        ("expiration", "1970-01-01T01:00:00Z"),
        ("usage-bootstrap-authentication", "true"),
        (
            "auth-extra-groups",
            "system:bootstrappers:kubeadm:default-node-token",
        ),
    ] {
        assert_eq!(data(&secrets, 0, key), value, "{key}");
    }
}

#[tokio::test]
async fn a_token_with_a_later_expiry_keeps_it() {
    let workload = workload(
        true,
        &[
            ("aaaaaa", "1970-01-01T05:00:00Z"),
            ("bbbbbb", "1970-01-01T00:05:00Z"),
        ],
    );

    let recreated = recreate(&workload, &[], false).await.unwrap();

    assert_eq!(
        recreated,
        [
            token("m1", Some(("aaaaaa", "1970-01-01T05:00:00Z"))),
            token("m2", Some(("bbbbbb", "1970-01-01T01:00:00Z"))),
            // The first member of a control plane has no token, and a Machine that is being deleted does not get one.
            token("first", None),
        ]
    );
}

/// The clock of the operator's machine shows 1970.
#[tokio::test]
async fn the_lifetime_of_a_token_begins_at_the_time_of_the_api_server() {
    let day = Duration::from_hours(24);
    let (right, fast) = (UNIX_EPOCH + day, UNIX_EPOCH + 2 * day);
    let with_time = |access: ClusterAccess, time: Option<SystemTime>| match time {
        Some(time) => access.with_server_time(time),
        None => access,
    };
    for (of_management, of_workload) in [
        (Some(right), None),
        (None, Some(right)),
        // The workload cluster's API server determines whether a token has expired.
        (Some(fast), Some(right)),
    ] {
        let management = with_time(management(), of_management);
        let (access, secrets) = workload(true, &[]);
        let workload = (with_time(access, of_workload), secrets);

        let recreated = recreate_in(&management, &workload, &["m1"], false).await;

        let end = data(&workload.1, 0, "expiration");
        assert!(end.starts_with("1970-01-02T01:0"), "{end}");
        let recreated = recreated.unwrap();
        assert_eq!(recreated, [token("m1", Some(("aaaaaa", end.as_str())))]);
    }
}

#[tokio::test]
async fn a_cluster_without_enforcement_gets_no_token_unless_that_is_permitted() {
    let workload = workload(false, &[]);

    let refused = recreate(&workload, &["m1"], false).await.unwrap_err();

    assert!(
        matches!(refused, MachineTokensError::NotEnforced(_)),
        "{refused:?}"
    );
    assert_eq!(*workload.1.lock().unwrap(), []);
    recreate(&workload, &["m1"], true).await.unwrap();
    assert_eq!(workload.1.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_unknown_or_deleted_machine_is_named_and_no_token_is_written() {
    for name in ["m3", "gone"] {
        let workload = workload(true, &[]);

        let refused = recreate(&workload, &["m1", name], false).await;

        let refused = refused.unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("Cluster team-a/prod-1 has no Machine {name}")
        );
        assert_eq!(*workload.1.lock().unwrap(), []);
    }
}

#[tokio::test]
async fn a_bad_reference_of_a_machine_does_not_stop_the_other_machines() {
    let each = [
        ("v1beta2", "absent", "404 NotFound"),
        ("v1alpha1", "unserved", "does not serve the kind"),
        ("v1beta2", "secret", "403 Forbidden: not allowed"),
        ("v1beta2", "broken", "rejected the call with 500"),
    ];
    let alone = each.iter().map(|one| vec![*one]);
    for bad in alone.chain([each.to_vec(), Vec::new()]) {
        let workload = workload(true, &[]);
        let machines = bad.iter();
        let machines = machines.map(|(version, name, _)| machine_with_version(version, name));
        let management = management_with(machines.collect());

        let recreated = recreate_in(&management, &workload, &[], false).await;

        let mut recreated = recreated.unwrap();
        let others = recreated.split_off(bad.len());
        for (one, (_, name, reason)) in recreated.iter().zip(&bad) {
            assert_eq!((one.machine.as_str(), &one.token_id), (*name, &None));
            let error = one.error.as_deref().unwrap();
            let begin = format!("cannot read KubeadmConfig {name}: ");
            assert!(error.starts_with(&begin), "{error}");
            assert!(error.contains(reason), "{error}");
        }
        let end = "1970-01-01T01:00:00Z";
        assert_eq!(
            others,
            [
                token("m1", Some(("aaaaaa", end))),
                token("m2", Some(("bbbbbb", end))),
                token("first", None),
            ]
        );
        assert_eq!(workload.1.lock().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_machine_that_cannot_be_decoded_has_an_error_instead_of_no_token() {
    let workload = workload(true, &[]);
    let mut invalid = machine("m3");
    invalid["spec"]["clusterName"] = json!(7);
    let management = management_with(vec![invalid]);

    let recreated = recreate_in(&management, &workload, &["m3", "m1"], false).await;

    let recreated = recreated.unwrap();
    let found: Vec<_> = recreated.iter().map(|one| one.machine.as_str()).collect();
    assert_eq!(found, ["m3", "m1"]);
    let error = recreated[0].error.as_deref().unwrap();
    assert!(
        error.starts_with("the Machine cannot be decoded: "),
        "{error}"
    );
    assert_eq!(recreated[1].error, None);
    assert_eq!(workload.1.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn an_outage_of_the_management_cluster_stops_the_command() {
    let workload = workload(true, &[]);
    let management = ClusterAccess::in_memory(|_: Request<Body>| async {
        answer(
            503,
            &json!({"kind": "Status", "code": 503, "message": "away"}),
        )
    });

    let refused = recreate_in(&management, &workload, &[], false).await;

    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, MachineTokensError::Management { .. }),
        "{refused:?}"
    );
    assert_eq!(*workload.1.lock().unwrap(), []);
}

/// This is the duration in docs/disasters.md, for calls that take 30 ms each.
#[tokio::test(start_paused = true)]
async fn the_tokens_of_a_thousand_machines_are_recreated_in_three_minutes() {
    let delay = Duration::from_millis(30);
    let machines = (0..1000).map(|number| machine(&format!("n{number}")));
    let management = slow_management_with(machines.collect(), delay);
    let workload = slow_workload(true, &[], delay);
    let begun = Instant::now();

    let recreated = recreate_in(&management, &workload, &[], false)
        .await
        .unwrap();

    let took = begun.elapsed();
    let tokens = recreated.iter().filter(|one| one.expires.is_some());
    assert_eq!(tokens.count(), 1002);
    let (_, secrets) = workload;
    assert_eq!(secrets.lock().unwrap().len(), 1002);
    let minutes = took.as_secs_f64() / 60.0;
    assert!((1.0..=3.0).contains(&minutes), "{took:?}");
}
