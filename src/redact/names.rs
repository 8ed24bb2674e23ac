//! Names whose values are secrets.

use super::{LONG, decoded};

/// Suffixes of names with secret values, in lower case and without separators. For example, they match `DB_PASSWORD`,
/// `clientSecret` or `--bootstrap-token`.
const KEYS: [&str; 53] = [
    "accesskey",
    "accesskeyid",
    "accountkey",
    "adminpw",
    "amzsignature",
    "aeskey",
    "apikey",
    "authkey",
    "bindpw",
    "connectionstring",
    "credential",
    "credentials",
    "encryptionkey",
    "etcdctluser",
    "hmackey",
    "jsessionid",
    "keydata",
    "licensekey",
    "masterauth",
    "masterkey",
    "mnemonic",
    "passcode",
    "passin",
    "passout",
    "passphrase",
    "passwd",
    "password",
    "passwordin",
    "passwords",
    "phpsessid",
    "presharedkey",
    "psk",
    "pwd",
    "rootpw",
    "sastoken",
    "secret",
    "secretid",
    "secretkey",
    "secretkeybase",
    "secrets",
    "sessionkey",
    "sharedaccesskey",
    "sharedkey",
    "signingkey",
    "storagekey",
    "token",
    "tokendata",
    "tokens",
    "unsealkey",
    "userpw",
    "webhooksecret",
    "wepkey",
    "xkubeletattestation",
];

/// Suffixes in the format of [`KEYS`], of names for which only a long value is a secret.
const KEYS_OF_LONG: [&str; 3] = ["key", "sig", "signature"];

/// Words that end with `pass` but do not refer to a password.
const NO_PASSWORDS: [&str; 8] = [
    "bypass",
    "compass",
    "encompass",
    "overpass",
    "multipass",
    "surpass",
    "trespass",
    "underpass",
];

/// HTTP headers whose value is secret up to the end of the line.
const HEADERS: [&str; 3] = ["authorization", "cookie", "cookies"];

/// Values that are not secrets.
const LITERALS: [&str; 15] = [
    "<nil>", "<none>", "<set>", "disabled", "enabled", "false", "nil", "no", "none", "null",
    "optional", "required", "simple", "true", "yes",
];

/// Names that are also ordinary nouns: `secret "a" not found`.
const NOUNS: [&str; 8] = [
    "credential",
    "credentials",
    "pass",
    "pin",
    "secret",
    "secrets",
    "token",
    "tokens",
];

/// The kind of a name with secret values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Of,
    /// The name of an HTTP header.
    OfHeader,
    /// A name for which only long values are secrets.
    OfLong,
    /// A name for a user and password in base64, as in Docker's configuration.
    OfLogin,
}

impl Name {
    pub(super) fn of(word: &str) -> Option<Self> {
        let letters = word.chars().filter(char::is_ascii_alphanumeric);
        let plain = letters.collect::<String>().to_ascii_lowercase();
        let last = last_part(word).to_ascii_lowercase();
        if HEADERS.iter().any(|header| plain.ends_with(header)) {
            return Some(Self::OfHeader);
        }
        let is_pin = last == "pin" || word.ends_with("PIN") && plain.len() <= "userpin".len();
        let is_pass = plain.ends_with("pass") && !NO_PASSWORDS.contains(&last.as_str());
        if plain == "loadcredential" || plain == "loadcredentialencrypted" {
            // These directives in systemd units have paths as values.
            return None;
        }
        if is_pin || is_pass || KEYS.iter().any(|key| plain.ends_with(key)) {
            return Some(Self::Of);
        }
        if last == "auth" {
            return Some(if word.ends_with("_AUTH") {
                Self::Of
            } else {
                Self::OfLogin
            });
        }
        KEYS_OF_LONG
            .contains(&last.as_str())
            .then_some(Self::OfLong)
    }

    /// Whether this value is a secret, for a name of this kind.
    pub(super) fn has(self, value: &str) -> bool {
        let plain = value.trim_end_matches(|it: char| ".,;)}]".contains(it));
        if LITERALS
            .iter()
            .any(|literal| plain.eq_ignore_ascii_case(literal))
            || is_plain_path(plain)
            || is_reference(plain)
        {
            return false;
        }
        match self {
            Self::Of | Self::OfHeader => true,
            Self::OfLong => value.len() >= LONG && !is_label(plain),
            Self::OfLogin => decoded(plain).is_some_and(|text| text.contains(':')),
        }
    }
}

/// Whether the name ends with an ordinary noun.
pub(super) fn is_noun(name: &str) -> bool {
    let last = last_part(name);
    NOUNS.iter().any(|noun| last.eq_ignore_ascii_case(noun))
}

/// The last part of a name that is split at separators and before each uppercase letter that follows a lowercase
/// letter.
fn last_part(name: &str) -> &str {
    let last = name.rsplit(['-', '_', '.', '/']).next().unwrap_or_default();
    let mut before = ' ';
    let mut start = 0;
    for (at, letter) in last.char_indices() {
        if letter.is_ascii_uppercase() && before.is_ascii_lowercase() {
            start = at;
        }
        before = letter;
    }
    last.get(start..).unwrap_or(last)
}

/// Whether the value is an absolute path in lower case. Settings use these paths to refer to files that contain
/// secrets.
fn is_plain_path(value: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"/._-".contains(&it);
    value.starts_with('/') && value.len() < LONG * 3 && value.bytes().all(is_plain)
}

/// Whether the value is a reference to a variable, such as `${TOKEN}` or `$(TOKEN)`.
fn is_reference(value: &str) -> bool {
    let inner = value
        .strip_prefix("${")
        .or_else(|| value.strip_prefix("$("));
    let inner = inner.map(|it| it.trim_end_matches(['}', ')']));
    let is_of_name = |it: u8| it.is_ascii_uppercase() || it.is_ascii_digit() || it == b'_';
    inner.is_some_and(|name| !name.is_empty() && name.bytes().all(is_of_name))
}

/// Whether the value is a Kubernetes label or taint key, or a file name.
fn is_label(value: &str) -> bool {
    let is_plain =
        |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"/._-:".contains(&it);
    value.contains('/') && value.bytes().all(is_plain)
}
