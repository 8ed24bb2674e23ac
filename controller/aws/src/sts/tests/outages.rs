//! Tests for C13 and C14: a server that redirects, and a server that does not respond.

use futures::future::join_all;
use futures::poll;
use kubelet_authenticator_test_support::sts::{ConnectionFault, Fault, Sts as Service, Times};
use node_attestation_core::refusal::Failure;

use super::super::client::CALLS;
use super::fixture::*;

#[tokio::test]
async fn a_redirect_by_sts_is_not_followed() {
    let bed = Bed::start();
    let elsewhere = Service::start();
    let node = bed.instance();
    let to = elsewhere.url();
    bed.service.inject(Times::once(), Fault::Redirect { to });

    let said = outage(bed.verify(&node).await);

    assert!(said.ends_with("STS returned status 307"), "{said}");
    assert_eq!(elsewhere.connections(), 0);
    bed.verify(&node).await.unwrap();
}

#[tokio::test]
async fn a_failed_connection_to_sts_is_reported_as_an_outage() {
    for fault in [
        ConnectionFault::Close,
        ConnectionFault::AnotherAuthority,
        ConnectionFault::AnotherName,
    ] {
        let bed = Bed::start();
        let node = bed.instance();
        bed.service.inject_connection(Times::always(), fault);

        let said = outage(bed.verify(&node).await);

        assert!(said.contains("cannot reach STS"), "{fault:?}: {said}");
        assert_eq!(bed.outcomes(), [""; 0], "{fault:?}");
        bed.service.clear_faults();
        bed.verify(&node).await.unwrap();
    }
}

#[tokio::test]
async fn an_unreachable_sts_endpoint_is_reported_as_an_outage() {
    let bed = Bed::start();
    let node = bed.instance();
    let Bed { service, verifier } = bed;
    drop(service);
    let (proof, binding) = (node.proof(), node.binding());

    let decided = verifier
        .of_cluster("tenant-a", CLUSTER)
        .verify(&proof, &node.document, &binding, &node.spki, now(), now())
        .await;

    let said = outage(decided);
    assert!(said.contains("cannot reach STS"), "{said}");
}

/// Advances the time after the first call to the service, so that the tests do not wait for it.
async fn pass(bed: &Bed, reached: impl Fn(&Service) -> bool) {
    let arrived = async {
        while !reached(&bed.service) {
            tokio::task::yield_now().await;
        }
    };
    let arrived = tokio::time::timeout(Duration::from_mins(1), arrived).await;
    arrived.expect("the service is reached within a minute");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
}

async fn given_up(bed: &Bed, reached: impl Fn(&Service) -> bool) -> String {
    let node = bed.instance();
    let (decided, ()) = tokio::join!(bed.verify(&node), pass(bed, reached));
    outage(decided)
}

#[tokio::test]
async fn an_sts_call_without_a_response_times_out() {
    for fault in [
        Fault::Hang,
        Fault::Trickle {
            every: Duration::from_secs(1),
        },
    ] {
        let bed = Bed::start();
        bed.service.inject(Times::once(), fault);

        let said = given_up(&bed, |service| !service.calls().is_empty()).await;

        assert!(said.ends_with("STS did not respond in time"), "{said}");
        bed.verify(&bed.instance()).await.unwrap();
    }
    let bed = Bed::start();
    let fault = ConnectionFault::Silent;
    bed.service.inject_connection(Times::once(), fault);

    let said = given_up(&bed, |service| service.connections() > 0).await;

    assert!(said.ends_with("STS did not respond in time"), "{said}");
    bed.verify(&bed.instance()).await.unwrap();
}

fn instances(bed: &Bed, count: u32) -> Vec<Node> {
    (0..count)
        .map(|number| {
            let instance = format!("i-{number:017x}");
            let mut node = bed.node(Principal::instance(ACCOUNT, &instance));
            node.document = document(&instance);
            node
        })
        .collect()
}

/// Verifies each node in a separate cluster.
async fn in_many_clusters(bed: &Bed, nodes: &[Node]) -> Vec<Result<(), Refusal>> {
    join_all(
        nodes
            .iter()
            .map(|node| bed.verify_in(&node.document.instance, node)),
    )
    .await
}

