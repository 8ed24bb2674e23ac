//! Tests with unusual encodings of certificates that vendors have signed.

use kubelet_authenticator_test_support::ek_ca::vendors::{self, Issued};

use super::vendors::{by_issuer, by_root};
use super::*;

#[test]
fn certificates_in_unusual_encodings_are_accepted() {
    type Check = fn(&X509Certificate<'_>) -> bool;
    let p256 = spki(Kind::P256);
    let cases: [(Issued, Check); 4] = [
        (vendors::with_explicit_defaults(&p256), |it| {
            // The bytes are the BOOLEAN FALSE before the value of an extension.
            let signed: &[u8] = it.tbs_certificate.as_ref();
            signed.windows(4).any(|part| part == [1, 1, 0, 4])
        }),
        (vendors::with_general_times(&p256), |it| {
            it.validity().not_before.is_generalizedtime()
        }),
        (vendors::with_leading_zeros(&p256), |it| {
            it.raw_serial().starts_with(&[0, 0])
        }),
        (vendors::with_names_in_one_set(&p256), |it| {
            let name = it.issuer();
            (name.iter_rdn().count(), name.iter_attributes().count()) == (1, 3)
        }),
    ];
    for (index, (issued, has_encoding)) in cases.into_iter().enumerate() {
        for der in issued.authorities.iter().chain([&issued.certificate]) {
            let (_, parsed) = X509Certificate::from_der(der).unwrap();
            assert!(has_encoding(&parsed), "{index}");
        }
        assert_eq!(by_issuer(&issued, Kind::P256), Ok(()), "{index}");
        assert_eq!(by_root(&issued, Kind::P256), Ok(()), "{index}");
    }
}
