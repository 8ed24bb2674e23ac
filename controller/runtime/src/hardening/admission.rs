//! What bootstrap tokens and nodes may ask for at all: a `ValidatingAdmissionPolicy` on the
//! creation of certificate signing requests.
//!
//! It keeps from the API server what the controller would deny anyway, so that a leaked token can
//! neither fill its storage (1.5 MB a request on a stock cluster) nor reach another signer while a
//! binding is open.
//!
//! | requester | signers | name |
//! | --- | --- | --- |
//! | bootstrap token | the client signers of the authorised attestors | with our prefix |
//! | the same, approve-only | also the built-in client signer | with our prefix |
//! | node | those, and `kubernetes.io/kubelet-serving` and ours for serving | any |
//! | the same, approve-only | also the built-in client signer | for that one, with our prefix |
//! | control-plane node that is named | also the built-in client signer | any |
//!
//! A request has at most 64 KiB, and our prefix is [`CSR_NAME_PREFIX`].
//!
//! Evidence is not looked at: a policy sees the request as base64 text, which CEL in a policy
//! cannot decode. So in approve-only mode the prefix is all that tells a request with evidence from
//! a stock kubelet's, and the controller's own denial is what stops one that bears the prefix and
//! proves nothing.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation, Variable,
};
use kube::Client;
use kubelet_attestation::names::{
    BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, CSR_NAME_PREFIX, NODE_USER_PREFIX, NodeName,
    Provider,
};

use super::access::{ApplyOutcome, HardeningError, delete_if_there, get};
use super::policies::{self, condition, validation, variable};

/// The name of the policy and of its binding.
pub const POLICY_NAME: &str = "node-attestation-requests";

/// What the names of our serving signers begin with.
const OUR_SERVING_SIGNERS: &str = "cluster.x-k8s.io/kubelet-serving-";

/// The most that the controller reads of a request.
const MAX_REQUEST_LEN: usize = 64 * 1024;

/// What one cluster allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The attestors whose client signers may be asked.
    pub attestors: BTreeSet<Provider>,
    /// The signer.
    pub signing: Signing,
    /// The control-plane nodes that renew through the built-in signer; none, unless an operator
    /// wants that.
    pub built_in_renewal: BTreeSet<NodeName>,
    /// Whether anything is refused; otherwise whoever asks is warned, and the audit log says so.
    pub enforced: bool,
}

/// The signer of the approved certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signing {
    /// The controller, for its own signers.
    Ours,
    /// kube-controller-manager, for the built-in signer: approve-only mode.
    BuiltIn,
}

/// Has the workload cluster enforce `settings`; nothing is written where it does.
///
/// # Errors
///
/// It could not be read or written; what was enforced before still is.
pub async fn apply(client: &Client, settings: &Settings) -> Result<ApplyOutcome, HardeningError> {
    policies::apply(client, &policy(settings), &binding(settings.enforced)).await
}

/// Has the workload cluster no longer enforce anything.
///
/// # Errors
///
/// It could not be read or written.
pub async fn remove(client: &Client) -> Result<(), HardeningError> {
    delete_if_there::<ValidatingAdmissionPolicyBinding>(client, POLICY_NAME).await?;
    delete_if_there::<ValidatingAdmissionPolicy>(client, POLICY_NAME).await
}

/// Whether the workload cluster enforces it now, with whatever settings.
///
/// # Errors
///
/// It could not be read.
pub async fn is_enforced(client: &Client) -> Result<bool, HardeningError> {
    let found: Option<ValidatingAdmissionPolicyBinding> = get(client, POLICY_NAME).await?;
    Ok(found.is_some_and(|found| found.spec == binding(true).spec))
}

fn binding(enforced: bool) -> ValidatingAdmissionPolicyBinding {
    let actions: &[&str] = if enforced {
        &["Deny"]
    } else {
        &["Warn", "Audit"]
    };
    policies::named_binding(
        POLICY_NAME,
        actions,
        ValidatingAdmissionPolicyBindingSpec::default(),
    )
}

