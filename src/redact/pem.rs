//! Private keys in PEM.

use super::REDACTED;

/// The dashes before the first word of a PEM block, plain and URL-encoded.
const DASHES: [&str; 2] = ["-----", "%2D%2D%2D%2D%2D"];

const BEGIN: &str = "BEGIN";
const END: &str = "-----END ";

/// Removes private keys, including keys on one line, in URLs, and truncated keys.
pub(super) fn keys(text: &str, count: &mut usize) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, dashes, body)) = next_block(rest) {
        without_ends(before, count, &mut kept);
        let (label, after) = body.split_once(dashes).unwrap_or((body, ""));
        if !is_key(label) {
            kept.extend([dashes, BEGIN]);
            rest = body;
            continue;
        }
        *count += 1;
        kept.push_str(REDACTED);
        let end = after.split_once(&format!("{dashes}END"));
        let behind = end.and_then(|(_, label)| label.split_once(dashes));
        rest = behind.map_or("", |(_, behind)| behind);
    }
    without_ends(rest, count, &mut kept);
    kept
}

/// The text before the next block, its dashes, and the text after its first word.
fn next_block(text: &str) -> Option<(&str, &'static str, &str)> {
    text.match_indices(BEGIN).find_map(|(at, _)| {
        let before = text.get(..at)?;
        let dashes = DASHES.into_iter().find(|dashes| before.ends_with(dashes))?;
        let body = text.get(at + BEGIN.len()..)?;
        Some((before.strip_suffix(dashes)?, dashes, body))
    })
}

/// Whether the block with this label contains a private key.
fn is_key(label: &str) -> bool {
    let label = label.split(['\n', '"', '\'']).next().unwrap_or_default();
    let words = label.replace("%20", " ").replace(['+', '_'], " ");
    let words = words.to_ascii_uppercase();
    words.contains("PRIVATE KEY") || words.contains("STATIC KEY")
}

/// Appends the text, but removes the last parts of keys whose beginning is missing.
fn without_ends(text: &str, count: &mut usize, kept: &mut String) {
    let mut parts = text.split(END);
    let mut before = parts.next().unwrap_or_default();
    for part in parts {
        let (label, behind) = part.split_once("-----").unwrap_or((part, ""));
        if is_key(label) {
            *count += 1;
            kept.extend([without_last_lines(before), REDACTED]);
            before = behind;
        } else {
            kept.extend([before, END]);
            before = part;
        }
    }
    kept.push_str(before);
}

/// The text without the lines of base64 at its end, including their log prefixes.
fn without_last_lines(text: &str) -> &str {
    let is_body = |line: &str| {
        let word = line.split_whitespace().next_back().unwrap_or_default();
        let is_base64 = |it: u8| it.is_ascii_alphanumeric() || b"+/=".contains(&it);
        word.len() >= 4 && word.bytes().all(is_base64)
    };
    let mut kept = text
        .rfind('\n')
        .map_or("", |at| text.get(..=at).unwrap_or_default());
    while let Some(line) = kept.lines().next_back().filter(|line| is_body(line)) {
        kept = kept
            .get(..kept.len().saturating_sub(line.len() + 1))
            .unwrap_or_default();
    }
    kept
}
