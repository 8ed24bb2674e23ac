//! Restricts the requests that bootstrap tokens and nodes are allowed to create: a `ValidatingAdmissionPolicy` for
//! creating and updating certificate signing requests.
//!
//! The policy blocks requests that the controller would also deny. Without the policy, an attacker with a leaked token
//! could fill the API server's storage (1.5 MB per request on a default cluster). While an auto-approval binding
//! exists, the attacker could also get a certificate from another signer.
//!
//! | Requester | Signers | Request name |
//! | --- | --- | --- |
//! | bootstrap token | the client signers of the authorized attestors | with the controller's prefix |
//! | node | the same signers, `kubernetes.io/kubelet-serving`, and this controller's serving signers | any |
//! | exempt node | the signers for a node, and the built-in client signer | any |
//!
//! The prefix is [`CSR_NAME_PREFIX`]. `spec.request` must not be longer than 64 KiB. The rest of the stored object is
//! also limited, because an API server accepts up to 1.5 MB in any field. The API server itself sets or validates the
//! other fields in `spec`.
//!
//! | Metadata field | Allowed content |
//! | --- | --- |
//! | `labels`, `finalizers`, `ownerReferences`, `selfLink` | empty: neither kubelets nor the plugin set them |
//! | `annotations` | only the endorsement key, with at most 128 characters |
//! | `name`, `generateName` | at most 253 characters. For requests, the API server has no limit |
//! | `managedFields` | two entries with the fields of a request. The API server keeps entries that a requester sends |
//!
//! The policy does not check evidence, because it gets the request as base64 text, which CEL in a policy cannot decode.

use std::collections::BTreeSet;

use futures::future::FutureExt as _;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Client;
use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;
use kubelet_attestation::names::{
    BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, CSR_NAME_PREFIX, NodeName, Provider,
    SERVING_SIGNER_PREFIX,
};

use super::access::{HardeningError, delete, get};
use super::policies::{Policy, binding};

/// The name of the policy and of its binding.
pub const POLICY_NAME: &str = "node-attestation-requests";

/// The requests that are allowed in one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionSettings {
    /// The attestation providers whose client signers are allowed.
    pub attestors: BTreeSet<Provider>,
    /// The exempt Nodes, which renew with the built-in signer. Empty, unless an operator configures exempt Nodes.
    pub exempt: BTreeSet<NodeName>,
    /// Whether requests that are not allowed are rejected. If this is not set, the requester only gets a warning, and
    /// the audit log gets an entry.
    pub enforced: bool,
}

/// Applies the policy with `settings` to the workload cluster. Returns whether anything was written.
///
/// # Errors
///
/// Returns an error if the policy could not be read or written. The previous policy then remains in effect.
pub async fn apply(client: &Client, settings: &AdmissionSettings) -> Result<bool, HardeningError> {
    policy(settings).apply(client).boxed().await
}

/// Removes the policy from the workload cluster.
///
/// # Errors
///
/// Returns an error if the policy could not be read or written.
pub async fn remove(client: &Client) -> Result<(), HardeningError> {
    delete::<ValidatingAdmissionPolicyBinding>(client, POLICY_NAME, None).await?;
    delete::<ValidatingAdmissionPolicy>(client, POLICY_NAME, None).await
}

/// Whether the workload cluster currently enforces the policy, with any settings.
///
/// # Errors
///
/// Returns an error if the policy could not be read.
pub async fn is_enforced(client: &Client) -> Result<bool, HardeningError> {
    let found: Option<ValidatingAdmissionPolicyBinding> = get(client, POLICY_NAME).await?;
    let enforced = binding(POLICY_NAME, None, ENFORCED);
    Ok(found.is_some_and(|found| found.spec == enforced.spec))
}

/// While the policy is enforced, its actions on a request that is not allowed.
const ENFORCED: &[&str] = &["Deny"];

/// The policy with these settings, and its binding.
fn policy(settings: &AdmissionSettings) -> Policy {
    let by_either = format!("{IS_NODE} || {IS_TOKEN}");
    Policy {
        name: POLICY_NAME,
        group: "certificates.k8s.io",
        resources: &["certificatesigningrequests"],
        operations: &["CREATE", "UPDATE"],
        failure_policy: "Fail",
        params: None,
        conditions: vec![("by-a-bootstrap-token-or-a-node", by_either)],
        variables: variables(settings),
        validations: validations(),
        audit: Vec::new(),
        actions: if settings.enforced {
            ENFORCED
        } else {
            &["Warn", "Audit"]
        },
    }
}

const IS_NODE: &str = "request.userInfo.groups.exists(g, g == 'system:nodes')";

const IS_TOKEN: &str = "request.userInfo.groups.exists(g, g == 'system:bootstrappers' \
    || g.startsWith('system:bootstrappers:'))";

