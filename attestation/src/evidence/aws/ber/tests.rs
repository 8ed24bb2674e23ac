use proptest::prelude::*;

use super::{InvalidBer, STANDARD, decode, to_der};
use base64::Engine as _;

/// The maximum size of a message, in bytes.
const MAX_SIZE: usize = 16_384;

/// Generates arbitrary DER: nested sequences of octet strings and integers.
fn der() -> impl Strategy<Value = Vec<u8>> {
    let leaf = (
        prop_oneof![Just(0x04), Just(0x02), Just(0x13), Just(0x80)],
        proptest::collection::vec(any::<u8>(), 0..300),
    );
    let leaf = leaf.prop_map(|(tag, content)| element(tag, &content));
    leaf.prop_recursive(6, 64, 8, |inner| {
        let tag = prop_oneof![Just(0x30), Just(0x31), Just(0xa0)];
        (tag, proptest::collection::vec(inner, 0..8))
            .prop_map(|(tag, members)| element(tag, &members.concat()))
    })
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let [.., high, low] = length.to_be_bytes();
    let header = match length {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [header, content.to_vec()].concat()
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(der) = to_der(&bytes) {
            prop_assert_eq!(to_der(&der), Ok(der));
        }
    }

    #[test]
    fn an_indefinite_length_does_not_cause_a_panic(
        depth in 0..12_usize,
        bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(0x24), Just(0x80), any::<u8>()], 0..60),
    ) {
        let ber = [[0x30, 0x80].repeat(depth), bytes, vec![0; 2 * depth]].concat();
        if let Ok(der) = to_der(&ber) {
            prop_assert!(depth <= 8);
            prop_assert_eq!(to_der(&der), Ok(der));
        }
    }

    #[test]
    fn der_input_is_unchanged(der in der()) {
        prop_assume!(der.len() <= MAX_SIZE);
        prop_assert_eq!(to_der(&der), Ok(der));
    }

    #[test]
    fn der_inside_indefinite_lengths_is_converted_to_der(der in der()) {
        prop_assume!(der.len() < MAX_SIZE - 16);
        let ber = [&[0x30, 0x80, 0xa0, 0x80], der.as_slice(), &[0, 0, 0, 0]].concat();
        prop_assert_eq!(to_der(&ber), Ok(element(0x30, &element(0xa0, &der))));
    }
}

#[test]
fn the_pieces_of_a_constructed_string_are_joined() {
    let joined = Ok(vec![0x04, 3, 1, 2, 3]);

    assert_eq!(
        to_der(&[0x24, 0x80, 0x04, 1, 1, 0x04, 2, 2, 3, 0, 0]),
        joined
    );
    assert_eq!(to_der(&[0x24, 7, 0x04, 1, 1, 0x04, 2, 2, 3]), joined);
    assert_eq!(to_der(&[0x24, 0x80, 0, 0]), Ok(vec![0x04, 0]));
}

#[test]
fn invalid_or_unsupported_ber_is_refused_with_the_reason() {
    let too_deep = [[0x30, 0x80].repeat(9), vec![0; 18]].concat();
    let deepest = [[0x30, 0x80].repeat(8), vec![0; 16]].concat();
    for (ber, detail) in [
        (&[][..], "it is truncated"),
        (&[0x30], "it is truncated"),
        (&[0x30, 2, 0], "it is truncated"),
        (&[0x30, 0x80, 2, 0], "it is truncated"),
        (&[0x30, 0x82, 1], "it is truncated"),
        (&[0, 0], "an end-of-contents marker is out of place"),
        (
            &[0x30, 0x80, 0, 1, 0, 0],
            "an end-of-contents marker is out of place",
        ),
        (&[0x3f, 0x20, 0], "a tag number is too large"),
        (&[0x04, 0x80, 0, 0], "a primitive element has no length"),
        (&[0x04, 0x81, 1, 7], "a length is not in its shortest form"),
        (
            &[0x04, 0x82, 0, 0x80],
            "a length is not in its shortest form",
        ),
        (&[0x04, 0x83, 1, 0, 0], "a length is too large"),
        (&[0x04, 0xff], "a length is too large"),
        (
            &[0x24, 0x80, 0x24, 0, 0, 0],
            "a part of an octet string is not a primitive octet string",
        ),
        (
            &[0x24, 0x80, 0x30, 0, 0, 0],
            "a part of an octet string is not a primitive octet string",
        ),
        (&[0x24, 3, 0x04, 2, 7, 7], "it is truncated"),
        (&[0x04, 0, 0], "it has trailing bytes"),
        (&too_deep, "it is nested too deeply"),
    ] {
        assert_eq!(to_der(ber), Err(InvalidBer(detail)), "{ber:x?}");
    }
    assert!(to_der(&deepest).is_ok());
}

#[test]
fn every_element_length_up_to_the_limit_is_minimally_encoded() {
    for length in [0x7f, 0x80, 0xff, 0x100, MAX_SIZE - 4] {
        let der = element(0x04, &vec![7; length]);

        assert_eq!(to_der(&der), Ok(der), "{length}");
    }
    let too_large = element(0x04, &vec![7; MAX_SIZE - 3]);
    assert_eq!(to_der(&too_large), Err(InvalidBer("it is too large")));
}

#[test]
fn base64_with_lines_of_any_length_is_read() {
    let der = element(0x04, &[7; 60]);
    let one_line = STANDARD.encode(&der);
    let (first, second) = one_line.split_at(41);
    let most = format!("{one_line}{}", "\n".repeat(24_576 - one_line.len()));

    for text in [&one_line, &format!("{first}\r\n{second}\n"), &most] {
        assert_eq!(decode(text), Ok(der.clone()), "{text}");
    }
    for (text, why) in [
        (format!("{most}\n"), "it is too large"),
        (String::new(), "it is empty"),
        ("\r\n".to_owned(), "it is empty"),
        (format!("{first} {second}"), "it is not base64"),
        (one_line.replace('=', ""), "it is not base64"),
        (STANDARD.encode([0x04]), "it is truncated"),
    ] {
        assert_eq!(decode(&text), Err(InvalidBer(why)), "{text}");
    }
}
