//! Removes secrets from texts that leave this machine.
//!
//! There are two nets: the secrets that this machine is known to have, wherever they are, and texts
//! that have the form or the place of a secret. The second catches more than secrets, such as
//! certificates in base64: too much is removed rather than too little.

mod assignment;

use std::ops::Range;

use zeroize::Zeroizing;

use assignment::Assignment;

/// In the place of a secret.
pub(crate) const REDACTED: &str = "(redacted)";

/// Shorter texts would be found in ordinary words.
const LEAST_KNOWN: usize = 12;

/// Long enough for the parts of a key, a signature or a session token, and longer than names are.
const LONG: usize = 40;

/// Ends of names, in lower case and without separators, whose value is a secret: of `DB_PASSWORD`,
/// `clientSecret` or `--bootstrap-token`.
const KEYS: [&str; 20] = [
    "accesskey",
    "accesskeyid",
    "amzsignature",
    "apikey",
    "credential",
    "credentials",
    "keydata",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "pwd",
    "secret",
    "secretkey",
    "secrets",
    "sessionkey",
    "token",
    "tokendata",
    "tokens",
    "xkubeletattestation",
];

/// Names like [`KEYS`], where only a long value is a secret.
const KEYS_OF_LONG: [&str; 2] = ["key", "signature"];

/// Values that are none.
const LITERALS: [&str; 3] = ["false", "null", "true"];

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

/// Removes user and password of URLs and of `user:password@host`.
fn logins(text: &str, count: &mut usize) -> String {
    let is_end = |letter: char| letter.is_whitespace() || "\"'<>".contains(letter);
    let mut kept = String::new();
    for chunk in text.split_inclusive(is_end) {
        let mut parts = chunk.split("://");
        let first = parts.next().unwrap_or_default();
        hide(first, login(first), count, &mut kept);
        for part in parts {
            kept.push_str("://");
            hide(part, login_of_url(part), count, &mut kept);
        }
    }
    kept
}

/// Appends the text, without a part of it.
fn hide(text: &str, part: Option<Range<usize>>, count: &mut usize, kept: &mut String) {
    let around = part.and_then(|part| Some((text.get(..part.start)?, text.get(part.end..)?)));
    match around {
        Some((before, after)) => {
            *count += 1;
            kept.extend([before, REDACTED, after]);
        }
        None => kept.push_str(text),
    }
}

/// User and password of a URL without its scheme. A slash in a password ends the authority too
/// early.
fn login_of_url(url: &str) -> Option<Range<usize>> {
    let authority = url.split(['/', '\\']).next().unwrap_or_default();
    if let Some(end) = authority.rfind('@') {
        return Some(0..end);
    }
    let (_, port) = authority.rsplit_once(':')?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) || port.ends_with(']');
    url.rfind('@').filter(|_| !is_port).map(|end| 0..end)
}

/// `user:password` before the last `@`. Digests of images have a name and a tag there.
fn login(text: &str) -> Option<Range<usize>> {
    let (login, host) = text.rsplit_once('@')?;
    if host.starts_with("sha256:")
        || !host.starts_with(|it: char| it.is_alphanumeric() || it == '[')
    {
        return None;
    }
    let starts = login.match_indices(':').filter_map(|(colon, _)| {
        let before = login.get(..colon)?;
        let user = before.trim_end_matches(|it: char| it.is_alphanumeric() || "._%+-".contains(it));
        (user.len() < colon).then_some(user.len())
    });
    Some(starts.min()?..login.len())
}

/// Removes words that have the form of a secret, or follow the name of one.
fn words(text: &str, count: &mut usize) -> String {
    let mut kept = String::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let (gap, after) = split(rest, |letter| !is_of_word(letter));
        let (word, after) = split(after, is_of_word);
        let before = text.get(..at + gap.len()).unwrap_or_default();
        at += gap.len() + word.len();
        kept.push_str(gap);
        if has_form(word) {
            *count += 1;
            kept.push_str(REDACTED);
            continue;
        }
        kept.push_str(word);
        let Some(value) = value_after(before, word, after) else {
            continue;
        };
        let (separator, value, end) = value;
        kept.push_str(separator);
        *count += usize::from(value != REDACTED);
        kept.push_str(REDACTED);
        at += end;
    }
    kept
}

/// The secret value that a word announces: what is before it, the value, and its end in `after`.
fn value_after<'a>(before: &str, word: &str, after: &'a str) -> Option<(&'a str, &'a str, usize)> {
    let (start, end) = if SCHEMES.contains(&word.to_ascii_lowercase().as_str()) {
        let start = after.find(is_of_word)?;
        let value = after.get(start..)?;
        let is_end = |letter: char| letter.is_whitespace() || "\"',;)\\".contains(letter);
        (start, start + value.find(is_end).unwrap_or(value.len()))
    } else {
        let name = Name::of(word)?;
        let Assignment { start, end } = Assignment::parse(before, word, after)?;
        let value = after.get(start..end)?;
        let is_long = value.len() >= LONG;
        if name == Name::OfLong && !is_long || LITERALS.contains(&value) || is_structure(value) {
            return None;
        }
        // The scheme announces what is behind it.
        let first = split(value, is_of_word).0.to_ascii_lowercase();
        if name == Name::OfHeader && SCHEMES.contains(&first.as_str()) {
            return None;
        }
        (start, end)
    };
    let (separator, value) = (after.get(..start)?, after.get(start..end)?);
    (!separator.contains('\n') && !value.is_empty()).then_some((separator, value, end))
}

/// Whether the value is the start of an object of JSON, or of a list of them.
fn is_structure(value: &str) -> bool {
    let starts = ["{\"", "{\\\"", "[{"];
    ["{", "["].contains(&value) || starts.iter().any(|start| value.starts_with(start))
}

/// A name of secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Of,
    /// Of a header of HTTP.
    OfHeader,
    /// Of long ones.
    OfLong,
}

impl Name {
    fn of(word: &str) -> Option<Self> {
        let letters = word.chars().filter(char::is_ascii_alphanumeric);
        let plain = letters.collect::<String>().to_ascii_lowercase();
        let last = word.rsplit(['-', '_', '.', '/']).next().unwrap_or_default();
        if plain.ends_with("authorization") {
            return Some(Self::OfHeader);
        }
        if KEYS.iter().any(|key| plain.ends_with(key)) {
            return Some(Self::Of);
        }
        let is_long = KEYS_OF_LONG
            .iter()
            .any(|key| last.eq_ignore_ascii_case(key));
        is_long.then_some(Self::OfLong)
    }
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
mod tests;
