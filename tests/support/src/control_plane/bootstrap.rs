use std::path::PathBuf;
use std::time::SystemTime;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use serde_json::{Value, json};

use super::{ControlPlane, DEADLINE, User};
use crate::process::poll;

/// The group of kubeadm's bootstrap tokens.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers:kubeadm:default-node-token";

const RBAC: &str = "rbac.authorization.k8s.io";

/// A bootstrap token in the cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: String,
}

impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapToken")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl BootstrapToken {
    /// The public half. The user is `system:bootstrap:<id>`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The complete token, as a client sends it.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// The permissions that each of kubeadm's bindings grants to bootstrap tokens or nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeadmBinding {
    /// `kubeadm:kubelet-bootstrap`: tokens can create and read certificate signing requests.
    KubeletBootstrap,
    /// `kubeadm:get-nodes`: tokens can read Nodes.
    GetNodes,
    /// `kubeadm:node-autoapprove-bootstrap`: the holder of a token can get a certificate for any node.
    NodeAutoapproveBootstrap,
    /// `kubeadm:node-autoapprove-certificate-rotation`: nodes get new certificates for their own names without a
    /// review.
    NodeAutoapproveCertificateRotation,
}

impl KubeadmBinding {
    /// All bindings of `kubeadm init`.
    pub const ALL: [Self; 4] = [
        Self::KubeletBootstrap,
        Self::GetNodes,
        Self::NodeAutoapproveBootstrap,
        Self::NodeAutoapproveCertificateRotation,
    ];

    /// The name of the ClusterRoleBinding.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeletBootstrap => "kubeadm:kubelet-bootstrap",
            Self::GetNodes => "kubeadm:get-nodes",
            Self::NodeAutoapproveBootstrap => "kubeadm:node-autoapprove-bootstrap",
            Self::NodeAutoapproveCertificateRotation => {
                "kubeadm:node-autoapprove-certificate-rotation"
            }
        }
    }

    fn role(self) -> &'static str {
        match self {
            Self::KubeletBootstrap => "system:node-bootstrapper",
            Self::GetNodes => "kubeadm:get-nodes",
            Self::NodeAutoapproveBootstrap => {
                "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
            }
            Self::NodeAutoapproveCertificateRotation => {
                "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
            }
        }
    }

    fn group(self) -> &'static str {
        match self {
            Self::KubeletBootstrap | Self::GetNodes | Self::NodeAutoapproveBootstrap => {
                BOOTSTRAPPERS
            }
            Self::NodeAutoapproveCertificateRotation => "system:nodes",
        }
    }

    /// The verb, group and resource of an operation that only this binding allows.
    fn effect(self) -> [&'static str; 3] {
        let certificates = "certificates.k8s.io";
        match self {
            Self::KubeletBootstrap => ["create", certificates, "certificatesigningrequests"],
            Self::GetNodes => ["get", "", "nodes"],
            Self::NodeAutoapproveBootstrap => [
                "create",
                certificates,
                "certificatesigningrequests/nodeclient",
            ],
            Self::NodeAutoapproveCertificateRotation => [
                "create",
                certificates,
                "certificatesigningrequests/selfnodeclient",
            ],
        }
    }

    fn manifest(self) -> Value {
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": { "name": self.name() },
            "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": self.role() },
            "subjects": [{ "apiGroup": RBAC, "kind": "Group", "name": self.group() }],
        })
    }
}

/// The only role that kubeadm defines itself.
fn get_nodes_role() -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": { "name": KubeadmBinding::GetNodes.role() },
        "rules": [{ "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] }],
    })
}

impl ControlPlane {
    /// Adds a bootstrap token in kubeadm's group, with an `id` of 6 and a `secret` of 16 lower-case letters and digits.
    /// The token is valid when this function returns.
    #[track_caller]
    pub fn add_bootstrap_token(&self, id: &str, secret: &str) -> BootstrapToken {
        let token = self.write_bootstrap_token(id, secret, None);
        self.wait_for_bootstrap_token(&token);
        token
    }

    /// Waits until the API server accepts the token.
    #[track_caller]
    pub fn wait_for_bootstrap_token(&self, token: &BootstrapToken) {
        let holder = self.kubectl_with(self.bootstrap_kubeconfig(token));
        let holder = holder.client().expect("a token in the kubeconfig");
        let good = || holder.review(SelfSubjectReview::default()).ok();
        poll(DEADLINE, good).unwrap_or_else(|| {
            panic!(
                "bootstrap token {} is not accepted{}",
                token.id,
                self.apiserver().log()
            )
        });
    }

    /// Writes the Secret of a bootstrap token, as [`ControlPlane::add_bootstrap_token`] does, but with an expiry time
    /// if one is given. The API server accepts the token some time later.
    #[track_caller]
    pub fn write_bootstrap_token(
        &self,
        id: &str,
        secret: &str,
        expiration: Option<SystemTime>,
    ) -> BootstrapToken {
        let mut data = json!({
            "token-id": id,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": BOOTSTRAPPERS,
        });
        if let Some(expiration) = expiration {
            let expiration =
                Timestamp::try_from(expiration).expect("a time in the supported range");
            data["expiration"] = json!(format!("{expiration:.0}"));
        }
        self.kubectl().apply_object(&json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system" },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": data,
        }));
        BootstrapToken {
            id: id.to_owned(),
            secret: secret.to_owned(),
        }
    }

    /// Writes a kubeconfig that contains the token.
    pub fn bootstrap_kubeconfig(&self, token: &BootstrapToken) -> PathBuf {
        self.kubeconfig(User::Token(token.bearer()))
    }

    /// Grants all permissions that `kubeadm init` grants.
    #[track_caller]
    pub fn install_kubeadm_bindings(&self) {
        self.install_bindings(&KubeadmBinding::ALL);
    }

    /// Creates these bindings of kubeadm. The bindings are effective when this function returns.
    #[track_caller]
    pub fn install_bindings(&self, bindings: &[KubeadmBinding]) {
        let bindings_and_role = bindings
            .iter()
            .map(|binding| binding.manifest())
            .chain([get_nodes_role()]);
        self.kubectl().apply_object(&json!({
            "apiVersion": "v1",
            "kind": "List",
            "items": bindings_and_role.collect::<Vec<_>>(),
        }));
        for binding in bindings {
            self.wait_for_effect(*binding, true);
        }
    }

    /// Removes one of kubeadm's bindings. The binding is no longer effective when this function returns.
    #[track_caller]
    pub fn remove_binding(&self, binding: KubeadmBinding) {
        self.kubectl()
            .ok(["delete", "clusterrolebinding", binding.name()]);
        self.wait_for_effect(binding, false);
    }

    /// Waits for the API server's authorizer, which detects a change with a separate watch.
    #[track_caller]
    fn wait_for_effect(&self, binding: KubeadmBinding, expected: bool) {
        let [verb, group, resource] = binding.effect();
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            group: Some(group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()),
            ..ResourceAttributes::default()
        };
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some("system:probe".to_owned()),
                groups: Some(vec![binding.group().to_owned()]),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let admin = self
            .kubectl()
            .client()
            .expect("the administrator's certificate");
        let answer = poll(DEADLINE, || {
            let answer = admin.review(question.clone()).ok()?;
            (answer.status?.allowed == expected).then_some(())
        });
        assert!(
            answer.is_some(),
            "{}: in force should be {expected}",
            binding.name()
        );
    }
}
