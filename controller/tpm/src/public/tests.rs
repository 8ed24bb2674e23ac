use kubelet_authenticator_test_support::tpm_machine::{
    AttestationKey as Which, EndorsementKey as Kind,
};

use tpm2_protocol::data::TpmEccCurve;

use super::*;
use crate::denial::TpmDenial;
use crate::fixture::machine;

/// A modulus with the form of the weak keys. It is the product of two primes that were created for this test.
const ROCA: &str = concat!(
    "bbe8fac76c3f6cf8323602fbac7c75a45a55b43140e5d9dd6044860bc7a5afa01ba09fadcb30d484b389e95ab3dc5535",
    "8e005f08ecc6b748f5f75114acbe6fe5056185780936b8161c0fdc3cfce0a3bd1273a4883e08631952a0987cbec60bc1",
    "ffa849a6258b8cffc7185ef4a1eb614b10d3dde1d419c4b3781707967e29db1942199bc988bd7892da5fab4ce43ac21f",
    "0ade983801ed7aca34492995e35904502d0b2be8886933a62e55160b2b2c92a4fbbdb664b97e685212322192f889191a",
    "8e9dd6ce86725f97b7c83e5ed6aca4ca28f38fff0b88f4a354e639b14904de8ad1c371852987b084d30aae63931d1dc5",
    "d9a896c53b316ec64545298ae1889be1",
);

fn roca() -> Vec<u8> {
    data_encoding::HEXLOWER.decode(ROCA.as_bytes()).unwrap()
}

#[test]
fn parsed_keys_and_names_match_the_tpm() {
    for kind in Kind::ALL {
        let machine = machine().with_endorsement_key(kind);
        let key = EndorsementKey::parse(&machine.ek_public()).unwrap();

        assert_eq!(key.key().spki(), machine.ek_spki(), "{kind:?}");
    }
    for which in [Which::ecdsa(), Which::rsassa()] {
        let machine = machine().with_attestation_key(which);
        let key = AttestationKey::parse(&machine.ak_public()).unwrap();

        assert_eq!(key.name().as_bytes(), machine.ak_name());
    }
}

#[test]
fn a_key_that_can_be_factored_is_denied() {
    let weak = |public: Vec<u8>| [&public[..public.len() - 256], &roca()].concat();
    let endorsement = machine().with_endorsement_key(Kind::Rsa2048).ek_public();
    EndorsementKey::parse(&endorsement).unwrap();
    let attestation = machine().with_attestation_key(Which::rsassa()).ak_public();
    AttestationKey::parse(&attestation).unwrap();

    assert_eq!(
        EndorsementKey::parse(&weak(endorsement)),
        Err(TpmDenial::TpmKeyWeak("endorsement key"))
    );
    assert_eq!(
        AttestationKey::parse(&weak(attestation)),
        Err(TpmDenial::TpmKeyWeak("attestation key"))
    );
}

#[test]
fn a_modulus_with_an_additional_factor_is_not_marked_as_weak() {
    // The last byte changes the result for many primes.
    for change in [2, 4, 6, 8] {
        let mut modulus = roca();
        *modulus.last_mut().unwrap() ^= change;

        assert!(!roca::is_marked(&modulus));
    }
    assert!(roca::is_marked(&roca()));
}

#[test]
fn a_coordinate_without_leading_zeros_gives_the_same_key() {
    // P-256's base point multiplied by 379. Its x coordinate has a leading zero byte.
    let (x, y) = (
        "5543894af3d00ed7d740abdbd75c96b06877b787db5f70eea78b90a8d7c00a",
        "bb4c85a3d8ea29efaafa24406912dd84d5b14dc32bf656ef6c6bd58a5d943f92",
    );
    let decode = |hex: &str| data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
    let (x, y) = (decode(x), decode(y));
    assert_eq!((x.len(), y.len()), (31, 32));
    let parameter = |bytes: &[u8]| bytes.try_into().unwrap();
    let unique = TpmuPublicId::Ecc(TpmsEccPoint {
        x: parameter(&x),
        y: parameter(&y),
    });

    let point = point(&unique, 32).unwrap();

    assert_eq!(point, [&[4, 0][..], &x, &y].concat());
    assert_eq!(Key::p256(&point), Ok(Key::P256(point)));
}

#[test]
fn an_rsa_modulus_is_odd_and_has_exactly_2048_bits() {
    let good = machine().with_endorsement_key(Kind::Rsa2048).ek_public();
    let good = &good[good.len() - 256..];
    let with = |first: u8, last: u8| [&[first][..], &good[1..255], &[last]].concat();
    for (first, last) in [(0x80, 0xff), (0xff, 0x01), (0x80, 0x01)] {
        let modulus = with(first, last);
        assert_eq!(Key::rsa(&modulus), Ok(Key::Rsa2048(modulus)));
    }
    for last in [0x00, 0x02, 0x80, 0xfe] {
        assert_eq!(
            Key::rsa(&with(0x80, last)),
            Err("the modulus is even"),
            "{last:#x}"
        );
    }
    let of_other_length = "the modulus is not 2048 bits long";
    let modulus = with(0xff, 0x01);
    for (what, modulus) in [
        ("2047 bits", with(0x7f, 0x01)),
        ("a byte less", modulus[..255].to_vec()),
        ("a byte more", [&modulus[..], &[0x01]].concat()),
        ("a zero before it", [&[0x00][..], &modulus].concat()),
        ("nothing", Vec::new()),
    ] {
        assert_eq!(Key::rsa(&modulus), Err(of_other_length), "{what}");
    }
}

#[test]
fn a_public_area_with_an_even_modulus_is_denied() {
    let even = |public: Vec<u8>| {
        let (last, rest) = public.split_last().unwrap();
        assert_eq!(last % 2, 1);
        [rest, &[0xfe]].concat()
    };
    let endorsement = machine().with_endorsement_key(Kind::Rsa2048).ek_public();
    let attestation = machine().with_attestation_key(Which::rsassa()).ak_public();

    assert_eq!(
        EndorsementKey::parse(&even(endorsement)),
        Err(TpmDenial::EndorsementKeyMalformed("the modulus is even"))
    );
    assert_eq!(
        AttestationKey::parse(&even(attestation)),
        Err(TpmDenial::AttestationKeyMalformed("the modulus is even"))
    );
}

#[test]
fn an_endorsement_key_on_another_curve_matches_no_template() {
    let good = machine().with_endorsement_key(Kind::P256).ek_public();
    // The position after the fields for AES-128 in CFB mode, without a scheme.
    let at = good.len() - 2 * (2 + 32) - 4;
    assert_eq!(
        good[at..at + 2],
        TpmEccCurve::NistP256.value().to_be_bytes()
    );
    for curve in [
        TpmEccCurve::NistP192,
        TpmEccCurve::NistP224,
        TpmEccCurve::NistP521,
        TpmEccCurve::BnP256,
        TpmEccCurve::Sm2P256,
    ] {
        let mut public = good.clone();
        public[at..at + 2].copy_from_slice(&curve.value().to_be_bytes());

        assert_eq!(
            EndorsementKey::parse(&public),
            Err(TpmDenial::EndorsementKeyNotOfTemplate),
            "{curve:?}"
        );
    }
}
