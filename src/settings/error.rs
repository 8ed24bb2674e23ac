//! Errors in settings.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kubelet_attestation::names::InvalidName;

use super::table::Key;

/// What is read as YAML.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Document {
    /// A file.
    File(PathBuf),
    /// The extension of the cluster that client-go passes on.
    Extension,
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Extension => f.write_str("KUBERNETES_EXEC_INFO: spec.cluster.config"),
        }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A flag.
    Flag(Key),
    /// A variable of the environment.
    Variable(Key),
    /// A key in a document.
    Document {
        /// The document.
        document: Document,
        /// The line, from 1, where it is known.
        line: Option<u64>,
        /// The key, as a path.
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(key) => write!(f, "--{}", key.flag),
            Self::Variable(key) => f.write_str(&key.variable()),
            Self::Document {
                document,
                line: Some(line),
                key,
            } => {
                write!(f, "{document}: line {line}: key {key}")
            }
            Self::Document {
                document,
                line: None,
                key,
            } => write!(f, "{document}: key {key}"),
        }
    }
}

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A file that was named is not there, or one that is there cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A pipe, device or folder in the place of a file: reading it may never end.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file is longer than any settings are.
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// There are more drop-ins than anybody writes.
    #[error("{} has more than {limit} drop-ins", path.display())]
    TooManyDropIns {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// Not YAML, or not in UTF-8.
    #[error("{document}: line {line}, column {column}: not YAML: {why}")]
    NotYaml {
        /// The document.
        document: Document,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// What the parser says.
        why: String,
    },
    /// A key that is there twice.
    #[error("{origin}: the key is there twice")]
    DuplicateKey {
        /// Where.
        origin: Origin,
    },
    /// An unknown key, or an invalid value.
    #[error("{origin}: {why}")]
    Value {
        /// Where.
        origin: Origin,
        /// The reason.
        why: String,
    },
}

impl SettingsError {
    pub(super) fn of_value(origin: Origin, why: &ValueError) -> Self {
        Self::Value {
            origin,
            why: why.to_string(),
        }
    }

    /// Whether a flag is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Value {
                origin: Origin::Flag(_),
                ..
            }
        )
    }
}

/// A value that a setting cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// Not a name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A path that depends on where the plugin is started.
    #[error("a path begins with '/'")]
    RelativePath,
    /// Not a signer's name.
    #[error(
        "a signer's name is <domain with a dot>/<path>, in lower-case letters, digits, '-' and '.'"
    )]
    Signer,
    /// Not a number, or one out of range.
    #[error("a whole number from {least} to {most} is needed")]
    Number {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// Not one of the few that there are.
    #[error("one of {} is needed", known.join(", "))]
    NotOneOf {
        /// What could stand there.
        known: &'static [&'static str],
    },
    /// Not what a provider's setting takes.
    #[error("{0} is needed")]
    Needed(&'static str),
    /// Not UTF-8.
    #[error("it is not UTF-8")]
    NotText,
    /// Another file format.
    #[error("{expected:?} is needed")]
    Constant {
        /// What has to stand there.
        expected: &'static str,
    },
}
