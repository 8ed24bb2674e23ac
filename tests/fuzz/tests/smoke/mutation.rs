//! Mutations of valid inputs. The mutations are the same in every run.

use fastrand::Rng;

/// Bytes that have a special meaning in parsers.
const TELLING: &[u8] = b"\0\n\r\t \"'\\{}[]:,#&*!-=/%@<>\x01\x30\x7f\x80\x81\x82\xff";

/// The longest range that is moved, repeated or omitted.
const MAX_RANGE: usize = 64;

/// Returns one of the inputs with a few changes. `seeds` must not be empty.
pub fn mutated(seeds: &[Vec<u8>], numbers: &mut Rng) -> Vec<u8> {
    let mut bytes = seeds[numbers.usize(..seeds.len())].clone();
    for _ in 0..=numbers.usize(..3) {
        change(&mut bytes, seeds, numbers);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], numbers: &mut Rng) {
    if bytes.is_empty() {
        bytes.push(numbers.u8(..));
        return;
    }
    let at = numbers.usize(..bytes.len());
    let end = (at + numbers.usize(..MAX_RANGE)).min(bytes.len());
    match numbers.u8(..9) {
        0 => bytes[at] ^= 1 << numbers.u8(..8),
        1 => bytes[at] = numbers.u8(..),
        2 => bytes[at] = telling(numbers),
        3 => bytes.truncate(at),
        4 => bytes.insert(at, telling(numbers)),
        5 => drop(bytes.drain(at..end)),
        6 => {
            let repeated = bytes[at..end].to_vec();
            bytes.splice(at..at, repeated);
        }
        7 => {
            let moved: Vec<u8> = bytes.drain(at..end).collect();
            let to = numbers.usize(..=bytes.len());
            bytes.splice(to..to, moved);
        }
        _ => splice(bytes, at, &seeds[numbers.usize(..seeds.len())], numbers),
    }
}

/// Joins the beginning of one input and the end of another.
fn splice(bytes: &mut Vec<u8>, at: usize, other: &[u8], numbers: &mut Rng) {
    let from = numbers.usize(..=other.len());
    bytes.truncate(at);
    bytes.extend_from_slice(&other[from..]);
}

fn telling(numbers: &mut Rng) -> u8 {
    TELLING[numbers.usize(..TELLING.len())]
}
