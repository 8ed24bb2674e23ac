//! Removes secrets from texts that leave this machine.
//!
//! The redactor removes the known secrets of this machine everywhere. It also removes texts that appear to be a secret
//! because of their format or position. The second rule can also remove other texts, such as certificates in base64.
//! Removing too much text is better than removing too little.

mod assignment;
mod forms;
mod names;
mod pairs;
mod pem;

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use assignment::Assignment;
use forms::{has_form, is_line_of_base64};
use names::Name;

/// The replacement for a secret.
pub(crate) const REDACTED: &str = "(redacted)";

/// The minimum length of a known secret. Shorter texts would also match ordinary words.
const LEAST_KNOWN: usize = 12;

/// The minimum length of a long word, in bytes. Parts of keys, signatures and session tokens are longer, and names are
/// shorter.
const LONG: usize = 40;

/// The number of bytes that are examined before and after a word in a line. A line can be several megabytes long.
const FAR: usize = 1024;

/// Words that are followed by a secret after a space.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

/// Options of programs that are followed by `user:password`.
const LOGINS: [&str; 3] = ["-u", "--user", "--proxy-user"];

/// The secrets of this machine.
#[derive(derive_more::Debug, Default)]
pub(crate) struct Redactor {
    #[debug(skip)]
    known: Vec<Zeroizing<String>>,
}

impl Redactor {
    /// Adds a secret: a token, or each line of a key in PEM.
    pub(crate) fn know(&mut self, secret: &str) {
        let lines = secret.lines().map(str::trim);
        let lines = lines.filter(|line| line.len() >= LEAST_KNOWN && !line.starts_with("-----"));
        self.known
            .extend(lines.map(|line| Zeroizing::new(line.to_owned())));
    }

    /// The text without secrets, and the number of redacted places.
    pub(crate) fn redact(&self, text: &str) -> (String, usize) {
        let mut count = 0;
        let mut text = pem::keys(text, &mut count);
        for secret in &self.known {
            count += text.matches(secret.as_str()).count();
            text = text.replace(secret.as_str(), REDACTED);
        }
        let text = logins(&text, &mut count);
        (words(&text, &mut count), count)
    }
}

/// Removes the user and password from URLs and from `user:password@host`.
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

/// Appends the text, and replaces the range `part` of the text.
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

/// The user and password of a URL without its scheme. If a password contains a slash, the text before the slash looks
/// like the whole authority of the URL.
fn login_of_url(url: &str) -> Option<Range<usize>> {
    let authority = url.split(['/', '\\']).next().unwrap_or_default();
    if let Some(end) = authority.rfind('@') {
        return Some(0..end);
    }
    let (_, port) = authority.rsplit_once(':')?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) || port.ends_with(']');
    url.rfind('@').filter(|_| !is_port).map(|end| 0..end)
}

/// `user:password` before the last `@`. In an image reference with a digest, this part is a name and a tag, not a
/// login.
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

