//! The kinds of subject alternative names.

use std::fmt;

/// What a subject alternative name is (RFC 5280 section 4.2.1.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectAltNameKind {
    /// `otherName`.
    Other,
    /// `rfc822Name`.
    Email,
    /// `dNSName`.
    Dns,
    /// `x400Address`.
    X400,
    /// `directoryName`.
    Directory,
    /// `ediPartyName`.
    EdiParty,
    /// `uniformResourceIdentifier`.
    Uri,
    /// `iPAddress`.
    Ip,
    /// `registeredID`.
    RegisteredId,
    /// Not a list of names, or an empty one.
    Malformed,
}

impl fmt::Display for SubjectAltNameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Other => "otherName",
            Self::Email => "email",
            Self::Dns => "DNS",
            Self::X400 => "x400Address",
            Self::Directory => "directoryName",
            Self::EdiParty => "ediPartyName",
            Self::Uri => "URI",
            Self::Ip => "IP",
            Self::RegisteredId => "registeredID",
            Self::Malformed => "unknown",
        })
    }
}
