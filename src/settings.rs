//! The settings, their sources and their precedence.
//!
//! The sources, in order of precedence, are: options, drop-ins, the file, and the defaults. Every source is parsed
//! strictly. An unknown or removed key, or an invalid value, is a fault, and the error contains the source and the key.
//! Other valid settings still apply, because a fault in a file must not prevent a node's certificate.

mod document;
mod effective;
mod file;
mod removed;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use sha2::{Digest, Sha256};

use crate::failure::{Code, Failure, Invalid};

pub(crate) use effective::{Effective, effective};
pub use removed::Removed;
pub use table::{AbsolutePath, Entry, Form, Setting, Value, one_of};

/// The default path of the settings file.
pub const CONFIG_FILE: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";

pub(crate) const BOOTSTRAP_KUBECONFIG: &str =
    "/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig";
pub(crate) const STATE_DIRECTORY: &str = "/var/lib/kubelet-authenticator";

/// The time limit of every run. Runs for the kubelet have a shorter limit.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The providers with their own settings. One file can contain the sections of several providers.
const SECTIONS: [Provider; 2] = [Provider::AWS, Provider::TPM];

/// The settings of a provider, and their defaults.
#[derive(Debug, Clone)]
pub struct ProviderSchema {
    /// The provider, whose section is read strictly.
    pub provider: Provider,
    /// The provider's own settings.
    pub settings: &'static [Entry],
    /// The default of `expirationSeconds`.
    pub expiration_seconds: u32,
}

impl ProviderSchema {
    /// Every setting.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        table::GENERAL.iter().chain(self.settings).copied()
    }

    /// The text of a setting's default, if the default depends only on the provider.
    fn default_of(&self, entry: Entry) -> Option<String> {
        if entry.name == table::EXPIRATION_SECONDS.entry().name {
            Some(self.expiration_seconds.to_string())
        } else {
            entry.default.map(str::to_owned)
        }
    }

    fn sections(&self) -> impl Iterator<Item = &str> {
        let own = self.entries().map(|entry| entry.split().0);
        let own = own.filter(|section| !section.is_empty());
        own.chain(SECTIONS.iter().map(Provider::as_str))
    }

    /// The keys of a section, or of the document if `section` is empty.
    fn known(&self, section: &str) -> Vec<String> {
        let keys = self.entries().map(Entry::split);
        let keys = keys.filter(|(of, _)| *of == section).map(|(_, key)| key);
        if !section.is_empty() {
            return keys.map(str::to_owned).collect();
        }
        let mut known: Vec<String> = ["apiVersion", "kind"]
            .into_iter()
            .chain(keys)
            .chain(self.sections())
            .map(str::to_owned)
            .collect();
        known.dedup();
        known
    }
}

/// Every source of settings.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    /// The settings file, if it is not the default file. Its drop-ins are in the same directory.
    pub config: Option<&'a Path>,
    /// The options with their values.
    pub flags: Vec<(Entry, OsString)>,
    /// The removed options, from earlier versions, on the command line.
    pub removed: Vec<Removed>,
    /// The time limit of every run, for tests.
    pub time_limit: Option<Duration>,
}

/// The checked values by key. An empty text counts as unset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Values(BTreeMap<&'static str, String>);

impl Values {
    fn set(&mut self, entry: Entry, value: OsString) -> Result<(), Invalid> {
        let value = value
            .into_string()
            .map_err(|_| Invalid::new("it is not UTF-8"))?;
        if !value.is_empty() {
            (entry.check)(&value)?;
            self.0.insert(entry.name, value);
        }
        Ok(())
    }

    fn get<T: Value>(&self, setting: &Setting<T>) -> Option<T> {
        let text = self.0.get(setting.entry().name)?;
        T::read(text).ok()
    }
}

/// The effective settings.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The node's name, if given.
    pub node_name: Option<NodeName>,
    /// The machine's provider ID, if given.
    pub provider_id: Option<ProviderId>,
    /// The kubeconfig to enroll with.
    pub bootstrap_kubeconfig: PathBuf,
    /// The directory of the stored credential.
    pub state_directory: PathBuf,
    /// The audience of evidence, if given.
    pub audience: Option<Audience>,
    /// The lifetime to request.
    pub expiration_seconds: u32,
    /// The time limit of every run. Runs for the kubelet have a shorter limit.
    pub timeout: Duration,
    values: Values,
}

/// The source of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
enum Source<'a> {
    /// The file.
    #[display("{}", _0.display())]
    File(&'a Path),
    /// A drop-in.
    #[display("{}", _0.display())]
    DropIn(&'a Path),
    /// An option.
    #[display("--{_0}")]
    Flag(&'static str),
}

/// A fault in the settings. If several sources have a fault, it is the fault from the source with the lowest
/// precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All faults are settings from earlier versions.
    Removed(Failure),
    /// An unknown key, an invalid value, or a file that cannot be read.
    Invalid(Failure),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Removed(failure) | Fault::Invalid(failure) => failure,
        }
    }
}

