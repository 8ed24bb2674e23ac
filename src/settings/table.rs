//! The table of settings: a line for each, with its names and its type.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubelet_attestation::names::{Audience, NodeName, ProviderId};

use super::VARIABLE_PREFIX;
use super::error::ValueError;

/// The range of the certificates API: its least, and the most that fits its int32.
const EXPIRATION: (u32, u32) = (600, 2_147_483_647);

/// client-go waits for a plugin for ever, so somebody has to stop; ten minutes outlast any
/// controller.
const TIMEOUT: (u32, u32) = (1, 600);

/// The longest name of a signer (`ValidateSignerName` in Kubernetes' certificates API).
const MAX_SIGNER_LEN: usize = 571;

pub(super) const NODE_NAME: Setting<NodeName> =
    Setting::new("nodeName", "node-name", "NAME", "The node's name");
pub(super) const PROVIDER_ID: Setting<ProviderId> = Setting::new(
    "providerID",
    "provider-id",
    "ID",
    "The provider ID of this machine",
);
pub(super) const BOOTSTRAP_KUBECONFIG: Setting<AbsolutePath> = Setting::new(
    "bootstrapKubeconfig",
    "bootstrap-kubeconfig",
    "FILE",
    "The kubeconfig to enrol with",
);
pub(super) const KUBECONFIG: Setting<AbsolutePath> = Setting::new(
    "kubeconfig",
    "kubeconfig",
    "FILE",
    "The kubeconfig that names the cluster, where nothing else does",
);
pub(super) const STATE_DIRECTORY: Setting<AbsolutePath> = Setting::new(
    "stateDirectory",
    "state-directory",
    "DIR",
    "The directory of the stored credential",
);
pub(super) const AUDIENCE: Setting<Audience> = Setting::new(
    "audience",
    "audience",
    "TEXT",
    "The cluster that evidence is for",
);
pub(super) const SIGNER_NAME: Setting<SignerName> =
    Setting::new("signerName", "signer-name", "NAME", "The signer");
pub(super) const EXPIRATION_SECONDS: Setting<Expiration> = Setting::new(
    "expirationSeconds",
    "expiration-seconds",
    "SECONDS",
    "The lifetime to ask for",
);
pub(super) const TIMEOUT_SECONDS: Setting<Timeout> = Setting::new(
    "timeoutSeconds",
    "timeout-seconds",
    "SECONDS",
    "The time limit of a run without a valid credential",
);

/// The settings of every plugin.
pub(super) const GENERAL: [Entry; 9] = [
    NODE_NAME.entry(),
    PROVIDER_ID.entry(),
    BOOTSTRAP_KUBECONFIG.entry(),
    KUBECONFIG.entry(),
    STATE_DIRECTORY.entry(),
    AUDIENCE.entry(),
    SIGNER_NAME.entry(),
    EXPIRATION_SECONDS.entry(),
    TIMEOUT_SECONDS.entry(),
];

/// The names of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key in a file; in a provider's section, with the section's name and a dot before it.
    pub name: &'static str,
    /// The flag, without its dashes. The variable is `KUBELET_AUTHENTICATOR_` and the flag in capitals.
    pub flag: &'static str,
}

impl Key {
    /// The variable that sets it.
    pub fn variable(self) -> String {
        VARIABLE_PREFIX.chars().chain(self.suffix()).collect()
    }

    /// Whether the variable that ends in `suffix` after the prefix sets it.
    pub(super) fn has_variable(self, suffix: &str) -> bool {
        suffix.chars().eq(self.suffix())
    }

    fn suffix(self) -> impl Iterator<Item = char> {
        self.flag.chars().map(|letter| match letter {
            '-' => '_',
            _ => letter.to_ascii_uppercase(),
        })
    }

    /// The provider's section and the key in it, or no section.
    pub(super) fn split(self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }
}

/// A setting whose value is a `T`.
#[derive(Debug)]
pub struct Setting<T> {
    key: Key,
    value_name: &'static str,
    help: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T: Value> Setting<T> {
    /// A setting of this key in a file, this flag without its dashes, and this line of `--help`.
    pub const fn new(
        name: &'static str,
        flag: &'static str,
        value_name: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            key: Key { name, flag },
            value_name,
            help,
            value: PhantomData,
        }
    }

    /// Its names.
    pub const fn key(&self) -> Key {
        self.key
    }

    /// Its line in a table.
    pub const fn entry(&self) -> Entry {
        Entry {
            key: self.key,
            value_name: self.value_name,
            help: self.help,
            form: T::FORM,
            check: check::<T>,
        }
    }
}

/// A setting, whatever its type.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub(crate) key: Key,
    pub(crate) value_name: &'static str,
    pub(crate) help: &'static str,
    pub(super) form: Form,
    pub(super) check: fn(&str) -> Result<(), ValueError>,
}

fn check<T: Value>(text: &str) -> Result<(), ValueError> {
    T::read(text).map(drop)
}

/// The type of a value in a file. Flags and variables have its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// A string.
    Text,
    /// A number.
    Number,
    /// A list of numbers; in text, separated by commas.
    Numbers,
}

/// A type of values.
pub trait Value: Sized {
    /// Its type in a file.
    const FORM: Form = Form::Text;

    /// The value of this text.
    ///
    /// # Errors
    ///
    /// `text` is no such value.
    fn read(text: &str) -> Result<Self, ValueError>;
}

impl Value for NodeName {
    fn read(text: &str) -> Result<Self, ValueError> {
        Ok(Self::parse(text)?)
    }
}

impl Value for ProviderId {
    fn read(text: &str) -> Result<Self, ValueError> {
        Ok(Self::parse(text)?)
    }
}

impl Value for Audience {
    fn read(text: &str) -> Result<Self, ValueError> {
        Ok(Self::parse(text)?)
    }
}

/// A path that means the same wherever the plugin is started: client-go starts it in the kubelet's
/// directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsolutePath(pub PathBuf);

impl Value for AbsolutePath {
    fn read(text: &str) -> Result<Self, ValueError> {
        if Path::new(text).is_absolute() {
            Ok(Self(text.into()))
        } else {
            Err(ValueError::RelativePath)
        }
    }
}

/// The name of a signer, as the API server takes it.
pub(super) struct SignerName(pub(super) String);

impl Value for SignerName {
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
pub(super) struct Expiration(pub(super) u32);

impl Value for Expiration {
    const FORM: Form = Form::Number;

    fn read(text: &str) -> Result<Self, ValueError> {
        number(text, EXPIRATION).map(Self)
    }
}

/// A time limit.
pub(super) struct Timeout(pub(super) Duration);

impl Value for Timeout {
    const FORM: Form = Form::Number;

    fn read(text: &str) -> Result<Self, ValueError> {
        let seconds = number(text, TIMEOUT)?;
        Ok(Self(Duration::from_secs(seconds.into())))
    }
}

fn number(text: &str, (least, most): (u32, u32)) -> Result<u32, ValueError> {
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or(ValueError::Number { least, most })
}
