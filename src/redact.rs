//! Removes secrets from texts that leave this machine.
//!
//! There are two nets: the secrets that this machine is known to have, wherever they are, and texts
//! that have the form or the place of a secret. The second catches more than secrets, such as
//! certificates in base64.

use zeroize::Zeroizing;

/// In the place of a secret.
pub(crate) const REDACTED: &str = "(redacted)";

/// Shorter texts would be found in ordinary words.
const LEAST_KNOWN: usize = 12;

/// Long enough for the parts of a key, a signature or a session token, and longer than names are.
const LONG: usize = 40;

/// Words, in lower case, that are followed by a secret: after a colon, an equals sign or a quote.
const KEYS: [&str; 14] = [
    "accesskeyid",
    "authorization",
    "client-key-data",
    "credential",
    "password",
    "secret",
    "secretaccesskey",
    "sessiontoken",
    "token",
    "x-amz-credential",
    "x-amz-security-token",
    "x-amz-signature",
    "x-kubelet-attestation",
    "aws_secret_access_key",
];

/// Like [`KEYS`], where only a long value is a secret.
const KEYS_OF_LONG: [&str; 2] = ["key", "signature"];

/// Words that are followed by a secret after a space.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";

/// The secrets of this machine.
#[derive(derive_more::Debug, Default)]
pub(crate) struct Redactor {
    #[debug(skip)]
    known: Vec<Zeroizing<String>>,
}

impl Redactor {
    /// Adds a secret: a token, or a key in PEM, each line of it.
    pub(crate) fn know(&mut self, secret: &str) {
        let lines = secret.lines().map(str::trim);
        let lines = lines.filter(|line| line.len() >= LEAST_KNOWN && !line.starts_with("-----"));
        self.known
            .extend(lines.map(|line| Zeroizing::new(line.to_owned())));
    }

    /// The text without secrets, and the number of places where something was removed.
    pub(crate) fn redact(&self, text: &str) -> (String, usize) {
        let mut count = 0;
        let mut text = keys(text, &mut count);
        for secret in &self.known {
            count += text.matches(secret.as_str()).count();
            text = text.replace(secret.as_str(), REDACTED);
        }
        let text = logins(&text, &mut count);
        (words(&text, &mut count), count)
    }
}

/// Removes private keys in PEM, also those on one line, and those that are cut off.
fn keys(text: &str, count: &mut usize) -> String {
    let mut parts = text.split(BEGIN);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let label = part.split("-----").next().unwrap_or_default();
        if !label.ends_with("PRIVATE KEY") {
            kept.extend([BEGIN, part]);
            continue;
        }
        *count += 1;
        kept.push_str(REDACTED);
        let after = part
            .split_once(END)
            .and_then(|(_, after)| after.split_once("-----"));
        kept.push_str(after.map_or("", |(_, after)| after));
    }
    kept
}

/// Removes user and password of URLs.
fn logins(text: &str, count: &mut usize) -> String {
    let mut parts = text.split("://");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str("://");
        let is_end = |letter: char| letter.is_whitespace() || "/\"'<>\\".contains(letter);
        let (authority, rest) = part
            .split_at_checked(part.find(is_end).unwrap_or(part.len()))
            .unwrap_or((part, ""));
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                *count += 1;
                kept.extend([REDACTED, "@", host]);
            }
            None => kept.push_str(authority),
        }
        kept.push_str(rest);
    }
    kept
}

/// What the words before promise of the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Anything,
    /// A secret, if a separator other than a space follows.
    Secret {
        is_long: bool,
    },
    /// A secret, after whatever separator.
    Certainly,
}

/// Removes words that have the form of a secret, or follow the name of one.
fn words(text: &str, count: &mut usize) -> String {
    let mut kept = String::new();
    let mut next = Next::Anything;
    let mut rest = text;
    while !rest.is_empty() {
        let (gap, after) = split(rest, |letter| !is_of_word(letter));
        let (word, after) = split(after, is_of_word);
        rest = after;
        kept.push_str(gap);
        let is_separated = gap.contains([':', '=', '"', '\'']) && !gap.contains('\n');
        let is_announced = match next {
            Next::Anything => false,
            Next::Secret { is_long } => is_separated && (!is_long || word.len() >= LONG),
            Next::Certainly => !gap.contains('\n'),
        };
        let lower = word.to_ascii_lowercase();
        if SCHEMES.contains(&lower.as_str()) {
            next = Next::Certainly;
            kept.push_str(word);
            continue;
        }
        if is_announced && !word.is_empty() || has_form(word) {
            *count += 1;
            kept.push_str(REDACTED);
            next = Next::Anything;
            continue;
        }
        next = if KEYS.contains(&lower.as_str()) {
            Next::Secret { is_long: false }
        } else if KEYS_OF_LONG.contains(&lower.as_str()) {
            Next::Secret { is_long: true }
        } else {
            Next::Anything
        };
        kept.push_str(word);
    }
    kept
}

