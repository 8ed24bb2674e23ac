//! The certificates of an endorsement key and of its CAs, from the NV indices of a TPM.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::evidence::tpm::{
    MAX_CERTIFICATE_LEN, MAX_INTERMEDIATES, MAX_INTERMEDIATES_LEN,
};
use kubelet_attestation::text::visible;
use kubelet_authenticator::clock::until;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::protocol::SEQUENCE;

/// The time before the expiry of a certificate at which `doctor` begins to warn.
const NOTICE: Duration = Duration::from_hours(90 * 24);

/// The facts about a certificate that are shown to users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The distinguished name of the issuer.
    pub(crate) issuer: String,
    /// The expiry date: `YYYY-MM-DD`.
    pub(crate) expiry: String,
    /// Whether the certificate expires soon, or has expired.
    pub(crate) time: Time,
    /// Whether the certificate belongs to this key.
    pub(crate) is_for_key: bool,
}

/// The validity state of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    Valid,
    ExpiresSoon,
    Expired,
}

/// The facts about a certificate in DER, for the key with this `SubjectPublicKeyInfo`; `None` if it cannot be parsed.
pub(crate) fn facts(der: &[u8], spki: &[u8], now: SystemTime) -> Option<Facts> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let not_after = certificate.validity().not_after;
    // A certificate that expired before 1970 also counts as expired.
    let seconds = u64::try_from(not_after.timestamp()).unwrap_or_default();
    let end = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    let time = if end < now {
        Time::Expired
    } else if until(end, now) < NOTICE {
        Time::ExpiresSoon
    } else {
        Time::Valid
    };
    // Vendors certify one RSA key under different algorithms. The key itself is at the end of the SPKI.
    let key = certificate.public_key().subject_public_key.as_ref();
    Some(Facts {
        issuer: visible(&certificate.issuer().to_string()),
        expiry: not_after.to_datetime().date().to_string(),
        time,
        is_for_key: !key.is_empty() && spki.ends_with(key),
    })
}

/// The DER at the beginning of `stored`, without the padding: vendors pad the index with zeros or 0xff.
///
/// `None` if the content does not have the form of a certificate. This case is not an error, because the vendor or the
/// owner of the TPM chooses the content of the index. A verifier that requires a certificate reports the error.
pub(crate) fn in_index(stored: &[u8]) -> Option<&[u8]> {
    let length = stored.strip_prefix(&SEQUENCE)?.first_chunk()?;
    let whole = 4 + usize::from(u16::from_be_bytes(*length));
    stored
        .get(..whole)
        .filter(|der| der.len() <= MAX_CERTIFICATE_LEN)
}

/// The concatenated certificates in `stored`, with optional padding between them, up to the limits for evidence. Stops at
/// the first content that is not a certificate.
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
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
    use data_encoding::HEXLOWER;
    use kubelet_authenticator_test_support::ek_ca::{EkCa, EkContents};

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    /// The `SubjectPublicKeyInfo` of a new P-256 key.
    fn spki() -> Vec<u8> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let prefix = b"3059301306072a8648ce3d020106082a8648ce3d030107034200";
        [&HEXLOWER.decode(prefix).unwrap(), key.public_key().as_ref()].concat()
    }

    #[test]
    fn a_certificate_shows_its_issuer_and_the_day_of_its_expiry() {
        let (maker, spki) = (EkCa::new("maker"), spki());
        // 2027-01-15T08:00:00Z.
        let not_after = UNIX_EPOCH + Duration::from_hours(500_000);
        let contents = EkContents {
            not_before: not_after - DAY * 1000,
            not_after,
            ..EkContents::good()
        };
        let der = maker.certify(&spki, &contents);
        for (now, time) in [
            (not_after - 90 * DAY, Time::Valid),
            (
                not_after - 90 * DAY + Duration::from_secs(1),
                Time::ExpiresSoon,
            ),
            (not_after, Time::ExpiresSoon),
            (not_after + Duration::from_secs(1), Time::Expired),
        ] {
            let expected = Facts {
                issuer: "CN=maker intermediate 1".to_owned(),
                expiry: "2027-01-15".to_owned(),
                time,
                is_for_key: true,
            };
            assert_eq!(facts(&der, &spki, now), Some(expected));
        }
        let endless = maker.certify(&spki, &EkContents::good());
        let of_another_key = facts(&endless, &self::spki(), not_after).unwrap();
        assert_eq!(of_another_key.expiry, "9999-12-31");
        assert_eq!(of_another_key.time, Time::Valid);
        assert!(!of_another_key.is_for_key);
        assert_eq!(facts(&der[..der.len() - 1], &spki, not_after), None);
    }

    #[test]
    fn an_issuer_with_control_characters_is_on_one_line() {
        let maker = EkCa::new("maker\u{1b}]0;x\u{7}\n\u{202e}");

        let der = maker.certify(&spki(), &EkContents::good());

        let facts = facts(&der, &spki(), UNIX_EPOCH).unwrap();
        assert!(facts.issuer.starts_with("CN=maker"), "{facts:?}");
        assert_eq!(facts.issuer, visible(&facts.issuer));
    }

    #[test]
    fn padding_after_a_certificate_is_removed() {
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
    fn a_stored_chain_is_parsed_without_padding_and_trailing_data() {
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
    fn a_chain_is_truncated_to_the_certificates_that_evidence_can_carry() {
        let one = der(1, 256);
        assert_eq!(chain(&one.repeat(6)).len(), 5);
        let large = der(1, 4096);
        assert_eq!(chain(&large.repeat(3)).len(), 2);
    }

    #[test]
    fn an_index_with_an_incomplete_certificate_counts_as_empty() {
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
