//! The requests that bootstrap tokens and nodes may create: a `ValidatingAdmissionPolicy` on the
//! creation of certificate signing requests, and on their change.
//!
//! It keeps from the API server the requests that the controller would deny anyway, so that a leaked
//! token can neither fill its storage (1.5 MB a request on a stock cluster) nor reach another signer while a
//! binding is open.
//!
//! | requester | signers | name |
//! | --- | --- | --- |
//! | bootstrap token | the client signers of the authorised attestors | with our prefix |
//! | node | those, and `kubernetes.io/kubelet-serving` and ours for serving | any |
//! | control-plane node that is named | also the built-in client signer | any |
//!
//! Our prefix is [`CSR_NAME_PREFIX`]. `spec.request` has at most 64 KiB. The rest of the stored object is bounded too: an
//! API server stores 1.5 MB, in whatever field. The API server itself sets or validates the other fields of `spec`.
//!
//! | field of the metadata | what it may have |
//! | --- | --- |
//! | `labels`, `finalizers`, `ownerReferences`, `selfLink` | nothing: neither kubelets nor the plugin have any |
//! | `annotations` | the endorsement key, in 128 bytes |
//! | `name`, `generateName` | 253 bytes. The API server has no limit for those of a request |
//! | `managedFields` | two entries, with the fields of a request. A requester may send its own, and the API server keeps them |
//!
//! The policy does not check evidence: it sees the request as base64 text, which CEL in a policy
//! cannot decode.

use std::collections::BTreeSet;

use futures::future::FutureExt as _;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Client;
use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;
use kubelet_attestation::names::{
    BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, CSR_NAME_PREFIX, NODE_USER_PREFIX, NodeName,
    Provider, SERVING_SIGNER_PREFIX,
};

use super::access::{HardeningError, delete, get};
use super::policies::{Policy, binding};

/// The name of the policy and of its binding.
pub const POLICY_NAME: &str = "node-attestation-requests";

/// The requests that one cluster allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The attestors whose client signers may be asked.
    pub attestors: BTreeSet<Provider>,
    /// The control-plane nodes that renew through the built-in signer; none, unless an operator
    /// wants that.
    pub built_in_renewal: BTreeSet<NodeName>,
    /// Whether other requests are refused; otherwise the requester gets a warning, and the audit log an entry.
    pub enforced: bool,
}

/// Puts the policy for `settings` into the workload cluster. Returns whether anything was written.
///
/// # Errors
///
/// It could not be read or written; the policy before it stays in force.
pub async fn apply(client: &Client, settings: &Settings) -> Result<bool, HardeningError> {
    policy(settings).apply(client).boxed().await
}

/// Removes the policy from the workload cluster.
///
/// # Errors
///
/// It could not be read or written.
pub async fn remove(client: &Client) -> Result<(), HardeningError> {
    delete::<ValidatingAdmissionPolicyBinding>(client, POLICY_NAME, None).await?;
    delete::<ValidatingAdmissionPolicy>(client, POLICY_NAME, None).await
}

/// Whether the workload cluster enforces the policy now, with any settings.
///
/// # Errors
///
/// It could not be read.
pub async fn is_enforced(client: &Client) -> Result<bool, HardeningError> {
    let found: Option<ValidatingAdmissionPolicyBinding> = get(client, POLICY_NAME).await?;
    let enforced = binding(POLICY_NAME, None, ENFORCED);
    Ok(found.is_some_and(|found| found.spec == enforced.spec))
}

/// The actions on a request that is not allowed, once the policy is enforced.
const ENFORCED: &[&str] = &["Deny"];

