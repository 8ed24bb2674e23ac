//! Administrators of a single namespace.

use std::process::Output;

use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::Management;
use serde_json::{Value, json};

use crate::bed::{PATIENCE, SITE};

/// The API groups of Cluster API, its providers, and the project.
const GROUPS: [&str; 4] = [
    "cluster.x-k8s.io",
    "bootstrap.cluster.x-k8s.io",
    "infrastructure.cluster.x-k8s.io",
    "attestation.cluster.x-k8s.io",
];

/// A user with Kubernetes' ClusterRole `admin` in one namespace, and without any other permissions. The role has all
/// permissions for all resources in [`GROUPS`], so objects that such a user cannot write are outside the namespace.
pub struct Admin {
    kubectl: Kubectl,
    namespace: String,
}

impl Admin {
    /// Binds the role to a user in this existing namespace.
    #[track_caller]
    pub fn of(namespace: &str) -> Self {
        Self::on(&SITE.management, namespace)
    }

    /// The same user in another management cluster.
    #[track_caller]
    pub fn on(management: &Management, namespace: &str) -> Self {
        management.kubectl().apply_object(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {
                "name": "cluster-api-admin",
                "labels": {"rbac.authorization.k8s.io/aggregate-to-admin": "true"},
            },
            "rules": [{"apiGroups": GROUPS, "resources": ["*"], "verbs": ["*"]}],
        }));
        let user = format!("admin-of-{namespace}");
        let binding = [
            "create",
            "rolebinding",
            "admin",
            "--clusterrole=admin",
            "--user",
            &user,
            "-n",
            namespace,
        ];
        management.kubectl().ok(binding);
        let plane = management.control_plane();
        let admin = Self {
            kubectl: plane.kubectl_with(plane.client_cert_kubeconfig(&user, None)),
            namespace: namespace.to_owned(),
        };
        // kube-controller-manager aggregates the role.
        let aggregated = poll(PATIENCE, || {
            let all = ["clusters.cluster.x-k8s.io", "secrets"];
            let may = |resource: &&str| admin.may("patch", resource, namespace);
            all.iter().all(may).then_some(())
        });
        assert!(aggregated.is_some(), "{user} has no rights");
        admin
    }

    /// The API server's answer to `kubectl auth can-i` in a namespace.
    #[track_caller]
    pub fn may(&self, verb: &str, resource: &str, namespace: &str) -> bool {
        self.answer(&["auth", "can-i", verb, resource, "-n", namespace])
    }

    /// The API server's answer to `kubectl auth can-i` about a resource that is not in a namespace.
    #[track_caller]
    pub fn may_everywhere(&self, verb: &str, resource: &str) -> bool {
        self.answer(&["auth", "can-i", verb, resource, "--all-namespaces"])
    }

    #[track_caller]
    fn answer(&self, words: &[&str]) -> bool {
        let output = self.kubectl.run(words);
        match String::from_utf8_lossy(&output.stdout).trim() {
            "yes" => true,
            "no" => false,
            other => panic!("kubectl {words:?}: {other}: {output:?}"),
        }
    }

    /// Merges the patch into an object in the namespace.
    #[track_caller]
    pub fn patch(&self, resource: &str, name: &str, patch: &Value) {
        let target = [resource, name, "-n", &self.namespace];
        self.kubectl.patch(&target, patch);
    }

    /// Applies an object in the namespace.
    #[track_caller]
    pub fn apply(&self, mut object: Value) {
        object["metadata"]["namespace"] = json!(self.namespace);
        self.kubectl.apply_object(&object);
    }

    /// Runs kubectl, which succeeds.
    #[track_caller]
    pub fn ok(&self, words: &[&str]) {
        self.kubectl.ok(words);
    }

    /// Runs kubectl with this input. Returns the error if the API server refuses the command.
    pub fn attempt(&self, words: &[&str], input: &str) -> Result<(), String> {
        let output = self.kubectl.run_with_input(words, input);
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(error)
    }

    /// Asserts that the API server forbids the creation of this object.
    #[track_caller]
    pub fn cannot_create(&self, object: &Value) {
        let words = ["create", "-f", "-"];
        let output = self.kubectl.run_with_input(words, &object.to_string());
        is_forbidden(&output, "create");
    }

    /// Asserts that the API server forbids a change to this object.
    #[track_caller]
    pub fn cannot_apply(&self, object: &Value) {
        let words = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let output = self.kubectl.run_with_input(words, &object.to_string());
        is_forbidden(&output, "patch");
    }

    /// Asserts that the API server forbids this kubectl verb: `get` or `delete`.
    #[track_caller]
    pub fn cannot(&self, verb: &str, target: &[&str]) {
        let words: Vec<_> = [verb].iter().chain(target).copied().collect();
        is_forbidden(&self.kubectl.run(words), verb);
    }
}

#[track_caller]
fn is_forbidden(output: &Output, verb: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && error.contains("(Forbidden)")
            && error.contains(&format!("cannot {verb} resource")),
        "{error}"
    );
}
