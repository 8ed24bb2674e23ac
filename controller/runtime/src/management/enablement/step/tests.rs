//! Tests of the decision about a step.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::*;

const VERSION: Option<&str> = Some("cluster.x-k8s.io/v1beta2");

/// A Cluster that authorizes these attestors.
fn cluster(attestors: OwnAttestors) -> Cluster {
    Cluster {
        uid: "uid".to_owned(),
        paused: false,
        deleting: false,
        watch_filter: None,
        endpoint: None,
        service_ranges: Vec::new(),
        infrastructure: None,
        control_plane: None,
        attestors,
    }
}

fn named(attestors: &[&str]) -> OwnAttestors {
    OwnAttestors::Named(attestors.iter().copied().map(String::from).collect())
}

/// A `KubeletAuthentication` with these attestors, as the controller creates it for a Cluster.
fn made_here(attestors: &[&str]) -> KubeletAuthentication {
    let spec = KubeletAuthenticationSpec::new("prod-1", attestors);
    let mut object = KubeletAuthentication::new("prod-1", spec);
    object.metadata.resource_version = Some("7".to_owned());
    let mark = (ENABLED_BY_ANNOTATION.to_owned(), BY_CLUSTER.to_owned());
    object.metadata.annotations = Some([mark].into());
    object
}

fn change(attestors: &[&str]) -> Step {
    Step::Change {
        resource_version: Some("7".to_owned()),
        attestors: attestors.iter().copied().map(String::from).collect(),
    }
}

#[test]
fn a_resource_is_created_and_kept_for_a_cluster_with_attestors() {
    let cluster = cluster(named(&["aws", "tpm"]));
    let created = Step::Create {
        attestors: vec!["aws".to_owned(), "tpm".to_owned()],
        watch_filter: None,
    };

    assert_eq!(step(&cluster, None, VERSION), Some(created));
    assert_eq!(
        step(&cluster, Some(&made_here(&["tpm", "aws"])), VERSION),
        None
    );
    for other in [&["aws"][..], &["tpm"], &["aws", "tpm", "insecure"]] {
        let known = made_here(other);
        assert_eq!(
            step(&cluster, Some(&known), VERSION),
            Some(change(&["aws", "tpm"]))
        );
    }
}

#[test]
fn a_created_resource_gets_the_watch_filter_of_its_cluster() {
    let mut cluster = cluster(named(&["aws"]));
    cluster.watch_filter = Some("blue".to_owned());

    let created = Step::Create {
        attestors: vec!["aws".to_owned()],
        watch_filter: Some("blue".to_owned()),
    };
    assert_eq!(step(&cluster, None, VERSION), Some(created));
}

fn owner(version: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: version.to_owned(),
        kind: "Cluster".to_owned(),
        name: "prod-1".to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

#[test]
fn an_owner_with_an_unserved_version_is_updated() {
    let former = owner("cluster.x-k8s.io/v1beta1", "uid");
    let other = OwnerReference {
        kind: "ConfigMap".to_owned(),
        ..owner("v1", "other")
    };
    let mut known = made_here(&["aws"]);
    known.metadata.owner_references = Some(vec![other.clone(), former]);
    let renewed = Step::Own {
        resource_version: Some("7".to_owned()),
        owners: vec![other, owner("cluster.x-k8s.io/v1beta2", "uid")],
    };
    let unset = cluster(OwnAttestors::Unset);

    for cluster in [&cluster(named(&["aws"])), &unset] {
        assert_eq!(step(cluster, Some(&known), VERSION), Some(renewed.clone()));
    }
    assert_eq!(step(&unset, Some(&known), None), None);
    let changes: [fn(&mut KubeletAuthentication); 4] = [
        |known| known.metadata.annotations = None,
        |known| known.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)),
        |known| {
            known.metadata.owner_references = Some(vec![owner("cluster.x-k8s.io/v1beta2", "uid")]);
        },
        // The owner is a previous Cluster with the same name.
        |known| {
            known.metadata.owner_references =
                Some(vec![owner("cluster.x-k8s.io/v1beta1", "before")]);
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut known = known.clone();
        change(&mut known);
        assert_eq!(step(&unset, Some(&known), VERSION), None, "{number}");
    }
}

#[test]
fn a_manual_object_is_not_changed_and_a_difference_is_reported() {
    let cluster = cluster(named(&["aws"]));
    let mut known = made_here(&["tpm"]);
    known.metadata.annotations = None;

    let told = step(&cluster, Some(&known), VERSION);

    assert_eq!(told, Some(Step::Report(EnableError::MadeByPerson)));
    known.spec.authorized_attestors = vec!["aws".to_owned()];
    assert_eq!(step(&cluster, Some(&known), VERSION), None);
}

#[test]
fn a_cluster_that_is_unset_paused_or_deleted_is_not_enabled() {
    let names = cluster(named(&["aws"]));
    let paused = Cluster {
        paused: true,
        ..names.clone()
    };
    let deleting = Cluster {
        deleting: true,
        ..names.clone()
    };
    for cluster in [cluster(OwnAttestors::Unset), paused, deleting] {
        for known in [None, Some(made_here(&["tpm"]))] {
            assert_eq!(step(&cluster, known.as_ref(), VERSION), None, "{cluster:?}");
        }
    }
    let mut leaving = made_here(&["tpm"]);
    assert_eq!(
        step(&names, Some(&leaving), VERSION),
        Some(change(&["aws"]))
    );
    leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(step(&names, Some(&leaving), VERSION), None);
    let mut paused = made_here(&["tpm"]);
    let mark = ("cluster.x-k8s.io/paused".to_owned(), String::new());
    paused
        .metadata
        .annotations
        .get_or_insert_default()
        .extend([mark]);
    assert_eq!(step(&names, Some(&paused), VERSION), None);
}

#[test]
fn invalid_attestors_are_reported_without_a_change() {
    for (invalid, reason) in [
        (InvalidOwnAttestors::Contradictory, "AttestorsContradictory"),
        (InvalidOwnAttestors::Malformed, "AttestorsInvalid"),
        (InvalidOwnAttestors::TooLong, "AttestorsInvalid"),
    ] {
        let cluster = cluster(OwnAttestors::Invalid(invalid));
        for known in [None, Some(made_here(&["tpm"]))] {
            let told = step(&cluster, known.as_ref(), VERSION);
            let error = EnableError::Invalid(invalid);
            assert_eq!(error.reason(), reason);
            assert_eq!(told, Some(Step::Report(error)));
        }
    }
}
