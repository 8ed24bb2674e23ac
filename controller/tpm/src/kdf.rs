//! The key derivation functions of a TPM ("TPM 2.0 Library, Part 1: Architecture", 11.4.10). They support only keys
//! that are not longer than the digest, for which one round is sufficient.

use aws_lc_rs::{digest, hmac};
use zeroize::Zeroizing;

/// `KDFa` (11.4.10.2): the first bits of an HMAC. `None` if the HMAC is shorter than `bits`.
///
/// `label` ends with a zero byte.
pub(crate) fn kdf_a(
    algorithm: hmac::Algorithm,
    key: &[u8],
    label: &[u8],
    context: &[u8],
    bits: u32,
) -> Option<Zeroizing<Vec<u8>>> {
    let mut mac = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
    for part in [
        &1_u32.to_be_bytes()[..],
        label,
        context,
        &bits.to_be_bytes(),
    ] {
        mac.update(part);
    }
    let len = usize::try_from(bits / 8).ok()?;
    let tag = mac.sign();
    Some(Zeroizing::new(tag.as_ref().get(..len)?.to_vec()))
}

/// `KDFe` (11.4.10.3): the digest of a key agreement's result and of both parties' x coordinates.
///
/// `label` ends with a zero byte.
pub(crate) fn kdf_e(
    algorithm: &'static digest::Algorithm,
    agreed: &[u8],
    label: &[u8],
    party_u: &[u8],
    party_v: &[u8],
) -> Zeroizing<Vec<u8>> {
    let mut context = digest::Context::new(algorithm);
    for part in [&1_u32.to_be_bytes()[..], agreed, label, party_u, party_v] {
        context.update(part);
    }
    Zeroizing::new(context.finish().as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kdf_output_longer_than_one_digest_is_refused() {
        let derived = |bits| kdf_a(hmac::HMAC_SHA256, &[1; 32], b"STORAGE\0", b"name", bits);

        assert_eq!(derived(128).unwrap().len(), 16);
        assert_eq!(derived(256).unwrap().len(), 32);
        assert_eq!(derived(264), None);
    }
}