/// The policy for these settings, with its binding.
fn policy(settings: &Settings) -> Policy {
    let by_either = format!("{IS_NODE} || {IS_TOKEN}");
    Policy {
        name: POLICY_NAME,
        about: ["certificates.k8s.io", "certificatesigningrequests"],
        operations: &["CREATE", "UPDATE"],
        failure_policy: "Fail",
        params: None,
        conditions: vec![("by-a-bootstrap-token-or-a-node", by_either)],
        variables: variables(settings),
        validations: validations(),
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

fn variables(settings: &Settings) -> Vec<(&'static str, String)> {
    let clients = settings.attestors.iter().map(Provider::client_signer);
    let control_plane = settings.built_in_renewal.iter();
    let control_plane = control_plane.map(|name| format!("{NODE_USER_PREFIX}{name}"));
    let (clients, control_plane) = (list(clients), list(control_plane));
    // A policy sees bytes as base64 text.
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
        (
            "builtInRenewal",
            format!("request.userInfo.username in {control_plane}"),
        ),
        ("requestLength", request_length.to_owned()),
    ]
}

fn validations() -> Vec<(String, &'static str, String)> {
    let mut all = vec![
        (
            "!variables.byToken || variables.ourSigner".to_owned(),
            "bootstrap tokens may not use this signer",
            "'bootstrap tokens may not use signer ' + variables.signer + ': nodes of this cluster \
             join through kubelet-authenticator'"
                .to_owned(),
        ),
        (
            "!variables.byToken || variables.ourName".to_owned(),
            "a bootstrap token's request is named as kubelet-authenticator names it",
            format!(
                "'bootstrap tokens may only create requests that kubelet-authenticator names \
                 ({CSR_NAME_PREFIX}...): nodes of this cluster join through it'"
            ),
        ),
        (
            "!variables.byNode || variables.ourSigner || variables.servingSigner \
             || (variables.builtInSigner && variables.builtInRenewal)"
                .to_owned(),
            "nodes may not use this signer",
            "'nodes may not use signer ' + variables.signer + ': nodes of this cluster renew \
             through kubelet-authenticator'"
                .to_owned(),
        ),
        (
            format!("variables.requestLength <= {MAX_REQUEST_LEN}"),
            "the request is too long",
            format!(
                "'the request has ' + string(variables.requestLength) + ' bytes, and \
                 {MAX_REQUEST_LEN} are allowed'"
            ),
        ),
    ];
    all.extend(metadata_bounds());
    all
}

/// The bounds of the metadata, each with its message.
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
            "the request has labels, finalizers, owner references or a self link, and may have none",
        ),
        bound(
            annotated,
            "the request has other annotations than its endorsement key, or a longer one",
        ),
        bound(
            all(&["name", "generateName"].map(short)),
            "the name of the request is too long",
        ),
        bound(
            MANAGED_FIELDS.to_owned(),
            "the request has more managed fields than a request",
        ),
    ]
}

/// A validation whose message has no variable.
fn bound(expression: String, message: &'static str) -> (String, &'static str, String) {
    (expression, message, format!("'{message}'"))
}

/// The longest name of a request, as of most objects.
const MAX_NAME_LEN: usize = 253;

/// The longest annotation: a digest of 64 digits, and room for another form of it.
const MAX_ANNOTATION_LEN: usize = 128;

/// `managedFields` has a key for each field, and no values: the keys are `f:spec`, `f:request` and the like. Their number
/// and length are bounded in each level, and the third level is the last one.
const MANAGED_FIELDS: &str = "!has(object.metadata.managedFields) \
    || (size(object.metadata.managedFields) <= 2 && object.metadata.managedFields.all(entry, \
    (!has(entry.apiVersion) || size(entry.apiVersion) <= 128) \
    && (!has(entry.fieldsV1) || (size(entry.fieldsV1) <= 3 && entry.fieldsV1.all(a, size(a) <= 128 \
    && size(entry.fieldsV1[a]) <= 8 && entry.fieldsV1[a].all(b, size(b) <= 128 \
    && size(entry.fieldsV1[a][b]) <= 4 && entry.fieldsV1[a][b].all(c, size(c) <= 128 \
    && size(entry.fieldsV1[a][b][c]) == 0)))))))";

/// A list of CEL string literals. Names of signers and nodes have no character that needs escaping.
fn list(texts: impl Iterator<Item = String>) -> String {
    let quoted: Vec<_> = texts.map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests;
