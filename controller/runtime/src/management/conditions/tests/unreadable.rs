//! Tests of the condition `Ready` when objects cannot be read.

use super::*;

/// The message of `Ready`, after these unreadable objects were added to the status twice.
fn message(phase: &ClusterPhase, unreadable: &[&str]) -> String {
    let authentication = authentication("aws");
    let mut status = status(&authentication, phase, now());
    for _ in 0..2 {
        let texts = unreadable.iter().map(ToString::to_string);
        name_unreadable(&mut status, (&authentication, phase), texts, now());
    }
    let found = conditions::find(&status.conditions, "Ready").unwrap();
    assert_eq!(found.observed_generation, Some(3));
    found.message.clone()
}

#[test]
fn a_cluster_that_is_not_served_names_its_unreadable_objects_once() {
    let machine = "cannot read Machine m1 and 2 more (the log contains the causes)";
    let paused = ClusterPhase::Stopped(NotReady::Paused);
    let unreachable = serving(Health {
        answers: ApiReachability::No("timeout".to_owned()),
        ..healthy()
    });
    for (phase, before) in [
        (&paused, "annotation cluster.x-k8s.io/paused is set"),
        (&unreachable, "timeout"),
    ] {
        assert_eq!(message(phase, &[]), before);
        let record = "NodeIdentity prod-1.n1 has an invalid spec.uid";
        let expected = format!("{before}; {machine}; {record}");
        assert_eq!(message(phase, &[machine, record]), expected);
    }
}

#[test]
fn an_object_that_the_condition_already_names_is_not_added() {
    let unreadable = ClusterPhase::Stopped(NotReady::ClusterUnreadable {
        name: "prod-1".to_owned(),
        source: crate::watch::Unreadable::because("the log contains the cause"),
    });
    let machine = "cannot read Machine m1 (the log contains the cause)";
    let served = serving(Health {
        failed: vec![machine.to_owned()],
        ..healthy()
    });

    let cluster = "cannot read Cluster prod-1 (the log contains the cause)";
    assert_eq!(message(&unreadable, &[cluster]), message(&unreadable, &[]));
    assert_eq!(message(&served, &[machine]), message(&served, &[]));
    let ready = serving(healthy());
    assert_eq!(message(&ready, &[machine]), message(&ready, &[]));
}
