//! Tests of `tenancy explain`: the identity of a Cluster for an operator, with the operator's permissions.

use std::path::Path;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::moto::access_key;
use kubelet_authenticator_test_support::sts::Trust;
use kubelet_authenticator_tests::cloud::ACCOUNT;
use kubelet_authenticator_tests::{page, program};
use serde_json::{Value, json};

use crate::bed::{
    ACK_ACCOUNT, PATIENCE, SITE, Tenant, controller, create_namespace, identity, role,
    static_identity,
};

/// Runs `tenancy explain` with this kubeconfig.
fn run(kubeconfig: &Path, tenant: &str, options: &[&str]) -> Output {
    let start = "node-attestation-controller tenancy explain ";
    let command = page::command("tenancy.md", start);
    let command = command
        .replace("prod-1", tenant)
        .replace("tenant-a", tenant);
    Command::new(program("node-attestation-controller"))
        .args(command.split(' ').skip(1))
        .args(options)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .output()
        .unwrap()
}

/// The output of `tenancy explain` for an administrator of the management cluster.
#[track_caller]
fn explained(tenant: &str, options: &[&str]) -> Value {
    let kubeconfig = SITE.management.control_plane().admin_kubeconfig();
    answer(&run(
        kubeconfig,
        tenant,
        &[options, &["-o", "json"]].concat(),
    ))
}

#[track_caller]
fn answer(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The labels and values in the text output.
#[track_caller]
fn rows(output: &Output) -> Vec<(String, String)> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows = text.lines().map(|line| line.split_once(':').unwrap());
    rows.map(|(label, value)| (label.to_owned(), value.trim().to_owned()))
        .collect()
}

#[test]
fn an_identity_chain_is_explained_with_roles_account_and_expiry() {
    const NAME: &str = "explained";
    const THEIRS: &str = "200000000311";
    let sts = SITE.cloud.sts();
    sts.role(&role(ACCOUNT, "explained"), Trust::of(&controller()));
    let trust = Trust::of(&role(ACCOUNT, "explained")).external_id("only-sts-needs-it");
    sts.role(&role(THEIRS, "nodes"), trust);
    let jump = json!({
        "roleARN": role(ACCOUNT, "explained"), "allowedNamespaces": {}, "durationSeconds": 7200,
        "sourceIdentityRef": {"kind": "AWSClusterControllerIdentity", "name": "default"},
    });
    identity("AWSClusterRoleIdentity", "explained-jump", &jump);
    let nodes = json!({
        "roleARN": role(THEIRS, "nodes"), "externalID": "only-sts-needs-it", "sessionName": "nodes@explained",
        "allowedNamespaces": {"list": [NAME]}, "durationSeconds": 900,
        "sourceIdentityRef": {"kind": "AWSClusterRoleIdentity", "name": "explained-jump"},
    });
    identity("AWSClusterRoleIdentity", NAME, &nodes);
    let tenant = Tenant::of_provider(NAME, "AWSClusterRoleIdentity", NAME);
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
    let ready = tenant.authentication.wait_for(
        SITE.management.kubectl(),
        "AWSCredentialsReady",
        "True",
        "CredentialsAccepted",
    );
    drop(ready);

    let told = explained(NAME, &[]);

    let links: Vec<_> = told["chain"].as_array().unwrap().iter().collect();
    let link = |kind: &str, name: &str, permission: &str| json!({"kind": kind, "name": name, "permission": permission});
    let everybody = "allowedNamespaces is empty: every namespace is allowed";
    let listed = "allowedNamespaces.list contains the namespace";
    let expected = [
        link("AWSClusterRoleIdentity", NAME, listed),
        link("AWSClusterRoleIdentity", "explained-jump", everybody),
        link("AWSClusterControllerIdentity", "default", listed),
    ];
    assert_eq!(links, expected.iter().collect::<Vec<_>>());
    let roles = [
        json!({
            "roleARN": role(ACCOUNT, "explained"), "sessionName": "node-attestation-explained-jump",
            "durationSeconds": 3600, "hasExternalID": false, "hasInlinePolicy": false, "policyARNs": [],
        }),
        json!({
            "roleARN": role(THEIRS, "nodes"), "sessionName": "nodes@explained",
            "durationSeconds": 900, "hasExternalID": true, "hasInlinePolicy": false, "policyARNs": [],
        }),
    ];
    assert_eq!(told["roles"], json!(roles));
    assert_eq!(
        told["decidedBy"],
        "spec.identityRef of AWSCluster explained"
    );
    assert_eq!(told["root"], "the controller's own credentials");
    assert_eq!(told["account"], THEIRS);
    assert_eq!(
        (&told["reason"], &told["note"]),
        (&json!("Resolved"), &Value::Null)
    );
    let warning = "durationSeconds of AWSClusterRoleIdentity/explained-jump exceeds 1 hour: STS does not allow this \
        for a role with temporary source credentials";
    assert_eq!(told["warnings"], json!([warning]));
    let [resolved, ready] = told["conditions"].as_array().unwrap().as_slice() else {
        panic!("{told:#}");
    };
    assert_eq!(
        (&resolved["type"], &resolved["status"]),
        (&json!("AWSIdentityResolved"), &json!("True"))
    );
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains("; the session ends at 20"), "{message}");
    assert!(!told.to_string().contains("only-sts-needs-it"), "{told:#}");
}

