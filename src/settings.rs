//! What the plugin is told, by whom, and who wins.
//!
//! Flags win over `KUBELET_AUTHENTICATOR_*` variables, these over drop-ins, these over the file,
//! that over the cluster's `client.authentication.k8s.io/exec` extension, and that over the
//! defaults. Every source is read strictly: a key that is not known, or a value that cannot be, is
//! an error that names the source and the key. Only the environment, which others share, may have
//! variables of our prefix that are not known: [`unknown_variables`].

mod aws;
mod error;
mod file;
mod layer;
mod tpm;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::names::{Audience, NodeName, ProviderId};
use sha2::{Digest, Sha256};

pub use aws::{AwsNodeName, AwsPrincipal, AwsSettings, MetadataEndpoint, StsEndpoint};
pub use error::{Document, Origin, SettingsError, ValueError};
pub use layer::{Key, Layer};
pub use tpm::{EndorsementKeyChoice, Tcti, TpmSettings};

/// Where the settings are, unless a flag or variable says otherwise.
pub const CONFIG_FILE: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";

/// The variable that names another file.
pub const CONFIG_VARIABLE: &str = "KUBELET_AUTHENTICATOR_CONFIG";

const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig";
const STATE_DIRECTORY: &str = "/var/lib/kubelet-authenticator";

/// A minute: a kubelet whose plugin has no credential yet has nothing better to do.
const TIMEOUT: Duration = Duration::from_mins(1);

/// What our variables begin with.
const VARIABLES: &str = "KUBELET_AUTHENTICATOR_";

/// Those of `names` that look like a variable of ours and are none: misspelt, or of another
/// release.
///
/// They are for a warning and not for an error: the environment is not this program's own, and a
/// node that is rolled back to an older release keeps its credential.
pub fn unknown_variables(names: impl Iterator<Item = OsString>) -> Vec<String> {
    names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| {
            name.starts_with(VARIABLES)
                && name != CONFIG_VARIABLE
                && Key::ALL.iter().all(|key| key.variable() != name)
        })
        .collect()
}

/// Reads one variable of the environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// What a provider asks for where nobody says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderDefaults {
    /// The provider's signer.
    pub signer_name: String,
    /// The lifetime to ask for.
    pub expiration_seconds: u32,
}

/// Everything that may say something.
#[derive(Debug, Default)]
pub struct Given<'a> {
    /// `--config`.
    pub config: Option<&'a Path>,
    /// What the flags say.
    pub flags: Layer,
    /// The extension of the cluster in the exec info, as JSON.
    pub extension: Option<&'a str>,
}

/// The settings in force.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// What the node is called, where it is said.
    pub node_name: Option<NodeName>,
    /// What its infrastructure calls it, where it is said.
    pub provider_id: Option<ProviderId>,
    /// The kubeconfig to enrol with.
    pub bootstrap_kubeconfig: PathBuf,
    /// The kubeconfig that says which cluster, where client-go does not.
    pub kubeconfig: Option<PathBuf>,
    /// Where the credential is kept.
    pub state_directory: PathBuf,
    /// Which cluster evidence is for, where it is said.
    pub audience: Option<Audience>,
    /// Who is to sign.
    pub signer_name: String,
    /// How long a certificate is to live.
    pub expiration_seconds: u32,
    /// How long a run may take while there is no valid credential.
    pub timeout: Duration,
    /// What is set for AWS instances.
    pub aws: AwsSettings,
    /// What is set for machines with a TPM.
    pub tpm: TpmSettings,
}

impl Settings {
    /// Collects what was given, what the environment says and what the files say.
    ///
    /// A file that is not there is no error unless it was named. Without one this costs two failed
    /// opens. No pipe or device is read in the place of a file; only a file system that hangs holds
    /// this up.
    pub fn load(
        given: Given<'_>,
        environment: Environment<'_>,
        defaults: ProviderDefaults,
    ) -> Result<Self, SettingsError> {
        let named = match given.config {
            Some(path) => Some(path.to_owned()),
            None => environment(CONFIG_VARIABLE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
        };
        let variables = Layer::from_environment(environment)?;
        let files = file::read(named.as_deref(), Path::new(CONFIG_FILE))?;
        let extension = given.extension.map(Layer::from_extension).transpose()?;
        let layer = given
            .flags
            .over(variables)
            .over(files)
            .over(extension.unwrap_or_default());
        Ok(Self::complete(layer, defaults))
    }

    fn complete(layer: Layer, defaults: ProviderDefaults) -> Self {
        Self {
            node_name: layer.node_name,
            provider_id: layer.provider_id,
            bootstrap_kubeconfig: layer
                .bootstrap_kubeconfig
                .map_or_else(|| BOOTSTRAP_KUBECONFIG.into(), |path| path.0),
            kubeconfig: layer.kubeconfig.map(|path| path.0),
            state_directory: layer
                .state_directory
                .map_or_else(|| STATE_DIRECTORY.into(), |path| path.0),
            audience: layer.audience,
            signer_name: layer
                .signer_name
                .map_or(defaults.signer_name, |name| name.0),
            expiration_seconds: layer
                .expiration_seconds
                .map_or(defaults.expiration_seconds, |seconds| seconds.0),
            timeout: layer.timeout.map_or(TIMEOUT, |timeout| timeout.0),
            aws: layer.aws.complete(),
            tpm: layer.tpm.complete(),
        }
    }

    /// A digest that changes when any setting does: a failure under other settings says nothing
    /// about these.
    pub fn digest(&self) -> String {
        let text = |value: Option<&str>| value.map(str::to_owned);
        let path = |value: &Path| value.as_os_str().as_encoded_bytes().to_vec();
        let fields: [Option<Vec<u8>>; 9] = [
            text(self.node_name.as_ref().map(NodeName::as_str)).map(String::into_bytes),
            text(self.provider_id.as_ref().map(ProviderId::as_str)).map(String::into_bytes),
            Some(path(&self.bootstrap_kubeconfig)),
            self.kubeconfig.as_deref().map(path),
            Some(path(&self.state_directory)),
            text(self.audience.as_ref().map(Audience::as_str)).map(String::into_bytes),
            Some(self.signer_name.clone().into_bytes()),
            Some(self.expiration_seconds.to_be_bytes().to_vec()),
            Some(self.timeout.as_millis().to_be_bytes().to_vec()),
        ];
        let mut digest = Sha256::new();
        let of_providers = self.aws.digested().into_iter().chain(self.tpm.digested());
        for field in fields.into_iter().chain(of_providers) {
            // With its length in front of each, no two lists of fields run together.
            digest.update([u8::from(field.is_some())]);
            let field = field.unwrap_or_default();
            digest.update(u64::try_from(field.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(field);
        }
        STANDARD.encode(digest.finalize())
    }
}

#[cfg(test)]
mod tests;
