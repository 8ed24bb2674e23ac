//! Tests of a valid node certificate with one change.

use rcgen::{
    BasicConstraints as RcgenConstraints, CertificateParams, CustomExtension, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
    date_time_ymd,
};
use x509_cert::Certificate;
use x509_cert::der::Encode as _;

use super::*;
use crate::authority::Cluster;

type Change = fn(&mut CertificateParams);

pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) authority: Authority,
}

/// A CA that is valid until 2040.
pub(crate) fn ca(name: &str) -> Ca {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(RcgenConstraints::Unconstrained);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2040, 1, 1);
    let certificate = params.self_signed(&key).unwrap();
    let authority = Authority {
        certificate: Certificate::from_der(certificate.der()).unwrap(),
        sha256: [0; 32],
        key_label: "ca".to_owned(),
        cluster: Cluster::default(),
        reserved: Reserved::default(),
    };
    Ca {
        issuer: Issuer::new(params, key),
        authority,
    }
}

fn named(attributes: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in attributes {
        name.push(kind.clone(), *value);
    }
    name
}

fn uid() -> DnType {
    DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2])
}

/// A client certificate.
pub(crate) fn valid() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&[
        (DnType::OrganizationName, "system:nodes"),
        (DnType::CommonName, "system:node:n1"),
        (uid(), "00.1"),
    ]);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = date_time_ymd(2027, 1, 1);
    params.not_after = date_time_ymd(2027, 1, 8);
    params
}

pub(crate) fn to_be_signed(params: &CertificateParams, ca: &Ca) -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &ca.issuer).unwrap();
    let certificate = Certificate::from_der(certificate.der()).unwrap();
    certificate.tbs_certificate().to_der().unwrap()
}

/// The time at which the controller requests [`valid`].
pub(crate) fn now() -> SystemTime {
    (date_time_ymd(2027, 1, 1) + Duration::from_mins(5)).into()
}

fn checked_at(params: &CertificateParams, now: SystemTime) -> Result<NodeCertificate, Refused> {
    let ca = ca("ca");
    let message = to_be_signed(params, &ca);
    let algorithm = SignatureAlgorithm::EcdsaP256Sha256;
    check(&message, &ca.authority, algorithm, now)
}

/// The result for the changed certificate at the start of its validity.
fn checked(change: Change) -> Result<NodeCertificate, Refused> {
    let mut params = valid();
    change(&mut params);
    checked_at(&params, params.not_before.into())
}

fn checked_in(
    message: &[u8],
    ca: &Ca,
    algorithm: SignatureAlgorithm,
) -> Result<NodeCertificate, Refused> {
    check(message, &ca.authority, algorithm, now())
}

#[test]
fn client_and_serving_certificates_of_a_kubelet_are_signed() {
    assert_eq!(checked(|_| {}).unwrap().user, "system:node:n1");
    let server = checked(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![SanType::DnsName("n1".try_into().unwrap())];
    });
    assert_eq!(server.unwrap().user, "system:node:n1");
}

