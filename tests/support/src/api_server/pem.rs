//! A PEM parser that is as lenient as Go's `encoding/pem`, because the API server uses that parser.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// One PEM block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) label: String,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) contents: Vec<u8>,
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// The first well-formed block, and the data after it. Malformed blocks are skipped.
pub(super) fn first_block(data: &[u8]) -> Option<(Block, &[u8])> {
    let mut rest = data;
    loop {
        rest = after_begin(rest)?;
        let (label, body) = line(rest);
        rest = body;
        let Some(label) = label.strip_suffix(DASHES) else {
            continue;
        };
        let mut headers = BTreeMap::new();
        let mut body = body;
        loop {
            if body.is_empty() {
                return None;
            }
            let (text, next) = line(body);
            let Some(colon) = text.iter().position(|byte| *byte == b':') else {
                break;
            };
            headers.insert(trimmed(&text[..colon]), trimmed(&text[colon + 1..]));
            body = next;
        }
        rest = body;
        let Some((encoded, after)) = until_end(body, label, headers.is_empty()) else {
            continue;
        };
        let encoded: Vec<u8> = encoded
            .iter()
            .copied()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        let Ok(contents) = STANDARD.decode(encoded) else {
            continue;
        };
        let label = String::from_utf8_lossy(label).into_owned();
        return Some((
            Block {
                label,
                headers,
                contents,
            },
            after,
        ));
    }
}

/// The data after the next `BEGIN` at the start of a line.
fn after_begin(data: &[u8]) -> Option<&[u8]> {
    if let Some(rest) = data.strip_prefix(BEGIN) {
        return Some(rest);
    }
    let at = find(data, &[b"\n", BEGIN].concat())?;
    data.get(at + 1 + BEGIN.len()..)
}

/// The data before the `END` line with this label, and the data after that line.
fn until_end<'a>(body: &'a [u8], label: &[u8], may_be_empty: bool) -> Option<(&'a [u8], &'a [u8])> {
    let (encoded, trailer) = match body.strip_prefix(END) {
        Some(trailer) if may_be_empty => (&body[..0], trailer),
        Some(_) | None => {
            let at = find(body, &[b"\n", END].concat())?;
            (&body[..at], &body[at + 1 + END.len()..])
        }
    };
    let (text, rest) = line(trailer.strip_prefix(label)?.strip_prefix(DASHES)?);
    text.is_empty().then_some((encoded, rest))
}

/// The first line without its trailing white space, and the remaining data.
fn line(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (data[..at].trim_ascii_end(), &data[at + 1..]),
        None => (data.trim_ascii_end(), &[]),
    }
}

fn find(data: &[u8], wanted: &[u8]) -> Option<usize> {
    data.windows(wanted.len())
        .position(|window| window == wanted)
}

fn trimmed(text: &[u8]) -> String {
    String::from_utf8_lossy(text.trim_ascii()).into_owned()
}
