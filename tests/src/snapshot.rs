//! Complete program outputs, stored in files in the repository. With `UPDATE=1`, a test writes these files.

use std::fs;

use crate::page::repository;

/// Asserts that the file with this path in the repository contains this text. With `UPDATE=1`, writes the file first.
///
/// # Panics
///
/// Panics if the file contains a different text. The message contains the first line that differs.
#[track_caller]
pub fn assert_file(path: &str, text: &str) {
    let file = repository().join(path);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, text).unwrap();
    }
    let stored = fs::read_to_string(&file).unwrap_or_default();
    if let Some(difference) = difference(&stored, text) {
        panic!("{path} is stale: run this test with UPDATE=1\n{difference}");
    }
}

/// The first line that differs, if the texts are different.
fn difference(stored: &str, found: &str) -> Option<String> {
    if stored == found {
        return None;
    }
    let both = stored.split('\n').zip(found.split('\n'));
    let equal = both.take_while(|(stored, found)| stored == found).count();
    let line = |text: &str| text.split('\n').nth(equal).map(str::to_owned);
    Some(format!(
        "line {}: stored {:?}, found {:?}",
        equal + 1,
        line(stored),
        line(found)
    ))
}

/// The text with placeholders for values that differ between runs: times, digests, serial numbers, addresses of API
/// servers, UIDs of node identities, and names of requests.
pub fn stable(text: &str) -> String {
    let is_end = |letter: char| letter.is_whitespace() || "(),;".contains(letter);
    let words = text.split_inclusive(is_end).map(|word| {
        let (word, end) = word.split_at(word.trim_end_matches(is_end).len());
        format!("{}{end}", stable_word(word))
    });
    words.collect()
}

fn stable_word(word: &str) -> &str {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let uid = word.split_once('.').map_or("", |(uid, _)| uid);
    if humantime::parse_rfc3339(word).is_ok() {
        "TIME"
    } else if word.len() >= 16 && is_hex(word) {
        if word.len() == 64 { "DIGEST" } else { "SERIAL" }
    } else if uid.len() == 32 && is_hex(uid) {
        "UID.GENERATION"
    } else if word.starts_with("https://127.0.0.1:") {
        "https://API"
    } else if word.starts_with("ca-sha256:") {
        "CA"
    } else if word.starts_with("kubelet-authenticator-") && word.len() > 40 {
        "REQUEST"
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_that_varies_between_runs_is_replaced() {
        let uid = "0".repeat(32);
        let text = format!(
            "until 2026-11-29T15:00:00Z (99 % left), {uid}.1, {uid}{uid}; https://127.0.0.1:1\nnode-1  7 "
        );

        let expected = "until TIME (99 % left), UID.GENERATION, DIGEST; https://API\nnode-1  7 ";
        assert_eq!(stable(&text), expected);
    }

    #[test]
    fn the_first_different_line_is_reported() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        for (found, line) in [
            ("a\nc\n", r#"line 2: stored Some("b"), found Some("c")"#),
            ("a\nb", r#"line 3: stored Some(""), found None"#),
            ("a\nb\nc\n", r#"line 3: stored Some(""), found Some("c")"#),
        ] {
            assert_eq!(difference("a\nb\n", found).as_deref(), Some(line));
        }
    }
}
