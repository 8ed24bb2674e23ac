//! What one source says: each key or nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use serde::{Deserialize, Deserializer, de};

use super::Environment;
use super::aws::{AwsLayer, AwsNodeName, AwsPrincipal, MetadataEndpoint, StsEndpoint};
use super::error::{Document, Origin, SettingsError, ValueError};
use super::file;
use super::tpm::{EndorsementKeyChoice, RegisterNumbers, Tcti, TpmLayer};

const API_VERSION: &str = "kubelet-authenticator.cluster.x-k8s.io/v1alpha1";
const KIND: &str = "KubeletAuthenticatorConfiguration";

/// The least that the certificates API takes, and the most that fits its int32.
const EXPIRATION: (u32, u32) = (600, 2_147_483_647);

/// client-go waits for a plugin for ever, so somebody has to stop; ten minutes outlast any
/// controller.
const TIMEOUT: (u32, u32) = (1, 600);

/// The longest name of a signer (`ValidateSignerName` in Kubernetes' certificates API).
const MAX_SIGNER_LEN: usize = 571;

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each is the field of that name in Settings or in one of its parts"
)]
pub enum Key {
    NodeName,
    ProviderId,
    BootstrapKubeconfig,
    Kubeconfig,
    StateDirectory,
    Audience,
    SignerName,
    ExpirationSeconds,
    TimeoutSeconds,
    AwsPrincipal,
    AwsNodeName,
    AwsStsEndpoint,
    AwsMetadataEndpoint,
    TpmDevice,
    TpmTcti,
    TpmEndorsementKey,
    TpmPcrs,
    TpmDeviceProgram,
}

impl Key {
    /// Every one.
    pub const ALL: [Self; 18] = [
        Self::NodeName,
        Self::ProviderId,
        Self::BootstrapKubeconfig,
        Self::Kubeconfig,
        Self::StateDirectory,
        Self::Audience,
        Self::SignerName,
        Self::ExpirationSeconds,
        Self::TimeoutSeconds,
        Self::AwsPrincipal,
        Self::AwsNodeName,
        Self::AwsStsEndpoint,
        Self::AwsMetadataEndpoint,
        Self::TpmDevice,
        Self::TpmTcti,
        Self::TpmEndorsementKey,
        Self::TpmPcrs,
        Self::TpmDeviceProgram,
    ];

    /// The flag that sets it.
    pub fn flag(self) -> &'static str {
        self.names().0
    }

    /// The variable that sets it.
    pub fn variable(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::NodeName => ("--node-name", "KUBELET_AUTHENTICATOR_NODE_NAME"),
            Self::ProviderId => ("--provider-id", "KUBELET_AUTHENTICATOR_PROVIDER_ID"),
            Self::BootstrapKubeconfig => (
                "--bootstrap-kubeconfig",
                "KUBELET_AUTHENTICATOR_BOOTSTRAP_KUBECONFIG",
            ),
            Self::Kubeconfig => ("--kubeconfig", "KUBELET_AUTHENTICATOR_KUBECONFIG"),
            Self::StateDirectory => ("--state-directory", "KUBELET_AUTHENTICATOR_STATE_DIRECTORY"),
            Self::Audience => ("--audience", "KUBELET_AUTHENTICATOR_AUDIENCE"),
            Self::SignerName => ("--signer-name", "KUBELET_AUTHENTICATOR_SIGNER_NAME"),
            Self::ExpirationSeconds => (
                "--expiration-seconds",
                "KUBELET_AUTHENTICATOR_EXPIRATION_SECONDS",
            ),
            Self::TimeoutSeconds => ("--timeout-seconds", "KUBELET_AUTHENTICATOR_TIMEOUT_SECONDS"),
            Self::AwsPrincipal => ("--aws-principal", "KUBELET_AUTHENTICATOR_AWS_PRINCIPAL"),
            Self::AwsNodeName => ("--aws-node-name", "KUBELET_AUTHENTICATOR_AWS_NODE_NAME"),
            Self::AwsStsEndpoint => (
                "--aws-sts-endpoint",
                "KUBELET_AUTHENTICATOR_AWS_STS_ENDPOINT",
            ),
            Self::AwsMetadataEndpoint => (
                "--aws-metadata-endpoint",
                "KUBELET_AUTHENTICATOR_AWS_METADATA_ENDPOINT",
            ),
            Self::TpmDevice => ("--tpm-device", "KUBELET_AUTHENTICATOR_TPM_DEVICE"),
            Self::TpmTcti => ("--tpm-tcti", "KUBELET_AUTHENTICATOR_TPM_TCTI"),
            Self::TpmEndorsementKey => (
                "--tpm-endorsement-key",
                "KUBELET_AUTHENTICATOR_TPM_ENDORSEMENT_KEY",
            ),
            Self::TpmPcrs => ("--tpm-pcrs", "KUBELET_AUTHENTICATOR_TPM_PCRS"),
            Self::TpmDeviceProgram => (
                "--tpm-device-program",
                "KUBELET_AUTHENTICATOR_TPM_DEVICE_PROGRAM",
            ),
        }
    }
}

