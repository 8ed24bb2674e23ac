//! Tenants in several accounts, each with an AWS identity of its own. The definitions of Cluster API Provider AWS and the
//! API server are real; STS checks signatures, trust policies, external IDs and tokens.

use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::control_plane::ControlPlane;
use kubelet_authenticator_test_support::moto::{Network, access_key};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::{Principal, Trust};
use kubelet_authenticator_tests::cloud::{ACCOUNT, CONTROLLER, Cloud, Instance};
use kubelet_authenticator_tests::controller::{Application, is_answered, reason_of};
use kubelet_authenticator_tests::fleet::{Authentication, Manager, authorize, condition_of, grant};
use kubelet_authenticator_tests::management::{
    Contract, InfraCluster, Management, WorkloadCluster, network, owned,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

const IDENTITY_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
const PATIENCE: Duration = Duration::from_secs(240);

/// The rights beside those of every management cluster.
const ACK_RBAC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/rbac/ack.yaml");

const TOKENS_RBAC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../packaging/rbac/service-account-identities.yaml"
);

struct Site {
    cloud: Cloud,
    network: Network,
    management: Management,
    manager: Manager,
}

static SITE: LazyLock<Site> = LazyLock::new(|| {
    let cloud = Cloud::start();
    let management = Management::on(ControlPlane::builder().start(), Contract::V1Beta2);
    management.define_aws();
    grant(&management);
    for namespace in ["capa-system", "ack-system"] {
        create_namespace(&management, namespace, &json!({}));
    }
    management.kubectl().ok(["apply", "-f", ACK_RBAC]);
    let arguments = ["--ack-carm", "--ack-team-level-carm"];
    Site {
        network: network(&cloud),
        manager: Manager::aws(&management, &cloud, &arguments),
        cloud,
        management,
    }
});

fn create_namespace(management: &Management, name: &str, annotations: &Value) {
    management.kubectl().apply_object(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "annotations": annotations},
    }));
}

fn apply(object: &Value) {
    SITE.management.kubectl().apply_object(object);
}

fn identity(kind: &str, name: &str, spec: &Value) {
    apply(&json!({
        "apiVersion": IDENTITY_VERSION, "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    }));
}

fn role(account: &str, name: &str) -> String {
    format!("arn:aws:iam::{account}:role/{name}")
}

/// A cluster in a namespace of the same name.
struct Tenant {
    cluster: WorkloadCluster,
    authentication: Authentication,
}

impl Tenant {
    /// A cluster of Cluster API Provider AWS with this identity.
    fn of_provider(name: &str, kind: &str, identity: &str) -> Self {
        let cluster = SITE.management.cluster(name).namespace(name);
        let cluster = cluster
            .infrastructure(InfraCluster::Aws(SITE.network.clone()))
            .create();
        let patch = json!({"spec": {"identityRef": {"kind": kind, "name": identity}}});
        SITE.management
            .kubectl()
            .patch(&["awsclusters", name, "-n", name], &patch);
        Self::authorized(cluster, json!({}))
    }

    fn authorized(cluster: WorkloadCluster, spec: Value) -> Self {
        let authentication = authorize(&SITE.management, &cluster, &["aws"], spec);
        Self {
            cluster,
            authentication,
        }
    }

    /// Waits for this reason of the condition, and returns its message.
    fn resolved(&self, status: &str, reason: &str) -> String {
        let kubectl = SITE.management.kubectl();
        let found = self
            .authentication
            .wait_for(kubectl, "AWSIdentityResolved", status, reason);
        let condition = condition_of(&found, "AWSIdentityResolved");
        condition["message"].as_str().unwrap().to_owned()
    }

    fn launch(&self, account: &str) -> Instance {
        let tag = owned(self.cluster.name());
        SITE.cloud.launch_in(account, &[(&tag, "owned")])
    }

    /// Files the request of this instance as a Machine of the cluster, and returns the request.
    fn asks(&self, machine: &str, instance: &Instance) -> String {
        let id = instance.provider_id();
        let machine = self.cluster.machine(machine).provider_id(&id);
        let machine = machine.node_name(instance.node_name()).create();
        let plane = self.cluster.control_plane();
        let ca = plane.ca().certificate_pem().as_bytes();
        let audience = Audience::of_ca(&CertificateDer::from_pem_slice(ca).unwrap());
        let parts = instance.parts(&audience, &id, SITE.cloud.sts().now());
        let evidence = |spki: &[u8]| Some(SITE.cloud.evidence(&parts, spki));
        let application = Application::proving(instance.node_name(), &id, Provider::AWS, evidence);
        let kubectl = plane.kubectl_with(machine.bootstrap_kubeconfig());
        kubectl.create_object(&application.to_json());
        application.name().to_owned()
    }

    fn answered(&self, request: &str) -> Value {
        let plane = self.cluster.control_plane();
        plane.wait_for_csr("the answer", |csr| {
            csr["metadata"]["name"] == request && is_answered(csr)
        })
    }

    #[track_caller]
    fn joins(&self, machine: &str, instance: &Instance) {
        let csr = self.answered(&self.asks(machine, instance));
        assert_eq!(
            reason_of(&csr, "Approved"),
            Some("NodeNameClaimed"),
            "{csr:#}"
        );
    }

    #[track_caller]
    fn is_denied(&self, machine: &str, instance: &Instance) -> String {
        let csr = self.answered(&self.asks(machine, instance));
        reason_of(&csr, "Denied")
            .unwrap_or_else(|| panic!("{csr:#}"))
            .to_owned()
    }

    /// The account that was written down.
    fn account(&self) -> String {
        let name = self.cluster.name();
        let words = ["get", "kubeletauthentications", name, "-n", name];
        let account = poll(PATIENCE, || {
            let object = SITE.management.kubectl().json(words);
            let annotations = &object["metadata"]["annotations"];
            annotations["attestation.cluster.x-k8s.io/aws-account"]
                .as_str()
                .map(ToOwned::to_owned)
        });
        account.expect("no account is written down")
    }
}

/// Writes an access key to a Secret in the namespace of the provider.
fn write_secret(name: &str, (id, secret): (&str, &str)) {
    apply(&json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "capa-system"},
        "stringData": {"AccessKeyID": id, "SecretAccessKey": secret},
    }));
}

