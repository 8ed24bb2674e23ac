use std::time::{Duration, UNIX_EPOCH};

use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

use super::*;

mod replaced;
mod turns;

struct Ca {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// A CA that is valid during 2027.
fn ca() -> Ca {
    ca_of(&KeyPair::generate().unwrap())
}

fn ca_of(key: &KeyPair) -> Ca {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = date_time_ymd(2027, 1, 1);
    params.not_after = date_time_ymd(2028, 1, 1);
    Ca {
        certificate: params.self_signed(key).unwrap().pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
    }
}

fn secret(values: &[(&str, &[u8])]) -> Secret {
    let data = values
        .iter()
        .map(|(field, value)| ((*field).to_owned(), ByteString(value.to_vec())));
    Secret {
        data: Some(data.collect()),
        ..Secret::default()
    }
}

fn secret_of(ca: &Ca) -> Secret {
    secret(&[("tls.crt", &ca.certificate), ("tls.key", &ca.key)])
}

fn refused(values: &[(&str, &[u8])]) -> CaRefused {
    ClusterCa::from_secret(&secret(values)).unwrap_err()
}

fn der(pem: &[u8]) -> Vec<u8> {
    pem::parse(pem).unwrap().into_contents()
}

fn year(year: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::from(year - 1970) * 31_557_600 + 86_400)
}

#[test]
fn a_ca_certificate_with_its_key_can_sign() {
    let ca = ca();

    let read = ClusterCa::from_secret(&secret_of(&ca)).unwrap();

    assert_eq!(read.signer().unwrap().ca_der(), der(&ca.certificate));
    assert_eq!(read.certificates(), [der(&ca.certificate)]);
    assert_eq!(
        read.audiences().collect::<Vec<_>>(),
        [Audience::of_ca(&der(&ca.certificate))]
    );
}

#[test]
fn a_ca_without_a_key_is_accepted_but_cannot_sign() {
    let ca = ca();
    for values in [
        vec![("tls.crt", &*ca.certificate)],
        vec![("tls.crt", &*ca.certificate), ("tls.key", b"")],
    ] {
        let read = ClusterCa::from_secret(&secret(&values)).unwrap();

        assert!(read.signer().is_none());
        assert_eq!(read.audiences().count(), 1);
    }
}

#[test]
fn the_first_of_several_ca_certificates_signs() {
    let (new, old) = (ca(), ca());
    let both = [new.certificate.clone(), old.certificate.clone()].concat();

    let read =
        ClusterCa::from_secret(&secret(&[("tls.crt", &both), ("tls.key", &new.key)])).unwrap();

    assert_eq!(read.signer().unwrap().ca_der(), der(&new.certificate));
    assert_eq!(
        read.certificates(),
        [der(&new.certificate), der(&old.certificate)]
    );
    assert_eq!(
        refused(&[("tls.crt", &both), ("tls.key", &old.key)]),
        CaRefused::Invalid(InvalidCa::KeyMismatch)
    );
}

#[test]
fn an_unusable_ca_secret_is_refused_with_its_reason() {
    let (this, other) = (ca(), ca());
    let leaf = CertificateParams::default()
        .self_signed(&KeyPair::generate().unwrap())
        .unwrap()
        .pem();
    let certificate = ("tls.crt", &*this.certificate);
    let garbage = pem::encode(&pem::Pem::new("CERTIFICATE", b"garbage".to_vec()));
    let with_key = [this.certificate.clone(), this.key.clone()].concat();
    let long = vec![b'x'; MAX_CERTIFICATE_LEN + 1];
    let too_long = |field, max| CaRefused::TooLong { field, max };
    for (values, expected) in [
        (vec![], CaRefused::NoCertificate),
        (vec![("tls.crt", &b""[..])], CaRefused::NoCertificate),
        (vec![("ca.crt", certificate.1)], CaRefused::NoCertificate),
        (vec![("tls.key", &*this.key)], CaRefused::NoCertificate),
        (
            vec![("tls.crt", b"text".as_slice())],
            InvalidCa::NotOneCertificate.into(),
        ),
        (
            vec![("tls.crt", &*with_key)],
            InvalidCa::NotOneCertificate.into(),
        ),
        (
            vec![("tls.crt", garbage.as_bytes())],
            InvalidCa::Certificate.into(),
        ),
        (vec![("tls.crt", leaf.as_bytes())], InvalidCa::NotACa.into()),
        (
            vec![certificate, ("tls.key", &*other.key)],
            InvalidCa::KeyMismatch.into(),
        ),
        (
            vec![certificate, ("tls.key", b"text")],
            InvalidCa::KeyForm.into(),
        ),
        (
            vec![certificate, certificate_as_key(certificate.1)],
            InvalidCa::KeyForm.into(),
        ),
        (
            vec![("tls.crt", &*long)],
            too_long("tls.crt", MAX_CERTIFICATE_LEN),
        ),
        (
            vec![certificate, ("tls.key", &*long)],
            too_long("tls.key", MAX_KEY_LEN),
        ),
    ] {
        assert_eq!(refused(&values), expected);
    }
    let no_data = Secret::default();
    assert_eq!(
        ClusterCa::from_secret(&no_data).unwrap_err(),
        CaRefused::NoCertificate
    );
}

fn certificate_as_key(certificate: &[u8]) -> (&'static str, &[u8]) {
    ("tls.key", certificate)
}

#[test]
fn a_ca_outside_its_validity_is_reported() {
    let read = ClusterCa::from_secret(&secret_of(&ca())).unwrap();

    assert_eq!(read.out_of_time(year(2026)), Some(CaOutOfTime::NotYetValid));
    assert_eq!(read.out_of_time(year(2027)), None);
    assert_eq!(read.out_of_time(year(2028)), Some(CaOutOfTime::Expired));
}

#[test]
fn clusters_with_the_same_ca_key_have_the_same_key_digest() {
    let key = KeyPair::generate().unwrap();
    let (first, second, other) = (ca_of(&key), ca_of(&key), ca());
    assert_ne!(first.certificate, second.certificate);
    let digest = |ca: &Ca| {
        let secret = secret(&[("tls.crt", &ca.certificate)]);
        ClusterCa::from_secret(&secret).unwrap().key_digest()
    };

    assert_eq!(digest(&first), digest(&second));
    assert_ne!(digest(&first), digest(&other));
    assert_eq!(digest(&first).to_string().len(), 64);
}

#[test]
fn the_ca_key_is_not_shown() {
    let ca = ca();
    let shown = format!("{:?}", ClusterCa::from_secret(&secret_of(&ca)).unwrap());

    let base64 = String::from_utf8(ca.key).unwrap();
    let line = base64.lines().nth(1).unwrap();
    assert!(!shown.contains(line));
    assert!(!shown.contains("BEGIN"));
    // The bytes of the key are not shown as numbers either.
    assert!(shown.contains("signer: Some(Signer)"), "{shown}");
}
