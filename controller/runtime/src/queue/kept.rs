//! The stored form of a request, and the memory that it uses.

use std::collections::BTreeMap;
use std::mem::size_of;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kubelet_attestation::evidence::tpm::ENDORSEMENT_KEY_ANNOTATION;

/// The memory for an allocation in addition to its contents.
const ALLOCATION: usize = 16;

/// The memory for a map with one entry, and for each further entry, without texts.
const MAP: usize = 640;
const MAP_ENTRY: usize = 128;

/// Removes the fields of a request that are never used. An update that omits these fields does not change them, because
/// the API server restores `spec`.
pub(crate) fn lean(mut csr: CertificateSigningRequest) -> CertificateSigningRequest {
    csr.metadata.managed_fields = None;
    csr.spec.extra = None;
    csr
}

/// Whether the request has only metadata that is used. An answer would delete other metadata, because the answer would
/// not contain it.
pub(super) fn has_no_other_metadata(csr: &CertificateSigningRequest) -> bool {
    let ObjectMeta {
        annotations,
        finalizers,
        labels,
        owner_references,
        ..
    } = &csr.metadata;
    let mut names = annotations.iter().flat_map(BTreeMap::keys);
    names.all(|name| name == ENDORSEMENT_KEY_ANNOTATION)
        && finalizers.as_ref().is_none_or(Vec::is_empty)
        && labels.as_ref().is_none_or(BTreeMap::is_empty)
        && owner_references.as_ref().is_none_or(Vec::is_empty)
}

/// The memory that the request uses, including all of its values.
pub(crate) fn memory(csr: &CertificateSigningRequest) -> usize {
    let status = csr.status.as_ref().map_or(0, of_status);
    size_of::<CertificateSigningRequest>()
        + of_metadata(&csr.metadata)
        + of_spec(&csr.spec)
        + status
}

fn of_metadata(metadata: &ObjectMeta) -> usize {
    let ObjectMeta {
        annotations,
        finalizers,
        generate_name,
        labels,
        name,
        namespace,
        owner_references,
        resource_version,
        self_link,
        uid,
        ..
    } = metadata;
    let texts = [
        generate_name,
        name,
        namespace,
        resource_version,
        self_link,
        uid,
    ];
    let maps = annotations.iter().chain(labels);
    texts.into_iter().flatten().map(text).sum::<usize>()
        + maps.map(|all| of_map(all, text)).sum::<usize>()
        + of_list(finalizers.as_deref(), text)
        + of_list(owner_references.as_deref(), of_owner)
}

fn of_owner(owner: &OwnerReference) -> usize {
    let OwnerReference {
        api_version,
        kind,
        name,
        uid,
        ..
    } = owner;
    [api_version, kind, name, uid].into_iter().map(text).sum()
}

fn of_spec(spec: &CertificateSigningRequestSpec) -> usize {
    let CertificateSigningRequestSpec {
        expiration_seconds: _,
        extra,
        groups,
        request,
        signer_name,
        uid,
        usages,
        username,
    } = spec;
    let extra = extra
        .as_ref()
        .map_or(0, |all| of_map(all, |values| of_list(Some(values), text)));
    let texts = [Some(signer_name), uid.as_ref(), username.as_ref()];
    texts.into_iter().flatten().map(text).sum::<usize>()
        + of_list(groups.as_deref(), text)
        + of_list(usages.as_deref(), text)
        + extra
        + ALLOCATION
        + request.0.len()
}

fn of_status(status: &CertificateSigningRequestStatus) -> usize {
    let CertificateSigningRequestStatus {
        certificate,
        conditions,
    } = status;
    let certificate = certificate.as_ref().map_or(0, |pem| pem.0.len());
    ALLOCATION + certificate + of_list(conditions.as_deref(), of_condition)
}

fn of_condition(condition: &CertificateSigningRequestCondition) -> usize {
    let CertificateSigningRequestCondition {
        message,
        reason,
        status,
        type_,
        ..
    } = condition;
    let texts = [Some(status), Some(type_), message.as_ref(), reason.as_ref()];
    texts.into_iter().flatten().map(text).sum()
}

fn text<T: AsRef<str>>(text: &T) -> usize {
    text.as_ref().len() + ALLOCATION
}

/// The memory for a list, whose capacity can be twice its length.
fn of_list<T>(all: Option<&[T]>, of_one: impl Fn(&T) -> usize) -> usize {
    let element = |one| 2 * size_of::<T>() + of_one(one);
    all.map_or(0, |all| ALLOCATION + all.iter().map(element).sum::<usize>())
}

fn of_map<T>(all: &BTreeMap<String, T>, of_value: impl Fn(&T) -> usize) -> usize {
    let entry = |(key, value): (&String, &T)| MAP_ENTRY + text(key) + of_value(value);
    let entries: usize = all.iter().map(entry).sum();
    if all.is_empty() { 0 } else { MAP + entries }
}

#[cfg(test)]
mod tests;
