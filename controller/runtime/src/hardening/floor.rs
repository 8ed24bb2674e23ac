//! The floor: admission policies in a management cluster that set minimum requirements for its tenants' settings.
//!
//! A tenant writes the `KubeletAuthentication`s in its namespace. An operator applies these policies, and sets the
//! label [`FLOOR_LABEL`] on the namespaces in which they apply.
//!
//! | Policy | Refuses |
//! | --- | --- |
//! | [`SETTINGS_POLICY`] | other attestors, `Report`, and Nodes that renew without evidence; changed decisions about revocations |
//! | [`DELETION_POLICY`] | the deletion of a `KubeletAuthentication` while a Cluster with its name exists |
//! | [`IDENTITIES_POLICY`] | changes to `NodeIdentity` objects by users other than the controller and responders |
//!
//! A responder can only revoke, reset, release machines, and raise the lowest valid generation. Each of its writes must
//! contain its user name in [`CHANGED_BY_ANNOTATION`]. The audit event about each of these writes contains the user's
//! name.
//!
//! The policies also apply to settings that the controller copies from a Cluster on behalf of a tenant. The policies do
//! not apply to exempt subjects, such as the user that runs `clusterctl move`. No annotation exempts a user.
//!
//! # Guarantees
//!
//! - Settings that were stored before the floor was applied remain unchanged. Every later change must satisfy the
//!   policies.
//! - The deletion policy gets the Clusters in the namespace as parameters. Therefore Kubernetes' garbage collector can
//!   delete a `KubeletAuthentication` after its Cluster is deleted, and an owner reference that a tenant writes does
//!   not cause an earlier deletion.
//! - If a policy cannot be evaluated, the write is rejected.

use k8s_openapi::api::admissionregistration::v1::{
    ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use node_attestation_core::crd::{
    CHANGED_BY_ANNOTATION, GROUP, LOWEST_VALID_GENERATION_ANNOTATION, RELEASED_MACHINES_ANNOTATION,
    RESET_ANNOTATION, WORKLOAD_UID_ANNOTATION,
};
use serde_json::json;

use super::policies::{Policy, binding};

/// The label on namespaces in which the floor applies.
pub const FLOOR_LABEL: &str = "attestation.cluster.x-k8s.io/floor";

/// The value of [`FLOOR_LABEL`].
pub const FLOOR_LABEL_VALUE: &str = "enforced";

/// The name of the policy for settings.
pub const SETTINGS_POLICY: &str = "node-attestation-floor-settings";

/// The name of the policy for deletions.
pub const DELETION_POLICY: &str = "node-attestation-floor-deletion";

/// The name of the policy for node identities.
pub const IDENTITIES_POLICY: &str = "node-attestation-floor-identities";

/// The API version and the kind of the deletion policy's parameters.
const CLUSTER: [&str; 2] = ["cluster.x-k8s.io/v1beta2", "Cluster"];

/// The users of Kubernetes controllers that delete node identities together with their owner or namespace. The first
/// user is kube-controller-manager if its controllers do not use separate service accounts.
const KUBERNETES: [&str; 3] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:namespace-controller",
];

/// The annotations on a `KubeletAuthentication` with decisions about revocations, and with the user who decided.
const DECISIONS: [&str; 3] = [
    LOWEST_VALID_GENERATION_ANNOTATION,
    RELEASED_MACHINES_ANNOTATION,
    CHANGED_BY_ANNOTATION,
];

/// The annotations on a `KubeletAuthentication` that only the controller and responders can change. A responder can
/// change only [`DECISIONS`].
const PROTECTED: [&str; 4] = [
    LOWEST_VALID_GENERATION_ANNOTATION,
    RELEASED_MACHINES_ANNOTATION,
    CHANGED_BY_ANNOTATION,
    WORKLOAD_UID_ANNOTATION,
];

/// The metadata that the API server changes with each write.
const OF_EACH_WRITE: [&str; 3] = ["generation", "managedFields", "resourceVersion"];

/// A value of [`LOWEST_VALID_GENERATION_ANNOTATION`] that the command can write. Generations are seconds since 1970.
/// The longest value is in the year 2286. CEL has no clock: the controller ignores a value that is in the future.
const SECONDS: &str = "'^(0|[1-9][0-9]{0,9})$'";

/// The key of the audit annotation about a revocation, a reset, or a decision.
const ACT: &str = "act";

/// The parameters of the floor. A subject is a user or a group, written as `user:NAME` or `group:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Floor {
    /// The attestation providers that a `KubeletAuthentication` is allowed to authorize.
    pub attestors: Vec<String>,
    /// The subjects of the controller, which writes node identities.
    pub controllers: Vec<String>,
    /// The subjects that are allowed to revoke and reset node identities.
    pub responders: Vec<String>,
    /// The subjects to which the floor policies do not apply, such as operators and the user that runs `clusterctl
    /// move`.
    pub exempt: Vec<String>,
}

