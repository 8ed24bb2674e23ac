//! Objects that cannot be read.

use super::*;
use crate::watch::Unreadable;

#[test]
fn an_unreadable_cluster_differs_from_a_missing_one() {
    let unreadable = Observed::Unreadable(Unreadable::because("the cause"));
    for (cluster, text) in [
        (Observed::Absent, "Cluster prod-1 does not exist"),
        (
            unreadable,
            "the controller cannot read Cluster prod-1: the cause",
        ),
    ] {
        let mut world = world();
        world.sources.cluster = cluster;

        let why = world.why();

        assert_eq!((why.reason(), &*why.to_string()), ("ClusterNotFound", text));
    }
}

#[test]
fn an_unreadable_secret_is_named_with_the_cause() {
    let cases: [(&str, &str, Change); 2] = [
        ("kubeconfig", "KubeconfigRefused", |world| {
            world.sources.kubeconfig = Observed::Unreadable(Unreadable::because("the cause"));
        }),
        ("ca", "CAInvalid", |world| {
            world.sources.ca = Observed::Unreadable(Unreadable::because("the cause"));
        }),
    ];
    for (suffix, reason, change) in cases {
        let mut world = world();
        change(&mut world);

        let why = world.why();

        let text = format!("the controller cannot read Secret prod-1-{suffix}: the cause");
        assert_eq!((why.reason(), why.to_string()), (reason, text));
    }
}
