//! The failure of a run, for users, for the kubelet's metric and for the next run.

use std::error::Error;
use std::fmt::Display;
use std::{io, iter};

use kubelet_attestation::errors::error_chain;
use kubelet_attestation::text::is_invisible;

/// The maximum length of a line. It is sufficient for every message of this program, including an embedded message from
/// the API server.
const MAX_LINE_LEN: usize = 4096;

/// The maximum length of a hint. It is sufficient for every hint that contains two paths.
const MAX_REMEDY_LEN: usize = 1024;

/// Declares the codes with their numbers.
macro_rules! codes {
    ($(#[$about:meta])* pub enum Code { $($(#[doc = $doc:literal])+ $name:ident = $number:literal,)+ }) => {
        $(#[$about])*
        pub enum Code {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Code {
            /// Each exit code with its meaning.
            pub const MEANINGS: &[(u8, &str)] = &[$(($number, concat!($($doc),+)),)+];

            /// The exit code of the process.
            pub fn number(self) -> u8 {
                match self { $(Self::$name => $number,)+ }
            }

            /// The code with this number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

codes! {
    /// The exit code of the process: a label of the kubelet's metric `rest_client_exec_plugin_call_total`.
    ///
    /// The meaning of a code never changes. The list does not contain zero, which means that a credential was printed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum Code {
        /// A bug in this program, or a system error such as missing memory.
        Internal = 1,
        /// The command line or an input is invalid, or a command was not confirmed.
        Usage = 2,
        /// The settings, or the input from client-go, are invalid.
        Configuration = 3,
        /// The state directory or its lock cannot be used.
        Store = 4,
        /// The source of evidence does not respond.
        EvidenceUnavailable = 5,
        /// The device that proves the machine's identity cannot be used.
        DeviceUnavailable = 6,
        /// No verifier would accept the evidence.
        EvidenceInvalid = 7,
        /// The API server cannot be reached, or cannot prove its identity.
        Unreachable = 8,
        /// The bootstrap credential is missing, expired or not accepted.
        Unauthorized = 9,
        /// The API server refuses the request.
        Refused = 10,
        /// The request was still pending at the deadline.
        Pending = 11,
        /// The request was denied.
        Denied = 12,
        /// The request failed, or its certificate is invalid.
        Failed = 13,
        /// The clocks of the node and the API server differ by more than 5 minutes.
        ClockSkew = 14,
        /// The node name does not match the stored certificate, or the names that EC2 reports.
        NodeName = 15,
        /// The node and the controller have no evidence version in common.
        Version = 16,
        /// A back-off is active, and the run did not attempt anything.
        BackOff = 17,
        /// A check of `doctor` failed.
        CheckFailed = 20,
    }
}

impl Code {
    /// Whether the run leaves a request on the API server that no later run continues. The result is false for a
    /// denial: a denied request also remains, but the pauses after denials are long from the first denial.
    pub fn leaves_request(self) -> bool {
        matches!(self, Self::Failed | Self::Version)
    }

    /// Whether the failure starts a back-off.
    ///
    /// A local failure does not start a back-off, because another attempt does not cause load on other systems. A
    /// pending request does not start a back-off either, because the next run waits for the decision.
    pub fn is_remembered(self) -> bool {
        !matches!(
            self,
            Self::Internal
                | Self::Usage
                | Self::Configuration
                | Self::Store
                | Self::Pending
                | Self::NodeName
                | Self::BackOff
                | Self::CheckFailed
        )
    }
}

/// The failure of a run. `Display` is one line: the error and its causes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    code: Code,
    what: String,
    remedy: String,
}

impl Failure {
    /// A failure without an underlying error.
    pub fn new(code: Code, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code,
            what: one_line(&what.into(), MAX_LINE_LEN),
            // The hint can contain text from a server or from the metadata service.
            remedy: one_line(&remedy.into(), MAX_REMEDY_LEN),
        }
    }

    /// Creates a failure with the text of `error` and its causes.
    pub fn of(code: Code, error: &dyn Error, remedy: impl Into<String>) -> Self {
        Self::new(code, error_chain(error), remedy)
    }

    /// Adds a cause. `Display` appends the cause and the causes of that cause.
    #[must_use]
    pub fn because(self, cause: &dyn Error) -> Self {
        let what = format!("{}: {}", self.what, error_chain(cause));
        Self::new(self.code, what, self.remedy)
    }

    /// Adds the action that failed before the error text.
    #[must_use]
    pub fn within(self, what: &str) -> Self {
        Self::new(self.code, format!("{what}: {self}"), self.remedy)
    }

    /// A failure that only a bug can cause.
    pub(crate) fn bug(error: &dyn Error) -> Self {
        Self::of(Code::Internal, error, "report this as a bug")
    }

    /// The exit code of the process.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The error and its causes.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The remedy.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

/// The reason why a string is invalid. It never contains a part of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

impl Invalid {
    /// An error with this reason.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// An error that describes the expected format.
    pub fn needed(what: impl Display) -> Self {
        Self(format!("must be {what}"))
    }

    /// The error for a file with a different format version.
    pub(crate) fn format(found: u32, ours: u32) -> Self {
        Self(format!(
            "it has format {found}, but this release supports format {ours}"
        ))
    }

    /// Adds the cause.
    #[must_use]
    pub(crate) fn because(self, cause: &dyn Error) -> Self {
        Self(format!("{self}: {}", error_chain(cause)))
    }

    /// Adds the object that is invalid for this reason.
    #[must_use]
    pub(crate) fn within(self, what: &str) -> Self {
        Self(format!("{what}: {self}"))
    }
}

/// The error and its causes, outermost first. The `source` of an I/O error is not the wrapped error but the source of
/// that error, so this function unwraps I/O errors.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(
        Some(error),
        |&error: &&'a (dyn Error + 'static)| match error.downcast_ref().and_then(io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        },
    )
}

/// The innermost cause, as the system reports it. The outer errors, from the HTTP library, only repeat the URL and
/// state that an error occurred.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

/// Makes untrusted text safe for a log. The result cannot be mistaken for a separate log line, and cannot fill the
/// disk.
pub(crate) fn one_line(text: &str, max_len: usize) -> String {
    text.chars()
        .take(max_len)
        .map(|c| if is_invisible(c) { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_match_the_documented_numbers() {
        for number in 1..=17 {
            assert_eq!(Code::from_number(number).map(Code::number), Some(number));
        }
        assert_eq!(Code::BackOff.number(), 17);
        assert_eq!(Code::from_number(20), Some(Code::CheckFailed));
        assert_eq!(Code::from_number(0), None);
        assert_eq!(Code::from_number(18), None);
    }

    #[test]
    fn a_failure_is_printed_on_one_line_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot write x")]
        struct Outer(#[source] io::Error);

        let failure = Failure::of(Code::Store, &Outer(io::Error::other("no\nroom")), "");

        assert_eq!(failure.to_string(), "cannot write x: no room");
        let long = Failure::new(Code::Denied, "x".repeat(100_000), "");
        assert_eq!(long.what().len(), MAX_LINE_LEN);
        let foreign = format!("be \u{1b}]0;a\u{7}\u{202e}\n{}", "x".repeat(60_000));
        let cured = Failure::new(Code::NodeName, "a", foreign);
        assert!(
            cured.remedy().starts_with("be  ]0;a   xxx"),
            "{}",
            cured.remedy()
        );
        assert_eq!(cured.remedy().chars().count(), MAX_REMEDY_LEN);
    }
}
