use serde_json::json;

use super::*;
use crate::tenancy::testing::{TENANT, arn, identity, namespace, objects, put, role, summary};

const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const ROLE: &str = "AWSClusterRoleIdentity/a";

#[expect(clippy::unnecessary_wraps, reason = "as a Cluster has it")]
fn object(kind: &str) -> Option<ObjectRef> {
    Some(ObjectRef {
        kind: kind.to_owned(),
        name: "one".to_owned(),
    })
}

fn cluster(infrastructure: &str) -> Cluster {
    Cluster {
        namespace: TENANT.to_owned(),
        name: "one".to_owned(),
        labels: Labels::new(),
        infrastructure: object(infrastructure),
        control_plane: object("KubeadmControlPlane"),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "cases are written out")]
fn naming(reference: serde_json::Value) -> Infrastructure {
    let spec = json!({"identityRef": reference, "region": "eu-west-1"});
    serde_json::from_value(spec).unwrap()
}

fn role_ref() -> serde_json::Value {
    json!({"kind": "AWSClusterRoleIdentity", "name": "a"})
}

fn with_role() -> Objects {
    let mut objects = objects();
    put(&mut objects, ROLE, &role(CONTROLLER, "a"));
    objects
}

const CARM: TenancySettings = TenancySettings {
    ack: Ack::Carm,
    allow_controller_identity_fallback: false,
};

fn resolved(
    objects: &Objects,
    cluster: &Cluster,
    found: Option<&Infrastructure>,
) -> Result<Plan, ResolutionError> {
    explain(objects, cluster, found, None, TenancySettings::default()).plan
}

#[test]
fn a_managed_control_plane_decides_before_the_infrastructure() {
    for (control_plane, infrastructure, decider) in [
        ("KubeadmControlPlane", "AWSCluster", Some("AWSCluster")),
        (
            "AWSManagedControlPlane",
            "AWSCluster",
            Some("AWSManagedControlPlane"),
        ),
        (
            "AWSManagedControlPlane",
            "AWSManagedCluster",
            Some("AWSManagedControlPlane"),
        ),
        ("ROSAControlPlane", "ROSACluster", Some("ROSAControlPlane")),
        ("KubeadmControlPlane", "AWSManagedCluster", None),
        ("KubeadmControlPlane", "DockerCluster", None),
    ] {
        let cluster = Cluster {
            control_plane: object(control_plane),
            ..cluster(infrastructure)
        };
        let kind = cluster.decider().map(|object| &*object.kind);
        assert_eq!(kind, decider, "{control_plane} {infrastructure}");
    }
    let bare = Cluster::default();
    assert_eq!(bare.decider(), None);
}

#[test]
fn the_identity_in_the_cluster_reference_is_used() {
    let plan = resolved(
        &with_role(),
        &cluster("AWSCluster"),
        Some(&naming(role_ref())),
    )
    .unwrap();
    assert_eq!(summary(&plan), ("controller".to_owned(), vec![arn("a")]));
}

#[test]
fn a_cluster_without_identity_ref_gets_the_controller_identity() {
    let unnamed = naming(json!(null));
    let mut objects = objects();
    let plan = resolved(&objects, &cluster("AWSCluster"), Some(&unnamed)).unwrap();
    assert_eq!(plan.chain.first().unwrap().identity, identity(CONTROLLER));

    put(
        &mut objects,
        CONTROLLER,
        &json!({"allowedNamespaces": {"list": ["tenant-b"]}}),
    );
    let error = resolved(&objects, &cluster("AWSCluster"), Some(&unnamed)).unwrap_err();
    assert_eq!(error.reason(), "UsageUnauthorized");

    objects.controllers.clear();
    let error = resolved(&objects, &cluster("AWSCluster"), Some(&unnamed)).unwrap_err();
    assert_eq!(error.reason(), "IdentityNotFound");
}

#[test]
fn an_unknown_kind_is_unsupported() {
    let unknown = naming(json!({"kind": "AWSRoleIdentity", "name": "a"}));
    let error = resolved(&with_role(), &cluster("AWSCluster"), Some(&unknown)).unwrap_err();
    assert_eq!(
        error,
        ResolutionError::UnsupportedKind("AWSRoleIdentity".to_owned())
    );
}

#[test]
fn a_namespace_in_the_reference_is_ignored_with_a_warning() {
    let mut reference = role_ref();
    reference["namespace"] = json!("tenant-b");
    let plan = resolved(
        &with_role(),
        &cluster("AWSCluster"),
        Some(&naming(reference)),
    )
    .unwrap();
    assert_eq!(summary(&plan).1, [arn("a")]);
    assert_eq!(plan.warnings, [Warning::NamespaceIgnored]);
}

#[test]
fn a_missing_object_never_selects_the_controller_credentials() {
    let error = resolved(&with_role(), &cluster("AWSCluster"), None).unwrap_err();
    let not_found = ResolutionError::InfrastructureNotFound {
        kind: "AWSCluster".to_owned(),
        name: "one".to_owned(),
        namespace: TENANT.to_owned(),
    };
    assert_eq!(error, not_found);
    assert_eq!(error.reason(), "InfrastructureNotFound");
}