/// Reads all sources, starting with the lowest precedence, and passes the valid values of each source to `take`.
fn read(
    sources: Sources<'_>,
    schema: &ProviderSchema,
    take: &mut dyn FnMut(Source<'_>, Values),
) -> Option<Fault> {
    let mut worst = None;
    let mut note = |fault| {
        worst = match (worst.take(), fault) {
            (Some(Fault::Removed(_)) | None, invalid @ Some(Fault::Invalid(_))) => invalid,
            (None, fault) => fault,
            (known, _) => known,
        };
    };
    let default = Path::new(CONFIG_FILE);
    file::read(
        sources.config,
        default,
        schema,
        &mut |source, values, fault| {
            take(source, values);
            note(fault);
        },
    );
    for (entry, value) in sources.flags {
        let flag = entry.flag;
        let mut values = Values::default();
        if let Err(why) = values.set(entry, value) {
            let what = format!("--{flag}: {why}");
            note(Some(Fault::Invalid(Failure::new(
                Code::Usage,
                what,
                "see --help",
            ))));
        }
        take(Source::Flag(flag), values);
    }
    for removed in sources.removed {
        let what = format!("--{}: {}", removed.flag, removed.why());
        let failure = Failure::new(Code::Usage, what, "remove that option");
        note(Some(Fault::Removed(failure)));
    }
    worst
}

/// Returns the existing settings files: the specified or default file, and its drop-ins.
pub(crate) fn files(sources: &Sources<'_>) -> Result<Vec<PathBuf>, Failure> {
    let path = sources.config.unwrap_or(Path::new(CONFIG_FILE));
    let drop_ins = file::drop_ins(&path.with_extension("d"))?;
    let there = path.exists().then(|| path.to_owned());
    Ok(there.into_iter().chain(drop_ins).collect())
}

impl Settings {
    /// Reads all sources.
    ///
    /// The default file can be missing, but a specified file must exist. Without files, this function makes two failed
    /// `open` calls. It does not read a pipe or device instead of a file, so only a file system that does not respond
    /// can block it.
    ///
    /// # Errors
    ///
    /// A source has an unknown or removed key or an invalid value, even if a different source overrides it. The error
    /// contains the source with the lowest precedence.
    pub fn load(sources: Sources<'_>, schema: &ProviderSchema) -> Result<Self, Failure> {
        match Self::valid(sources, schema) {
            (settings, None) => Ok(settings),
            (_, Some(fault)) => Err(fault.into()),
        }
    }

    /// The valid settings of the sources, and a fault in them.
    pub(crate) fn valid(sources: Sources<'_>, schema: &ProviderSchema) -> (Self, Option<Fault>) {
        let time_limit = sources.time_limit;
        let mut values = Values::default();
        let fault = read(sources, schema, &mut |_, read| values.0.extend(read.0));
        let mut settings = Self::of(values, schema);
        settings.timeout = time_limit.unwrap_or(settings.timeout);
        (settings, fault)
    }

    fn of(values: Values, schema: &ProviderSchema) -> Self {
        let path = |setting| values.get(setting).map(|AbsolutePath(path)| path);
        Self {
            node_name: values.get(&table::NODE_NAME),
            provider_id: values.get(&table::PROVIDER_ID),
            bootstrap_kubeconfig: path(&table::BOOTSTRAP_KUBECONFIG)
                .unwrap_or_else(|| BOOTSTRAP_KUBECONFIG.into()),
            state_directory: path(&table::STATE_DIRECTORY)
                .unwrap_or_else(|| STATE_DIRECTORY.into()),
            audience: values.get(&table::AUDIENCE),
            expiration_seconds: values
                .get(&table::EXPIRATION_SECONDS)
                .map_or(schema.expiration_seconds, |seconds| seconds.0),
            timeout: TIMEOUT,
            values,
        }
    }

    /// The value of a provider's setting, if given.
    pub fn value<T: Value>(&self, setting: &Setting<T>) -> Option<T> {
        self.values.get(setting)
    }

    /// A digest of all settings, and of `others`, the other inputs of a run. If a recorded failure has a different
    /// digest, the failure does not apply to these settings.
    pub fn digest(&self, others: &str) -> String {
        let expiration = self.expiration_seconds.to_string();
        let of_provider = [("", expiration.as_str()), ("others", others)];
        let given = self.values.0.iter();
        let given = given.map(|(name, value)| (*name, value.as_str()));
        let mut digest = Sha256::new();
        for (name, value) in of_provider.into_iter().chain(given) {
            // The length precedes each part, so that different lists never have the same hash input.
            for part in [name, value] {
                digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
                digest.update(part);
            }
        }
        STANDARD.encode(digest.finalize())
    }
}

#[cfg(test)]
mod tests;
