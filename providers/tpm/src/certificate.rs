//! The certificates of an endorsement key and of its CAs, from the NV indices of a TPM.

use kubelet_attestation::evidence::tpm::{
    MAX_CERTIFICATE_LEN, MAX_INTERMEDIATES, MAX_INTERMEDIATES_LEN,
};

use crate::protocol::SEQUENCE;

/// The DER at the beginning of `stored`. Vendors pad the index with zeros or 0xff.
///
/// `None` if it does not look like a certificate: the index holds what its vendor or owner wrote,
/// and a verifier that needs a certificate reports that.
pub(crate) fn in_index(stored: &[u8]) -> Option<&[u8]> {
    let length = stored.strip_prefix(&SEQUENCE)?.first_chunk()?;
    let whole = 4 + usize::from(u16::from_be_bytes(*length));
    stored
        .get(..whole)
        .filter(|der| der.len() <= MAX_CERTIFICATE_LEN)
}

/// The certificates in `stored`, one after the other with padding between, as many as evidence
/// carries. Stops at the first other content.
pub(crate) fn chain(stored: &[u8]) -> Vec<Vec<u8>> {
    let mut chain: Vec<Vec<u8>> = Vec::new();
    let mut rest = stored;
    let mut room = MAX_INTERMEDIATES_LEN;
    while chain.len() < MAX_INTERMEDIATES {
        let padding = rest.iter().take_while(|byte| matches!(byte, 0x00 | 0xff));
        rest = rest.get(padding.count()..).unwrap_or_default();
        let Some(der) = in_index(rest).filter(|der| der.len() <= room) else {
            break;
        };
        room -= der.len();
        chain.push(der.to_vec());
        rest = rest.get(der.len()..).unwrap_or_default();
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_cut_off() {
        let mut der = vec![0x30, 0x82, 1, 0];
        der.extend([7; 256]);
        for padding in [&[][..], &[0; 40], &[0xff; 3]] {
            let stored = [&der[..], padding].concat();
            assert_eq!(in_index(&stored), Some(&der[..]));
        }
    }

    fn der(byte: u8, len: u16) -> Vec<u8> {
        let length = len.to_be_bytes();
        [&[0x30, 0x82][..], &length, &vec![byte; len.into()]].concat()
    }

    #[test]
    fn a_chain_is_its_certificates_without_what_is_between_and_behind_them() {
        let (first, second) = (der(1, 300), der(2, 500));
        for (between, behind) in [
            (&[][..], &[][..]),
            (&[0; 9], &[0xff; 40]),
            (&[0xff; 3], &[0x10, 1, 2]),
            (&[], &[0x30, 0x82, 0x40, 0]),
        ] {
            let stored = [&first[..], between, &second, behind].concat();
            assert_eq!(chain(&stored), [first.clone(), second.clone()]);
        }
        assert_eq!(chain(&[]), Vec::<Vec<u8>>::new());
        assert_eq!(chain(&[&[7], &first[..]].concat()), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_chain_has_as_many_certificates_as_evidence_carries() {
        let one = der(1, 256);
        assert_eq!(chain(&one.repeat(6)).len(), MAX_INTERMEDIATES);
        let large = der(1, 4096);
        assert_eq!(chain(&large.repeat(3)).len(), 2);
    }

    #[test]
    fn what_is_no_certificate_is_none() {
        for stored in [
            &[][..],
            &[0x30, 0x82],
            &[0x30, 0x82, 1],
            &[0x30, 0x82, 0, 2, 7],
            &[0x10, 0x01, 0, 2, 7, 7],
            &[[0x30, 0x82, 0x20, 0].as_slice(), &[0; 0x2000]].concat(),
        ] {
            assert_eq!(in_index(stored), None, "{:?}", stored.get(..8));
        }
    }
}
