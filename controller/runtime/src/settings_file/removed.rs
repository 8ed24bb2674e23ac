//! Fields from earlier builds, with their replacements.

use kubelet_attestation::page_url;

/// The removed fields, each with its replacement.
const REMOVED: &[(&str, &str)] = &[
    (
        "spec.certificate.insecureExpirationSeconds",
        "set spec.certificate.expirationSeconds, whose default and maximum depend on the attestor",
    ),
    (
        "spec.builtInRenewal",
        "for ControlPlane, set exemptNodes: [ControlPlane]; otherwise, remove it",
    ),
    (
        "spec.reenrolment",
        "remove it: a machine gets a new certificate with evidence while its Node is down",
    ),
    (
        "spec.nameReuse",
        concat!(
            "remove it; to find out when another machine can get a node name, see ",
            page_url!("architecture.md#one-behavior-for-each-policy")
        ),
    ),
    (
        "spec.staleNodes",
        "remove it: the controller deletes the Node of the previous holder of a name",
    ),
    (
        "spec.tpm.pcrPolicy.mode",
        "remove it: a policy enforces the values in allowed; without values, it only records",
    ),
    (
        "spec.tpm.pcrPolicy.bank",
        "remove it: the length of the values in allowed determines the bank",
    ),
];

/// The replacement for a removed field.
pub(super) fn replacement(field: &str) -> Option<&'static str> {
    REMOVED
        .iter()
        .find(|(removed, _)| *removed == field)
        .map(|(_, replacement)| *replacement)
}