/// The policy for these settings.
fn policy(settings: &Settings) -> ValidatingAdmissionPolicy {
    let spec = ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".to_owned()),
        match_constraints: Some(policies::matching(
            "certificates.k8s.io",
            "certificatesigningrequests",
            "CREATE",
        )),
        match_conditions: Some(vec![condition(
            "by-a-bootstrap-token-or-a-node",
            format!("{IS_NODE} || {IS_TOKEN}"),
        )]),
        variables: Some(variables(settings)),
        validations: Some(validations(settings)),
        ..ValidatingAdmissionPolicySpec::default()
    };
    policies::named_policy(POLICY_NAME, spec)
}

const IS_NODE: &str = "request.userInfo.groups.exists(g, g == 'system:nodes')";

const IS_TOKEN: &str = "request.userInfo.groups.exists(g, g == 'system:bootstrappers' \
    || g.startsWith('system:bootstrappers:'))";

fn variables(settings: &Settings) -> Vec<Variable> {
    let clients: Vec<_> = settings
        .attestors
        .iter()
        .map(Provider::client_signer)
        .collect();
    let control_plane: Vec<_> = settings
        .built_in_renewal
        .iter()
        .map(|name| format!("{NODE_USER_PREFIX}{name}"))
        .collect();
    vec![
        variable("byToken", IS_TOKEN),
        variable("byNode", IS_NODE),
        variable("signer", "object.spec.signerName"),
        variable(
            "ourName",
            format!("object.metadata.name.startsWith('{CSR_NAME_PREFIX}')"),
        ),
        variable(
            "ourSigner",
            format!("variables.signer in {}", list(&clients)),
        ),
        variable(
            "builtInSigner",
            format!("variables.signer == '{BUILT_IN_CLIENT_SIGNER}'"),
        ),
        variable(
            "servingSigner",
            format!(
                "variables.signer == '{BUILT_IN_SERVING_SIGNER}' \
                 || variables.signer.startsWith('{OUR_SERVING_SIGNERS}')"
            ),
        ),
        variable(
            "builtInRenewal",
            format!("request.userInfo.username in {}", list(&control_plane)),
        ),
        // A policy sees bytes as base64 text.
        variable(
            "requestLength",
            "size(string(object.spec.request)) / 4 * 3 \
             - (string(object.spec.request).endsWith('==') ? 2 \
             : string(object.spec.request).endsWith('=') ? 1 : 0)",
        ),
    ]
}

fn validations(settings: &Settings) -> Vec<Validation> {
    let (for_token, for_node) = match settings.signing {
        Signing::Ours => ("variables.ourSigner", "variables.builtInRenewal"),
        Signing::BuiltIn => (
            "variables.ourSigner || variables.builtInSigner",
            "(variables.ourName || variables.builtInRenewal)",
        ),
    };
    vec![
        validation(
            format!("!variables.byToken || {for_token}"),
            "bootstrap tokens may not use this signer",
            "'bootstrap tokens may not use signer ' + variables.signer + ': nodes of this cluster \
             join through kubelet-authenticator'",
        ),
        validation(
            "!variables.byToken || variables.ourName",
            "a bootstrap token's request is named as kubelet-authenticator names it",
            format!(
                "'bootstrap tokens may only create requests that kubelet-authenticator names \
                 ({CSR_NAME_PREFIX}...): nodes of this cluster join through it'"
            ),
        ),
        validation(
            format!(
                "!variables.byNode || variables.ourSigner || variables.servingSigner \
                 || (variables.builtInSigner && {for_node})"
            ),
            "nodes may not use this signer",
            "'nodes may not use signer ' + variables.signer + ': nodes of this cluster renew \
             through kubelet-authenticator'",
        ),
        validation(
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
fn list(texts: &[String]) -> String {
    let quoted: Vec<_> = texts.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", quoted.join(", "))
}