#[test]
fn a_refusal_is_explained_with_the_identity_that_refuses() {
    const NAME: &str = "explained-refusal";
    let source = json!({"secretRef": "not-there", "allowedNamespaces": {"list": ["others"]}});
    identity("AWSClusterStaticIdentity", "explained-source", &source);
    let spec = json!({
        "roleARN": role("200000000312", "nodes"), "allowedNamespaces": {},
        "sourceIdentityRef": {"kind": "AWSClusterStaticIdentity", "name": "explained-source"},
    });
    identity("AWSClusterRoleIdentity", NAME, &spec);
    let tenant = Tenant::of_provider(NAME, "AWSClusterRoleIdentity", NAME);
    tenant.resolved("False", "SourceUsageUnauthorized");

    let told = explained(NAME, &[]);

    let message = "allowedNamespaces of the source AWSClusterStaticIdentity/explained-source does not permit namespace \
                   explained-refusal";
    assert_eq!(
        (&told["reason"], &told["message"]),
        (&json!("SourceUsageUnauthorized"), &json!(message))
    );
    assert_eq!(told["chain"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&told["roles"], &told["account"]),
        (&json!([]), &Value::Null)
    );
    let event = SITE.management.kubectl().wait_for(
        &["events.events.k8s.io", "-n", NAME],
        "the event",
        PATIENCE,
        |event| event["reason"] == "SourceUsageUnauthorized",
    );
    assert_eq!(
        (&event["type"], &event["note"]),
        (&json!("Warning"), &json!(message))
    );
    assert_eq!(event["regarding"]["kind"], "KubeletAuthentication");
}

#[test]
fn explain_without_secret_access_reports_that_and_shows_no_secret() {
    const NAME: &str = "explained-secret";
    const THEIRS: &str = "200000000313";
    static_identity(NAME, THEIRS);
    let tenant = Tenant::of_provider(NAME, "AWSClusterStaticIdentity", NAME);
    tenant.resolved("True", "Resolved");
    let kubectl = SITE.management.kubectl();
    let groups = "--resource=clusters.cluster.x-k8s.io,awsclusters.infrastructure.cluster.x-k8s.io,\
                  awsclusterstaticidentities.infrastructure.cluster.x-k8s.io,namespaces,\
                  kubeletauthentications.attestation.cluster.x-k8s.io";
    kubectl.ok([
        "create",
        "clusterrole",
        "explained-reader",
        "--verb=get",
        groups,
    ]);
    let binding = ["create", "clusterrolebinding", "explained-reader"];
    kubectl.ok(binding
        .into_iter()
        .chain(["--clusterrole=explained-reader", "--user=reader"]));
    let plane = SITE.management.control_plane();
    let reader = plane.client_cert_kubeconfig("reader", None);

    let told = answer(&run(&reader, NAME, &["-o", "json"]));

    assert_eq!(told["reason"], "Unknown");
    let message = told["message"].as_str().unwrap();
    assert!(
        message.starts_with("cannot read Secret explained-secret: "),
        "{message}"
    );
    assert!(message.contains("forbidden"), "{message}");
    assert_eq!(told["note"], Value::Null);

    let output = run(plane.admin_kubeconfig(), NAME, &[]);
    let (id, secret) = access_key(THEIRS);
    let rows = rows(&output);
    let has = |label: &str, value: &str| rows.iter().any(|row| row.0 == label && row.1 == value);
    assert!(has("Begins with", &format!("access key {id}")), "{rows:?}");
    assert!(has("Result", "Resolved"), "{rows:?}");
    assert!(!rows.iter().any(|row| row.1.contains(&secret)), "{rows:?}");
}

#[test]
fn different_options_from_the_controller_are_reported() {
    const NAME: &str = "explained-team";
    let annotations = json!({"services.k8s.aws/owner-account-id": ACK_ACCOUNT});
    create_namespace(&SITE.management, NAME, &annotations);
    let cluster = SITE.management.cluster(NAME).namespace(NAME).create();
    create_namespace(&SITE.management, NAME, &annotations);
    let tenant = Tenant::authorized(cluster, json!({}));
    tenant.resolved("True", "Resolved");

    let as_controller = explained(NAME, &["--ack=carm"]);
    assert_eq!(as_controller["account"], ACK_ACCOUNT);
    assert_eq!(
        as_controller["decidedBy"],
        "the Namespace annotations and the ConfigMaps of AWS Controllers for Kubernetes"
    );
    assert_eq!(
        (&as_controller["reason"], &as_controller["note"]),
        (&json!("Resolved"), &Value::Null)
    );

    let without = explained(NAME, &[]);
    assert_eq!(
        (&without["reason"], &without["decidedBy"]),
        (&json!("IdentityNotNamed"), &json!("nothing"))
    );
    let note = without["note"].as_str().unwrap();
    assert!(
        note.starts_with("the controller's condition differs"),
        "{note}"
    );
}

#[test]
fn an_invalid_object_name_is_not_looked_up() {
    const NAME: &str = "explained-name";
    static_identity(NAME, "200000000315");
    let tenant = Tenant::of_provider(NAME, "AWSClusterStaticIdentity", &format!("{NAME}?"));
    tenant.resolved("False", "IdentityNotFound");

    let told = explained(NAME, &[]);

    assert_eq!(told["reason"], "IdentityNotFound", "{told:#}");
    let message = "AWSClusterStaticIdentity/explained-name? does not exist";
    assert_eq!(told["message"], message);
}

#[test]
fn a_missing_cluster_is_an_error() {
    let output = run(
        SITE.management.control_plane().admin_kubeconfig(),
        "nowhere",
        &[],
    );

    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: Cluster nowhere/nowhere does not exist\n"
    );
}
