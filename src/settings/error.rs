//! Errors in settings.

use std::io;
use std::path::PathBuf;

use kubelet_attestation::names::InvalidName;

/// The settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A named file is missing, or a file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A pipe, device or folder is in the place of a file. Reading it may never end.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file exceeds the limit.
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// There are too many drop-ins.
    #[error("{} has more than {limit} drop-ins", path.display())]
    TooManyDropIns {
        /// The folder.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// The document is not YAML in UTF-8.
    #[error("{document}: line {line}, column {column}: not YAML: {why}")]
    NotYaml {
        /// The document.
        document: String,
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: u64,
        /// The parser's error.
        why: String,
    },
    /// A key is unknown or occurs twice, or its value is invalid.
    #[error("{origin}: {why}")]
    Value {
        /// The key and its source.
        origin: String,
        /// The reason.
        why: String,
    },
    /// The value of a flag is invalid.
    #[error("--{flag}: {why}")]
    Flag {
        /// The flag, without its dashes.
        flag: &'static str,
        /// The reason.
        why: ValueError,
    },
}

impl SettingsError {
    /// Whether the error is in a flag.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Flag { .. })
    }
}

/// A value is invalid for its setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The path is relative: its meaning would depend on the working directory.
    #[error("a path begins with '/'")]
    RelativePath,
    /// The name of the signer is invalid.
    #[error(
        "a signer's name is <domain with a dot>/<path>, in lower-case letters, digits, '-' and '.'"
    )]
    Signer,
    /// The value is not a number, or out of range.
    #[error("a whole number from {least} to {most} is needed")]
    Number {
        /// The minimum.
        least: u32,
        /// The maximum.
        most: u32,
    },
    /// The value is not one of the allowed ones.
    #[error("one of {} is needed", known.join(", "))]
    NotOneOf {
        /// The allowed values.
        known: &'static [&'static str],
    },
    /// A provider's setting needs another value.
    #[error("{0} is needed")]
    Needed(&'static str),
    /// The value is not UTF-8.
    #[error("it is not UTF-8")]
    NotText,
    /// The document has another format.
    #[error("{expected:?} is needed")]
    Constant {
        /// The expected text.
        expected: &'static str,
    },
}