/// The policies for the labeled namespaces with their bindings, as YAML documents.
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

/// The policies for the labeled namespaces, with their bindings.
///
/// The selector is in the policy, and not in its binding. If the API server cannot read a policy's parameters, it
/// rejects all writes that match the policy, before it evaluates the bindings.
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
            // A missing value means the default, which is weaker, or can differ in other versions of the definition.
            constant(
                "has(object.spec.autoApproveBindings) \
                 && object.spec.autoApproveBindings in ['Remove', 'RemoveNow']",
                "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow",
            ),
            // Exempt Nodes renew without evidence. By default, control-plane nodes are exempt.
            constant(
                "has(object.spec.exemptNodes) && size(object.spec.exemptNodes) == 0",
                "the floor of this namespace requires exemptNodes: []",
            ),
            decisions(),
            of_responder(
                &format!(
                    "request.operation == 'UPDATE' && object.spec == oldObject.spec && {}",
                    metadata_unchanged_except(&DECISIONS)
                ),
                "responders can change only the annotations about revocations",
            ),
            raised(),
            named(),
        ],
        audit: vec![(
            ACT,
            format!(
                "request.operation != 'UPDATE' || {} ? '' \
                 : 'the decisions about revocations of Cluster ' + object.spec.clusterName + ' were changed by ' \
                 + request.userInfo.username",
                decisions_unchanged()
            ),
        )],
        ..policy(SETTINGS_POLICY)
    }
}

/// The validation for the annotations with decisions about revocations.
fn decisions() -> (String, &'static str, String) {
    const MESSAGE: &str =
        "only the controller and responders can change the annotations about revocations";
    let writers = "variables.isExempt || variables.isController || variables.isResponder";
    (
        format!("{writers} || {}", decisions_unchanged()),
        MESSAGE,
        format!("'{MESSAGE}'"),
    )
}

/// Whether the write keeps the decisions about revocations. When an object is created, there is no old object.
fn decisions_unchanged() -> String {
    format!(
        "{}.all(key, {} == (request.operation == 'UPDATE' ? {} : ''))",
        literals(&PROTECTED),
        annotation("object", "key"),
        annotation("oldObject", "key")
    )
}

/// A validation that applies only to responders.
fn of_responder(expression: &str, message: &'static str) -> (String, &'static str, String) {
    (
        format!("!variables.isRestricted || ({expression})"),
        message,
        format!("'{message}'"),
    )
}

/// The validation for the lowest valid generation in a responder's write.
fn raised() -> (String, &'static str, String) {
    let key = literal(LOWEST_VALID_GENERATION_ANNOTATION);
    let [now, before] = ["object", "oldObject"].map(|object| annotation(object, &key));
    let expression = format!(
        "request.operation != 'UPDATE' || {now} == {before} || {now}.matches({SECONDS}) \
         && int({now}) >= ({before}.matches({SECONDS}) ? int({before}) : 0)"
    );
    of_responder(
        &expression,
        "responders can only raise lowest-valid-generation, to a Unix time in seconds",
    )
}

/// The validation for the user name in a responder's write.
fn named() -> (String, &'static str, String) {
    let key = literal(CHANGED_BY_ANNOTATION);
    let expression = format!(
        "request.operation != 'UPDATE' || {} == request.userInfo.username",
        annotation("object", &key)
    );
    of_responder(
        &expression,
        "a responder must write its user name to the annotation changed-by",
    )
}

/// A CEL expression for the value of an annotation, or for the empty text if the annotation is missing. `key` is also a
/// CEL expression.
fn annotation(object: &str, key: &str) -> String {
    format!(
        "(has({object}.metadata.annotations) && {key} in {object}.metadata.annotations \
         ? {object}.metadata.annotations[{key}] : '')"
    )
}

/// A CEL expression for the map in this field of the object, or for an empty map if the field is missing.
fn map(object: &str, field: &str) -> String {
    format!("(has({object}.{field}) ? {object}.{field} : {{}})")
}

/// Whether the maps in this field are equal, except for these keys.
fn unchanged_except(field: &str, keys: &[&str]) -> String {
    let (keys, now, before) = (
        literals(keys),
        map("object", field),
        map("oldObject", field),
    );
    format!(
        "{now}.all(k, k in {keys} || k in {before} && {now}[k] == {before}[k]) \
         && {before}.all(k, k in {keys} || k in {now})"
    )
}

/// Whether the metadata are equal, except for these annotations.
fn metadata_unchanged_except(annotations: &[&str]) -> String {
    let fields = [OF_EACH_WRITE.as_slice(), &["annotations"]].concat();
    format!(
        "{} && {}",
        unchanged_except("metadata", &fields),
        unchanged_except("metadata.annotations", annotations)
    )
}

