//! Parts of schemas: limited texts, times, conditions, and CEL rules.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The maximum number of node identities in a `RevokedNodeCredentials`. Together with the maximum number of keys, they
/// are smaller than the limit for an object in etcd (1.5 MiB).
pub const MAX_REVOKED: usize = 10_000;

/// The maximum number of keys in a `RevokedNodeCredentials`. The limit is low because an operator revokes nodes
/// individually. To revoke all nodes of a cluster, the operator raises the lowest valid generation.
pub const MAX_REVOKED_KEYS: usize = 300;

/// A DNS-1123 subdomain, the form of most object names.
pub(super) const SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The name of a Node, or `ControlPlane`.
pub(super) const NODE_OR_CONTROL_PLANE: &str =
    r"^(ControlPlane|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$";
/// A DNS label, the form of an attestation provider's name.
pub(super) const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A SHA-256 digest in hexadecimal digits.
pub(super) const SHA256: &str = "^[0-9a-f]{64}$";
/// One or more SHA-256 digests, separated by commas.
const SHA256_ALTERNATIVES: &str = "^[0-9a-f]{64}(, ?[0-9a-f]{64})*$";
/// The rule that a string is a provider ID: a scheme, and a path that contains a character other than a slash.
pub(super) const IS_PROVIDER_ID: &str = "!has(self.providerID) \
     || self.providerID.matches('^[A-Za-z0-9+.-]+://[!-~]*[!-.0-~][!-~]*$')";
/// Text on one line without spaces.
pub(super) const VISIBLE: &str = "^[!-~]+$";

/// A word with an optional domain prefix, as in `metav1.Condition`.
const CONDITION_TYPE: &str = concat!(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
);

/// A CEL rule, and the message that the API server returns if the rule is false.
pub(super) fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// A rule about several fields. A violation is reported for this field.
pub(super) fn rule_at(field: &str, rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message, "fieldPath": field})
}

/// The rule for a field that cannot be changed after creation.
pub(super) fn immutable() -> Value {
    rule("self == oldSelf", "cannot be changed")
}

/// A time, in RFC 3339.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// `metav1.Condition`, at most one for each type.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "The time when the status last changed.",
                    "type": "string", "format": "date-time",
                },
                "message": {
                    "description": "The message for operators. It can be empty.",
                    "type": "string", "maxLength": 32768,
                },
                "observedGeneration": {
                    "description": "The metadata.generation that the condition describes.",
                    "type": "integer", "format": "int64", "minimum": 0,
                },
                "reason": {
                    "description": "The reason, in one CamelCase word.",
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {
                    "description": "The status: True, False or Unknown.",
                    "type": "string", "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "The type of the condition.",
                    "type": "string", "minLength": 1, "maxLength": 316,
                    "pattern": CONDITION_TYPE,
                },
            },
        },
    })
}

/// Address ranges in CIDR notation, in the format that `serving::AddressRange` accepts.
pub(super) fn address_ranges(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            // The length of the longest IPv6 range.
            "maxLength": 43,
            "x-kubernetes-validations": [rule(
                // The CEL functions require Kubernetes 1.31. The project requires 1.33.
                "isCIDR(self) && cidr(self) == cidr(self).masked()",
                "an address range must have the form <network>/<prefix length>, without host bits, such as \
                 10.0.0.0/8 or 2001:db8::/32",
            )],
        },
    })
}

/// Sets of PCR values in the SHA-256 bank. No set is empty.
pub(super) fn pcr_sets(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 32,
        "items": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 24,
            // The length of 32 digests.
            "additionalProperties": {"type": "string", "maxLength": 2110, "pattern": SHA256_ALTERNATIVES},
            "x-kubernetes-validations": [
                rule(
                    "self.all(index, index.matches('^([0-9]|1[0-9]|2[0-3])$'))",
                    "a register must be a number from 0 to 23",
                ),
                rule(
                    "self.all(index, !index.matches('^[0-7]$') || !self[index].matches('(^|[^0-9a-f])0+(,|$)'))",
                    "if a register from 0 to 7 contains only zeros, the firmware did not extend it, and any operating \
                     system can extend it to any value",
                ),
            ],
        },
        "x-kubernetes-validations": [rule(
            // The length of 4,096 digests with their separators. The controller keeps each policy in memory.
            "self.map(state, state.map(index, size(state[index])).sum()).sum() <= 270336",
            "all states together must have at most 4096 values",
        )],
    })
}

/// Tags of a cloud resource, with the limits of EC2.
pub(super) fn tags(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 50,
        "additionalProperties": {"type": "string", "maxLength": 256},
        "x-kubernetes-validations": [rule(
            "self.all(key, size(key) >= 1 && size(key) <= 128)",
            "a tag key must have 1 to 128 characters",
        )],
    })
}

/// Returns the schema of the revoked generations, keyed by the UID of the node identity.
pub(super) fn revoked(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_REVOKED,
        // Only the controller writes the map, and it always writes the whole map. Without `atomic`, the API server
        // would store a field manager for each entry.
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": {
            "type": "object",
            "required": ["lowestValidGeneration", "until"],
            "properties": {
                "lowestValidGeneration": {
                    "description": "The lowest valid generation.",
                    "type": "integer", "format": "int64", "minimum": 2,
                },
                "until": {
                    "description": "The expiry time of the last certificate from an earlier generation. The \
                     controller removes the entry after this time.",
                    "type": "string", "format": "date-time", "maxLength": 32,
                },
            },
        },
        "x-kubernetes-validations": [rule(
            "self.all(uid, uid.matches('^[0-9a-f]{32}$'))",
            "a record's UID must have 32 lower-case hexadecimal digits",
        )],
    })
}

/// Returns the schema of the revoked keys, keyed by digest.
pub(super) fn revoked_keys(_: &mut SchemaGenerator) -> Schema {
    let time = |description: &str| {
        json!({
            "description": description,
            "type": "string", "format": "date-time", "maxLength": 32,
        })
    };
    json_schema!({
        "type": "object",
        "maxProperties": MAX_REVOKED_KEYS,
        "x-kubernetes-map-type": "atomic",
        "additionalProperties": {
            "type": "object",
            "required": ["nodeName", "generation", "revokedAt", "until"],
            "properties": {
                "nodeName": {
                    "description": "The name of the Node.",
                    "type": "string", "minLength": 1, "maxLength": 253,
                },
                "generation": {
                    "description": "The generation that the key opened.",
                    "type": "integer", "format": "int64", "minimum": 1,
                },
                "providerID": {
                    "description": "The provider ID of the machine. The machine does not get a certificate until an \
                     operator releases the machine.",
                    "type": "string", "minLength": 1, "maxLength": 512,
                },
                "revokedAt": time("The time of the revocation."),
                "until": time("The expiry of the last certificate. The controller removes the entry after this time."),
            },
        },
        "x-kubernetes-validations": [rule(
            "self.all(key, key.matches('^[0-9a-f]{64}$'))",
            "the name of a key must be its SHA-256 digest, in lower-case hexadecimal digits",
        )],
    })
}