fn variables(settings: &AdmissionSettings) -> Vec<(&'static str, String)> {
    let clients = settings.attestors.iter().map(Provider::client_signer);
    let exempt = settings.exempt.iter().map(NodeName::user_name);
    let (clients, exempt) = (list(clients), list(exempt));
    // A policy receives bytes as base64 text.
    let request_length = "size(string(object.spec.request)) / 4 * 3 \
        - (string(object.spec.request).endsWith('==') ? 2 \
        : string(object.spec.request).endsWith('=') ? 1 : 0)";
    let serving = format!(
        "variables.signer == '{BUILT_IN_SERVING_SIGNER}' \
         || variables.signer.startsWith('{SERVING_SIGNER_PREFIX}')"
    );
    vec![
        ("byToken", IS_TOKEN.to_owned()),
        ("byNode", IS_NODE.to_owned()),
        ("signer", "object.spec.signerName".to_owned()),
        (
            "ourName",
            format!("object.metadata.name.startsWith('{CSR_NAME_PREFIX}')"),
        ),
        ("ourSigner", format!("variables.signer in {clients}")),
        (
            "builtInSigner",
            format!("variables.signer == '{BUILT_IN_CLIENT_SIGNER}'"),
        ),
        ("servingSigner", serving),
        ("exempt", format!("request.userInfo.username in {exempt}")),
        ("requestLength", request_length.to_owned()),
    ]
}

fn validations() -> Vec<(String, &'static str, String)> {
    let mut all = vec![
        (
            "!variables.byToken || variables.ourSigner".to_owned(),
            "bootstrap tokens are not allowed to use this signer",
            "'bootstrap tokens are not allowed to use signer ' + variables.signer + ': nodes of this cluster \
             join through kubelet-authenticator'"
                .to_owned(),
        ),
        (
            "!variables.byToken || variables.ourName".to_owned(),
            "a request with a bootstrap token must have a name from kubelet-authenticator",
            format!(
                "'bootstrap tokens can create only requests with names from kubelet-authenticator \
                 ({CSR_NAME_PREFIX}...): nodes of this cluster join through kubelet-authenticator'"
            ),
        ),
        (
            "!variables.byNode || variables.ourSigner || variables.servingSigner \
             || (variables.builtInSigner && variables.exempt)"
                .to_owned(),
            "nodes are not allowed to use this signer",
            "'nodes are not allowed to use signer ' + variables.signer + ': nodes of this cluster renew \
             through kubelet-authenticator'"
                .to_owned(),
        ),
        (
            format!("variables.requestLength <= {MAX_REQUEST_LEN}"),
            "the request is too long",
            format!(
                "'the request is ' + string(variables.requestLength) + ' bytes long, and at most \
                 {MAX_REQUEST_LEN} are allowed'"
            ),
        ),
    ];
    all.extend(metadata_bounds());
    all
}

/// The limits on the metadata, each with its message.
fn metadata_bounds() -> [(String, &'static str, String); 4] {
    let nothing_in = |field: &str| {
        format!("(!has(object.metadata.{field}) || size(object.metadata.{field}) == 0)")
    };
    let short = |field: &str| {
        format!(
            "(!has(object.metadata.{field}) || size(object.metadata.{field}) <= {MAX_NAME_LEN})"
        )
    };
    let all = |parts: &[String]| parts.join(" && ");
    let bare = ["labels", "finalizers", "ownerReferences", "selfLink"].map(nothing_in);
    let annotated = format!(
        "!has(object.metadata.annotations) || object.metadata.annotations.all(key, \
         key == '{ENDORSEMENT_KEY_ANNOTATION}' \
         && size(object.metadata.annotations[key]) <= {MAX_ANNOTATION_LEN})"
    );
    [
        bound(
            all(&bare),
            "the request must not have labels, finalizers, owner references or a self link",
        ),
        bound(
            annotated,
            "the request can have only the annotation cluster.x-k8s.io/tpm-endorsement-key, with at most 128 \
             characters",
        ),
        bound(
            all(&["name", "generateName"].map(short)),
            "the name of the request is too long",
        ),
        bound(
            MANAGED_FIELDS.to_owned(),
            "the request has too many managed fields",
        ),
    ]
}

/// A validation whose message is constant.
fn bound(expression: String, message: &'static str) -> (String, &'static str, String) {
    (expression, message, format!("'{message}'"))
}

/// The maximum length of a request name, which is the limit for most objects.
const MAX_NAME_LEN: usize = 253;

/// The maximum length of an annotation: a digest with 64 digits, and a reserve for a different format.
const MAX_ANNOTATION_LEN: usize = 128;

// The message of the policy contains this number.
const _: () = assert!(MAX_ANNOTATION_LEN == 128);

/// The limits on `managedFields`, which has a key for each field, such as `f:spec` and `f:request`, but no values. At
/// each of the three levels, the number and the length of the keys are limited.
const MANAGED_FIELDS: &str = "!has(object.metadata.managedFields) \
    || (size(object.metadata.managedFields) <= 2 && object.metadata.managedFields.all(entry, \
    (!has(entry.apiVersion) || size(entry.apiVersion) <= 128) \
    && (!has(entry.fieldsV1) || (size(entry.fieldsV1) <= 3 && entry.fieldsV1.all(a, size(a) <= 128 \
    && size(entry.fieldsV1[a]) <= 8 && entry.fieldsV1[a].all(b, size(b) <= 128 \
    && size(entry.fieldsV1[a][b]) <= 4 && entry.fieldsV1[a][b].all(c, size(c) <= 128 \
    && size(entry.fieldsV1[a][b][c]) == 0)))))))";

/// A list of CEL string literals. Signer names and node names contain no characters that need escaping.
fn list(texts: impl Iterator<Item = String>) -> String {
    let quoted: Vec<_> = texts.map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests;
