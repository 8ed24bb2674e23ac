//! Admission policies as objects.

use futures::future::FutureExt as _;
use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, MatchCondition, MatchResources, NamedRuleWithOperations, ParamKind, ParamRef,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation, Variable,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Client;

use super::access::{HardeningError, put};

/// A policy, and its binding, which has the same name.
#[expect(
    clippy::struct_field_names,
    reason = "failurePolicy is Kubernetes' name"
)]
pub(super) struct Policy {
    pub(super) name: &'static str,
    /// The API group that the policy matches, in any version.
    pub(super) group: &'static str,
    /// The resources that the policy matches, in any scope.
    pub(super) resources: &'static [&'static str],
    /// The operations that the policy matches.
    pub(super) operations: &'static [&'static str],
    /// The failure policy, which applies to a request that cannot be evaluated.
    pub(super) failure_policy: &'static str,
    /// The kind of the parameters, and a reference to the parameter objects.
    pub(super) params: Option<(ParamKind, ParamRef)>,
    /// The match conditions: names and expressions.
    pub(super) conditions: Vec<(&'static str, String)>,
    /// The variables: names and expressions.
    pub(super) variables: Vec<(&'static str, String)>,
    /// The validations: an expression, the message for a request that violates it, and an expression for a more
    /// detailed message.
    pub(super) validations: Vec<(String, &'static str, String)>,
    /// The annotations on the API server's audit event: keys and expressions. An empty text adds no annotation.
    pub(super) audit: Vec<(&'static str, String)>,
    /// The actions on a request that fails a validation.
    pub(super) actions: &'static [&'static str],
}

impl Policy {
    /// Applies the policy, and then its binding. Returns whether one of them was written.
    pub(super) async fn apply(self, client: &Client) -> Result<bool, HardeningError> {
        let param_ref = self.params.as_ref().map(|(_, object)| object.clone());
        let binding = binding(self.name, param_ref, self.actions);
        let policy = self.policy();
        let policy = put(client, &policy, |found, wanted| found.spec == wanted.spec);
        let policy = policy.boxed().await?;
        let binding = put(client, &binding, |found, wanted| found.spec == wanted.spec);
        let binding = binding.boxed().await?;
        Ok(policy || binding)
    }

    /// Returns the policy object, including the API server's defaults, because it is compared with the stored object.
    pub(super) fn policy(self) -> ValidatingAdmissionPolicy {
        let resources = self.resources.iter().map(ToString::to_string);
        let operations = self.operations.iter().map(ToString::to_string);
        let rule = NamedRuleWithOperations {
            api_groups: Some(vec![self.group.to_owned()]),
            api_versions: Some(vec!["*".to_owned()]),
            operations: Some(operations.collect()),
            resources: Some(resources.collect()),
            scope: Some("*".to_owned()),
            ..NamedRuleWithOperations::default()
        };
        let about = MatchResources {
            resource_rules: Some(vec![rule]),
            match_policy: Some("Equivalent".to_owned()),
            namespace_selector: Some(LabelSelector::default()),
            object_selector: Some(LabelSelector::default()),
            ..MatchResources::default()
        };
        let conditions = self.conditions.into_iter();
        let conditions = conditions.map(|(name, expression)| MatchCondition {
            name: name.to_owned(),
            expression,
        });
        let conditions: Vec<_> = conditions.collect();
        let variables = self.variables.into_iter();
        let variables = variables.map(|(name, expression)| Variable {
            name: name.to_owned(),
            expression,
        });
        let validations = self.validations.into_iter();
        let validations = validations.map(|(expression, message, better)| Validation {
            expression,
            message: Some(message.to_owned()),
            message_expression: Some(better),
            // The default reason would report that the object is invalid.
            reason: Some("Forbidden".to_owned()),
        });
        let audit = self.audit.into_iter();
        let audit = audit.map(|(key, expression)| AuditAnnotation {
            key: key.to_owned(),
            value_expression: expression,
        });
        let audit: Vec<_> = audit.collect();
        let spec = ValidatingAdmissionPolicySpec {
            audit_annotations: (!audit.is_empty()).then_some(audit),
            failure_policy: Some(self.failure_policy.to_owned()),
            param_kind: self.params.map(|(kind, _)| kind),
            match_constraints: Some(about),
            match_conditions: (!conditions.is_empty()).then_some(conditions),
            variables: Some(variables.collect()),
            validations: Some(validations.collect()),
        };
        ValidatingAdmissionPolicy {
            metadata: named(self.name),
            spec: Some(spec),
            ..ValidatingAdmissionPolicy::default()
        }
    }
}

/// Returns the binding for the policy, with the same name.
pub(super) fn binding(
    name: &str,
    param_ref: Option<ParamRef>,
    actions: &[&str],
) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: named(name),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(name.to_owned()),
            validation_actions: Some(actions.iter().map(ToString::to_string).collect()),
            param_ref,
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}
