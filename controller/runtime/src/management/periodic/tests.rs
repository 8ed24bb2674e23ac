use std::sync::Mutex;

use futures::future::{join, join_all, pending};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Response};
use k8s_openapi::ByteString;
use node_attestation_core::scope::{Enforcement, EnforcementState};
use node_attestation_core::testing::cluster;
use node_attestation_core::time::age;
use serde_json::json;

use super::*;
use crate::capi::{
    ObjectKey, Objects, Selection, objects_with_an_unreadable_config, objects_with_tokens,
};
use crate::client::Excess;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::turns::FairRate;

mod kept_records;

/// The periodic tasks for a cluster whose API servers are unavailable.
fn periodic() -> PeriodicTasks {
    let access = ClusterAccess::in_memory(|_| async {
        let away = Response::builder().status(503);
        away.body(Full::new(Bytes::new())).unwrap()
    });
    let (client, key) = (access.client().clone(), ObjectKey::new("a", "prod-1"));
    let rate = Arc::new(FairRate::new(crate::machine_conditions::RATE));
    let (objects, _) = Objects::new(client.clone(), Selection::default(), &Metrics::default());
    PeriodicTasks::new(
        access,
        KubeletAuthenticationSpec::new("prod-1", &["null"]),
        cluster(),
        CapiInventory::new(objects, key.clone()),
        SweepEvents::new(Events::none(), &client, &key),
        MachineConditions::new(client, rate, key),
        &Settings::default(),
    )
}

#[tokio::test(start_paused = true)]
async fn enforcement_stays_unknown_until_the_policy_is_read() {
    let mut periodic = periodic();
    periodic.spec.auto_approve_bindings = Some(AutoApproveBindings::Remove);
    periodic.context.enforcement = Enforcement::new(EnforcementState::Unknown);
    let without = || Ok(BTreeSet::from(["stock".to_owned()]));

    assert!(periodic.enforce(without()).await.is_err());
    assert_eq!(
        periodic.context.enforcement.state(),
        EnforcementState::Unknown
    );

    periodic.access = ClusterAccess::in_memory(|_| async {
        let missing = r#"{"kind": "Status", "metadata": {}, "code": 404, "reason": "NotFound"}"#;
        let missing = Full::new(Bytes::from(missing));
        Response::builder().status(404).body(missing).unwrap()
    });
    assert!(periodic.enforce(without()).await.is_ok());
    assert_eq!(periodic.context.enforcement.state(), EnforcementState::Off);
}

