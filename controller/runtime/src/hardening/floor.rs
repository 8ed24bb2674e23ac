//! The floor: admission policies of a management cluster that its tenants cannot go below.
//!
//! A tenant writes the `KubeletAuthentication`s of its namespace. An operator applies these policies, and labels the
//! namespaces in which they apply with [`FLOOR_LABEL`].
//!
//! | Policy | Refuses |
//! | --- | --- |
//! | [`SETTINGS_POLICY`] | other attestors, `Report`, and Nodes that renew without evidence; changed decisions about revocations |
//! | [`DELETION_POLICY`] | the deletion of a `KubeletAuthentication` while a Cluster of its name exists |
//! | [`IDENTITIES_POLICY`] | writes of `NodeIdentity` objects by other users than the controller and responders |
//!
//! The policies also apply to what the controller writes on behalf of a tenant: the settings that come from a Cluster.
//! Exempt subjects, such as the user of `clusterctl move`, are exempt from all policies. No annotation exempts a user.
//!
//! # Guarantees
//!
//! - Settings that were stored before the floor was applied stay. Each change of them must reach the floor.
//! - The deletion policy reads the Clusters of the namespace as its parameters. So Kubernetes' garbage collector deletes
//!   a `KubeletAuthentication` after its Cluster, and no owner reference that a tenant writes deletes it earlier.
//! - A policy that cannot be evaluated refuses the write.

use k8s_openapi::api::admissionregistration::v1::{
    ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use node_attestation_core::crd::{
    GROUP, LOWEST_VALID_GENERATION_ANNOTATION, RELEASED_MACHINES_ANNOTATION,
};
use serde_json::json;

use super::policies::{Policy, binding};

/// The label of the namespaces in which the floor applies.
pub const FLOOR_LABEL: &str = "attestation.cluster.x-k8s.io/floor";

/// The value of [`FLOOR_LABEL`].
pub const FLOOR_LABEL_VALUE: &str = "enforced";

/// The name of the policy for settings.
pub const SETTINGS_POLICY: &str = "node-attestation-floor-settings";

/// The name of the policy for deletions.
pub const DELETION_POLICY: &str = "node-attestation-floor-deletion";

/// The name of the policy for node identities.
pub const IDENTITIES_POLICY: &str = "node-attestation-floor-identities";

/// The kind of Clusters, whose objects are the parameters of the deletion policy.
const CLUSTER: [&str; 2] = ["cluster.x-k8s.io/v1beta2", "Cluster"];

/// The users of Kubernetes' own controllers that delete node identities with their owner or namespace. The first one is
/// the user of a kube-controller-manager without service accounts.
const KUBERNETES: [&str; 3] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
];

/// The parameters of the floor. A subject is a user or a group, as `user:NAME` or `group:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    /// The attestors that a `KubeletAuthentication` can authorize.
    pub attestors: Vec<String>,
    /// The controller, which writes node identities.
    pub controllers: Vec<String>,
    /// The subjects that revoke and reset node identities.
    pub responders: Vec<String>,
    /// The subjects to which no policy applies, such as operators and the user of `clusterctl move`.
    pub exempt: Vec<String>,
}

/// The policies for the labeled namespaces, each with its binding, as YAML documents.
///
/// # Errors
///
/// Returns the error of the serializer. The policies contain only values that YAML can represent.
pub fn yaml(floor: &Floor) -> Result<String, serde_saphyr::ser::Error> {
    let mut documents = String::new();
    for (policy, binding) in objects(floor) {
        let pair = [
            serde_saphyr::to_string(&policy)?,
            serde_saphyr::to_string(&binding)?,
        ];
        for document in pair {
            documents.push_str("---\n");
            documents.push_str(&document);
        }
    }
    Ok(documents)
}

/// The policies for the labeled namespaces, each with its binding.
///
/// The policy has the selector, and not the binding: a policy whose parameters the API server cannot read refuses all
/// writes that it matches, before its bindings are evaluated.
fn objects(floor: &Floor) -> [(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding); 3] {
    [settings(floor), deletion(floor), identities(floor)].map(|policy| {
        let param_ref = policy.params.as_ref().map(|(_, object)| object.clone());
        let binding = binding(policy.name, param_ref, policy.actions);
        let mut policy = policy.policy();
        let spec = policy.spec.as_mut();
        if let Some(about) = spec.and_then(|spec| spec.match_constraints.as_mut()) {
            let label = (FLOOR_LABEL.to_owned(), FLOOR_LABEL_VALUE.to_owned());
            about.namespace_selector = Some(LabelSelector {
                match_labels: Some([label].into()),
                ..LabelSelector::default()
            });
        }
        (policy, binding)
    })
}

