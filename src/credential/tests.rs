use kubelet_attestation::names::{Audience, ProviderId};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::*;

const DAY: Duration = Duration::from_hours(24);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

/// A certificate for `key`, as a signer issues it, modified by `change`.
fn issue(key: &PrivateKey, change: impl FnOnce(&mut CertificateParams)) -> Certificate {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = Issuer::new(ca, ca_key);

    let mut params = CertificateParams::default();
    params.distinguished_name = subject(&[
        (DnType::OrganizationName, "system:nodes"),
        (DnType::CommonName, "system:node:n1"),
    ]);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.is_ca = IsCa::ExplicitNoCa;
    params.custom_extensions = vec![provider_id_extension("aws:///a/i-1")];
    params.not_before = (now() - Duration::from_mins(5)).into();
    params.not_after = (now() + 7 * DAY).into();
    change(&mut params);
    params.signed_by(&key.pair().unwrap(), &ca).unwrap()
}

fn subject(attributes: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in attributes {
        name.push(kind.clone(), *value);
    }
    name
}

fn provider_id_extension(id: &str) -> CustomExtension {
    let mut der = vec![0x0c, u8::try_from(id.len()).unwrap()];
    der.extend(id.bytes());
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 11129, 2, 1, 21], der)
}

fn accept(issued: &str, key: PrivateKey) -> Result<Credential, Invalid> {
    accept_at(issued, key, now())
}

fn accept_at(issued: &str, key: PrivateKey, at: SystemTime) -> Result<Credential, Invalid> {
    let subject = crate::pending::Subject {
        signer_name: "a.b/c".to_owned(),
        expiration_seconds: 3600,
        node_name: NodeName::parse("n1").unwrap(),
        provider_id: ProviderId::parse("aws:///a/i-1").unwrap(),
        audience: Audience::parse("prod").unwrap(),
    };
    Credential::from_issued(issued.as_bytes(), key, &subject, at)
}

fn refused(change: impl FnOnce(&mut CertificateParams)) -> Invalid {
    let key = PrivateKey::generate().unwrap();
    let certificate = issue(&key, change);
    accept(&certificate.pem(), key).unwrap_err()
}

fn valid() -> Credential {
    let key = PrivateKey::generate().unwrap();
    let certificate = issue(&key, |_| ());
    accept(&certificate.pem(), key).unwrap()
}

#[test]
fn a_certificate_without_a_defined_expiry_expires_in_9999() {
    let key = PrivateKey::generate().unwrap();
    // RFC 5280 section 4.1.2.5: 99991231235959Z.
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    let certificate = issue(&key, |params| params.not_after = end.into());

    let credential = accept(&certificate.pem(), key).unwrap();

    let not_after = credential.validity().not_after;
    assert_eq!(
        humantime::format_rfc3339_seconds(not_after).to_string(),
        "9999-12-31T23:59:59Z"
    );
}

#[test]
fn the_requested_certificate_is_accepted() {
    let credential = valid();

    assert_eq!(credential.leaf().node_name.as_ref().unwrap().as_str(), "n1");
    assert_eq!(credential.validity().issued(), now());
}

#[test]
fn a_stored_credential_is_read_unchanged() {
    let credential = valid();

    let read = Credential::from_store(&credential.to_pem()).unwrap();

    assert_eq!(read.certificate_pem(), credential.certificate_pem());
    assert_eq!(read.key_pem().expose(), credential.key_pem().expose());
    assert_eq!(read.leaf(), credential.leaf());
}

#[test]
fn a_uid_in_the_subject_and_a_missing_provider_id_are_accepted() {
    let key = PrivateKey::generate().unwrap();
    let certificate = issue(&key, |params| {
        params.distinguished_name = subject(&[
            (DnType::OrganizationName, "system:nodes"),
            (DnType::CommonName, "system:node:n1"),
            (
                DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]),
                "uid.1",
            ),
        ]);
        params.custom_extensions.clear();
    });

    accept(&certificate.pem(), key).unwrap();
}

#[test]
fn a_certificate_for_another_key_is_refused() {
    let certificate = issue(&PrivateKey::generate().unwrap(), |_| ());

    let error = accept(&certificate.pem(), PrivateKey::generate().unwrap()).unwrap_err();

    assert!(
        error.to_string().ends_with("for a different key"),
        "{error}"
    );
}

#[test]
fn a_certificate_with_a_different_subject_is_refused() {
    let nodes = (DnType::OrganizationName, "system:nodes");
    let name = (DnType::CommonName, "system:node:n1");
    for attributes in [
        vec![nodes.clone(), (DnType::CommonName, "system:node:n2")],
        vec![(DnType::OrganizationName, "system:masters"), name.clone()],
        vec![nodes.clone()],
        vec![name.clone()],
        vec![nodes, name, (DnType::OrganizationalUnitName, "x")],
    ] {
        let error = refused(|params| params.distinguished_name = subject(&attributes));
        let wanted = "\" instead of \"O=system:nodes, CN=system:node:n1\"";
        assert!(error.to_string().ends_with(wanted), "{error}");
    }
}

#[test]
fn a_ca_certificate_is_refused() {
    let error = refused(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));

    assert!(
        error.to_string().ends_with("is a CA certificate"),
        "{error}"
    );
}

