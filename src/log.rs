//! Standard error: the kubelet's journal.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::failure::Failure;

/// How lines on standard error look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Writes to standard error, and nowhere else. What is said holds no secret.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log {
    format: Format,
    verbose: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    level: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'a str,
}

impl Log {
    /// A log of this format, with steps where `verbose`.
    pub fn new(format: Format, verbose: bool) -> Self {
        Self { format, verbose }
    }

    /// Says what a run does, if asked to.
    pub fn step(self, message: &str) {
        if self.verbose {
            self.write("info", message, None, "");
        }
    }

    /// Says what somebody should know, though the run goes on.
    pub fn warn(self, message: &str) {
        self.write("warning", message, None, "");
    }

    /// Says what went wrong, though a credential is printed.
    pub fn warn_of(self, message: &str, failure: &Failure) {
        let message = format!("{message}: {failure}");
        self.write("warning", &message, Some(failure), failure.remedy());
    }

    /// Says why the run ends without an answer.
    pub fn fail(self, failure: &Failure) {
        self.write("error", failure.what(), Some(failure), failure.remedy());
    }

    fn write(self, level: &str, message: &str, failure: Option<&Failure>, remedy: &str) {
        let line = match self.format {
            Format::Text if remedy.is_empty() => format!("{level}: {message}\n"),
            Format::Text => format!("{level}: {message}; to do: {remedy}\n"),
            Format::Json => {
                let line = Line {
                    level,
                    message,
                    code: failure.map(|failure| failure.code().number()),
                    remedy,
                };
                serde_json::to_string(&line).unwrap_or_default() + "\n"
            }
        };
        // If nobody listens there is nobody to tell.
        drop(io::stderr().lock().write_all(line.as_bytes()));
    }
}
