//! The settings, their sources and their precedence.
//!
//! In order of precedence: flags, `KUBELET_AUTHENTICATOR_*` variables, drop-ins, the file, the
//! cluster's `client.authentication.k8s.io/exec` extension, and the defaults. Every source is read
//! strictly: an unknown key or an invalid value is an error that names the source and the key. The
//! environment is shared with other programs, so unknown variables with our prefix are no error:
//! [`Variables::unknown`].

mod defaults;
mod document;
mod effective;
mod file;
mod schema;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use sha2::{Digest, Sha256};

use crate::exec::EXEC_INFO;
use crate::failure::{Code, Failure, Invalid};

pub(crate) use effective::{Effective, effective};
pub use table::{AbsolutePath, Domain, Entry, Form, Setting, Value, names, one_of};

/// The default path of the settings file.
pub const CONFIG_FILE: &str = "/etc/kubernetes/kubelet-authenticator/config.yaml";

/// The variable with the path of another settings file.
pub const CONFIG_VARIABLE: &str = "KUBELET_AUTHENTICATOR_CONFIG";

const BOOTSTRAP_KUBECONFIG: &str = "/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig";
const STATE_DIRECTORY: &str = "/var/lib/kubelet-authenticator";

/// A minute: without a credential, the kubelet has nothing else to do.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The prefix of our variables.
pub(crate) const VARIABLE_PREFIX: &str = "KUBELET_AUTHENTICATOR_";

/// The providers with settings of their own. One file may have the sections of several.
const SECTIONS: [Provider; 2] = [Provider::AWS, Provider::TPM];

/// Reads an environment variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The settings of a provider, and their defaults.
#[derive(Debug, Clone)]
pub struct ProviderSchema {
    /// The provider. Its section is read strictly.
    pub provider: Provider,
    /// The provider's own settings.
    pub settings: &'static [Entry],
    /// The default of `signerName`.
    pub signer_name: String,
    /// The default of `expirationSeconds`.
    pub expiration_seconds: u32,
}

