//! The `Status` objects with which the API server responds.

use serde_json::{Value, json};

use super::resource::{Resource, Target, qualified};

/// A refusal with the same text as the API server's own refusal.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) body: Value,
}

impl Refusal {
    /// A `Status` that reports a failure.
    pub(super) fn new(code: u16, reason: &str, message: &str, details: Value) -> Self {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        });
        if !details.is_null() {
            body["details"] = details;
        }
        Self { code, body }
    }

    /// The user of the request is unknown.
    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized", Value::Null)
    }

    /// The user does not have permission.
    pub(super) fn forbidden(user: &str, target: &Target) -> Self {
        if target.plural.is_empty() {
            let message = format!(
                "forbidden: User {user:?} cannot {} path {:?}",
                target.verb.as_str(),
                target.path
            );
            return Self::new(403, "Forbidden", &message, json!({}));
        }
        let plural = if target.subresource.is_empty() {
            target.plural.clone()
        } else {
            format!("{}/{}", target.plural, target.subresource)
        };
        let scope = if target.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", target.namespace)
        };
        Self::forbidden_because(
            target,
            &format!(
                "User {user:?} cannot {} resource {plural:?} in API group {:?} {scope}",
                target.verb.as_str(),
                target.group
            ),
        )
    }

    /// Admission or authorization rejects the request, for this reason.
    pub(super) fn forbidden_because(target: &Target, why: &str) -> Self {
        let qualified = qualified(&target.plural, &target.group);
        let name = if target.name.is_empty() {
            String::new()
        } else {
            format!(" {:?}", target.name)
        };
        let details = details(&target.group, &target.plural, &target.name);
        Self::new(
            403,
            "Forbidden",
            &format!("{qualified}{name} is forbidden: {why}"),
            details,
        )
    }

    /// The object does not exist.
    pub(super) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(
            404,
            "NotFound",
            &message,
            details(resource.group, resource.plural, name),
        )
    }

    /// The object already exists.
    pub(super) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(
            409,
            "AlreadyExists",
            &message,
            details(resource.group, resource.plural, name),
        )
    }

    /// The object has changed since the writer read it.
    pub(super) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified()
        );
        Self::new(
            409,
            "Conflict",
            &message,
            details(resource.group, resource.plural, name),
        )
    }

    /// The object violates the rules of its kind.
    pub(super) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        let all: Vec<String> = errors.iter().map(FieldError::to_message).collect();
        let listed = match all.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let kind = qualified(resource.kind, resource.group);
        let causes: Vec<Value> = errors
            .iter()
            .map(|error| {
                json!({
                    "reason": error.reason,
                    "message": error.to_cause(),
                    "field": error.field,
                })
            })
            .collect();
        let mut details = details(resource.group, resource.kind, name);
        details["causes"] = causes.into();
        Self::new(
            422,
            "Invalid",
            &format!("{kind} {name:?} is invalid: {listed}"),
            details,
        )
    }

    /// The request cannot be read.
    pub(super) fn bad_request(message: &str) -> Self {
        Self::new(400, "BadRequest", message, Value::Null)
    }

    /// The history from the requested `resourceVersion` was already deleted, or this `resourceVersion` does not exist
    /// yet.
    pub(super) fn expired(version: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {version} ({oldest})");
        Self::new(410, "Expired", &message, Value::Null)
    }

    /// The patch or object has an unsupported format.
    pub(super) fn unsupported_media_type(content_type: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: \
             application/json, application/merge-patch+json, application/json-patch+json \
             (was {content_type:?})"
        );
        Self::new(415, "UnsupportedMediaType", &message, Value::Null)
    }
}

/// The error for one field.
#[derive(Debug, Clone)]
pub(super) struct FieldError {
    reason: &'static str,
    field: String,
    words: String,
}

impl FieldError {
    pub(super) fn invalid(field: &str, value: &str, why: &str) -> Self {
        let words = format!("Invalid value: {value}: {why}");
        Self {
            reason: "FieldValueInvalid",
            field: field.into(),
            words,
        }
    }

    pub(super) fn required(field: &str, why: &str) -> Self {
        let words = if why.is_empty() {
            "Required value".into()
        } else {
            format!("Required value: {why}")
        };
        Self {
            reason: "FieldValueRequired",
            field: field.into(),
            words,
        }
    }

    pub(super) fn duplicate(field: &str, value: &str) -> Self {
        let words = format!("Duplicate value: {value:?}");
        Self {
            reason: "FieldValueDuplicate",
            field: field.into(),
            words,
        }
    }

    pub(super) fn not_supported(field: &str, value: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let words = format!(
            "Unsupported value: {value:?}: supported values: {}",
            supported.join(", ")
        );
        Self {
            reason: "FieldValueNotSupported",
            field: field.into(),
            words,
        }
    }

    pub(super) fn forbidden(field: &str, why: &str) -> Self {
        let words = format!("Forbidden: {why}");
        Self {
            reason: "FieldValueForbidden",
            field: field.into(),
            words,
        }
    }

    fn to_message(&self) -> String {
        format!("{}: {}", self.field, self.words)
    }

    fn to_cause(&self) -> String {
        self.words.clone()
    }
}

/// The `details` of a `Status`, without empty fields.
pub(super) fn details(group: &str, kind: &str, name: &str) -> Value {
    let mut details = json!({"kind": kind});
    for (key, value) in [("name", name), ("group", group)] {
        if !value.is_empty() {
            details[key] = value.into();
        }
    }
    details
}