/// An access key in the namespace of the provider, and an identity of it that every namespace may use.
fn static_identity(name: &str, account: &str) {
    SITE.cloud.learn(account, name);
    let (id, secret) = access_key(account);
    write_secret(name, (&id, &secret));
    let spec = json!({"secretRef": name, "allowedNamespaces": {}});
    identity("AWSClusterStaticIdentity", name, &spec);
}

#[test]
fn nodes_of_a_tenant_with_an_access_key_join() {
    const THEIRS: &str = "200000000001";
    static_identity("by-key", THEIRS);
    let tenant = Tenant::of_provider("by-key", "AWSClusterStaticIdentity", "by-key");
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
    let message = tenant.resolved("True", "Resolved");
    let expected = format!("EC2 is asked as AWSClusterStaticIdentity/by-key, account {THEIRS}");
    assert_eq!(message, expected);
}

#[test]
fn nodes_of_a_tenant_with_a_role_over_a_jump_role_and_an_external_id_join() {
    const THEIRS: &str = "200000000002";
    let sts = SITE.cloud.sts();
    let controller = format!("arn:aws:iam::{ACCOUNT}:user/{CONTROLLER}");
    sts.role(&role(ACCOUNT, "jump"), Trust::of(&controller));
    let trust = Trust::of(&role(ACCOUNT, "jump")).external_id("by-role-id");
    sts.role(&role(THEIRS, "nodes"), trust);
    let jump = json!({
        "roleARN": role(ACCOUNT, "jump"), "allowedNamespaces": {},
        "sourceIdentityRef": {"kind": "AWSClusterControllerIdentity", "name": "default"},
    });
    identity("AWSClusterRoleIdentity", "by-role-jump", &jump);
    let mut nodes = json!({
        "roleARN": role(THEIRS, "nodes"), "allowedNamespaces": {"list": ["by-role"]},
        "externalID": "another-tenants-id",
        "sourceIdentityRef": {"kind": "AWSClusterRoleIdentity", "name": "by-role-jump"},
    });
    identity("AWSClusterRoleIdentity", "by-role", &nodes);
    let tenant = Tenant::of_provider("by-role", "AWSClusterRoleIdentity", "by-role");
    // With another tenant's external ID, STS refuses, and the node waits.
    let first = tenant.launch(THEIRS);
    let request = tenant.asks("m1", &first);
    let kubectl = SITE.management.kubectl();
    let ready = "AWSCredentialsReady";
    let found = tenant
        .authentication
        .wait_for(kubectl, ready, "False", "AssumeRoleDenied");
    let message = condition_of(&found, ready)["message"].to_string();
    assert!(message.contains(&role(THEIRS, "nodes")), "{message}");

    nodes["externalID"] = json!("by-role-id");
    identity("AWSClusterRoleIdentity", "by-role", &nodes);
    let csr = tenant.answered(&request);
    assert_eq!(
        reason_of(&csr, "Approved"),
        Some("NodeNameClaimed"),
        "{csr:#}"
    );
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn nodes_of_a_tenant_with_a_service_account_join() {
    const THEIRS: &str = "200000000003";
    const NAME: &str = "by-account";
    let trust = Trust::of_service_account(NAME, "nodes");
    SITE.cloud.sts().role(&role(THEIRS, "nodes"), trust);
    let cluster = SITE.management.cluster(NAME).namespace(NAME);
    let cluster = cluster
        .infrastructure(InfraCluster::Aws(SITE.network.clone()))
        .create();
    let metadata = json!({"name": "nodes", "namespace": NAME});
    apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
    apply(&json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "AWSServiceAccountIdentity",
        "metadata": metadata, "spec": {"roleARN": role(THEIRS, "nodes")},
    }));
    let kubectl = SITE.management.kubectl();
    kubectl.ok(["apply", "-f", TOKENS_RBAC]);
    kubectl.ok([
        "create",
        "rolebinding",
        "node-attestation-controller-tokens",
        "--clusterrole=node-attestation-controller-tokens",
        "--user=node-attestation-controller",
        "-n",
        NAME,
    ]);
    let spec = json!({"aws": {"serviceAccountIdentity": "nodes"}});
    let tenant = Tenant::authorized(cluster, spec);
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn nodes_of_a_team_join_by_the_role_of_its_config_map() {
    const THEIRS: &str = "200000000004";
    const NAME: &str = "by-team";
    let controller = format!("arn:aws:iam::{ACCOUNT}:user/{CONTROLLER}");
    SITE.cloud
        .sts()
        .role(&role(THEIRS, "nodes"), Trust::of(&controller));
    apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "ack-role-team-map", "namespace": "ack-system"},
        "data": {"team-a": role(THEIRS, "nodes")},
    }));
    let annotations = json!({"services.k8s.aws/team-id": "team-a"});
    create_namespace(&SITE.management, NAME, &annotations);
    let cluster = SITE.management.cluster(NAME).namespace(NAME).create();
    create_namespace(&SITE.management, NAME, &annotations);
    let tenant = Tenant::authorized(cluster, json!({}));
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);
}