/// Removes words that have the format of a secret, or that follow the name of a secret.
fn words(text: &str, count: &mut usize) -> String {
    let mut kept = String::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let (gap, after) = split(rest, |letter| !is_of_word(letter));
        let (word, after) = split(after, is_of_word);
        let before = text.get(..at + gap.len()).unwrap_or_default();
        at += gap.len() + word.len();
        kept.push_str(gap);
        let line = line_before(before);
        if has_form(before, word)
            || pairs::is_option_with_password(line, word)
            || is_line_of_base64(word) && is_alone(before, after)
        {
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

/// The secret value that follows a word: the separator before the value, the value, and the position of its end in
/// `after`.
fn value_after<'a>(before: &str, word: &str, after: &'a str) -> Option<(&'a str, &'a str, usize)> {
    let (start, end) = place_of_value(before, word, after)?;
    let (separator, value) = (after.get(..start)?, after.get(start..end)?);
    (!value.is_empty()).then_some((separator, value, end))
}

fn place_of_value(before: &str, word: &str, after: &str) -> Option<(usize, usize)> {
    let line = line_before(before);
    if SCHEMES.contains(&word.to_ascii_lowercase().as_str()) {
        return after_scheme(line, after);
    }
    let assigned = || {
        Assignment::parse(before, word, after)
            .filter(|it| it.start < it.end && is_on_line(it, after))
    };
    let value = |it: &Assignment| after.get(it.start..it.end).unwrap_or_default();
    if pairs::is_value(word) {
        let found = assigned()?;
        let name = pairs::name_before(before);
        let name = name.or_else(|| pairs::name_behind(after.get(found.end..)?))?;
        let is_secret = Name::of(name)?.has(value(&found)) && !is_structure(value(&found));
        return is_secret.then_some((found.start, found.end));
    }
    if LOGINS.contains(&word) {
        return login_of_option(after);
    }
    if ["server", "node"].contains(&word) && line.ends_with("::") {
        // A token of k3s: K10<digest>::server:<secret>.
        let secret = after.strip_prefix(':')?;
        return Some((1, 1 + split(secret, is_of_word).0.len()));
    }
    if pairs::is_password_option(line, word) {
        return word_behind(after);
    }
    if pairs::is_key_of_certificates(line, word)
        && let Some(next) = pairs::on_next_line(after)
    {
        return Some(next);
    }
    let name = Name::of(word)?;
    if let Some(found) = assigned() {
        let value = value(&found);
        // The value follows the scheme, so `after_scheme` finds it.
        let first = split(value, is_of_word).0.to_ascii_lowercase();
        let is_header = name == Name::OfHeader && SCHEMES.contains(&first.as_str());
        let is_word = pairs::is_in_sentence(line, word, after, &found);
        let is_secret = name.has(value) && !is_structure(value) && !is_header && !is_word;
        return is_secret.then_some((found.start, found.end));
    }
    if name == Name::Of && pairs::is_item(line) && word.starts_with("--") {
        return pairs::on_next_line(after);
    }
    pairs::is_password_behind(line, word, after)
        .then(|| word_behind(after))
        .flatten()
}

/// Whether a value begins on the line of its name. In YAML, a value can begin on the next line.
fn is_on_line(found: &Assignment, after: &str) -> bool {
    after
        .get(..found.start)
        .is_some_and(|separator| !separator.contains('\n'))
}

/// The value after an HTTP authentication scheme. Outside a header, the value must have the format of a secret: a
/// sentence can contain `invalid bearer token`.
fn after_scheme(line: &str, after: &str) -> Option<(usize, usize)> {
    let start = after.find(is_of_word).filter(|start| {
        after
            .get(..*start)
            .is_some_and(|it| !it.is_empty() && !it.contains('\n'))
    })?;
    let value = after.get(start..)?;
    let is_end = |letter: char| letter.is_whitespace() || "\"',;)\\".contains(letter);
    let value = value.split(is_end).next()?;
    let around = |it: char| it.is_whitespace() || "\"'\\[:=>".contains(it);
    let header = line.trim_end_matches(around).to_ascii_lowercase();
    let is_header = header.ends_with("authorization") && header.len() < line.len();
    let is_odd = |it: u8| !it.is_ascii_lowercase() && !b"-_.".contains(&it);
    let is_secret = is_header || value.len() >= 6 && value.bytes().any(is_odd);
    is_secret.then_some((start, start + value.len()))
}

/// `user:password` after an option. Numbers are the user ID and group ID of a process.
fn login_of_option(after: &str) -> Option<(usize, usize)> {
    let (start, end) = word_behind(after)?;
    let value = after.get(start..end)?;
    let (user, password) = value.split_once(':')?;
    let is_login =
        !user.is_empty() && user != "system" && !password.is_empty() && !password.contains(':');
    let is_number = |text: &str| text.bytes().all(|it| it.is_ascii_digit());
    (is_login && !is_number(password)).then_some((start + user.len() + 1, end))
}

/// The word after spaces or `=`, without quotes.
fn word_behind(after: &str) -> Option<(usize, usize)> {
    let (gap, value) = split(after, |it| " \t=\"'".contains(it));
    let value = value
        .split(|it: char| it.is_whitespace() || "\"'".contains(it))
        .next()?;
    (!gap.is_empty() && !value.is_empty()).then_some((gap.len(), gap.len() + value.len()))
}

/// Whether the line contains only the word, and possibly a log prefix.
fn is_alone(before: &str, after: &str) -> bool {
    let line = line_before(before).trim_end();
    let is_first = line
        .trim_matches(|it: char| it == '-' || it.is_whitespace())
        .is_empty();
    let rest = || line_of(after).trim_start_matches('=').trim();
    (is_first || line.ends_with("]:")) && rest().is_empty()
}

/// The line at the end of a string, truncated if it is long.
fn line_before(text: &str) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(FAR));
    let near = text.get(start..).unwrap_or_default();
    near.rsplit('\n').next().unwrap_or_default()
}

/// The line at the start of a string, truncated if it is long.
fn line_of(text: &str) -> &str {
    let near = text.get(..text.floor_char_boundary(FAR));
    near.unwrap_or(text).split('\n').next().unwrap_or_default()
}

/// The decoded text of this base64.
fn decoded(base64: &str) -> Option<String> {
    let engines = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD];
    let decoded = engines.iter().find_map(|engine| engine.decode(base64).ok());
    String::from_utf8(decoded.filter(|bytes| bytes.len() > 2)?).ok()
}

/// Whether the value is the start of a JSON object, or of a list of objects.
fn is_structure(value: &str) -> bool {
    let starts = ["{\"", "{\\\"", "[{"];
    ["{", "["].contains(&value) || starts.iter().any(|start| value.starts_with(start))
}

/// Splits a string after the longest prefix of letters for which `of` returns true.
fn split(text: &str, of: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|letter| !of(letter)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn is_of_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "+/_-.".contains(letter)
}

#[cfg(test)]
mod tests;
