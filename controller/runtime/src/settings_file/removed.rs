//! Fields of earlier builds, with their replacements.

/// The removed fields, each with the replacement.
const REMOVED: &[(&str, &str)] = &[
    (
        "spec.certificate.insecureExpirationSeconds",
        "write spec.certificate.expirationSeconds, whose default and maximum depend on the attestor",
    ),
    (
        "spec.reenrolment",
        "remove it: a machine gets a new certificate by evidence while its Node is down",
    ),
    (
        "spec.nameReuse",
        "remove it: docs/architecture.md describes when another machine gets a node name",
    ),
    (
        "spec.staleNodes",
        "remove it: the controller deletes the Node that a previous holder of a name left behind",
    ),
    (
        "spec.tpm.pcrPolicy.mode",
        "remove it: a policy with values in allowed enforces them, and a policy without values records",
    ),
    (
        "spec.tpm.pcrPolicy.bank",
        "remove it: the length of the values in allowed names the bank",
    ),
];

/// The replacement of a removed field.
pub(super) fn replacement(field: &str) -> Option<&'static str> {
    REMOVED
        .iter()
        .find(|(removed, _)| *removed == field)
        .map(|(_, replacement)| *replacement)
}
