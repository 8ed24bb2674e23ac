//! Admission policies as objects.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

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

pub(super) fn named_binding(
    name: &str,
    spec: ValidatingAdmissionPolicyBindingSpec,
) -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: named(name),
        spec: Some(spec),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

/// What the API server fills in, written out: what is read back is compared with what was meant.
pub(super) fn matching_everything() -> MatchResources {
    MatchResources {
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        ..MatchResources::default()
    }
}