impl ProviderSchema {
    /// Every setting.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        table::GENERAL.iter().chain(self.settings).copied()
    }

    /// The text of a setting's default, if it depends on nothing but the provider.
    fn default_of(&self, entry: Entry) -> Option<String> {
        if entry.name == table::SIGNER_NAME.entry().name {
            Some(self.signer_name.clone())
        } else if entry.name == table::EXPIRATION_SECONDS.entry().name {
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

    /// The other providers with settings of their own.
    fn others(&self) -> impl Iterator<Item = &str> {
        let others = SECTIONS
            .iter()
            .filter(|provider| **provider != self.provider);
        others.map(Provider::as_str)
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

/// The environment variables of this program: client-go's, and those with our prefix.
#[derive(Debug, Clone, Default)]
pub struct Variables {
    /// `KUBERNETES_EXEC_INFO`.
    pub exec_info: Option<OsString>,
    config: Option<PathBuf>,
    values: Vec<(Entry, OsString)>,
    /// Variables without a setting: misspelt, or of another release.
    ///
    /// They cause a warning and no error. The environment is not this program's own, and a node
    /// that is rolled back to an older release must keep its credential.
    pub unknown: Vec<String>,
}

impl Variables {
    /// Reads the environment once.
    pub fn read(
        environment: impl Iterator<Item = (OsString, OsString)>,
        schema: &ProviderSchema,
    ) -> Self {
        let mut variables = Self::default();
        for (name, value) in environment {
            if name == EXEC_INFO {
                variables.exec_info = Some(value);
                continue;
            }
            let Some(suffix) = name
                .to_str()
                .and_then(|name| name.strip_prefix(VARIABLE_PREFIX))
            else {
                continue;
            };
            if name == CONFIG_VARIABLE {
                variables.config = Some(value)
                    .filter(|path| !path.is_empty())
                    .map(PathBuf::from);
            } else if let Some(entry) = schema.entries().find(|entry| entry.has_variable(suffix)) {
                variables.values.push((entry, value));
            } else if !schema
                .others()
                .any(|provider| is_in_section(suffix, provider))
            {
                variables.unknown.push(format!("{VARIABLE_PREFIX}{suffix}"));
            }
        }
        variables
    }

    /// Adds the variables of `weaker` that are not set here. Returns the names of those too.
    pub(crate) fn over(mut self, weaker: Self) -> (Self, Vec<String>) {
        let mut taken = Vec::new();
        if self.config.is_none() && weaker.config.is_some() {
            self.config = weaker.config;
            taken.push(CONFIG_VARIABLE.to_owned());
        }
        // An empty one counts as unset.
        for (entry, value) in weaker.values {
            let mut own = self.values.iter().filter(|(_, value)| !value.is_empty());
            if !value.is_empty() && !own.any(|(own, _)| own.name == entry.name) {
                taken.push(entry.variable());
                self.values.push((entry, value));
            }
        }
        for name in weaker.unknown {
            if !self.unknown.contains(&name) {
                self.unknown.push(name);
            }
        }
        (self, taken)
    }
}

/// Whether the variable with this suffix belongs to this provider.
fn is_in_section(suffix: &str, provider: &str) -> bool {
    let (section, rest) = suffix.split_at_checked(provider.len()).unwrap_or_default();
    section.eq_ignore_ascii_case(provider) && rest.starts_with('_')
}

/// Every source of settings.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    /// `--config`.
    pub config: Option<&'a Path>,
    /// The flags with their values.
    pub flags: Vec<(Entry, OsString)>,
    /// The variables.
    pub variables: Variables,
    /// The extension of the cluster in the exec info, as JSON.
    pub extension: Option<&'a str>,
}

/// The checked values by their keys. An empty text counts as unset.
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

/// The settings in force.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The node's name, if given.
    pub node_name: Option<NodeName>,
    /// The machine's provider ID, if given.
    pub provider_id: Option<ProviderId>,
    /// The kubeconfig to enrol with.
    pub bootstrap_kubeconfig: PathBuf,
    /// The kubeconfig that names the cluster, if client-go does not.
    pub kubeconfig: Option<PathBuf>,
    /// The directory of the stored credential.
    pub state_directory: PathBuf,
    /// The cluster that evidence is for, if given.
    pub audience: Option<Audience>,
    /// The signer.
    pub signer_name: String,
    /// The lifetime to request.
    pub expiration_seconds: u32,
    /// The time limit of a run without a valid credential.
    pub timeout: Duration,
    values: Values,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
enum Source<'a> {
    /// The cluster's extension.
    #[display("the exec extension of the cluster")]
    Extension,
    /// The file, or a drop-in.
    #[display("{}", _0.display())]
    File(&'a Path),
    /// A variable.
    #[display("{_0}")]
    Variable(String),
    /// A flag.
    #[display("--{_0}")]
    Flag(&'static str),
}

/// Reads all sources, the weakest first, and hands over the values of each.
fn read(
    sources: Sources<'_>,
    schema: &ProviderSchema,
    take: &mut dyn FnMut(Source<'_>, Values),
) -> Result<(), Failure> {
    if let Some(json) = sources.extension {
        take(Source::Extension, file::read_extension(json, schema)?);
    }
    let named = sources.config.or(sources.variables.config.as_deref());
    let default = Path::new(CONFIG_FILE);
    file::read(named, default, schema, &mut |path, values| {
        take(Source::File(path), values);
    })?;
    for (entry, value) in sources.variables.values {
        let mut values = Values::default();
        let set = values.set(entry, value);
        set.map_err(|why| file::invalid(format!("{}: {why}", entry.variable())))?;
        take(Source::Variable(entry.variable()), values);
    }
    for (entry, value) in sources.flags {
        let flag = entry.flag;
        let mut values = Values::default();
        let set = values.set(entry, value);
        set.map_err(|why| Failure::new(Code::Usage, format!("--{flag}: {why}"), "see --help"))?;
        take(Source::Flag(flag), values);
    }
    Ok(())
}

/// The settings files that are there: the named or default one, and its drop-ins.
pub(crate) fn files(sources: &Sources<'_>) -> Result<Vec<PathBuf>, Failure> {
    let named = sources.config.or(sources.variables.config.as_deref());
    let path = named.unwrap_or(Path::new(CONFIG_FILE));
    let drop_ins = file::drop_ins(&path.with_extension("d"))?;
    let there = path.exists().then(|| path.to_owned());
    Ok(there.into_iter().chain(drop_ins).collect())
}

impl Settings {
    /// Reads all sources.
    ///
    /// The default file may be missing; a named file may not. Without a file this costs two failed
    /// opens. A pipe or device in the place of a file is not read. Only a file system that hangs
    /// can block this.
    ///
    /// # Errors
    ///
    /// An unknown key or an invalid value in any source, even if a stronger source overrides it.
    /// The error is about the weakest such source.
    pub fn load(sources: Sources<'_>, schema: &ProviderSchema) -> Result<Self, Failure> {
        let mut values = Values::default();
        read(sources, schema, &mut |_, read| values.0.extend(read.0))?;
        Ok(Self::of(values, schema))
    }

    /// The valid flags and variables, for `doctor`. The files may be what is wrong.
    pub(crate) fn without_files(sources: Sources<'_>, schema: &ProviderSchema) -> Self {
        let mut values = Values::default();
        for (entry, value) in sources.variables.values.into_iter().chain(sources.flags) {
            drop(values.set(entry, value));
        }
        Self::of(values, schema)
    }

    fn of(values: Values, schema: &ProviderSchema) -> Self {
        let path = |setting| values.get(setting).map(|AbsolutePath(path)| path);
        Self {
            node_name: values.get(&table::NODE_NAME),
            provider_id: values.get(&table::PROVIDER_ID),
            bootstrap_kubeconfig: path(&table::BOOTSTRAP_KUBECONFIG)
                .unwrap_or_else(|| BOOTSTRAP_KUBECONFIG.into()),
            kubeconfig: path(&table::KUBECONFIG),
            state_directory: path(&table::STATE_DIRECTORY)
                .unwrap_or_else(|| STATE_DIRECTORY.into()),
            audience: values.get(&table::AUDIENCE),
            signer_name: values
                .get(&table::SIGNER_NAME)
                .map_or_else(|| schema.signer_name.clone(), |name| name.0),
            expiration_seconds: values
                .get(&table::EXPIRATION_SECONDS)
                .map_or(schema.expiration_seconds, |seconds| seconds.0),
            timeout: values
                .get(&table::TIMEOUT_SECONDS)
                .map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.0.into())),
            values,
        }
    }

    /// The value of a provider's setting, if given.
    pub fn value<T: Value>(&self, setting: &Setting<T>) -> Option<T> {
        self.values.get(setting)
    }

    /// A digest that changes with any setting. A failure under other settings does not apply to
    /// these.
    pub fn digest(&self) -> String {
        let expiration = self.expiration_seconds.to_string();
        let of_provider = [("", &self.signer_name), ("", &expiration)];
        let given = self.values.0.iter().map(|(name, value)| (*name, value));
        let mut digest = Sha256::new();
        for (name, value) in of_provider.into_iter().chain(given) {
            // Each part follows its length, so that no two lists give the same input.
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
