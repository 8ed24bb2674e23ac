//! Admission policies as objects.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
    ValidatingAdmissionPolicySpec, Validation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Client;

use super::access::{ApplyOutcome, HardeningError, put};

/// Puts the policy, and then its binding; what became of the policy, or else of the binding.
pub(super) async fn apply(
    client: &Client,
    policy: &ValidatingAdmissionPolicy,
    binding: &ValidatingAdmissionPolicyBinding,
) -> Result<ApplyOutcome, HardeningError> {
    let policy = put(client, policy, |found, wanted| found.spec == wanted.spec).await?;
    let binding = put(client, binding, |found, wanted| found.spec == wanted.spec).await?;
    Ok(if policy == ApplyOutcome::Unchanged {
        binding
    } else {
        policy
    })
}

pub(super) fn named_policy(
    name: &str,
    spec: ValidatingAdmissionPolicySpec,
) -> ValidatingAdmissionPolicy {
    ValidatingAdmissionPolicy {
        metadata: named(name),
        spec: Some(spec),
        ..ValidatingAdmissionPolicy::default()
    }
}

/// The binding of the policy of the same name.
pub(super) fn named_binding(
    name: &str,
    actions: &[&str],
    spec: ValidatingAdmissionPolicyBindingSpec,
) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: named(name),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(name.to_owned()),
            validation_actions: Some(actions.iter().map(ToString::to_string).collect()),
            ..spec
        }),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

/// What a policy is about, in any version and scope. What the API server fills in is written out:
/// what is read back is compared with what was meant.
pub(super) fn matching(group: &str, resource: &str, operation: &str) -> MatchResources {
    let only = |text: &str| Some(vec![text.to_owned()]);
    MatchResources {
        resource_rules: Some(vec![NamedRuleWithOperations {
            api_groups: only(group),
            api_versions: only("*"),
            operations: only(operation),
            resources: only(resource),
            scope: Some("*".to_owned()),
            ..NamedRuleWithOperations::default()
        }]),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        ..MatchResources::default()
    }
}

pub(super) fn condition(name: &str, expression: impl Into<String>) -> MatchCondition {
    MatchCondition {
        name: name.to_owned(),
        expression: expression.into(),
    }
}

pub(super) fn variable(name: &str, expression: impl Into<String>) -> Variable {
    Variable {
        name: name.to_owned(),
        expression: expression.into(),
    }
}

/// Without the reason the requester reads that the object is invalid.
pub(super) fn validation(
    expression: impl Into<String>,
    message: &str,
    message_expression: impl Into<String>,
) -> Validation {
    Validation {
        expression: expression.into(),
        message: Some(message.to_owned()),
        message_expression: Some(message_expression.into()),
        reason: Some("Forbidden".to_owned()),
    }
}