#[test]
fn a_certificate_that_is_not_for_a_node_is_refused() {
    let cases: [(&str, Change); 14] = [
        ("its group is not system:nodes", |params| {
            params.distinguished_name = named(&[
                (DnType::OrganizationName, "system:masters"),
                (DnType::CommonName, "system:node:n1"),
            ]);
        }),
        ("its group is not system:nodes", |params| {
            params.distinguished_name = named(&[(DnType::CommonName, "system:node:n1")]);
        }),
        ("its user is not a node", |params| {
            params.distinguished_name = named(&[
                (DnType::OrganizationName, "system:nodes"),
                (DnType::CommonName, "admin"),
            ]);
        }),
        ("its user is not a node", |params| {
            params.distinguished_name = named(&[
                (DnType::OrganizationName, "system:nodes"),
                (DnType::CommonName, "system:node:"),
            ]);
        }),
        (
            "its subject has an attribute that is not allowed for a node",
            |params| {
                params
                    .distinguished_name
                    .push(DnType::OrganizationalUnitName, "x");
            },
        ),
        ("it is a CA certificate", |params| {
            params.is_ca = IsCa::Ca(RcgenConstraints::Unconstrained);
        }),
        ("it is a CA certificate", |params| params.is_ca = IsCa::NoCa),
        ("its key usage is not allowed for a node", |params| {
            params.key_usages.push(KeyUsagePurpose::KeyCertSign);
        }),
        ("its key usage is not allowed for a node", |params| {
            params.key_usages.clear();
        }),
        (
            "its extended key usage is not allowed for a node",
            |params| {
                params
                    .extended_key_usages
                    .push(ExtendedKeyUsagePurpose::ServerAuth);
            },
        ),
        (
            "its extended key usage is not allowed for a node",
            |params| {
                params.extended_key_usages.clear();
            },
        ),
        (
            "it has an extension that is not allowed for a node",
            |params| {
                params.subject_alt_names = vec![SanType::DnsName("n1".try_into().unwrap())];
            },
        ),
        (
            "it has an extension that is not allowed for a node",
            |params| {
                let extension = CustomExtension::from_oid_content(&[1, 2, 3], vec![5, 0]);
                params.custom_extensions.push(extension);
            },
        ),
        ("its validity is too long", |params| {
            params.not_after = date_time_ymd(2029, 1, 1);
        }),
    ];
    for (reason, change) in cases {
        assert_eq!(checked(change), Err(Refused(reason)));
    }
}

#[test]
fn a_server_certificate_for_reserved_names_is_refused() {
    const NAME: &str = "it has a DNS name that is reserved";
    const ADDRESS: &str = "it has an address that is reserved";
    const KIND: &str = "it has a name that is neither a DNS name nor an address";
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let names = [
        (NAME, dns("kubernetes.default.svc")),
        (NAME, dns("api.prod-1.example")),
        (ADDRESS, SanType::IpAddress([10, 96, 0, 1].into())),
        (ADDRESS, SanType::IpAddress([127, 0, 0, 1].into())),
        (KIND, SanType::URI("https://n1".try_into().unwrap())),
    ];
    let mut ca = ca("ca");
    ca.authority.reserved = Reserved {
        names: vec!["api.prod-1.example".parse().unwrap()],
        addresses: vec!["10.96.0.0/12".parse().unwrap()],
    };
    for (reason, name) in names {
        let mut params = valid();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![dns("n1"), name.clone()];
        let message = to_be_signed(&params, &ca);
        let algorithm = SignatureAlgorithm::EcdsaP256Sha256;

        let checked = check(&message, &ca.authority, algorithm, now());

        assert_eq!(checked, Err(Refused(reason)), "{name:?}");
    }
}

#[test]
fn the_longest_lifetime_with_a_start_in_the_past_is_signed() {
    let set = Duration::from_hours(366 * 24);
    let of = |life: Duration| {
        let mut params = valid();
        params.not_after = params.not_before + Duration::from_mins(5) + life;
        checked_at(&params, now())
    };

    // The start can be up to 5 minutes further in the past.
    let longest = set + Duration::from_mins(5);
    for life in [set, longest] {
        assert_eq!(of(life).unwrap().user, "system:node:n1");
    }
    let longer = of(longest + Duration::from_secs(1));
    assert_eq!(longer, Err(Refused("its validity is too long")));
}

#[test]
fn a_certificate_with_a_start_time_far_from_now_is_refused() {
    let begin = SystemTime::from(valid().not_before);
    let (skew, second) = (Duration::from_mins(10), Duration::from_secs(1));

    for now in [begin - skew, begin, now(), begin + skew] {
        let user = checked_at(&valid(), now).unwrap().user;
        assert_eq!(user, "system:node:n1", "{now:?}");
    }
    let year = Duration::from_hours(365 * 24);
    for now in [
        SystemTime::UNIX_EPOCH,
        begin - year,
        begin - skew - second,
        begin + skew + second,
        begin + year,
    ] {
        let expected = Err(Refused("its validity does not begin now"));
        assert_eq!(checked_at(&valid(), now), expected, "{now:?}");
    }
}