/// What one source says. An empty text says nothing, as in the file of defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Layer {
    #[serde(deserialize_with = "api_version")]
    api_version: Option<()>,
    #[serde(deserialize_with = "kind")]
    kind: Option<()>,
    #[serde(deserialize_with = "text")]
    pub(super) node_name: Option<NodeName>,
    #[serde(rename = "providerID", deserialize_with = "text")]
    pub(super) provider_id: Option<ProviderId>,
    #[serde(deserialize_with = "text")]
    pub(super) bootstrap_kubeconfig: Option<AbsolutePath>,
    #[serde(deserialize_with = "text")]
    pub(super) kubeconfig: Option<AbsolutePath>,
    #[serde(deserialize_with = "text")]
    pub(super) state_directory: Option<AbsolutePath>,
    #[serde(deserialize_with = "text")]
    pub(super) audience: Option<Audience>,
    #[serde(deserialize_with = "text")]
    pub(super) signer_name: Option<SignerName>,
    #[serde(deserialize_with = "number")]
    pub(super) expiration_seconds: Option<Expiration>,
    #[serde(rename = "timeoutSeconds", deserialize_with = "number")]
    pub(super) timeout: Option<Timeout>,
    #[serde(deserialize_with = "part")]
    pub(super) aws: AwsLayer,
    #[serde(deserialize_with = "part")]
    pub(super) tpm: TpmLayer,
}

impl Layer {
    /// What flags say, each as the text given to it.
    pub fn from_flags<'a>(
        flags: impl IntoIterator<Item = (Key, &'a OsStr)>,
    ) -> Result<Self, SettingsError> {
        let mut layer = Self::default();
        for (key, value) in flags {
            layer
                .set(key, value)
                .map_err(|why| refused(Origin::Flag(key), &why))?;
        }
        Ok(layer)
    }

    /// What the variables say.
    pub(super) fn from_environment(environment: Environment<'_>) -> Result<Self, SettingsError> {
        let mut layer = Self::default();
        for key in Key::ALL {
            if let Some(value) = environment(key.variable()) {
                layer
                    .set(key, &value)
                    .map_err(|why| refused(Origin::Variable(key), &why))?;
            }
        }
        Ok(layer)
    }

    /// What a cluster's extension says, in JSON; it needs no `apiVersion` and no `kind`.
    pub(super) fn from_extension(json: &str) -> Result<Self, SettingsError> {
        // Serde takes an array for an object, its fields in order.
        let is_object = json.trim_start().starts_with('{');
        match serde_json::from_str(json) {
            Ok(layer) if is_object => Ok(layer),
            // JSON is YAML, and the YAML reader knows the key; the fast one is for when nothing is
            // wrong.
            Ok(_) | Err(_) => file::parse(json, &Document::Extension),
        }
    }

    /// This layer, and where it says nothing, what `lower` says.
    #[must_use]
    pub(super) fn over(self, lower: Self) -> Self {
        Self {
            api_version: self.api_version.or(lower.api_version),
            kind: self.kind.or(lower.kind),
            node_name: self.node_name.or(lower.node_name),
            provider_id: self.provider_id.or(lower.provider_id),
            bootstrap_kubeconfig: self.bootstrap_kubeconfig.or(lower.bootstrap_kubeconfig),
            kubeconfig: self.kubeconfig.or(lower.kubeconfig),
            state_directory: self.state_directory.or(lower.state_directory),
            audience: self.audience.or(lower.audience),
            signer_name: self.signer_name.or(lower.signer_name),
            expiration_seconds: self.expiration_seconds.or(lower.expiration_seconds),
            timeout: self.timeout.or(lower.timeout),
            aws: self.aws.over(lower.aws),
            tpm: self.tpm.over(lower.tpm),
        }
    }

    /// Whether the document says what it is.
    pub(super) fn missing_header(&self) -> Option<(&'static str, ValueError)> {
        let missing = |expected| ValueError::Constant { expected };
        match (self.api_version, self.kind) {
            (None, _) => Some(("apiVersion", missing(API_VERSION))),
            (Some(()), None) => Some(("kind", missing(KIND))),
            (Some(()), Some(())) => None,
        }
    }