#[test]
fn annotations_are_ignored_for_clusters_of_the_provider() {
    let mut objects = with_role();
    namespace(&mut objects, TENANT, &[], &[(TEAM_ID, "team-a")]);
    objects.team_map = Some([("team-a".to_owned(), arn("team"))].into());
    let explained = explain(
        &objects,
        &cluster("AWSCluster"),
        Some(&naming(role_ref())),
        None,
        CARM,
    );
    let plan = explained.plan.unwrap();
    assert_eq!(summary(&plan).1, [arn("a")]);
    assert_eq!(
        plan.warnings,
        [Warning::AnnotationsIgnored("AWSCluster/one".to_owned())]
    );

    let explained = explain(&objects, &cluster("OtherCluster"), None, None, CARM);
    let plan = explained.plan.unwrap();
    assert_eq!(summary(&plan).1, [arn("team")]);
    assert_eq!(plan.warnings, []);
}

#[test]
fn a_cluster_without_identity_is_refused_unless_fallback_is_allowed() {
    let objects = with_role();
    for ack in [Ack::Off, CARM.ack, Ack::RoleSelectors] {
        let settings = |fallback| TenancySettings {
            ack,
            allow_controller_identity_fallback: fallback,
        };
        let plan = |fallback| {
            let settings = settings(fallback);
            explain(&objects, &cluster("OtherCluster"), None, None, settings).plan
        };
        let reason = if ack == Ack::RoleSelectors {
            "NoRoleSelector"
        } else {
            "IdentityNotNamed"
        };
        assert_eq!(plan(false).unwrap_err().reason(), reason);
        assert_eq!(
            summary(&plan(true).unwrap()),
            ("controller".to_owned(), vec![])
        );
    }
}

#[test]
fn failed_annotations_and_selectors_have_no_fallback() {
    let mut objects = objects();
    namespace(&mut objects, TENANT, &[], &[(TEAM_ID, "team-a")]);
    let fallback = |ack| TenancySettings {
        ack,
        allow_controller_identity_fallback: true,
    };
    let plan = |objects: &Objects, ack| {
        let explained = explain(objects, &cluster("OtherCluster"), None, None, fallback(ack));
        explained.plan.unwrap_err().reason()
    };
    assert_eq!(plan(&objects, CARM.ack), "CARMMapNotFound");
    objects.put_role_selector("one", Some(r#"{"arn": ""}"#));
    assert_eq!(plan(&objects, Ack::RoleSelectors), "InvalidRoleSelector");
}

#[test]
fn a_named_service_account_overrides_every_other_identity() {
    let mut objects = with_role();
    put(
        &mut objects,
        "AWSServiceAccountIdentity/nodes",
        &json!({"roleARN": arn("nodes")}),
    );
    for kind in ["AWSCluster", "OtherCluster"] {
        let found = naming(role_ref());
        let settings = TenancySettings::default();
        let explained = explain(
            &objects,
            &cluster(kind),
            Some(&found),
            Some("nodes"),
            settings,
        );
        let plan = explained.plan.unwrap();
        assert_eq!(summary(&plan), (format!("{TENANT}/nodes"), vec![]));
    }
}

#[test]
fn labels_on_the_cluster_object_do_not_permit_an_identity() {
    let mut objects = with_role();
    let selector = json!({"selector": {"matchLabels": {"environment": "dev"}}});
    let mut spec = role(CONTROLLER, "a");
    spec["allowedNamespaces"] = selector;
    put(&mut objects, ROLE, &spec);
    let mut labelled = cluster("AWSCluster");
    labelled
        .labels
        .insert("environment".to_owned(), "dev".to_owned());
    let error = resolved(&objects, &labelled, Some(&naming(role_ref()))).unwrap_err();
    assert_eq!(error.reason(), "UsageUnauthorized");

    namespace(&mut objects, TENANT, &[("environment", "dev")], &[]);
    assert!(resolved(&objects, &labelled, Some(&naming(role_ref()))).is_ok());
}

#[test]
fn clusters_with_ambiguous_joined_names_have_separate_identities() {
    let mut objects = with_role();
    put(
        &mut objects,
        "AWSClusterRoleIdentity/b",
        &role(CONTROLLER, "b"),
    );
    namespace(&mut objects, "a", &[], &[]);
    namespace(&mut objects, "team-a", &[], &[]);
    let plan = |namespace: &str, name: &str, identity: &str| {
        let cluster = Cluster {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..cluster("AWSCluster")
        };
        let found = naming(json!({"kind": "AWSClusterRoleIdentity", "name": identity}));
        summary(&resolved(&objects, &cluster, Some(&found)).unwrap()).1
    };
    assert_eq!(plan("a", "prod-team", "a"), [arn("a")]);
    assert_eq!(plan("team-a", "prod", "b"), [arn("b")]);
}

#[test]
fn an_unknown_namespace_is_not_a_namespace_without_annotations() {
    let mut objects = objects();
    objects.namespaces.clear();
    let settings = TenancySettings {
        allow_controller_identity_fallback: true,
        ..CARM
    };
    let explained = explain(&objects, &cluster("OtherCluster"), None, None, settings);
    let error = explained.plan.unwrap_err();
    assert_eq!(error, ResolutionError::NamespaceNotFound(TENANT.to_owned()));
    assert_eq!(error.reason(), "NamespaceNotFound");
}
