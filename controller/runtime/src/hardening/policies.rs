//! Admission policies as objects.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Client;
use kube::api::Api;

use super::access::{ApplyOutcome, HardeningError, call, delete_if_there, put};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";

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

pub(super) async fn put_policy(
    client: &Client,
    policy: &ValidatingAdmissionPolicy,
) -> Result<ApplyOutcome, HardeningError> {
    let api = Api::all(client.clone());
    put(&api, POLICIES, policy, |found, wanted| {
        found.spec == wanted.spec
    })
    .await
}

pub(super) async fn put_binding(
    client: &Client,
    binding: &ValidatingAdmissionPolicyBinding,
) -> Result<ApplyOutcome, HardeningError> {
    let api = Api::all(client.clone());
    put(&api, BINDINGS, binding, |found, wanted| {
        found.spec == wanted.spec
    })
    .await
}

pub(super) async fn delete_policy(client: &Client, name: &str) -> Result<(), HardeningError> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    delete_if_there(&api, POLICIES, name).await.map(|_| ())
}

pub(super) async fn binding(
    client: &Client,
    name: &str,
) -> Result<Option<ValidatingAdmissionPolicyBinding>, HardeningError> {
    let api: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let found = api.get_opt(name);
    call("get", format!("{BINDINGS}/{name}"), found).await
}

pub(super) async fn has_binding(client: &Client, name: &str) -> Result<bool, HardeningError> {
    let api: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let found = api.get_metadata_opt(name);
    let found = call("get", format!("{BINDINGS}/{name}"), found).await?;
    Ok(found.is_some())
}

/// Whether it was there.
pub(super) async fn delete_binding(client: &Client, name: &str) -> Result<bool, HardeningError> {
    let api: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    delete_if_there(&api, BINDINGS, name).await
}
