//! Tests of managers whose options differ from the options in the suite. These managers read objects in namespaces
//! other than the default namespaces, call STS in a single region, and use other fields to select the roles for AWS
//! Controllers for Kubernetes.

use std::sync::LazyLock;

use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::sts::{Call, Trust};
use kubelet_authenticator_tests::cloud::REGION;
use kubelet_authenticator_tests::fleet::{Manager, authorize, condition_of, grant};
use kubelet_authenticator_tests::management::{Contract, InfraCluster, Management};
use serde_json::{Value, json};

use crate::bed::{
    ROLE_IDENTITY, SITE, STATIC_IDENTITY, Tenant, control_plane, controller, create_namespace,
    identity_of, role, secret,
};

/// The region whose STS the controller calls to assume roles. No cluster in the tests is in this region.
const HOME: &str = "eu-central-1";

/// The namespaces of the controllers of other projects, which differ from the default namespaces.
const CAPA: &str = "capa-elsewhere";
const ACK: &str = "ack-elsewhere";

/// The options that make the controller read roles from ConfigMaps, with service keys first.
const CARM: &[&str] = &["--ack=carm"];

/// The option that makes the controller read roles from `IAMRoleSelectors`.
const ROLE_SELECTORS: &[&str] = &["--ack=role-selectors"];

/// A management cluster, and its manager in the suite's cloud.
struct Elsewhere {
    management: Management,
    _manager: Manager,
}

static BY_CARM: LazyLock<Elsewhere> = LazyLock::new(|| {
    let management = management();
    for namespace in [CAPA, ACK] {
        create_namespace(&management, namespace, &json!({}));
    }
    let home = format!("--aws-sts-endpoint={HOME}={}", home());
    let places = [
        &*format!("--aws-sts-region={HOME}"),
        &home,
        &format!("--capa-namespace={CAPA}"),
        &format!("--ack-namespace={ACK}"),
    ];
    // Grant the permissions on the page in this namespace.
    for kind in ["role", "rolebinding"] {
        let suite = SITE.management.kubectl();
        let name = "node-attestation-controller-ack";
        let mut object = suite.json(["get", kind, name, "-n", "ack-system"]);
        object["metadata"] = json!({"name": name, "namespace": ACK});
        management.kubectl().apply_object(&object);
    }
    start(management, &[CARM, &places].concat())
});

static BY_SELECTOR: LazyLock<Elsewhere> = LazyLock::new(|| {
    let management = management();
    let name = "iamroleselectors.services.k8s.aws";
    let kubectl = management.kubectl();
    kubectl.apply_object(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": "services.k8s.aws", "scope": "Cluster",
            "names": {"kind": "IAMRoleSelector", "plural": "iamroleselectors", "singular": "iamroleselector"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    }));
    let definition = ["customresourcedefinition", name];
    let words = ["wait", "--for=condition=Established", "--timeout=180s"];
    kubectl.ok(words.into_iter().chain(definition));
    start(management, ROLE_SELECTORS)
});

fn management() -> Management {
    let management = Management::on(control_plane(), Contract::V1Beta2);
    management.define_aws();
    grant(&management);
    management
}

fn start(management: Management, arguments: &[&str]) -> Elsewhere {
    let manager = Manager::aws_without_fallback(&management, &SITE.cloud, arguments);
    Elsewhere {
        management,
        _manager: manager,
    }
}

/// The STS host in the home region. This host is another name for the STS simulator.
fn home() -> String {
    SITE.cloud.sts().host().replace("127.0.0.1", "localhost")
}

impl Elsewhere {
    fn kubectl(&self) -> &Kubectl {
        self.management.kubectl()
    }

    /// Creates a cluster of Cluster API Provider AWS with this identity, in a namespace with the same name.
    fn of_provider(&self, name: &str, kind: &str, spec: &Value) -> Tenant {
        let identity = identity_of(kind, name, spec);
        self.kubectl().apply_object(&identity);
        let cluster = self.management.cluster(name).namespace(name);
        let cluster = cluster.infrastructure(InfraCluster::Aws(SITE.network.clone()));
        let cluster = cluster.create();
        let patch = json!({"spec": {"identityRef": {"kind": kind, "name": name}}});
        self.kubectl()
            .patch(&["awsclusters", name, "-n", name], &patch);
        Tenant {
            authentication: authorize(&self.management, &cluster, &["aws"], json!({})),
            cluster,
        }
    }

    /// Creates a cluster of another provider, in a namespace with the same name.
    fn of_another_provider(&self, name: &str) -> Tenant {
        let cluster = self.management.cluster(name).namespace(name).create();
        Tenant {
            authentication: authorize(&self.management, &cluster, &["aws"], json!({})),
            cluster,
        }
    }

    /// Waits until the identity's condition has this reason, and returns its message.
    fn resolved(&self, tenant: &Tenant, status: &str, reason: &str) -> String {
        let of = "AWSIdentityResolved";
        let kubectl = self.kubectl();
        let found = tenant.authentication.wait_for(kubectl, of, status, reason);
        condition_of(&found, of)["message"].to_string()
    }
}

/// The STS calls that assume this role.
fn assumed(arn: &str) -> Vec<Call> {
    let mut calls = SITE.cloud.sts().calls();
    calls.retain(|call| call.parameter("RoleArn").as_deref() == Some(arn));
    calls
}

