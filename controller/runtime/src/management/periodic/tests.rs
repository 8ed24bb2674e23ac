use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use node_attestation_core::crd::AutoApproveBindings;
use node_attestation_core::scope::{Enforcement, EnforcementState};
use node_attestation_core::testing::cluster;
use node_attestation_core::time::age;

use super::*;
use crate::capi::{ObjectKey, Objects, Selection};
use crate::client::Excess;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::turns::FairRate;

/// The upkeep of a cluster whose API servers are away.
fn upkeep() -> Upkeep {
    let access = ClusterAccess::in_memory(|_| async {
        let away = Response::builder().status(503);
        away.body(Full::new(Bytes::new())).unwrap()
    });
    let (client, key) = (access.client().clone(), ObjectKey::new("a", "prod-1"));
    let rate = Arc::new(FairRate::new(crate::machine_conditions::RATE));
    let (objects, _) = Objects::new(client.clone(), Selection::default(), &Metrics::default());
    Upkeep::new(
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
    let mut upkeep = upkeep();
    upkeep.spec.auto_approve_bindings = AutoApproveBindings::Remove;
    upkeep.context.enforcement = Enforcement::new(EnforcementState::Unknown);
    let without = || Ok(BTreeSet::from(["stock".to_owned()]));

    assert!(upkeep.enforce(without()).await.is_err());
    assert_eq!(
        upkeep.context.enforcement.state(),
        EnforcementState::Unknown
    );

    upkeep.access = ClusterAccess::in_memory(|_| async {
        let missing = r#"{"kind": "Status", "metadata": {}, "code": 404, "reason": "NotFound"}"#;
        let missing = Full::new(Bytes::from(missing));
        Response::builder().status(404).body(missing).unwrap()
    });
    assert!(upkeep.enforce(without()).await.is_ok());
    assert_eq!(upkeep.context.enforcement.state(), EnforcementState::Off);
}

#[tokio::test]
async fn expiry_uses_the_earlier_of_the_local_and_the_server_clock() {
    const DAY: Duration = Duration::from_hours(24);
    let begin = now();
    assert!(upkeep().ended_by() >= begin, "the only clock");

    for (server, expected) in [(begin - 7 * DAY, begin - 7 * DAY), (begin + 7 * DAY, begin)] {
        let ended = upkeep().with_server_time(ServerTime::at(server)).ended_by();

        let difference = age(expected, ended).unwrap();
        assert!(difference < DAY, "{difference:?}");
    }
}

#[test]
fn a_cluster_without_memory_for_its_connection_is_unreachable_for_this_reason() {
    let error = kube::Error::Service(Excess::Connections.into());

    let ApiReachability::No(reason) = refusal(&error) else {
        panic!("the API server did not answer");
    };

    let memory =
        "the connections to the API servers of the namespace exceed its part of the memory";
    assert!(reason.ends_with(memory), "{reason}");
}