#[tokio::test]
async fn hanging_calls_of_a_cluster_do_not_delay_others_in_its_region() {
    let bed = Bed::start();
    bed.service.inject(Times::always(), Fault::Hang);
    let nodes = instances(&bed, 100);
    let mut stuck = Box::pin(join_all(nodes.iter().map(|node| bed.verify(node))));
    let reached = async {
        while bed.service.calls().len() < CALLS.of_cluster {
            tokio::task::yield_now().await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_mins(1), reached);
    tokio::select! {
        _ = &mut stuck => panic!("nobody answers"),
        reached = reached => reached.unwrap(),
    }
    bed.service.clear_faults();

    let node = bed.instance();
    let other = tokio::select! {
        biased;
        other = bed.verify_in("another", &node) => other,
        _ = &mut stuck => panic!("nobody answers"),
    };

    other.unwrap();
    assert_eq!(bed.service.calls().len(), CALLS.of_cluster + 1);
}

#[tokio::test]
async fn calls_for_many_clusters_delay_other_namespaces_by_one_call() {
    let bed = Bed::start();
    bed.service.inject(Times::always(), Fault::Hang);
    let nodes = instances(&bed, 200);
    let (first, others) = nodes.split_first().unwrap();
    let mut given_up = Box::pin(bed.verify_in(&first.document.instance, first));
    let mut stuck = Box::pin(in_many_clusters(&bed, others));
    let reached = async {
        while bed.service.calls().len() < CALLS.all {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = &mut given_up => panic!("nobody answers"),
        _ = &mut stuck => panic!("nobody answers"),
        () = reached => {}
    }
    let node = bed.instance();
    let mut victim = Box::pin(bed.verify_of("tenant-b", "prod-1", &node));
    assert!(poll!(&mut victim).is_pending(), "it has no turn");
    drop(given_up);
    bed.service.clear_faults();

    let verified = tokio::select! {
        biased;
        verified = &mut victim => verified,
        _ = &mut stuck => panic!("nobody answers"),
    };

    verified.unwrap();
    assert_eq!(bed.service.calls().len(), CALLS.all + 1);
}

#[tokio::test]
async fn the_number_of_calls_to_a_hanging_region_is_limited() {
    let bed = Bed::start();
    bed.service.inject(Times::always(), Fault::Hang);
    let nodes = instances(&bed, 100);
    let verified = in_many_clusters(&bed, &nodes);

    let reached = |service: &Service| service.calls().len() == CALLS.all;
    let (decided, ()) = tokio::join!(verified, pass(&bed, reached));

    for decided in decided {
        outage(decided);
    }
    assert_eq!(bed.outcomes().len(), CALLS.all);
    bed.service.clear_faults();
    bed.verify(&bed.instance()).await.unwrap();
}

#[tokio::test]
async fn a_hanging_region_does_not_delay_other_regions() {
    let hangs = Service::start();
    hangs.inject(Times::always(), Fault::Hang);
    let bed = Bed::with(|settings| {
        let authorities = settings.authorities.get_or_insert_default();
        authorities.extend(hangs.ca_pem().bytes());
        let host = hangs.host().parse().unwrap();
        settings.endpoints.insert("eu-west-2".into(), host);
    });
    let mut stuck = instances(&bed, 40);
    for node in &mut stuck {
        node.host = hangs.host();
        node.region = "eu-west-2".into();
        node.document.region = "eu-west-2".into();
    }
    let mut stuck = Box::pin(in_many_clusters(&bed, &stuck));
    let reached = async {
        while hangs.calls().len() < CALLS.all {
            tokio::task::yield_now().await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_mins(1), reached);
    tokio::select! {
        _ = &mut stuck => panic!("nobody answers"),
        reached = reached => reached.unwrap(),
    }

    bed.verify(&bed.instance()).await.unwrap();
}

#[tokio::test]
async fn a_hundred_concurrent_instances_are_verified_with_one_call_each() {
    let bed = Bed::start();
    let nodes = instances(&bed, 100);

    let verified = join_all(nodes.iter().map(|node| bed.verify(node))).await;

    for caller in verified {
        caller.unwrap();
    }
    assert_eq!(bed.outcomes(), vec!["OK"; 100]);
}

#[tokio::test]
async fn consecutive_calls_share_a_connection() {
    let bed = Bed::start();

    for node in instances(&bed, 3) {
        bed.verify(&node).await.unwrap();
    }

    assert_eq!((bed.outcomes().len(), bed.service.connections()), (3, 1));
}

#[tokio::test]
async fn an_hour_of_sts_outage_denies_no_request() {
    let bed = Bed::start();
    let mut node = bed.instance();
    let down = Fault::service_unavailable();
    bed.service.inject(Times::always(), down);
    let (mut waits, mut made_anew) = (0, 0);
    // The controller retries the request once per minute. The node sends another request when its evidence is too old.
    for minute in 0..60 {
        let time = now() + minutes(minute);
        bed.service.stop_clock(time);
        let decided = bed.show_at(&node.proof(), &node, now(), time).await;
        if matches!(decided, Err(Refusal::Fail(Failure::EvidenceExpired))) {
            node.date = format!("20260101T12{minute:02}00Z");
            made_anew += 1;
        } else {
            let said = outage(decided);
            assert!(said.contains("503"), "{said}");
            waits += 1;
        }
    }
    assert_eq!((waits, made_anew), (57, 3));
    assert_eq!(
        bed.outcomes().len(),
        waits,
        "evidence that is too old is not sent"
    );

    bed.service.clear_faults();

    let time = now() + minutes(59);
    bed.show_at(&node.proof(), &node, time, time).await.unwrap();
}
