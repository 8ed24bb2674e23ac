//! Settings of a `KubeletAuthentication` that contradict each other, or have no effect in combination.
//!
//! The rules are in the schema, and the API server applies them to each write. The controller also evaluates the rules,
//! because an object that the API server accepted with an earlier schema can violate them.

use serde_json::Value;

use super::schema::rule_at;

/// The rules. Each has the path of the invalid field below `spec`, the CEL rule, and a message with the reason and the
/// fix. The rule evaluates to true for a valid object.
const COMBINATIONS: &[(&str, &str, &str)] = &[
    (
        ".aws",
        "!has(self.aws) || 'aws' in self.authorizedAttestors \
         || (has(self.tpm) && self.tpm.endorsementKeys.platform == 'aws')",
        "these settings are for the attestor aws, which is not authorized",
    ),
    (
        ".tpm",
        "!has(self.tpm) || 'tpm' in self.authorizedAttestors",
        "these settings are for the attestor tpm, which is not authorized",
    ),
    (
        ".tpm.lateProviderIDs",
        "!has(self.tpm) || self.tpm.lateProviderIDs != 'Allow' \
         || size(self.tpm.endorsementKeys.allowList) > 0 \
         || size(self.tpm.endorsementKeys.configMaps) > 0",
        "Allow has no effect without listed endorsement keys: set allowList or configMaps, or use Refuse",
    ),
    (
        ".adoption",
        "!has(self.adoption) || self.adoption != 'Allow' || !('insecure' in self.authorizedAttestors)",
        "Allow requires evidence: for insecure, use AllowWithoutEvidence",
    ),
    (
        ".adoption",
        "!has(self.adoption) || self.adoption != 'AllowWithoutEvidence' \
         || 'insecure' in self.authorizedAttestors",
        "AllowWithoutEvidence is only for insecure: for other attestors, use Allow",
    ),
    (
        ".adoption",
        "!has(self.adoption) || self.adoption != 'Recover' \
         || !('insecure' in self.authorizedAttestors)",
        "Recover requires evidence: for insecure, use Refuse or AllowWithoutEvidence",
    ),
    (
        ".guestReportedAddresses",
        "self.guestReportedAddresses != 'Allow' || !('insecure' in self.authorizedAttestors)",
        "nodes that use insecure cannot get serving certificates: use Refuse",
    ),
    (
        ".guestReportedAddresses",
        "self.guestReportedAddresses != 'Allow' || size(self.servingAddressRanges) > 0",
        "without ranges, a node can get a certificate for any address: set servingAddressRanges to the node networks, \
         or use Refuse",
    ),
    (
        ".certificate.expirationSeconds",
        "'insecure' in self.authorizedAttestors || !has(self.certificate.expirationSeconds) \
         || self.certificate.expirationSeconds <= 2592000",
        "the maximum is 2592000 (30 days), because certificates with evidence are renewed",
    ),
];

pub(super) fn rules() -> Vec<Value> {
    let rules = COMBINATIONS.iter();
    rules
        .map(|(field, rule, message)| rule_at(field, rule, message))
        .collect()
}
