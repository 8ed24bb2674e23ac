//! The sieve of answers, without a connection.

use hyper::body::Bytes;

use super::sieve::{Limits, Sieve};

/// These pieces of a text, or of `lines` each of which is a text, as they reach a parser.
pub fn sieved<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, lines: bool) -> Vec<u8> {
    let limits = Limits {
        bytes: usize::MAX,
        values: usize::MAX,
        items: usize::MAX,
        object: usize::MAX,
    };
    let mut sieve = Sieve::new(limits, lines);
    let pieces = pieces.into_iter();
    let passed = pieces.map_while(|piece| sieve.pass(Bytes::copy_from_slice(piece)).ok());
    passed.flatten().collect()
}