#[test]
fn a_tenant_whose_namespace_is_not_permitted_waits_and_a_condition_names_the_identity() {
    const THEIRS: &str = "200000000005";
    static_identity("not-permitted", THEIRS);
    let others = json!({"secretRef": "not-permitted", "allowedNamespaces": {"list": ["others"]}});
    identity("AWSClusterStaticIdentity", "not-permitted", &others);
    let kind = "AWSClusterStaticIdentity";
    let tenant = Tenant::of_provider("not-permitted", kind, "not-permitted");
    let message = tenant.resolved("False", "UsageUnauthorized");
    assert!(
        message.contains("AWSClusterStaticIdentity/not-permitted"),
        "{message}"
    );
    assert!(message.contains("namespace not-permitted"), "{message}");

    // The label that its identity selects by lets it join, without a restart.
    let selector = json!({"matchLabels": {"team": "permitted"}});
    let selected =
        json!({"secretRef": "not-permitted", "allowedNamespaces": {"selector": selector}});
    identity(kind, "not-permitted", &selected);
    let request = tenant.asks("m1", &tenant.launch(THEIRS));
    tenant.resolved("False", "UsageUnauthorized");
    let waits = tenant.cluster.control_plane().csrs();
    let waits = waits.iter().find(|csr| csr["metadata"]["name"] == *request);
    assert!(!is_answered(waits.unwrap()), "{waits:#?}");
    let label = json!({"metadata": {"labels": {"team": "permitted"}}});
    let kubectl = SITE.management.kubectl();
    kubectl.patch(&["namespaces", "not-permitted"], &label);
    let csr = tenant.answered(&request);
    assert_eq!(
        reason_of(&csr, "Approved"),
        Some("NodeNameClaimed"),
        "{csr:#}"
    );
}

#[test]
fn an_instance_of_one_tenants_account_never_joins_anothers_cluster() {
    const THEIRS: &str = "200000000006";
    const OTHERS: &str = "200000000007";
    static_identity("own-account", THEIRS);
    let tenant = Tenant::of_provider("own-account", "AWSClusterStaticIdentity", "own-account");
    // The attacker writes all objects of its namespace: also a Machine with the other's instance.
    let stolen = tenant.launch(OTHERS);
    assert_eq!(tenant.is_denied("m1", &stolen), "AccountNotAllowed");
    tenant.joins("m2", &tenant.launch(THEIRS));
}

