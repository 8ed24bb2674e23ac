//! Fields from earlier builds, with their replacements.

use kubelet_attestation::page_url;

/// The removed fields, each with its replacement.
pub(super) const REMOVED: &[(&str, &str)] = &[
    (
        "spec.certificate.insecureExpirationSeconds",
        "set spec.certificate.expirationSeconds, whose default and maximum depend on the attestor",
    ),
    (
        "spec.builtInRenewal",
        "if the value is ControlPlane, set exemptNodes: [ControlPlane] instead; otherwise, remove the field",
    ),
    (
        "spec.reenrolment",
        "remove the field: a machine that lost its certificate can always get a new certificate with evidence \
         while its Node is down",
    ),
    (
        "spec.nameReuse",
        concat!(
            "remove the field; to find out when another machine can get a node name, see ",
            page_url!("architecture.md#one-behavior-for-each-policy")
        ),
    ),
    (
        "spec.staleNodes",
        "remove the field: the controller always deletes the Node of the previous holder of a name",
    ),
    (
        "spec.tpm.pcrPolicy.mode",
        "remove the field: the controller enforces the states in allowed; if allowed is empty, it accepts and logs \
         every state",
    ),
    (
        "spec.tpm.pcrPolicy.bank",
        "remove the field: only the SHA-256 bank is supported",
    ),
];

/// The replacement for a removed field.
pub(super) fn replacement(field: &str) -> Option<&'static str> {
    REMOVED
        .iter()
        .find(|(removed, _)| *removed == field)
        .map(|(_, replacement)| *replacement)
}
