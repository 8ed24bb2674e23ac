//! Settings of a `KubeletAuthentication` that contradict each other, or have no effect together.
//!
//! The API server refuses them by the rules in its schema. An object that was stored under an earlier
//! schema can have them too, so [`KubeletAuthenticationSpec::check`] refuses the same.

use kubelet_attestation::names::Provider;
use serde_json::Value;

use super::kubelet_authentication::{Adoption, GuestReportedAddresses, KubeletAuthenticationSpec};
use super::schema::rule_at;
use super::tpm::{EndorsementKeyPlatform, LateProviderIds, TpmSettings};
use crate::lifetimes::MAX_ATTESTED_SECONDS;

/// Settings that are refused together.
struct Combination {
    /// The field to blame, below `spec`.
    field: &'static str,
    /// The rule for the API server, in CEL. It holds for accepted objects.
    rule: &'static str,
    /// The reason, and the cure.
    message: &'static str,
    /// The rule for the controller. It holds for refused objects.
    is_refused: fn(&KubeletAuthenticationSpec) -> bool,
}

const COMBINATIONS: &[Combination] = &[
    Combination {
        field: ".aws",
        rule: "!has(self.aws) || 'aws' in self.authorizedAttestors \
               || (has(self.tpm) && self.tpm.endorsementKeys.platform == 'aws')",
        message: "these settings are of the attestor aws, which is not authorized",
        is_refused: |spec| {
            spec.aws.is_some() && !spec.authorizes(&Provider::AWS) && !asks_ec2_for_keys(spec)
        },
    },
    Combination {
        field: ".tpm",
        rule: "!has(self.tpm) || 'tpm' in self.authorizedAttestors",
        message: "these settings are of the attestor tpm, which is not authorized",
        is_refused: |spec| spec.tpm.is_some() && !spec.authorizes(&Provider::TPM),
    },
    Combination {
        field: ".aws",
        rule: "!has(self.aws) || !has(self.tpm) || self.tpm.endorsementKeys.platform != 'aws' \
               || (size(self.aws.accounts) == 0 && size(self.aws.requiredTags) == 0)",
        message: "the attestor tpm does not check accounts and requiredTags: remove them, or do not set \
                  tpm.endorsementKeys.platform to aws",
        is_refused: |spec| {
            let is_limited = spec
                .aws
                .as_ref()
                .is_some_and(|aws| !aws.accounts.is_empty() || !aws.required_tags.is_empty());
            is_limited && asks_ec2_for_keys(spec)
        },
    },
    Combination {
        field: ".tpm.lateProviderIDs",
        rule: "!has(self.tpm) || self.tpm.lateProviderIDs != 'Allow' \
               || size(self.tpm.endorsementKeys.allowList) > 0 \
               || size(self.tpm.endorsementKeys.configMaps) > 0",
        message: "Allow has no effect without listed endorsement keys: set allowList or configMaps, or \
                  Refuse",
        is_refused: |spec| spec.tpm.as_ref().is_some_and(is_late_without_list),
    },
    Combination {
        field: ".adoption",
        rule: "self.adoption != 'Allow' || !('insecure' in self.authorizedAttestors)",
        message: "Allow needs evidence, and insecure has none: the value for it is AllowWithoutEvidence",
        is_refused: |spec| spec.adoption == Adoption::Allow && spec.is_insecure(),
    },
    Combination {
        field: ".adoption",
        rule: "self.adoption != 'AllowWithoutEvidence' || 'insecure' in self.authorizedAttestors",
        message: "AllowWithoutEvidence is for insecure: the other attestors have evidence, and Allow",
        is_refused: |spec| spec.adoption == Adoption::AllowWithoutEvidence && !spec.is_insecure(),
    },
    Combination {
        field: ".guestReportedAddresses",
        rule: "self.guestReportedAddresses != 'Allow' || !('insecure' in self.authorizedAttestors)",
        message: "insecure gets no serving certificates, for any address",
        is_refused: |spec| trusts_guests(spec) && spec.is_insecure(),
    },
    Combination {
        field: ".guestReportedAddresses",
        rule: "self.guestReportedAddresses != 'Allow' || size(self.servingAddressRanges) > 0",
        message: "without ranges, a node can get a certificate for any address: set servingAddressRanges \
                  to the networks of the nodes, or Refuse",
        is_refused: |spec| trusts_guests(spec) && spec.serving_address_ranges.is_empty(),
    },
    Combination {
        field: ".certificate.expirationSeconds",
        rule: "'insecure' in self.authorizedAttestors || !has(self.certificate.expirationSeconds) \
               || self.certificate.expirationSeconds <= 2592000",
        message: "the maximum is 2592000 (30 days): with evidence, certificates are renewed",
        is_refused: |spec| {
            let seconds = spec.certificate.expiration_seconds;
            !spec.is_insecure() && seconds.is_some_and(|seconds| seconds > MAX_ATTESTED_SECONDS)
        },
    },
];

fn asks_ec2_for_keys(spec: &KubeletAuthenticationSpec) -> bool {
    let keys = spec.tpm.as_ref().map(|tpm| tpm.endorsement_keys.platform);
    keys == Some(EndorsementKeyPlatform::Aws)
}

fn is_late_without_list(tpm: &TpmSettings) -> bool {
    let keys = &tpm.endorsement_keys;
    let has_list = !keys.allow_list.is_empty() || !keys.config_maps.is_empty();
    tpm.late_provider_ids == LateProviderIds::Allow && !has_list
}

fn trusts_guests(spec: &KubeletAuthenticationSpec) -> bool {
    spec.guest_reported_addresses == GuestReportedAddresses::Allow
}

/// The rules for the API server.
pub(super) fn rules() -> Vec<Value> {
    let rules = COMBINATIONS.iter();
    rules
        .map(|one| rule_at(one.field, one.rule, one.message))
        .collect()
}

/// Settings of a spec that are refused together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("spec{field}: {message}. Until it is corrected, no request of the Cluster is answered")]
pub struct InvalidSettings {
    field: &'static str,
    message: &'static str,
}

impl KubeletAuthenticationSpec {
    /// Checks what the API server checks when the object is written.
    ///
    /// # Errors
    ///
    /// Settings contradict each other, or have no effect together.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        match COMBINATIONS.iter().find(|one| (one.is_refused)(self)) {
            Some(&Combination { field, message, .. }) => Err(InvalidSettings { field, message }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
