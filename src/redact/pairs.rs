//! Secrets that do not directly follow their name.

use super::assignment::Assignment;
use super::names::{Name, is_noun};
use super::{line_of, split};

/// Words before the name and the value of a pair, in lower case: `{"name": "DB_PASSWORD", "value": "a"}`.
const NAMES: [&str; 3] = ["name", "key", "parameterkey"];
const VALUES: [&str; 2] = ["value", "parametervalue"];

/// The maximum distance between a name and its value.
const NEAR: usize = 300;

/// The characters that can precede or follow the words of a pair.
const AROUND: &str = "\"'\\,; \t\r\n";

/// Programs with a short option for a password.
const OPTIONS: [(&str, &str); 11] = [
    ("sshpass", "-p"),
    ("docker login", "-p"),
    ("podman login", "-p"),
    ("skopeo login", "-p"),
    ("registry login", "-p"),
    ("redis-cli", "-a"),
    ("az login", "-p"),
    ("curl", "-b"),
    ("ipmitool", "-P"),
    ("ldap", "-w"),
    ("openssl enc", "-k"),
];

/// Names of passwords in files that separate words only with spaces.
const WORDS: [&str; 8] = [
    "bindpw",
    "masterauth",
    "pass",
    "passphrase",
    "psk",
    "requirepass",
    "rootpw",
    "wpa_passphrase",
];

/// Whether the word introduces the value of a pair.
pub(super) fn is_value(word: &str) -> bool {
    VALUES.iter().any(|name| word.eq_ignore_ascii_case(name))
}

/// The name of the pair whose value follows `before`.
pub(super) fn name_before(before: &str) -> Option<&str> {
    let start = before.len().saturating_sub(NEAR);
    let near = before.get(before.ceil_char_boundary(start)..)?;
    let object = near.rsplit(['{', '}']).next()?;
    // A YAML list item begins with a dash.
    let item = object.rmatch_indices('\n').find_map(|(at, _)| {
        let line = object.get(at + 1..)?;
        line.trim_start().starts_with("- ").then_some(line)
    });
    let object = item.unwrap_or(object);
    object.char_indices().rev().find_map(|(at, _)| {
        let is_start = !object
            .get(..at)?
            .ends_with(|it: char| it.is_ascii_alphanumeric());
        object.get(at..).filter(|_| is_start).and_then(name_at)
    })
}

/// The name of the pair whose value is directly before `behind`.
pub(super) fn name_behind(behind: &str) -> Option<&str> {
    name_at(behind.trim_start_matches(|it| AROUND.contains(it)))
}

/// The name in `name: DB_PASSWORD`, at the start of the text.
fn name_at(text: &str) -> Option<&str> {
    let (word, rest) = split(text, |it| it.is_ascii_alphabetic());
    if !NAMES.iter().any(|name| word.eq_ignore_ascii_case(name)) {
        return None;
    }
    let rest = rest.trim_start_matches(['"', '\'', '\\', ' ']);
    let rest = rest.strip_prefix([':', '=', '>'])?;
    let rest = rest.trim_start_matches(['"', '\'', '\\', ' ']);
    let (name, _) = split(rest, |it| it.is_ascii_alphanumeric() || "_-.".contains(it));
    Some(name).filter(|name| !name.is_empty())
}

/// Whether the word is an option that contains a password, as in a command line of `mysql`.
pub(super) fn is_option_with_password(line: &str, word: &str) -> bool {
    let is_of_mysql = line.contains("mysql") || line.contains("mariadb");
    is_of_mysql && word.starts_with("-p") && word.len() > 2 && !word.contains("-port")
}

/// Whether a password follows this option, for the program in `line`.
pub(super) fn is_password_option(line: &str, word: &str) -> bool {
    OPTIONS
        .iter()
        .any(|(program, option)| word == *option && line.contains(program))
}

/// Whether the word is a password name that only a space separates from its value. This occurs in lines with two words,
/// and in `.netrc`.
pub(super) fn is_password_behind(line: &str, word: &str, after: &str) -> bool {
    let rest = line_of(after);
    let is_first = line.trim().is_empty() || line.trim_end().ends_with("]:");
    let is_line = is_first && rest.split_whitespace().count() == 1;
    let is_netrc = || {
        let mut words = line.split_whitespace().rev();
        words.next().is_some() && words.next() == Some("login")
    };
    rest.starts_with([' ', '\t'])
        && (is_line && WORDS.iter().any(|name| word.eq_ignore_ascii_case(name))
            || is_line && word == "password" && rest.bytes().any(|it| it.is_ascii_digit())
            || word == "password" && Name::of(word).is_some() && is_netrc())
}

/// Whether the line before a value belongs to the output of `kubeadm init phase upload-certs`.
pub(super) fn is_key_of_certificates(line: &str, word: &str) -> bool {
    word == "key"
        && line
            .to_ascii_lowercase()
            .trim_end()
            .ends_with("certificate")
}

/// Whether the value is a word in a sentence: `failed to fetch token: unexpected status`.
pub(super) fn is_in_sentence(line: &str, name: &str, after: &str, value: &Assignment) -> bool {
    let (separator, behind) = (after.get(..value.start), after.get(value.end..));
    let (Some(separator), Some(behind)) = (separator, behind) else {
        return false;
    };
    let word = after.get(value.start..value.end).unwrap_or_default();
    if name == "secret" && is_object(word) {
        return true;
    }
    let word = word.trim_end_matches(':');
    let is_first = line.trim().is_empty() || line.trim_end().ends_with(['{', ',', '-']);
    let continues = behind.starts_with(' ')
        && behind
            .trim_start()
            .starts_with(|it: char| it.is_ascii_alphabetic() || "\"*'".contains(it));
    is_noun(name)
        && !is_first
        && separator.ends_with(": ")
        && word.len() > 2
        && word.bytes().all(|it| it.is_ascii_alphabetic())
        && continues
}

/// Whether the word is `namespace/name`.
fn is_object(word: &str) -> bool {
    let is_of_name = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || b"-.".contains(&it);
    word.split_once('/').is_some_and(|(namespace, name)| {
        let mut bytes = namespace.bytes().chain(name.bytes());
        !namespace.is_empty() && !name.is_empty() && bytes.all(is_of_name)
    })
}

/// Whether the line is the beginning of a list item.
pub(super) fn is_item(line: &str) -> bool {
    line.chars()
        .all(|it| it.is_whitespace() || "-\"'".contains(it))
}

/// The word on the next line, if it is the value of the previous option.
pub(super) fn on_next_line(after: &str) -> Option<(usize, usize)> {
    let (gap, rest) = split(after, |it| AROUND.contains(it) || it == ':');
    if gap.matches('\n').count() != 1 {
        return None;
    }
    // Skip the dash of a YAML list item, or the prefix of a log.
    let line = line_of(rest);
    let start = match rest.strip_prefix("- ") {
        Some(item) => rest.len() - item.trim_start_matches([' ', '"', '\'']).len(),
        None => line.rfind("]: ").map_or(0, |at| at + 3),
    };
    let value = line.get(start..)?;
    let len = value.trim_end_matches(['"', '\'', ',', ' ', '\r']).len();
    let is_value = len > 0 && !value.starts_with("--");
    is_value.then_some((gap.len() + start, gap.len() + start + len))
}
