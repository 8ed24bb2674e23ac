//! A case: an AWSCluster, the other objects in the management cluster, and the trust policies of its roles.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::sts::Trust;
use kubelet_authenticator_tests::cloud::{ACCOUNT, REGION};
use serde_json::{Value, json};

use crate::objects::CAPA_NAMESPACE;
use crate::stored::NAMESPACES;

/// The account of the roles.
pub const THEIRS: &str = "200000000001";

/// A case, which both the project and the original provider resolve.
#[derive(Debug, Clone)]
pub struct Case {
    /// The AWSCluster.
    pub cluster: Value,
    /// Namespaces, Secrets and identities.
    pub objects: Vec<Value>,
    /// The roles in STS.
    pub trusts: Vec<(String, Trust)>,
}

impl Case {
    /// Creates a cluster in `tenant-a` that does not refer to an identity, its Namespace, and another Namespace,
    /// without any identities.
    pub fn new(number: usize) -> Self {
        let [own, other] = NAMESPACES;
        Self {
            cluster: json!({
                "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "AWSCluster",
                "metadata": {"name": format!("c{number}"), "namespace": own},
                "spec": {"region": REGION},
            }),
            objects: vec![
                namespace(own, &json!({"environment": "dev"})),
                namespace(other, &json!({"environment": "prod"})),
            ],
            trusts: Vec::new(),
        }
    }

    /// Makes the cluster refer to this identity.
    pub fn of(mut self, kind: &str, name: &str) -> Self {
        self.cluster["spec"]["identityRef"] = json!({"kind": kind, "name": name});
        self
    }

    /// Moves the cluster to the other namespace.
    pub fn in_the_other_namespace(mut self) -> Self {
        self.cluster["metadata"]["namespace"] = json!(NAMESPACES[1]);
        self
    }

    /// Adds an identity.
    pub fn with(mut self, kind: &str, name: &str, spec: Value) -> Self {
        self.objects.push(json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": kind,
            "metadata": {"name": name}, "spec": spec,
        }));
        self
    }

    /// Adds the controller's identity, for every namespace.
    pub fn with_controller(self) -> Self {
        let everybody = json!({"allowedNamespaces": {}});
        self.with("AWSClusterControllerIdentity", "default", everybody)
    }

    /// Adds a role with this name, a source of this kind and name, and these additional fields. STS permits all
    /// accounts to assume the role.
    pub fn with_role(mut self, name: &str, source: (&str, &str), more: Value) -> Self {
        let arn = self.arn(name);
        let mut spec = json!({
            "allowedNamespaces": {}, "roleARN": arn,
            "sourceIdentityRef": {"kind": source.0, "name": source.1},
        });
        merge(&mut spec, more);
        self.trusts.push((arn, trust()));
        self.with("AWSClusterRoleIdentity", name, spec)
    }

    /// Adds a static identity with this name, and a Secret with the same name. STS recognizes the access key in this
    /// Secret.
    pub fn with_static(self, name: &str, more: Value) -> Self {
        let id = self.key_id(name);
        let mut spec = json!({"allowedNamespaces": {}, "secretRef": name});
        merge(&mut spec, more);
        let data = [("AccessKeyID", &*id), ("SecretAccessKey", "s3cret")];
        self.with("AWSClusterStaticIdentity", name, spec)
            .with_secret(CAPA_NAMESPACE, name, &data)
    }

    /// Adds a Secret.
    pub fn with_secret(mut self, namespace: &str, name: &str, data: &[(&str, &str)]) -> Self {
        self.objects.push(secret(namespace, name, data));
        self
    }

    /// The ARN of a role in this case.
    pub fn arn(&self, name: &str) -> String {
        format!("arn:aws:iam::{THEIRS}:role/{}-{name}", self.name())
    }

    /// The ID of an access key in this case.
    pub fn key_id(&self, name: &str) -> String {
        format!("AKIA{}{name}", self.name())
            .to_uppercase()
            .replace('-', "")
    }

    /// The name of the cluster.
    pub fn name(&self) -> &str {
        self.cluster["metadata"]["name"].as_str().unwrap()
    }

    /// The namespace of the cluster.
    pub fn namespace(&self) -> &str {
        self.cluster["metadata"]["namespace"].as_str().unwrap()
    }

    /// All objects.
    pub fn all(&mut self) -> Vec<&mut Value> {
        std::iter::once(&mut self.cluster)
            .chain(&mut self.objects)
            .collect()
    }

    /// The `spec` of an identity.
    pub fn spec(&self, kind: &str, name: &str) -> &Value {
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        let found = self.objects.iter().find(is_it);
        found.map_or(&Value::Null, |object| &object["spec"])
    }

    /// Whether a Secret has a value that is not printable.
    pub fn has_unprintable_key(&self) -> bool {
        let secrets = self
            .objects
            .iter()
            .filter(|object| object["kind"] == "Secret");
        let mut values =
            secrets.flat_map(|secret| secret["data"].as_object().into_iter().flatten());
        values.any(|(_, value)| {
            let value = BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
            !value.iter().all(u8::is_ascii_graphic)
        })
    }

    /// The case as text, for a developer who investigates a difference.
    pub fn shown(&self) -> String {
        let trusts: Vec<String> = self
            .trusts
            .iter()
            .map(|trust| format!("{trust:?}"))
            .collect();
        let shown = json!({"cluster": self.cluster, "objects": self.objects, "trusts": trusts});
        format!("{shown:#}")
    }
}

/// All principals that the tests use.
pub fn trust() -> Trust {
    Trust {
        principals: vec![
            format!("arn:aws:iam::{ACCOUNT}:root"),
            format!("arn:aws:iam::{THEIRS}:root"),
        ],
        external_id: None,
        web_identity: None,
    }
}

/// A Namespace.
pub fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A Secret.
pub fn secret(namespace: &str, name: &str, data: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<String, Value> = data
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace}, "stringData": data,
    })
}

/// Sets fields. `null` removes a field.
pub fn merge(into: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else {
        return;
    };
    for (name, value) in fields {
        if value == json!("REMOVED") {
            into.as_object_mut().unwrap().remove(&name);
        } else {
            into[&name] = value;
        }
    }
}
