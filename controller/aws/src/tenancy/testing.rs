//! Objects for tests that resolve the AWS identity of a cluster.

use serde_json::{Value, json};

use super::identity::{IdentityKind, IdentityRef};
use super::objects::{Identity, Namespace, Objects, access_key};
use super::plan::{Plan, Root};

/// The namespace of the cluster.
pub(crate) const TENANT: &str = "tenant-a";

/// The ARN of a role in this account.
pub(crate) fn arn(name: &str) -> String {
    format!("arn:aws:iam::111122223333:role/{name}")
}

/// Objects that contain the namespaces `tenant-a` and `tenant-b`, and the controller's identity for all namespaces.
pub(crate) fn objects() -> Objects {
    let mut objects = Objects {
        capa_namespace: "capa-system".to_owned(),
        ..Objects::default()
    };
    for name in [TENANT, "tenant-b"] {
        namespace(&mut objects, name, &[], &[]);
    }
    put(
        &mut objects,
        "AWSClusterControllerIdentity/default",
        &json!({"allowedNamespaces": {}}),
    );
    objects
}

pub(crate) fn namespace(
    objects: &mut Objects,
    name: &str,
    labels: &[(&str, &str)],
    annotations: &[(&str, &str)],
) {
    let owned = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter();
        pairs
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let namespace = Namespace {
        labels: owned(labels),
        annotations: owned(annotations),
    };
    objects.namespaces.insert(name.to_owned(), namespace);
}

pub(crate) fn identity(text: &str) -> IdentityRef {
    let (kind, name) = text.split_once('/').unwrap();
    IdentityRef {
        kind: IdentityKind::named(kind).unwrap(),
        name: name.to_owned(),
    }
}

pub(crate) fn put(objects: &mut Objects, name: &str, spec: &Value) {
    let identity = identity(name);
    let parsed = Identity::parse(identity.kind, &spec.to_string());
    objects.put_identity(TENANT, &identity.name, parsed);
}

/// A role identity with a source, which every namespace is allowed to use.
pub(crate) fn role(source: &str, name: &str) -> Value {
    let source = identity(source);
    json!({
        "allowedNamespaces": {},
        "roleARN": arn(name),
        "sourceIdentityRef": {"kind": source.kind.to_string(), "name": source.name},
    })
}

pub(crate) fn secret(objects: &mut Objects, name: &str, data: &[(&str, &str)]) {
    let data = data.iter();
    let data = data.map(|&(key, value)| (key, value.as_bytes())).collect();
    let key = access_key(&data).map(std::sync::Arc::new);
    objects.access_keys.insert(name.to_owned(), key);
}

/// A static identity with its Secret, which every namespace is allowed to use.
pub(crate) fn static_identity(objects: &mut Objects, name: &str) {
    let spec = json!({"allowedNamespaces": {}, "secretRef": name});
    put(objects, &format!("AWSClusterStaticIdentity/{name}"), &spec);
    secret(
        objects,
        name,
        &[("AccessKeyID", "AKIA1"), ("SecretAccessKey", "s3cret")],
    );
}

/// The root and the roles in a plan, as a short text.
pub(crate) fn summary(plan: &Plan) -> (String, Vec<String>) {
    let root = match &plan.root {
        Root::Controller => "controller".to_owned(),
        Root::Static(key) => key.id.clone(),
        Root::ServiceAccount(account) => format!("{}/{}", account.namespace, account.name),
    };
    let roles = plan.roles.iter().map(|role| role.arn.to_string());
    (root, roles.collect())
}
