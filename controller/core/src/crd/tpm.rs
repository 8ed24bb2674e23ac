//! Settings of the attestation provider `tpm`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, rule, rule_at};

/// An allowed state of a machine's PCRs: each index with its value, or with alternative values separated by commas.
pub type PcrSet = BTreeMap<String, String>;

/// Settings of the attestation provider `tpm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TpmSettings {
    /// The TPMs of machines, in addition to those in provider IDs (`tpm://<digest>`).
    pub endorsement_keys: EndorsementKeys,
    /// The allowed boot states of machines, as values of their platform configuration registers (PCRs).
    pub pcr_policy: PcrPolicy,
    /// Whether a machine can join before its infrastructure provider sets its provider ID. `Allow` requires that
    /// allowList or configMaps contains the endorsement key of the machine.
    #[serde(rename = "lateProviderIDs")]
    pub late_provider_ids: LateProviderIds,
}

/// Whether a machine can join before its infrastructure provider sets its provider ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum LateProviderIds {
    /// The machine waits.
    #[default]
    Refuse,
    /// The bootstrap token identifies the Machine. Its endorsement key must be listed for this Machine, or for the
    /// claimed provider ID. If the infrastructure provider sets a different provider ID, the node identity is retired
    /// and its certificate revoked.
    Allow,
}

/// The TPMs of machines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndorsementKeys {
    /// The cloud whose API reports the endorsement key of an instance.
    pub platform: EndorsementKeyPlatform,
    /// CA certificates, as PEM. One of these CAs must have signed the endorsement key certificate directly, or through
    /// intermediate certificates. This is an additional check, because a genuine TPM can still belong to another
    /// machine.
    #[serde(rename = "requireCA")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 16_384),
            regex(pattern = "^-----BEGIN CERTIFICATE-----")
        )
    )]
    pub require_ca: Vec<String>,
    /// Machines and their endorsement keys, one entry for each key.
    #[schemars(
        length(max = 512),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["ekSha256"],
        )
    )]
    pub allow_list: Vec<AllowedEndorsementKey>,
    /// `ConfigMaps` in this namespace with more entries, for machines that an infrastructure provider takes from a
    /// pool of hosts. Each key of `data` is the SHA-256 of an endorsement key's public key (SPKI), in 64 lower-case
    /// hexadecimal digits. Its value is a provider ID, or the beginning of one, as in `allowList[].providerID`.
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 253), regex(pattern = schema::SUBDOMAIN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub config_maps: Vec<String>,
}

/// The cloud whose API reports the endorsement key of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EndorsementKeyPlatform {
    /// No cloud.
    #[default]
    None,
    /// EC2.
    Aws,
}

/// A machine and its endorsement key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "has(self.machine) != has(self.providerID)",
        "must contain either machine or providerID",
    ),
    rule_at(
        ".providerID",
        schema::IS_PROVIDER_ID,
        "must be a provider ID, or a provider ID prefix that ends with '/' and is longer than the scheme",
    ),
]))]
pub struct AllowedEndorsementKey {
    /// The name of the Machine. Each entry has either this field or providerID.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = schema::SUBDOMAIN))]
    pub machine: Option<String>,
    /// The provider ID of the Machine. If it ends with a `/`, it is the beginning of a provider ID:
    /// `metal3://metal/host-7/` matches the Machine that uses this host.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub provider_id: Option<String>,
    /// The SHA-256 of the endorsement key's public key (SPKI).
    #[schemars(length(max = 64), regex(pattern = schema::SHA256))]
    pub ek_sha256: String,
}

/// The allowed boot states of machines, as values of their platform configuration registers (PCRs).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PcrPolicy {
    /// The allowed states. A machine must be in one of them. A state contains registers (0 to 23) with their SHA-256
    /// values. It must contain at least one register that software cannot reset (all except 16 and 23). If the value
    /// of a register differs between boots of the same software, the entry can list several values, separated by
    /// commas. If empty, the controller accepts and logs every state.
    #[schemars(schema_with = "schema::pcr_sets")]
    pub allowed: Vec<PcrSet>,
    /// The treatment of the separator that systemd 261 and later extend into the registers 0 to 7, 9 and 12 to 14.
    /// `allowed` contains the values before this separator. `Permitted`: a register has its allowed value, with or
    /// without the separator. `Required`: only with the separator. `Refused`: only without the separator.
    pub os_separator: OsSeparator,
}

/// Whether systemd's separator must, can or must not follow an allowed value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum OsSeparator {
    /// A register has its allowed value, or this value followed by the separator.
    #[default]
    Permitted,
    /// A register has its allowed value followed by the separator.
    Required,
    /// A register has its allowed value, without the separator.
    Refused,
}
