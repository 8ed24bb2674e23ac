//! The table of settings: one entry for each setting, with its names and type.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use kubelet_attestation::names::{Audience, InvalidName, NodeName, ProviderId};

use crate::failure::Invalid;

/// The range of `expirationSeconds` in the certificates API: from its minimum to the maximum of an int32.
type Expiration = Number<600, 2_147_483_647>;

/// Declares settings, and their table. Each setting has a type, a key in a file, a flag, a name of the value, and a
/// line of `--help`. It also has a default, or a description of the behavior without a value. The table can end with
/// the settings of another table.
#[macro_export]
macro_rules! settings {
    ($vis:vis $table:ident $([.., $other:ident])? {
        $($name:ident: $type:ty = $key:literal, $flag:literal, $value:literal, $help:literal
            $(, default $default:expr)? $(, otherwise $otherwise:literal)?;)+
    }) => {
        $($vis const $name: $crate::settings::Setting<$type> =
            $crate::settings::Setting::new($key, $flag, $value, $help)
                $(.with_default($default))? $(.otherwise($otherwise))?;)+
        $vis const $table: &[$crate::settings::Entry] =
            &[$($name.entry(),)+ $($other.entry())?];
    };
}

// The settings of all plugins.
settings! { pub(super) GENERAL {
    NODE_NAME: NodeName = "nodeName", "node-name", "NAME", "Name of the node",
        otherwise "the stored name, the kubelet's --hostname-override, or the host's name";
    PROVIDER_ID: ProviderId = "providerID", "provider-id", "ID", "Provider ID of this machine",
        otherwise "the machine's own, or the kubelet's --provider-id";
    BOOTSTRAP_KUBECONFIG: AbsolutePath =
        "bootstrapKubeconfig", "bootstrap-kubeconfig", "FILE", "Kubeconfig with the bootstrap credential",
        default super::BOOTSTRAP_KUBECONFIG;
    STATE_DIRECTORY: AbsolutePath =
        "stateDirectory", "state-directory", "DIR", "State directory, which contains the certificate and its key",
        default super::STATE_DIRECTORY;
    AUDIENCE: Audience = "audience", "audience", "TEXT", "Identifier of the cluster in the evidence",
        otherwise "the digest of the cluster's first CA certificate";
    EXPIRATION_SECONDS: Expiration =
        "expirationSeconds", "expiration-seconds", "SECONDS", "Requested lifetime of the certificate";
} }

/// A setting whose value is a `T`.
#[derive(Debug)]
pub struct Setting<T> {
    entry: Entry,
    value: PhantomData<fn() -> T>,
}

impl<T: Value> Setting<T> {
    /// A setting with this key in a file, this flag (without dashes), and this line of `--help`.
    pub const fn new(
        name: &'static str,
        flag: &'static str,
        value_name: &'static str,
        help: &'static str,
    ) -> Self {
        Self {
            entry: Entry {
                name,
                flag,
                value_name,
                help,
                default: None,
                otherwise: "",
                form: T::FORM,
                check: check::<T>,
            },
            value: PhantomData,
        }
    }

    /// Adds the text of the setting's default, for output to users. The code that uses the setting applies the
    /// default.
    #[must_use]
    pub const fn with_default(mut self, text: &'static str) -> Self {
        self.entry.default = Some(text);
        self
    }

    /// Adds a description of the behavior if the setting has no value.
    #[must_use]
    pub const fn otherwise(mut self, words: &'static str) -> Self {
        self.entry.otherwise = words;
        self
    }

    /// The entry of the table.
    pub const fn entry(&self) -> Entry {
        self.entry
    }
}

/// A setting, regardless of its type.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The key in a file. For a provider's setting: the section, a dot and the key.
    pub(crate) name: &'static str,
    /// The flag, without its dashes.
    pub(crate) flag: &'static str,
    pub(crate) value_name: &'static str,
    pub(crate) help: &'static str,
    /// The text of the default, if it is constant.
    pub(super) default: Option<&'static str>,
    /// The behavior without a value, for output to users.
    pub(crate) otherwise: &'static str,
    pub(crate) form: Form,
    pub(super) check: fn(&str) -> Result<(), Invalid>,
}

impl Entry {
    /// The text of the default, if it is constant.
    pub fn default_text(self) -> Option<&'static str> {
        self.default
    }

    /// The section and the key in it. The section of a general setting is empty.
    pub(super) fn split(self) -> (&'static str, &'static str) {
        self.name.split_once('.').unwrap_or(("", self.name))
    }
}

fn check<T: Value>(text: &str) -> Result<(), Invalid> {
    T::read(text).map(drop)
}

/// The type of a value in a file. Flags have the same text.
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

/// The type of a setting's value.
pub trait Value: Sized {
    /// The type of the value in a file.
    const FORM: Form = Form::Text;

    /// Parses a value.
    ///
    /// # Errors
    ///
    /// `text` is invalid.
    fn read(text: &str) -> Result<Self, Invalid>;
}

impl Value for NodeName {
    fn read(text: &str) -> Result<Self, Invalid> {
        Self::parse(text).map_err(invalid_name)
    }
}

impl Value for ProviderId {
    fn read(text: &str) -> Result<Self, Invalid> {
        Self::parse(text).map_err(invalid_name)
    }
}

impl Value for Audience {
    fn read(text: &str) -> Result<Self, Invalid> {
        Self::parse(text).map_err(invalid_name)
    }
}

fn invalid_name(error: InvalidName) -> Invalid {
    Invalid::new(error.to_string())
}

/// An absolute path. client-go starts the plugin in the kubelet's directory, so a relative path would depend on that
/// directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsolutePath(pub PathBuf);

impl Value for AbsolutePath {
    fn read(text: &str) -> Result<Self, Invalid> {
        if Path::new(text).is_absolute() {
            Ok(Self(text.into()))
        } else {
            Err(Invalid::new("must be an absolute path"))
        }
    }
}

/// A whole number from `LEAST` to `MOST`.
pub(super) struct Number<const LEAST: u32, const MOST: u32>(pub(super) u32);

impl<const LEAST: u32, const MOST: u32> Value for Number<LEAST, MOST> {
    const FORM: Form = Form::Number;

    fn read(text: &str) -> Result<Self, Invalid> {
        let number = text.parse().ok();
        number
            .filter(|number| (LEAST..=MOST).contains(number))
            .map(Self)
            .ok_or_else(|| Invalid::needed(format!("an integer from {LEAST} to {MOST}")))
    }
}

/// Returns the value with this name.
///
/// # Errors
///
/// No value has this name.
pub fn one_of<T: Copy>(text: &str, values: &[(&str, T)]) -> Result<T, Invalid> {
    let value = values.iter().find(|(name, _)| *name == text);
    value.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = values.iter().map(|(name, _)| *name).collect();
        Invalid::needed(format_args!("one of {}", names.join(", ")))
    })
}