#[test]
fn roles_are_assumed_only_with_sts_in_the_configured_region() {
    const NAME: &str = "home-sts";
    const THEIRS: &str = "200000000401";
    let arn = role(THEIRS, "nodes");
    SITE.cloud.sts().role(&arn, Trust::of(&controller()));
    let source = json!({"kind": "AWSClusterControllerIdentity", "name": "default"});
    let spec = json!({"roleARN": arn, "allowedNamespaces": {}, "sourceIdentityRef": source});
    let tenant = BY_CARM.of_provider(NAME, ROLE_IDENTITY, &spec);
    let instance = tenant.launch(THEIRS);

    tenant.joins("m1", &instance);

    let calls = assumed(&arn);
    assert!(!calls.is_empty());
    for call in &calls {
        assert_eq!(call.header("host"), Some(&*home()), "{call:?}");
        let scope = call.header("authorization").unwrap();
        assert!(scope.contains(&format!("/{HOME}/sts/")), "{scope}");
    }
    // The node's own signature is for the STS in its region.
    let mut proofs = SITE.cloud.sts().calls();
    let id = format!("/{}", instance.ec2.id);
    proofs.retain(|call| call.caller.as_deref().is_some_and(|arn| arn.ends_with(&id)));
    assert_eq!(proofs.len(), 1, "{proofs:?}");
    assert_eq!(proofs[0].header("host"), Some(&*SITE.cloud.sts().host()));
    let scope = proofs[0].header("authorization").unwrap();
    assert!(scope.contains(&format!("/{REGION}/sts/")), "{scope}");
}

#[test]
fn an_identity_secret_is_read_from_the_configured_capa_namespace() {
    const NAME: &str = "capa-namespace";
    const THEIRS: &str = "200000000402";
    create_namespace(&BY_CARM.management, "capa-system", &json!({}));
    let planted = secret("capa-system", NAME, THEIRS);
    BY_CARM.kubectl().apply_object(&planted);
    let spec = json!({"secretRef": NAME, "allowedNamespaces": {}});
    let tenant = BY_CARM.of_provider(NAME, STATIC_IDENTITY, &spec);

    let message = BY_CARM.resolved(&tenant, "False", "SecretNotFound");

    assert!(message.contains(CAPA), "{message}");
    let kept = secret(CAPA, NAME, THEIRS);
    BY_CARM.kubectl().apply_object(&kept);
    tenant.joins("m1", &tenant.launch(THEIRS));
}

#[test]
fn a_role_for_ec2_is_used_before_the_account_role() {
    const NAME: &str = "by-service";
    const THEIRS: &str = "200000000403";
    let roles = ["for-ec2", "for-s3", "for-all"].map(|name| role(THEIRS, name));
    for arn in &roles {
        SITE.cloud.sts().role(arn, Trust::of(&controller()));
    }
    let [for_ec2, for_s3, for_all] = &roles;
    let map = |keys: Value| {
        BY_CARM.kubectl().apply_object(&json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "ack-role-account-map", "namespace": ACK},
            "data": keys,
        }));
    };
    map(json!({format!("s3.{THEIRS}"): for_s3}));
    let annotations = json!({"services.k8s.aws/owner-account-id": THEIRS});
    create_namespace(&BY_CARM.management, NAME, &annotations);
    let tenant = BY_CARM.of_another_provider(NAME);
    create_namespace(&BY_CARM.management, NAME, &annotations);

    BY_CARM.resolved(&tenant, "False", "CARMKeyNotFound");
    map(json!({
        format!("s3.{THEIRS}"): for_s3, format!("ec2.{THEIRS}"): for_ec2, THEIRS: for_all,
    }));
    tenant.joins("m1", &tenant.launch(THEIRS));

    assert!(!assumed(for_ec2).is_empty());
    assert_eq!([assumed(for_s3), assumed(for_all)], [vec![], vec![]]);
}

#[test]
fn a_cluster_gets_the_role_of_its_only_matching_selector() {
    const NAME: &str = "selected";
    const THEIRS: &str = "200000000404";
    const ANOTHERS: &str = "200000000405";
    let [own, anothers] = [THEIRS, ANOTHERS].map(|account| role(account, "nodes"));
    for arn in [&own, &anothers] {
        SITE.cloud.sts().role(arn, Trust::of(&controller()));
    }
    let selector = |name: &str, arn: &str, namespace: &str| {
        BY_SELECTOR.kubectl().apply_object(&json!({
            "apiVersion": "services.k8s.aws/v1alpha1", "kind": "IAMRoleSelector",
            "metadata": {"name": name},
            "spec": {"arn": arn, "namespaceSelector": {"names": [namespace]}},
        }));
    };
    selector("anothers", &anothers, "another-namespace");
    let tenant = BY_SELECTOR.of_another_provider(NAME);
    BY_SELECTOR.resolved(&tenant, "False", "NoRoleSelector");

    selector("own", &own, NAME);

    tenant.joins("m1", &tenant.launch(THEIRS));
    let foreign = tenant.launch(ANOTHERS);
    assert_eq!(tenant.is_denied("m2", &foreign), "AccountNotAllowed");
    assert_eq!(assumed(&anothers), []);

    selector("second", &anothers, NAME);
    let message = BY_SELECTOR.resolved(&tenant, "False", "RoleSelectorConflict");
    assert!(message.contains("own, second"), "{message}");
}