/// The policy for deletions. It is evaluated for each Cluster in the namespace, and all evaluations must pass.
fn deletion(floor: &Floor) -> Policy {
    let [version, kind] = CLUSTER.map(|text| Some(text.to_owned()));
    let clusters = ParamKind {
        api_version: version,
        kind,
    };
    let all = ParamRef {
        selector: Some(LabelSelector::default()),
        // If the namespace contains no Clusters, the deletion is allowed.
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

/// The policy for node identities. A responder is allowed to revoke and reset node identities, but not to create or
/// delete them, or to change another field.
fn identities(floor: &Floor) -> Policy {
    const MESSAGE: &str = "only the controller and responders can write NodeIdentities";
    let kubernetes = KUBERNETES.map(str::to_owned);
    let by_kubernetes = format!("request.userInfo.username in {}", list(&kubernetes));
    Policy {
        resources: &["nodeidentities", "nodeidentities/status"],
        operations: &["CREATE", "UPDATE", "DELETE"],
        variables: [
            subjects(floor),
            vec![
                ("isKubernetes", by_kubernetes),
                ("isUnchanged", is_unchanged()),
            ],
        ]
        .concat(),
        validations: vec![
            (
                "variables.isExempt || variables.isController || variables.isKubernetes \
                 || variables.isUnchanged || (variables.isResponder && request.operation == 'UPDATE')"
                    .to_owned(),
                MESSAGE,
                format!("'{MESSAGE}'"),
            ),
            of_responder(
                &format!("request.operation != 'UPDATE' || {}", is_act()),
                "responders can only revoke and reset NodeIdentities",
            ),
            named(),
        ],
        audit: vec![(ACT, act())],
        ..policy(IDENTITIES_POLICY)
    }
}

/// Whether an update does not change the object. A storage migration and the rotation of an encryption key write each
/// object again.
///
/// The owners of the fields must also be equal. Otherwise, a tenant could add so many of them that the object becomes
/// too large for a revocation.
fn is_unchanged() -> String {
    format!(
        "request.operation == 'UPDATE' && {} && {} && {} == {}",
        unchanged_except("spec", &[]),
        unchanged_except("metadata", &["resourceVersion"]),
        map("object", "status"),
        map("oldObject", "status"),
    )
}

/// Whether an update only revokes or resets the current generation, or cancels a reset.
fn is_act() -> String {
    let reset = literal(RESET_ANNOTATION);
    let (now, before) = (
        annotation("object", &reset),
        annotation("oldObject", &reset),
    );
    format!(
        "{} && {} && {} == {} \
         && (has(object.spec.revoked) \
         ? object.spec.revoked.generation == object.spec.generation \
         || has(oldObject.spec.revoked) && object.spec.revoked == oldObject.spec.revoked \
         : !has(oldObject.spec.revoked)) \
         && {now} in ['', string({before}), string(object.spec.generation)]",
        unchanged_except("spec", &["revoked"]),
        metadata_unchanged_except(&[RESET_ANNOTATION, CHANGED_BY_ANNOTATION]),
        map("object", "status"),
        map("oldObject", "status"),
    )
}

/// The text about a revocation or a reset for the audit event. The text contains the authenticated user's name.
fn act() -> String {
    let revoked = |object: &str| {
        format!("(has({object}.spec.revoked) ? string({object}.spec.revoked.generation) : '')")
    };
    let reset = literal(RESET_ANNOTATION);
    let text = |verb: &str| {
        format!(
            "'generation ' + string(object.spec.generation) + ' of node ' + object.spec.nodeName + ' was {verb} by ' \
             + request.userInfo.username"
        )
    };
    let changed = |now: &str, before: &str| format!("{now} != '' && {now} != {before}");
    format!(
        "request.operation != 'UPDATE' ? '' : ({}) ? {} : ({}) ? {} : ''",
        changed(&revoked("object"), &revoked("oldObject")),
        text("revoked"),
        changed(
            &annotation("object", &reset),
            &annotation("oldObject", &reset)
        ),
        text("reset"),
    )
}

/// A policy with this name that does not match anything yet.
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
        audit: Vec::new(),
        actions: &["Deny"],
    }
}

/// The variables about the user who sends the request. The lists are the parameters that an operator can also edit in
/// the rendered policies.
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
        (
            "isRestricted",
            "variables.isResponder && !variables.isExempt && !variables.isController".to_owned(),
        ),
    ]
}

/// A list of CEL string literals. A JSON list is valid, because CEL supports the same escape sequences.
fn list(texts: &[String]) -> String {
    json!(texts).to_string()
}

/// A list of CEL string literals, for constants.
fn literals(texts: &[&str]) -> String {
    json!(texts).to_string()
}

/// A CEL string literal.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

#[cfg(test)]
mod tests;
