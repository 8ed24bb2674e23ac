//! The rules for custom resources, and for all objects with finalizers.

use serde_json::{Value, json};

use super::resource::Resource;
use super::status::{FieldError, Refusal};
use super::timestamp;
use crate::clock::now;

/// Sets the fields of a new object that an API server sets.
pub(super) fn prepare_new(resource: &Resource, object: &mut Value) {
    if resource.subresources.contains(&"status")
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    object["metadata"]["generation"] = json!(1);
}

/// Rejects the replacement of a custom resource with an object that does not contain a `resourceVersion`.
pub(super) fn check_replacement(resource: &Resource, object: &Value) -> Result<(), Refusal> {
    let metadata = &object["metadata"];
    if !resource.custom || metadata["resourceVersion"].is_string() {
        return Ok(());
    }
    let why = "must be specified for an update";
    let error = FieldError::invalid("metadata.resourceVersion", "0", why);
    let name = metadata["name"].as_str().unwrap_or_default();
    Err(Refusal::invalid(resource, name, &[error]))
}

/// Prepares `new`, an update of `old`, as kube-apiserver does. An update of the status subresource changes only the
/// status, and other updates change all other fields.
pub(super) fn prepare_update(resource: &Resource, part: &str, old: &Value, new: &mut Value) {
    if part == "status" {
        let status = new["status"].take();
        *new = old.clone();
        set_status(new, status);
        return;
    }
    if resource.subresources.contains(&"status") {
        set_status(new, old["status"].clone());
    }
    let generation = old["metadata"]["generation"].as_u64().unwrap_or_default();
    let generation = generation + u64::from(desired(old) != desired(new));
    new["metadata"]["generation"] = json!(generation);
}

fn set_status(object: &mut Value, status: Value) {
    if status.is_null() {
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
    } else {
        object["status"] = status;
    }
}

/// The part of an object whose changes increment the object's generation.
fn desired(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        for other in ["metadata", "status", "kind", "apiVersion"] {
            fields.remove(other);
        }
    }
    object
}

/// Whether the object's finalizers prevent its deletion.
pub(super) fn is_held(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|finalizers| !finalizers.is_empty())
}

/// Whether only finalizers kept the object, and these finalizers were removed.
pub(super) fn is_released(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string() && !is_held(object)
}

/// The object, marked for deletion.
pub(super) fn marked_for_deletion(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = &mut object["metadata"];
    if metadata["deletionTimestamp"].is_null() {
        metadata["deletionTimestamp"] = timestamp(now()).into();
        metadata["deletionGracePeriodSeconds"] = json!(0);
    }
    object
}
