//! Tests of objects that cannot be read.

use super::*;

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

#[test]
fn an_unreadable_version_is_named_instead_of_a_refused_one() {
    let cases: [(&str, &str, Change, Change); 2] = [
        (
            "kubeconfig",
            "KubeconfigRefused",
            |world| world.sources.kubeconfig = secret(&[(KUBECONFIG_KEY, "text".to_owned())]),
            |world| {
                world.sources.outdated.kubeconfig = Some(Unreadable::because("the cause"));
            },
        ),
        (
            "ca",
            "CAInvalid",
            |world| world.sources.ca = secret(&[("tls.crt", "no certificate".to_owned())]),
            |world| world.sources.outdated.ca = Some(Unreadable::because("the cause")),
        ),
    ];
    for (suffix, reason, refuse, outdate) in cases {
        let mut world = world();
        outdate(&mut world);
        assert!(world.plan().unwrap().is_some(), "the previous version");
        refuse(&mut world);

        let why = world.why();

        let text = format!("the controller cannot read Secret prod-1-{suffix}: the cause");
        assert_eq!((why.reason(), why.to_string()), (reason, text));
        world.sources.outdated = Outdated::default();
        let why = world.why().to_string();
        assert!(!why.contains("cannot read"), "{why}");
    }
}