#[test]
fn a_rotated_secret_counts_and_an_account_that_changed_does_not() {
    const THEIRS: &str = "200000000008";
    const ANOTHER: &str = "200000000009";
    static_identity("rotated", THEIRS);
    let tenant = Tenant::of_provider("rotated", "AWSClusterStaticIdentity", "rotated");
    tenant.joins("m1", &tenant.launch(THEIRS));
    assert_eq!(tenant.account(), THEIRS);

    SITE.cloud.learn(ANOTHER, "rotated");
    let (id, secret) = access_key(ANOTHER);
    let data = json!({"stringData": {"AccessKeyID": id, "SecretAccessKey": secret}});
    let kubectl = SITE.management.kubectl();
    kubectl.patch(&["secrets", "rotated", "-n", "capa-system"], &data);
    let second = tenant.launch(ANOTHER);
    let request = tenant.asks("m2", &second);

    let message = tenant.resolved("False", "AccountMismatch");
    assert!(
        message.contains(THEIRS) && message.contains(ANOTHER),
        "{message}"
    );
    let csrs = tenant.cluster.control_plane().csrs();
    let waits = csrs
        .iter()
        .find(|csr| csr["metadata"]["name"] == *request)
        .unwrap();
    assert!(!is_answered(waits), "{waits:#}");

    // A person accepts the other account.
    let patch =
        json!({"metadata": {"annotations": {"attestation.cluster.x-k8s.io/aws-account": null}}});
    kubectl.patch(
        &["kubeletauthentications", "rotated", "-n", "rotated"],
        &patch,
    );
    let csr = tenant.answered(&request);
    assert_eq!(
        reason_of(&csr, "Approved"),
        Some("NodeNameClaimed"),
        "{csr:#}"
    );
}

#[test]
fn a_secret_is_rotated_and_deleted_and_no_byte_of_it_is_in_the_log() {
    const THEIRS: &str = "200000000010";
    const NAME: &str = "logged";
    const FIRST: &str = "f1rst-s3cret-acc3ss-key";
    const SECOND: &str = "s3cond-s3cret-acc3ss-key";
    let (id, _) = access_key(THEIRS);
    let rotate = |secret| {
        let user = Principal::user(THEIRS, NAME);
        SITE.cloud.sts().learn(user, (&id, secret));
        write_secret(NAME, (&id, secret));
    };
    rotate(FIRST);
    let spec = json!({"secretRef": NAME, "allowedNamespaces": {}});
    identity("AWSClusterStaticIdentity", NAME, &spec);
    let tenant = Tenant::of_provider(NAME, "AWSClusterStaticIdentity", NAME);
    tenant.joins("m1", &tenant.launch(THEIRS));
    rotate(SECOND);
    tenant.joins("m2", &tenant.launch(THEIRS));

    let kubectl = SITE.management.kubectl();
    kubectl.ok(["delete", "secret", NAME, "-n", "capa-system"]);
    let message = tenant.resolved("False", "SecretNotFound");
    let expected = format!(
        "the Secret {NAME:?} of AWSClusterStaticIdentity/{NAME} does not exist in namespace capa-system"
    );
    assert_eq!(message, expected);
    let request = tenant.asks("m3", &tenant.launch(THEIRS));
    let heard = || SITE.manager.process.log().text().contains(&request);
    assert!(poll(PATIENCE, || heard().then_some(())).is_some());
    let csrs = tenant.cluster.control_plane().csrs();
    let waits = csrs.iter().find(|csr| csr["metadata"]["name"] == *request);
    assert!(!is_answered(waits.unwrap()), "{waits:#?}");
    rotate(FIRST);
    let csr = tenant.answered(&request);
    assert_eq!(
        reason_of(&csr, "Approved"),
        Some("NodeNameClaimed"),
        "{csr:#}"
    );

    let log = SITE.manager.process.log().text();
    assert!(log.contains(NAME) && log.contains("DEBUG"), "{log}");
    let objects = kubectl.json(["get", "kubeletauthentications", "-A"]);
    let events = kubectl.json(["get", "events", "-A"]);
    for shown in [log, objects.to_string(), events.to_string()] {
        for part in [FIRST, SECOND] {
            assert!(!shown.contains(part), "{part} is shown");
            let encoded = STANDARD.encode(part);
            assert!(!shown.contains(&encoded), "{encoded} is shown");
        }
    }
}
