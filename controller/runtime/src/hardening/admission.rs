//! The requests that bootstrap tokens and nodes may create: a `ValidatingAdmissionPolicy` on the
//! creation of certificate signing requests.
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
//! A request has at most 64 KiB, and our prefix is [`CSR_NAME_PREFIX`].
//!
//! The policy does not check evidence: it sees the request as base64 text, which CEL in a policy
//! cannot decode.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Client;
use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
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
    policy(settings).apply(client).await
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
        about: [
            "certificates.k8s.io",
            "certificatesigningrequests",
            "CREATE",
        ],
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
    vec![
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
    ]
}

/// A list of CEL string literals. Names of signers and nodes have no character that needs escaping.
fn list(texts: impl Iterator<Item = String>) -> String {
    let quoted: Vec<_> = texts.map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}