#[tokio::test(start_paused = true)]
async fn remove_now_enforces_despite_nodes_without_a_record_and_lists_them() {
    use AutoApproveBindings::{Remove, RemoveNow, Report};
    for (setting, expected) in [
        (Report, EnforcementState::Off),
        (Remove, EnforcementState::Unknown),
        (RemoveNow, EnforcementState::On),
    ] {
        let mut periodic = periodic();
        periodic.spec.auto_approve_bindings = Some(setting);
        periodic.context.enforcement = Enforcement::new(EnforcementState::Unknown);

        let without = Ok(BTreeSet::from(["rogue".to_owned()]));
        let message = periodic.enforce(without).await;

        assert_eq!(periodic.context.enforcement.state(), expected);
        assert_eq!(periodic.admission.enforced, setting == RemoveNow);
        if setting == RemoveNow {
            let words = "1 Nodes have no node identity, and cannot renew their certificates: rogue";
            assert_eq!(message, Ok(Some(words.to_owned())));
            assert_eq!(periodic.enforce(Ok(BTreeSet::new())).await, Ok(None));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn enforcement_waits_until_the_templates_can_be_read() {
    let mut periodic = periodic();
    periodic.spec.auto_approve_bindings = Some(AutoApproveBindings::Remove);
    periodic.context.enforcement = Enforcement::new(EnforcementState::Off);
    periodic.access = ClusterAccess::in_memory(|_| async {
        let missing = r#"{"kind": "Status", "metadata": {}, "code": 404, "reason": "NotFound"}"#;
        let missing = Full::new(Bytes::from(missing));
        Response::builder().status(404).body(missing).unwrap()
    });

    let told = periodic
        .enforce(Ok(BTreeSet::new()))
        .await
        .unwrap()
        .unwrap();

    let begin = "enforcement waits until the bootstrap templates can be read: ";
    assert!(told.starts_with(begin), "{told}");
    assert_eq!(periodic.context.enforcement.state(), EnforcementState::Off);

    // A management cluster that does not serve any Cluster API kind has no templates.
    let no_kinds = ClusterAccess::in_memory(|_| async {
        let none = r#"{"kind": "APIGroupList", "groups": []}"#;
        Response::new(Full::new(Bytes::from(none)))
    });
    let cluster = ObjectKey::new("a", "prod-1");
    periodic.inventory = CapiInventory::of_command(no_kinds.client().clone(), cluster);
    assert_eq!(periodic.enforce(Ok(BTreeSet::new())).await, Ok(None));
    assert_eq!(periodic.context.enforcement.state(), EnforcementState::On);
}

/// Occupies the turns for 90 seconds with slow reads for Clusters in other namespaces.
async fn occupy(objects: Objects) {
    let reads = (0..12).map(|number| {
        let cluster = ObjectKey::new(format!("flood-{number}"), "b");
        let objects = objects.clone();
        async move { objects.read_slowly(&cluster, pending::<()>()).await }
    });
    let reads = join_all(reads).await;
    assert_eq!(reads, [None; 12]);
}

#[tokio::test(start_paused = true)]
async fn template_reads_of_other_namespaces_delay_a_round_for_a_minute() {
    let objects = objects_with_tokens();
    let mut periodic = periodic();
    periodic.inventory = CapiInventory::new(objects.clone(), ObjectKey::new("tenant-a", "prod-1"));
    let begun = Instant::now();
    let own = async {
        let told = Box::pin(periodic.templates_without_plugin()).await;
        (told, begun.elapsed())
    };

    let ((), (told, waited)) = join(occupy(objects).boxed(), own.boxed()).await;

    assert_eq!(waited.as_secs(), PART_DEADLINE.as_secs());
    let late =
        "enforcement waits until the bootstrap templates can be read: not completed within 60 s";
    assert_eq!(told.as_deref(), Some(late));
}

#[tokio::test(start_paused = true)]
async fn token_reads_of_other_namespaces_delay_a_round_for_a_minute() {
    let objects = objects_with_tokens();
    let extended = Arc::default();
    let mut periodic = periodic();
    periodic.access = with_tokens(&extended);
    periodic.inventory = CapiInventory::new(objects.clone(), ObjectKey::new("tenant-a", "prod-1"));
    periodic.context.enforcement = Enforcement::new(EnforcementState::On);
    periodic.is_policy_applied = true;
    let begun = Instant::now();
    let mut health = Health::default();
    let own = async {
        Box::pin(periodic.keep_tokens(&mut health)).await;
        begun.elapsed()
    };

    let ((), waited) = join(occupy(objects).boxed(), own.boxed()).await;

    assert_eq!(waited.as_secs(), PART_DEADLINE.as_secs());
    assert!(extended.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unset_mode_never_ends_enforcement_when_attestors_change() {
    let report = Some(AutoApproveBindings::Report);
    for (mode, state, expected) in [
        (None, EnforcementState::On, EnforcementState::On),
        (report, EnforcementState::On, EnforcementState::Off),
        (report, EnforcementState::Off, EnforcementState::Off),
    ] {
        let mut periodic = periodic();
        periodic.spec = KubeletAuthenticationSpec::new("prod-1", &["insecure"]);
        periodic.spec.auto_approve_bindings = mode;
        periodic.context.enforcement = Enforcement::new(state);

        let enforced = periodic.enforce(Ok(BTreeSet::new())).await;

        assert!(enforced.is_ok(), "{enforced:?}");
        assert_eq!(periodic.context.enforcement.state(), expected, "{mode:?}");
    }

    // If evidence is not required, an unset mode does not start enforcement either.
    let mut periodic = periodic();
    periodic.spec = KubeletAuthenticationSpec::new("prod-1", &["insecure"]);
    periodic.context.enforcement = Enforcement::new(EnforcementState::Unknown);
    periodic.access = ClusterAccess::in_memory(|_| async {
        let missing = r#"{"kind": "Status", "metadata": {}, "code": 404, "reason": "NotFound"}"#;
        let missing = Full::new(Bytes::from(missing));
        Response::builder().status(404).body(missing).unwrap()
    });
    assert!(periodic.enforce(Ok(BTreeSet::new())).await.is_ok());
    assert_eq!(periodic.context.enforcement.state(), EnforcementState::Off);
}

/// An API server that contains every bootstrap token, each of which expires soon. The API server records the changed
/// Secrets.
fn with_tokens(changed: &Arc<Mutex<Vec<String>>>) -> ClusterAccess {
    with_tokens_until("1970-01-01T00:00:00Z", changed)
}

/// Like [`with_tokens`], but with this expiry time.
fn with_tokens_until(end: &str, changed: &Arc<Mutex<Vec<String>>>) -> ClusterAccess {
    let changed = changed.clone();
    let token = json!({
        "metadata": {"resourceVersion": "7"}, "type": "bootstrap.kubernetes.io/token",
        "data": {"expiration": ByteString(end.as_bytes().to_vec())},
    });
    ClusterAccess::in_memory(move |request| {
        let path = request.uri().path().to_owned();
        let answer = match path.rsplit_once("/bootstrap-token-") {
            None => json!({"metadata": {}, "items": []}),
            Some((_, token)) if request.method() == Method::PATCH => {
                changed.lock().unwrap().push(token.to_owned());
                json!({"metadata": {}})
            }
            Some(_) => token.clone(),
        };
        let answer = Response::new(Full::new(Bytes::from(answer.to_string())));
        async move { answer }
    })
}

#[tokio::test]
async fn an_unreadable_config_does_not_delay_the_tokens_of_other_machines() {
    let (extended, objects) = (Arc::default(), objects_with_an_unreadable_config());
    let end = node_attestation_core::time::text(now() + Duration::from_hours(1));
    let mut periodic = periodic();
    periodic.access = with_tokens_until(&end, &extended);
    periodic.inventory = CapiInventory::new(objects, ObjectKey::new("tenant-a", "prod-1"));
    periodic.tokens = Tokens::new(Duration::ZERO);
    periodic.is_policy_applied = true;

    let cases: [(_, &[&str]); 2] = [
        (EnforcementState::On, &["joined", "joins1"]),
        // The token of a Machine without a Node is not deleted, because Cluster API extends it.
        (EnforcementState::Off, &["joined", "joins1", "joined"]),
    ];
    for (state, expected) in cases {
        periodic.context.enforcement = Enforcement::new(state);
        let mut health = Health::default();

        Box::pin(periodic.keep_tokens(&mut health)).await;

        assert_eq!(health.failed, [""; 0], "{state:?}");
        assert_eq!(*extended.lock().unwrap(), expected, "{state:?}");
    }
}

#[tokio::test]
async fn the_api_servers_clock_determines_when_a_token_is_extended() {
    let end = node_attestation_core::time::text(now() + Duration::from_hours(5));
    // In the second case, the local clock is four hours slow, so the token expires in one hour.
    let cases: [(_, &[&str]); 2] = [(0, &[]), (4, &["joined", "joins1"])];
    for (slow, expected) in cases {
        let extended = Arc::default();
        let server = now() + Duration::from_hours(slow);
        let mut periodic = periodic().with_server_time(ServerTime::at(server));
        periodic.access = with_tokens_until(&end, &extended);
        periodic.inventory =
            CapiInventory::new(objects_with_tokens(), ObjectKey::new("tenant-a", "prod-1"));
        periodic.context.enforcement = Enforcement::new(EnforcementState::On);
        periodic.is_policy_applied = true;
        let mut health = Health::default();

        Box::pin(periodic.keep_tokens(&mut health)).await;

        assert_eq!(health.failed, [""; 0], "{slow}");
        assert_eq!(*extended.lock().unwrap(), expected, "{slow}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_token_is_extended_before_attestation_is_enforced() {
    use EnforcementState::{Off, On, Unknown};
    let cases: [(_, _, &[&str]); 4] = [
        (Unknown, true, &[]),
        (Off, true, &[]),
        // The controller was not able to write the policy that restricts tokens.
        (On, false, &[]),
        (On, true, &["joined", "joins1"]),
    ];
    for (state, is_policy_applied, expected) in cases {
        let extended = Arc::default();
        let mut periodic = periodic();
        periodic.access = with_tokens(&extended);
        periodic.inventory =
            CapiInventory::new(objects_with_tokens(), ObjectKey::new("tenant-a", "prod-1"));
        periodic.context.enforcement = Enforcement::new(state);
        periodic.is_policy_applied = is_policy_applied;
        let mut health = Health::default();

        Box::pin(periodic.keep_tokens(&mut health)).await;

        assert_eq!(health.failed, [""; 0], "{state:?}");
        assert_eq!(*extended.lock().unwrap(), expected, "{state:?}");
    }
}

#[tokio::test]
async fn expiry_uses_the_earlier_of_the_local_and_the_server_clock() {
    const DAY: Duration = Duration::from_hours(24);
    let begin = now();
    assert!(periodic().ended_by() >= begin, "the only clock");

    for (server, expected) in [(begin - 7 * DAY, begin - 7 * DAY), (begin + 7 * DAY, begin)] {
        let ended = periodic()
            .with_server_time(ServerTime::at(server))
            .ended_by();

        let difference = age(expected, ended).unwrap();
        assert!(difference < DAY, "{difference:?}");
    }
}

#[test]
fn a_value_in_an_invalid_response_is_not_in_the_condition() {
    let error = serde_json::from_str::<bool>("\"a value\"").unwrap_err();
    assert!(error.to_string().contains("a value"), "{error}");

    let ApiReachability::No(reason) = refusal(&kube::Error::SerdeError(error)) else {
        panic!("the API server did not answer");
    };

    assert_eq!(reason, "the response is invalid");
}

#[test]
fn a_cluster_without_memory_for_its_connection_is_unreachable_for_this_reason() {
    let error = kube::Error::Service(Excess::Connections.into());

    let ApiReachability::No(reason) = refusal(&error) else {
        panic!("the API server did not answer");
    };

    let memory = "the connections to the API servers of the namespace exceed the namespace's share of the memory";
    assert!(reason.ends_with(memory), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_round_reports_a_clock_that_is_ahead_of_the_api_server() {
    for (hours, is_ahead) in [(0, false), (48, true)] {
        let server = now() - Duration::from_hours(hours);
        let mut periodic = periodic().with_server_time(ServerTime::at(server));
        let version = preflight::ServerVersion {
            name: "v1.36.0".to_owned(),
            number: Some((1, 36)),
        };
        periodic.inspection = Some(Inspection {
            at: Instant::now(),
            found: Health {
                answers: ApiReachability::Yes(version),
                ..Health::default()
            },
            counted: periodic.counted().await,
            watch_changed: false,
        });

        let health = Box::pin(periodic.round()).await;

        let differs = |text: &String| {
            text.starts_with("the removal of expired revocations: the controller's clock is ")
                && text.ends_with(" minutes ahead of the clock of the management API server")
        };
        let failed = &health.failed;
        assert_eq!(failed.iter().any(differs), is_ahead, "{failed:?}");
    }
}
