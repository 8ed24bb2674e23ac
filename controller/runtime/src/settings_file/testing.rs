//! Invalid settings, one for each rule of the schema. Tests use them to compare this parser with an API server.

use serde_json::{Map, Value, json};

/// A change to a valid object that violates one rule.
#[derive(Debug, Clone)]
pub struct Case {
    /// The location of the change, as a JSON pointer.
    pub pointer: &'static str,
    /// The new value. A null removes the field.
    pub value: Value,
    /// The path of the field in the error.
    pub field: &'static str,
    /// The message of the rule, or a part of another message.
    pub message: &'static str,
}

fn case(pointer: &'static str, value: Value, field: &'static str, message: &'static str) -> Case {
    Case {
        pointer,
        value,
        field,
        message,
    }
}

/// A valid `KubeletAuthentication`. Each case changes one location in it.
pub fn valid() -> Value {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthentication",
        "metadata": {"name": "prod-1", "namespace": "default"},
        "spec": {
            "clusterName": "prod-1",
            "authorizedAttestors": ["aws", "tpm"],
            "servingAddressRanges": ["10.0.0.0/8", "2001:db8::/32"],
            "aws": {"requiredTags": {"team": "a"}},
            "tpm": {
                "endorsementKeys": {
                    "allowList": [{"machine": "m-1", "ekSha256": "1".repeat(64)}],
                },
                "pcrPolicy": {"allowed": [{"7": "a".repeat(64)}]},
            },
        },
    })
}

/// The valid object with the change in this case.
pub fn changed(case: &Case) -> Value {
    let mut object = valid();
    let (parent, key) = case.pointer.rsplit_once('/').unwrap_or_default();
    if let Some(Value::Object(fields)) = object.pointer_mut(parent) {
        if case.value.is_null() {
            fields.remove(key);
        } else {
            fields.insert(key.to_owned(), case.value.clone());
        }
    }
    object
}

const UNMEASURED: &str = "if a register from 0 to 7 contains only zeros, the firmware did not extend it, and any \
                          operating system can extend it to any value";

/// States, each with 512 values: 16 registers with the maximum number of values.
pub fn states_with_most_values(count: usize) -> Value {
    let values = vec!["a".repeat(64); 32].join(", ");
    let registers = (0..16).map(|register| (register.to_string(), json!(values)));
    let state: Map<String, Value> = registers.collect();
    json!(vec![state; count])
}

/// The cases. Each rule is violated at least once.
#[expect(clippy::too_many_lines, reason = "it is a table")]
pub fn cases() -> Vec<Case> {
    let bare = |attestor: &str| json!({"clusterName": "prod-1", "authorizedAttestors": [attestor]});
    let with = |attestor: &str, field: &str, value: Value| json!({"clusterName": "prod-1", "authorizedAttestors": [attestor], field: value});
    let key = |field: &str, name: &str| json!([{field: name, "ekSha256": "1".repeat(64)}]);
    vec![
        case(
            "/metadata/name",
            json!("other"),
            "spec.clusterName",
            "must match metadata.name: a Cluster can have only one KubeletAuthentication",
        ),
        case(
            "/spec",
            with("tpm", "aws", json!({})),
            "spec.aws",
            "these settings are for the attestor aws, which is not authorized",
        ),
        case(
            "/spec",
            with("aws", "tpm", json!({})),
            "spec.tpm",
            "these settings are for the attestor tpm, which is not authorized",
        ),
        case(
            "/spec",
            with("insecure", "adoption", json!("Allow")),
            "spec.adoption",
            "Allow requires evidence: for insecure, use AllowWithoutEvidence",
        ),
        case(
            "/spec/adoption",
            json!("AllowWithoutEvidence"),
            "spec.adoption",
            "AllowWithoutEvidence is only for insecure: for other attestors, use Allow",
        ),
        case(
            "/spec",
            with("insecure", "adoption", json!("Recover")),
            "spec.adoption",
            "Recover requires evidence: for insecure, use Refuse or AllowWithoutEvidence",
        ),
        case(
            "/spec",
            json!({
                "clusterName": "prod-1",
                "authorizedAttestors": ["insecure"],
                "guestReportedAddresses": "Allow",
                "servingAddressRanges": ["10.0.0.0/8"],
            }),
            "spec.guestReportedAddresses",
            "nodes that use insecure cannot get serving certificates: use Refuse",
        ),
        case(
            "/spec",
            with("aws", "guestReportedAddresses", json!("Allow")),
            "spec.guestReportedAddresses",
            "without ranges, a node can get a certificate for any address: set servingAddressRanges to the node \
             networks, or use Refuse",
        ),
        case(
            "/spec/certificate",
            json!({"expirationSeconds": 2_592_001}),
            "spec.certificate.expirationSeconds",
            "the maximum is 2592000 (30 days), because certificates with evidence are renewed",
        ),
        case(
            "/spec/tpm",
            json!({"lateProviderIDs": "Allow"}),
            "spec.tpm.lateProviderIDs",
            "Allow has no effect without listed endorsement keys: set allowList or configMaps, or use Refuse",
        ),
        case(
            "/spec/authorizedAttestors",
            json!(["aws", "tpm", "insecure"]),
            "spec.authorizedAttestors",
            "insecure cannot be combined with other attestors, because machines could join without their evidence",
        ),
        case(
            "/spec",
            bare("null"),
            "spec.authorizedAttestors",
            "null approves every request: it is only for tests",
        ),
        case(
            "/spec/servingAddressRanges",
            json!(["10.0.0.0/8", "10.0.0.1/8"]),
            "spec.servingAddressRanges[1]",
            "an address range must have the form <network>/<prefix length>, without host bits, \
             such as 10.0.0.0/8 or 2001:db8::/32",
        ),
        case(
            "/spec/servingAddressRanges",
            json!(["::ffff:10.0.0.0/104"]),
            "spec.servingAddressRanges[0]",
            "an address range must have the form <network>",
        ),
        case(
            "/spec/servingAddressRanges",
            json!(["010.0.0.0/8"]),
            "spec.servingAddressRanges[0]",
            "an address range must have the form <network>",
        ),
        case(
            "/spec/aws/requiredTags",
            json!({"": "a"}),
            "spec.aws.requiredTags",
            "a tag key must have 1 to 128 characters",
        ),
        case(
            "/spec/tpm/endorsementKeys/allowList",
            json!([{"ekSha256": "1".repeat(64)}]),
            "spec.tpm.endorsementKeys.allowList[0]",
            "must contain either machine or providerID",
        ),
        case(
            "/spec/tpm/endorsementKeys/allowList",
            key("providerID", "metal3://"),
            "spec.tpm.endorsementKeys.allowList[0].providerID",
            "must be a provider ID, or a provider ID prefix that ends with '/' and is longer than the scheme",
        ),
        case(
            "/spec/tpm/pcrPolicy/allowed",
            json!([{"24": "a".repeat(64)}]),
            "spec.tpm.pcrPolicy.allowed[0]",
            "a register must be a number from 0 to 23",
        ),
        case(
            "/spec/tpm/pcrPolicy/allowed",
            json!([{"7": "0".repeat(64)}]),
            "spec.tpm.pcrPolicy.allowed[0]",
            UNMEASURED,
        ),
        case(
            "/spec/tpm/pcrPolicy/allowed",
            json!([{"7": "a".repeat(64), "0": format!("{}, {}", "a".repeat(64), "0".repeat(64))}]),
            "spec.tpm.pcrPolicy.allowed[0]",
            UNMEASURED,
        ),
        case(
            "/spec/tpm/pcrPolicy/allowed",
            states_with_most_values(9),
            "spec.tpm.pcrPolicy.allowed",
            "all states together must have at most 4096 values",
        ),
    ]
}

