//! The certificate of an endorsement key, out of what lies in a TPM.

use kubelet_attestation::evidence::tpm::MAX_CERTIFICATE_LEN;

/// A DER SEQUENCE with a length of two bytes: shorter ones than 256 bytes are no certificates.
const SEQUENCE: [u8; 2] = [0x30, 0x82];

/// The DER at the beginning of `stored`; makers fill the index up with zeros or 0xff.
///
/// None where it is no certificate by its looks: the index holds what its maker or owner wrote, and
/// a verifier that needs one says so.
pub(crate) fn in_index(stored: &[u8]) -> Option<&[u8]> {
    let length = stored.strip_prefix(&SEQUENCE)?.first_chunk()?;
    let whole = 4 + usize::from(u16::from_be_bytes(*length));
    stored
        .get(..whole)
        .filter(|der| der.len() <= MAX_CERTIFICATE_LEN)
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