#[test]
fn basic_constraints_without_ca_are_accepted_in_every_encoding() {
    for (der, is_accepted) in [
        (vec![0x30, 0], true),
        (vec![0x30, 3, 0x01, 1, 0], true),
        (vec![0x30, 3, 0x01, 1, 0xff], false),
        (vec![0x30, 3, 0x02, 1, 0], true),
        (vec![0x30, 6, 0x01, 1, 0, 0x02, 1, 0], true),
        (vec![0x30, 6, 0x01, 1, 0xff, 0x02, 1, 0], false),
        (vec![0x30, 0, 0], false),
        (vec![0x30, 3, 0x01, 1], false),
        (vec![], false),
    ] {
        let key = PrivateKey::generate().unwrap();
        let certificate = issue(&key, |params| {
            params.is_ca = IsCa::NoCa;
            let constraints = CustomExtension::from_oid_content(&[2, 5, 29, 19], der.clone());
            params.custom_extensions.push(constraints);
        });
        let accepted = accept(&certificate.pem(), key);
        assert_eq!(accepted.is_ok(), is_accepted, "{der:?}: {accepted:?}");
    }
}

#[test]
fn a_certificate_with_unexpected_usages_is_refused() {
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
    for (usages, purposes) in [
        (vec![], vec![ClientAuth]),
        (vec![KeyUsagePurpose::KeyCertSign], vec![ClientAuth]),
        (
            vec![
                KeyUsagePurpose::DigitalSignature,
                KeyUsagePurpose::KeyCertSign,
            ],
            vec![ClientAuth],
        ),
        (vec![KeyUsagePurpose::DigitalSignature], vec![]),
        (vec![KeyUsagePurpose::DigitalSignature], vec![ServerAuth]),
        (
            vec![KeyUsagePurpose::DigitalSignature],
            vec![ClientAuth, ServerAuth],
        ),
        (
            vec![KeyUsagePurpose::DigitalSignature],
            vec![ClientAuth, Any],
        ),
    ] {
        let error = refused(|params| {
            params.key_usages = usages;
            params.extended_key_usages = purposes;
        });
        assert!(error.to_string().ends_with("'client auth'"), "{error}");
    }
}

#[test]
fn a_certificate_with_a_different_provider_id_is_refused() {
    let other = provider_id_extension("aws:///a/i-2");
    let error = refused(|params| params.custom_extensions = vec![other]);

    assert!(error.to_string().contains("does not match"), "{error}");
}

#[test]
fn a_certificate_outside_its_validity_is_refused() {
    let key = || PrivateKey::from_pem(Secret::new(valid().key_pem().expose().clone())).unwrap();
    let first = key();
    let pem = issue(&first, |_| ()).pem();
    let again = || PrivateKey::from_pem(Secret::new(first.pem().expose().clone())).unwrap();

    let late = accept_at(&pem, again(), now() + 8 * DAY).unwrap_err();
    accept_at(&pem, again(), now() - Duration::from_secs(590)).unwrap();

    assert!(late.to_string().contains("expired at"), "{late}");
}

#[test]
fn an_invalid_certificate_chain_is_refused() {
    let key = || PrivateKey::generate().unwrap();
    let pem = issue(&key(), |_| ()).pem();
    let with_key = format!("{pem}{}", key().pem().expose());

    for issued in ["", "certificate", &with_key, &pem.repeat(9)] {
        let error = accept(issued, key()).unwrap_err();
        assert!(
            error.to_string().ends_with("CERTIFICATE blocks in PEM"),
            "{error}"
        );
    }
    let hollow = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let error = accept(hollow, key()).unwrap_err();
    assert!(
        error.to_string().contains("cannot parse a certificate"),
        "{error}"
    );
}

#[test]
fn text_around_the_pem_blocks_is_not_kept() {
    let key = PrivateKey::generate().unwrap();
    let pem = issue(&key, |_| ()).pem();

    let credential = accept(&format!("subject=x\n{pem}\nend\n"), key).unwrap();

    assert!(credential.certificate_pem().starts_with("-----BEGIN "));
    assert!(credential.certificate_pem().ends_with("-----\n"));
}

#[test]
fn a_truncated_credential_file_is_refused() {
    let text = valid().to_pem();
    let key_start = text.rfind(BEGIN).unwrap();

    for length in [
        1,
        20,
        key_start / 2,
        key_start,
        key_start + 30,
        text.len() - 2,
    ] {
        assert!(
            Credential::from_store(text.get(..length).unwrap()).is_err(),
            "{length}"
        );
    }
    let error = Credential::from_store("\n").unwrap_err();
    assert_eq!(error, Invalid::new("the file is empty"));
    let error = Credential::from_store(text.get(key_start..).unwrap()).unwrap_err();
    assert_eq!(error, Invalid::new(NO_CERTIFICATE));
}

#[test]
fn a_stored_certificate_for_a_different_key_is_refused() {
    let (one, other) = (valid(), valid());
    let text = format!("{}{}", one.certificate_pem(), other.key_pem().expose());

    let error = Credential::from_store(&text).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the private key does not match the certificate"
    );
}

#[test]
fn debug_output_contains_no_key() {
    let credential = valid();

    let shown = format!("{credential:?}");

    let secret = credential.key_pem().expose().lines().nth(1).unwrap();
    assert!(!shown.contains(secret));
}