/// The longest beginning of such letters, and the rest.
fn split(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|letter| !of(letter)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "+/_-.".contains(letter)
}

/// Whether the word, or a part of a path, has the form of a secret.
fn has_form(word: &str) -> bool {
    let word = word.trim_end_matches('.');
    is_long_base64(word)
        || is_json_web_token(word)
        || word
            .split('/')
            .any(|part| is_bootstrap_token(part) || is_access_key_id(part))
}

/// A token of `bootstrap.kubernetes.io`.
fn is_bootstrap_token(word: &str) -> bool {
    let is_plain = |text: &str| {
        let mut bytes = text.bytes();
        bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    word.split_once('.').is_some_and(|(id, secret)| {
        id.len() == 6 && secret.len() == 16 && is_plain(id) && is_plain(secret)
    })
}

/// The ID of a key of AWS: not secret by itself, and worth a search for what it belongs to.
fn is_access_key_id(word: &str) -> bool {
    let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    word.len() == 20
        && (word.starts_with("ASIA") || word.starts_with("AKIA"))
        && word.bytes().all(is_upper)
}

fn is_json_web_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.len() >= LONG && word.contains('.')
}

/// A long word with letters of both cases and digits. Digests in hexadecimal are none.
fn is_long_base64(word: &str) -> bool {
    let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
    word.len() >= LONG
        && !word.contains('.')
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(text: &str) -> String {
        let mut redactor = Redactor::default();
        redactor.know(
            "-----BEGIN EC PRIVATE KEY-----\nknownline0123\nshort\n-----END EC PRIVATE KEY-----\n",
        );
        redactor.know("known-token-0123");
        redactor.redact(text).0
    }

    #[test]
    fn secrets_are_removed_by_their_form_their_place_and_their_value() {
        let long = "aB3+".repeat(12);
        for (text, expected) in [
            ("a knownline0123 b".to_owned(), "a (redacted) b".to_owned()),
            ("xknown-token-0123y".to_owned(), "x(redacted)y".to_owned()),
            (
                "token abcdef.0123456789abcdef.".to_owned(),
                "token (redacted)".to_owned(),
            ),
            (
                "\"token\":\"s3cret\"".to_owned(),
                "\"token\":\"(redacted)\"".to_owned(),
            ),
            ("password: x".to_owned(), "password: (redacted)".to_owned()),
            (
                "Authorization: Bearer abc".to_owned(),
                "Authorization: Bearer (redacted)".to_owned(),
            ),
            (
                format!("Signature={}, a", "0a".repeat(32)),
                "Signature=(redacted), a".to_owned(),
            ),
            (
                "Credential=ASIA0123456789ABCDEF/20260101/eu-west-1/sts".to_owned(),
                "Credential=(redacted)".to_owned(),
            ),
            (
                "of ASIA0123456789ABCDEF".to_owned(),
                "of (redacted)".to_owned(),
            ),
            (
                format!("data {long}== end"),
                "data (redacted)== end".to_owned(),
            ),
            (
                "x-amz-security-token: IQoJ".to_owned(),
                "x-amz-security-token: (redacted)".to_owned(),
            ),
            (
                "http://user:pa55@proxy:3128/x".to_owned(),
                "http://(redacted)@proxy:3128/x".to_owned(),
            ),
            (
                "a\n-----BEGIN PRIVATE KEY-----\nMIG\n-----END PRIVATE KEY-----\nb".to_owned(),
                "a\n(redacted)\nb".to_owned(),
            ),
            (
                "one -----BEGIN RSA PRIVATE KEY-----\\nMIG and no end".to_owned(),
                "one (redacted)".to_owned(),
            ),
        ] {
            assert_eq!(redact(&text), expected, "{text}");
        }
    }

    #[test]
    fn what_helps_to_find_a_fault_stays() {
        let digest = "0123456789abcdef".repeat(4);
        for text in [
            "the bootstrap token has expired",
            "https://10.0.0.1:6443 does not accept the credential (401 Unauthorized): expired",
            "ip-10-0-0-1.eu-west-1.compute.internal aws:///eu-west-1a/i-0123456789abcdef0",
            "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf",
            "node-csr kubelet-authenticator-0123456789abcdef",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
            &digest,
            "\"signature\": \"present\", \"privateKey\": \"fits\"",
            "token:\nnext line",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
