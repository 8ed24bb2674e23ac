//! The catalog of reasons in the format that the plugins contain. `src/reasons.rs` describes the format, and unpacks
//! the catalog.

use std::collections::HashMap;

/// The lengths of the shortest and of the longest copy.
const MIN_COPY: usize = 4;
const MAX_COPY: usize = MIN_COPY + 0x7f;

/// The length of an encoded copy, in bytes.
const COPY: usize = 3;

/// The shortest packed form of the text.
///
/// # Panics
///
/// Panics if the text is not ASCII, or is too long for the format.
pub(super) fn packed(text: &str) -> Vec<u8> {
    assert!(text.is_ascii(), "the format has no other letters");
    assert!(u16::try_from(text.len()).is_ok(), "{} bytes", text.len());
    let text = text.as_bytes();
    let copies = longest_copies(text);
    // For each position, the number of bytes from there to the end, and the length of the first step.
    let mut costs = vec![0; text.len() + 1];
    let mut steps = vec![1; text.len()];
    for at in (0..text.len()).rev() {
        costs[at] = 1 + costs[at + 1];
        for length in MIN_COPY..=copies[at].1 {
            let cost = COPY + costs[at + length];
            if cost < costs[at] {
                (costs[at], steps[at]) = (cost, length);
            }
        }
    }
    let mut packed = Vec::new();
    let mut at = 0;
    while let Some(&step) = steps.get(at) {
        if step == 1 {
            packed.push(text[at]);
        } else {
            packed.push(0x80 | u8::try_from(step - MIN_COPY).unwrap());
            packed.extend(u16::try_from(copies[at].0).unwrap().to_be_bytes());
        }
        at += step;
    }
    packed
}

/// For each position, the start and the length of the longest copy of earlier text. The length is 0 if there is no
/// copy.
fn longest_copies(text: &[u8]) -> Vec<(usize, usize)> {
    let mut starts: HashMap<&[u8], Vec<usize>> = HashMap::new();
    let mut copies = Vec::new();
    for at in 0..text.len() {
        let Some(first) = text.get(at..at + MIN_COPY) else {
            copies.push((0, 0));
            continue;
        };
        let known = starts.entry(first).or_default();
        let mut longest = (0, 0);
        for &start in &*known {
            // The copy can be longer only if it also contains the next letter.
            if text.get(start + longest.1) != text.get(at + longest.1) {
                continue;
            }
            let same = text[start..at].iter().zip(&text[at..]).take(MAX_COPY);
            let length = same.take_while(|(a, b)| a == b).count();
            if length > longest.1 {
                longest = (start, length);
            }
        }
        copies.push(longest);
        known.push(at);
    }
    copies
}

#[test]
fn repeated_text_is_stored_once_and_referenced() {
    assert_eq!(packed("abcd"), b"abcd");
    assert_eq!(packed("abcdabcd"), b"abcd\x80\0\0");
    assert_eq!(packed("xabcdeabcdey"), b"xabcde\x81\0\x01y");
}