#[test]
fn a_certificate_that_outlives_its_ca_is_refused() {
    let last = checked(|params| {
        params.not_before = date_time_ymd(2039, 12, 30);
        params.not_after = date_time_ymd(2040, 1, 1);
    });
    assert_eq!(last.unwrap().user, "system:node:n1");

    let later = checked(|params| {
        params.not_before = date_time_ymd(2039, 12, 30);
        params.not_after = date_time_ymd(2040, 1, 2);
    });
    assert_eq!(later, Err(Refused("it expires after its CA")));
}

/// The result for this certificate after some bytes, which occur exactly once, have been replaced.
fn checked_after(params: &CertificateParams, from: &[u8], to: &[u8]) -> Option<&'static str> {
    let ca = ca("ca");
    let mut message = to_be_signed(params, &ca);
    let places = message.windows(from.len()).enumerate();
    let places = places.filter(|(_, bytes)| *bytes == from);
    let places: Vec<usize> = places.map(|(place, _)| place).collect();
    let [place] = places[..] else {
        panic!("{places:?}");
    };
    message[place..place + to.len()].copy_from_slice(to);
    let checked = checked_in(&message, &ca, SignatureAlgorithm::EcdsaP256Sha256);
    checked.err().map(|Refused(reason)| reason)
}

#[test]
fn a_certificate_with_a_duplicate_attribute_is_refused() {
    const UNIT: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0b];
    let of_unit = |value: &str| {
        let mut params = valid();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationalUnitName, value);
        params
    };
    for (value, kind, reason) in [
        ("system:nodes", 0x0a, "its group is not system:nodes"),
        ("system:node:n1", 0x03, "its user is not a node"),
    ] {
        let refused = checked_after(&of_unit(value), &UNIT, &[0x06, 0x03, 0x55, 0x04, kind]);
        assert_eq!(refused, Some(reason));
    }

    let mut params = valid();
    let other = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 3]);
    params.distinguished_name.push(other, "00.1");
    let refused = checked_after(&params, &[0x83, 0xc2, 0x53, 3], &[0x83, 0xc2, 0x53, 2]);
    assert_eq!(refused, Some("its subject has two UIDs"));
}

#[test]
fn a_certificate_with_a_second_key_identifier_is_refused() {
    let mut params = valid();
    let extension = CustomExtension::from_oid_content(&[2, 5, 29, 99], vec![5, 0]);
    params.custom_extensions.push(extension);

    let unknown = [0x06, 0x03, 0x55, 0x1d, 99];
    let refused = checked_after(&params, &unknown, &[0x06, 0x03, 0x55, 0x1d, 35]);

    assert_eq!(refused, Some("it has a duplicate extension"));
}

#[test]
fn a_certificate_of_another_issuer_or_algorithm_is_refused() {
    let (ca, other) = (ca("ca"), ca("other"));
    let message = to_be_signed(&valid(), &ca);
    let algorithm = SignatureAlgorithm::EcdsaP256Sha256;

    let of_another = checked_in(&message, &other, algorithm);
    assert_eq!(of_another, Err(Refused("its issuer is not the CA")));
    let otherwise = checked_in(&message, &ca, SignatureAlgorithm::RsaPkcs1Sha256);
    let expected = "its algorithm does not match the request";
    assert_eq!(otherwise, Err(Refused(expected)));
}

#[test]
fn malformed_certificate_bytes_are_refused() {
    let ca = ca("ca");
    let mut longer = to_be_signed(&valid(), &ca);
    longer.push(0);

    for message in [&[][..], b"text", &longer] {
        let checked = checked_in(message, &ca, SignatureAlgorithm::EcdsaP256Sha256);
        let expected = "it is not a TBSCertificate in DER";
        assert_eq!(checked, Err(Refused(expected)));
    }
}