/// The policy for settings.
fn settings(floor: &Floor) -> Policy {
    let exempt_or =
        |expression: &str| format!("variables.isExempt || variables.isUnchanged || ({expression})");
    let constant = |expression: &str, message: &'static str| {
        (exempt_or(expression), message, format!("'{message}'"))
    };
    Policy {
        resources: &["kubeletauthentications"],
        operations: &["CREATE", "UPDATE"],
        variables: [
            subjects(floor),
            vec![
                ("attestors", list(&floor.attestors)),
                (
                    "isUnchanged",
                    "request.operation == 'UPDATE' && object.spec == oldObject.spec".to_owned(),
                ),
            ],
        ]
        .concat(),
        validations: vec![
            (
                exempt_or("object.spec.authorizedAttestors.all(a, a in variables.attestors)"),
                "the floor of this namespace does not permit these attestors",
                "'the floor of this namespace permits only these attestors: ' \
                 + variables.attestors.join(', ')"
                    .to_owned(),
            ),
            // A missing value means the default, which other versions of the definition can change.
            constant(
                "has(object.spec.autoApproveBindings) \
                 && object.spec.autoApproveBindings in ['Remove', 'RemoveNow']",
                "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow",
            ),
            // Exempt Nodes renew without evidence.
            constant(
                "!has(object.spec.exemptNodes) || size(object.spec.exemptNodes) == 0",
                "the floor of this namespace does not permit exemptNodes",
            ),
            decisions(),
        ],
        ..policy(SETTINGS_POLICY)
    }
}

/// The validation for the annotations about revocations.
fn decisions() -> (String, &'static str, String) {
    const MESSAGE: &str =
        "only the controller and responders can change the annotations about revocations";
    let keys = [
        LOWEST_VALID_GENERATION_ANNOTATION,
        RELEASED_MACHINES_ANNOTATION,
    ];
    let keys = keys.map(str::to_owned);
    let value = |object: &str| {
        format!(
            "(has({object}.metadata.annotations) && key in {object}.metadata.annotations \
             ? {object}.metadata.annotations[key] : '')"
        )
    };
    // A creation has no old object.
    let (now, before) = (value("object"), value("oldObject"));
    let unchanged = format!(
        "{}.all(key, {now} == (request.operation == 'UPDATE' ? {before} : ''))",
        list(&keys)
    );
    let writers = "variables.isExempt || variables.isController || variables.isResponder";
    (
        format!("{writers} || {unchanged}"),
        MESSAGE,
        format!("'{MESSAGE}'"),
    )
}

/// The policy for deletions. Each Cluster of the namespace is evaluated, and all must pass.
fn deletion(floor: &Floor) -> Policy {
    let [version, kind] = CLUSTER.map(|text| Some(text.to_owned()));
    let clusters = ParamKind {
        api_version: version,
        kind,
    };
    let all = ParamRef {
        selector: Some(LabelSelector::default()),
        // A namespace without Clusters.
        parameter_not_found_action: Some("Allow".to_owned()),
        ..ParamRef::default()
    };
    Policy {
        resources: &["kubeletauthentications"],
        operations: &["DELETE"],
        params: Some((clusters, all)),
        variables: subjects(floor),
        validations: vec![(
            "variables.isExempt || params.metadata.name != oldObject.metadata.name".to_owned(),
            "delete the Cluster before its KubeletAuthentication",
            "'delete the Cluster ' + params.metadata.name + ' before its KubeletAuthentication'"
                .to_owned(),
        )],
        ..policy(DELETION_POLICY)
    }
}

/// The policy for node identities. A responder revokes and resets, but neither creates nor deletes.
fn identities(floor: &Floor) -> Policy {
    const MESSAGE: &str = "only the controller and responders can write NodeIdentities";
    let kubernetes = KUBERNETES.map(str::to_owned);
    let by_kubernetes = format!("request.userInfo.username in {}", list(&kubernetes));
    Policy {
        resources: &["nodeidentities", "nodeidentities/status"],
        operations: &["CREATE", "UPDATE", "DELETE"],
        variables: [subjects(floor), vec![("isKubernetes", by_kubernetes)]].concat(),
        validations: vec![(
            "variables.isExempt || variables.isController || variables.isKubernetes \
             || (variables.isResponder && request.operation == 'UPDATE')"
                .to_owned(),
            MESSAGE,
            format!("'{MESSAGE}'"),
        )],
        ..policy(IDENTITIES_POLICY)
    }
}

/// A policy of this name, which matches nothing yet.
fn policy(name: &'static str) -> Policy {
    Policy {
        name,
        group: GROUP,
        resources: &[],
        operations: &[],
        failure_policy: "Fail",
        params: None,
        conditions: Vec::new(),
        variables: Vec::new(),
        validations: Vec::new(),
        actions: &["Deny"],
    }
}

/// The variables about the user of a request. The lists are the parameters that an operator can also change in the
/// rendered policies.
fn subjects(floor: &Floor) -> Vec<(&'static str, String)> {
    let is_in = |name: &str| {
        format!(
            "('user:' + request.userInfo.username) in variables.{name} \
             || request.userInfo.groups.exists(g, ('group:' + g) in variables.{name})"
        )
    };
    vec![
        ("exempt", list(&floor.exempt)),
        ("controllers", list(&floor.controllers)),
        ("responders", list(&floor.responders)),
        ("isExempt", is_in("exempt")),
        ("isController", is_in("controllers")),
        ("isResponder", is_in("responders")),
    ]
}

/// A list of CEL string literals: a JSON list, whose escapes CEL has, too.
fn list(texts: &[String]) -> String {
    json!(texts).to_string()
}

#[cfg(test)]
mod tests;
