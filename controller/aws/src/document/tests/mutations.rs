//! Tests with random changes to a valid message.

use kubelet_authenticator_test_support::instance_identity::message::to_lines;
use proptest::prelude::*;

use super::{SIGNERS, message, verify};

const MUTATIONS: usize = 100_000;

/// Random numbers that are the same in every run (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap()
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() % end
    }
}

/// Makes one change: a bit or byte is changed, or bytes are omitted, repeated or moved.
fn change(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    let at = numbers.below(bytes.len());
    let length = numbers.below(8).min(bytes.len() - at);
    match numbers.below(5) {
        0 => bytes[at] ^= 1 << numbers.below(8),
        1 => bytes[at] = numbers.next().to_le_bytes()[0],
        2 => drop(bytes.drain(at..at + length)),
        3 => {
            let repeated = bytes[at..at + length].to_vec();
            bytes.splice(at..at, repeated);
        }
        _ => {
            let moved: Vec<u8> = bytes.drain(at..at + length).collect();
            let to = numbers.below(bytes.len());
            bytes.splice(to..to, moved);
        }
    }
}

#[test]
fn a_mutated_message_is_denied_or_has_the_same_document() {
    let good = message().to_ber();
    let expected = verify(&message()).unwrap();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);

    let mut accepted = 0;
    for _ in 0..MUTATIONS {
        let mut bytes = good.clone();
        for _ in 0..=numbers.below(3) {
            change(&mut bytes, &mut numbers);
        }
        // The change can result in a different encoding of the same message.
        if let Ok(document) = SIGNERS.verify(&to_lines(&bytes)) {
            assert_eq!(document, expected);
            accepted += usize::from(bytes != good);
        }
    }
    assert!(accepted < MUTATIONS / 100, "{accepted}");
}

#[test]
fn der_and_split_encodings_give_the_same_document() {
    let mut in_pieces = message();
    in_pieces.piece = 7;

    let expected = verify(&message());
    assert_eq!(SIGNERS.verify(&to_lines(&message().to_der())), expected);
    assert_eq!(verify(&in_pieces), expected);
}

proptest! {
    #[test]
    fn verification_of_arbitrary_text_does_not_panic(text in ".{0,200}") {
        prop_assert!(SIGNERS.verify(&text).is_err());
    }

    #[test]
    fn verification_of_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(SIGNERS.verify(&to_lines(&bytes)).is_err());
    }
}