    fn set(&mut self, key: Key, value: &OsStr) -> Result<(), ValueError> {
        let value = value.to_str().ok_or(ValueError::NotText)?;
        if value.is_empty() {
            return Ok(());
        }
        match key {
            Key::NodeName => self.node_name = Some(NodeName::read(value)?),
            Key::ProviderId => self.provider_id = Some(ProviderId::read(value)?),
            Key::BootstrapKubeconfig => {
                self.bootstrap_kubeconfig = Some(AbsolutePath::read(value)?);
            }
            Key::Kubeconfig => self.kubeconfig = Some(AbsolutePath::read(value)?),
            Key::StateDirectory => self.state_directory = Some(AbsolutePath::read(value)?),
            Key::Audience => self.audience = Some(Audience::read(value)?),
            Key::SignerName => self.signer_name = Some(SignerName::read(value)?),
            Key::ExpirationSeconds => self.expiration_seconds = Some(Expiration::read(value)?),
            Key::TimeoutSeconds => self.timeout = Some(Timeout::read(value)?),
            Key::AwsPrincipal => self.aws.principal = Some(AwsPrincipal::read(value)?),
            Key::AwsNodeName => self.aws.node_name = Some(AwsNodeName::read(value)?),
            Key::AwsStsEndpoint => self.aws.sts_endpoint = Some(StsEndpoint::read(value)?),
            Key::AwsMetadataEndpoint => {
                self.aws.metadata_endpoint = Some(MetadataEndpoint::read(value)?);
            }
            Key::TpmDevice => self.tpm.device = Some(AbsolutePath::read(value)?),
            Key::TpmTcti => self.tpm.tcti = Some(Tcti::read(value)?),
            Key::TpmEndorsementKey => {
                self.tpm.endorsement_key = Some(EndorsementKeyChoice::read(value)?);
            }
            Key::TpmPcrs => self.tpm.pcrs = Some(RegisterNumbers::read(value)?),
            Key::TpmDeviceProgram => self.tpm.device_program = Some(AbsolutePath::read(value)?),
        }
        Ok(())
    }
}

fn refused(origin: Origin, why: &ValueError) -> SettingsError {
    SettingsError::Value {
        origin,
        why: why.to_string(),
    }
}

/// A value that is written as text.
pub(super) trait FromText: Sized {
    fn read(text: &str) -> Result<Self, ValueError>;
}

impl FromText for NodeName {
    fn read(text: &str) -> Result<Self, ValueError> {
        Ok(Self::parse(text)?)
    }
}

impl FromText for ProviderId {
    fn read(text: &str) -> Result<Self, ValueError> {
        Ok(Self::parse(text)?)
    }
}

impl FromText for Audience {
    fn read(text: &str) -> Result<Self, ValueError> {
        Ok(Self::parse(text)?)
    }
}

/// A path that means the same wherever the plugin is started: client-go starts it in the kubelet's
/// directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AbsolutePath(pub(super) PathBuf);

impl FromText for AbsolutePath {
    fn read(text: &str) -> Result<Self, ValueError> {
        if Path::new(text).is_absolute() {
            Ok(Self(text.into()))
        } else {
            Err(ValueError::RelativePath)
        }
    }
}

/// The name of a signer, as the API server takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SignerName(pub(super) String);

impl FromText for SignerName {
    fn read(text: &str) -> Result<Self, ValueError> {
        let valid = text.len() <= MAX_SIGNER_LEN
            && text.split_once('/').is_some_and(|(domain, path)| {
                domain.contains('.')
                    && [domain, path]
                        .into_iter()
                        .all(|part| NodeName::parse(part).is_ok())
            });
        if valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(ValueError::Signer)
        }
    }
}

/// A lifetime in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiration(pub(super) u32);

/// A time to spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timeout(pub(super) Duration);

/// A value that is a number of seconds.
trait FromNumber: Sized {
    const RANGE: (u32, u32);

    fn new(seconds: u32) -> Self;

    fn check(seconds: Option<u32>) -> Result<Self, ValueError> {
        let (least, most) = Self::RANGE;
        match seconds {
            Some(seconds) if (least..=most).contains(&seconds) => Ok(Self::new(seconds)),
            Some(_) | None => Err(ValueError::Number { least, most }),
        }
    }

    fn read(text: &str) -> Result<Self, ValueError> {
        Self::check(text.parse().ok())
    }
}

impl FromNumber for Expiration {
    const RANGE: (u32, u32) = EXPIRATION;

    fn new(seconds: u32) -> Self {
        Self(seconds)
    }
}

impl FromNumber for Timeout {
    const RANGE: (u32, u32) = TIMEOUT;

    fn new(seconds: u32) -> Self {
        Self(Duration::from_secs(seconds.into()))
    }
}

pub(super) fn text<'de, D: Deserializer<'de>, T: FromText>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    if value.is_empty() {
        return Ok(None);
    }
    T::read(&value).map(Some).map_err(de::Error::custom)
}

/// The settings of one provider; nothing there says nothing.
fn part<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn number<'de, D: Deserializer<'de>, T: FromNumber>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = u64::deserialize(deserializer)?;
    T::check(u32::try_from(value).ok())
        .map(Some)
        .map_err(de::Error::custom)
}

fn api_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<()>, D::Error> {
    constant(deserializer, API_VERSION)
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<()>, D::Error> {
    constant(deserializer, KIND)
}

fn constant<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<Option<()>, D::Error> {
    if String::deserialize(deserializer)? == expected {
        Ok(Some(()))
    } else {
        Err(de::Error::custom(ValueError::Constant { expected }))
    }
}