/// Changes that make a value invalid, each of which violates a different keyword of the schema.
pub fn malformed() -> Vec<Case> {
    let certificate = "/spec/certificate";
    let lifetime = |seconds: Value| json!({"expirationSeconds": seconds});
    let field = "spec.certificate.expirationSeconds";
    vec![
        case(certificate, lifetime(json!(599)), field, ""),
        case(certificate, lifetime(json!(31_622_401)), field, ""),
        case(certificate, lifetime(json!("1h")), field, ""),
        case("/spec/clusterName", json!(null), "spec.clusterName", ""),
        case("/spec/adoption", json!("Perhaps"), "spec.adoption", ""),
        case("/spec/audiences", json!([""]), "spec.audiences[0]", ""),
        case("/spec/audiences", json!(["a b"]), "spec.audiences[0]", ""),
        case(
            "/spec/audiences",
            json!(["é".repeat(257)]),
            "spec.audiences[0]",
            "",
        ),
        case(
            "/spec/audiences",
            json!(["a", "b", "a"]),
            "spec.audiences[2]",
            "",
        ),
        case(
            "/spec",
            json!({"clusterName": "prod-1", "authorizedAttestors": []}),
            "spec.authorizedAttestors",
            "",
        ),
        case(
            "/spec/aws/accounts",
            json!([111_122_223_333_u64]),
            "spec.aws.accounts[0]",
            "",
        ),
        case(
            "/spec/aws/rootVolumeCheck",
            json!("no"),
            "spec.aws.rootVolumeCheck",
            "",
        ),
        case(
            "/spec/aws/accounts",
            json!("111122223333"),
            "spec.aws.accounts",
            "",
        ),
        case(
            "/spec/tpm/pcrPolicy/allowed",
            json!([{}]),
            "spec.tpm.pcrPolicy.allowed[0]",
            "",
        ),
        case(
            "/spec/tpm/pcrPolicy/allowed",
            json!([{"7": format!("{},", "a".repeat(64))}]),
            "spec.tpm.pcrPolicy.allowed[0].7",
            "",
        ),
        case(
            "/spec/tpm/pcrPolicy/osSeparator",
            json!("Perhaps"),
            "spec.tpm.pcrPolicy.osSeparator",
            "",
        ),
        case(
            "/spec/tpm/endorsementKeys/allowList",
            json!([
                {"machine": "m-1", "ekSha256": "1".repeat(64)},
                {"machine": "m-2", "ekSha256": "1".repeat(64)},
            ]),
            "spec.tpm.endorsementKeys.allowList[1]",
            "",
        ),
    ]
}
