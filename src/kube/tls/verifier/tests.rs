use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Purpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use super::*;
use crate::clock;

const HOUR: Duration = Duration::from_hours(1);
const HOST: &str = "api.example";

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (clock::now() - HOUR).into();
    params.not_after = (clock::now() + HOUR).into();
    params
}

fn ca() -> CertificateParams {
    let mut params = params("kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn server() -> CertificateParams {
    let mut params = params("kube-apiserver");
    params.subject_alt_names = vec![rcgen::SanType::DnsName(HOST.try_into().unwrap())];
    params.extended_key_usages = vec![Purpose::ServerAuth];
    params
}

/// A listed CA certificate with these contents, and a server certificate that this CA has signed.
fn signed(
    listed: &CertificateParams,
    server: &CertificateParams,
) -> (CertificateDer<'static>, CertificateDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let certificate = listed.self_signed(&key).unwrap();
    let issuer = Issuer::new(params("kubernetes"), key);
    let leaf = server
        .signed_by(&KeyPair::generate().unwrap(), &issuer)
        .unwrap();
    (certificate.der().clone(), leaf.der().clone())
}

fn own(params: &CertificateParams) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().clone()
}

fn verify_as(
    listed: &CertificateDer<'static>,
    leaf: &CertificateDer<'static>,
    host: &str,
) -> Result<(), Error> {
    let verifier = Verifier::new(std::slice::from_ref(listed), None).unwrap();
    let now = UnixTime::since_unix_epoch(clock::since_epoch(clock::now()));
    let name = ServerName::try_from(host).unwrap();
    verifier
        .verify_server_cert(leaf, &[], &name, &[], now)
        .map(drop)
}

fn verify(listed: &CertificateDer<'static>, leaf: &CertificateDer<'static>) -> Result<(), Error> {
    verify_as(listed, leaf, HOST)
}

/// The fault that this project's verifier reported, if it reported one.
fn ours(error: Error) -> Option<TlsFault> {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(why))) = error else {
        return None;
    };
    why.downcast_ref().cloned()
}

#[test]
fn a_certificate_of_the_ca_is_accepted_for_servers_and_for_any_usage() {
    let with = |usages: Vec<Purpose>| {
        let mut server = server();
        server.extended_key_usages = usages;
        let (ca, leaf) = signed(&ca(), &server);
        verify(&ca, &leaf)
    };
    for usages in [
        vec![],
        vec![Purpose::Any],
        vec![Purpose::ServerAuth],
        vec![Purpose::ClientAuth, Purpose::ServerAuth],
        vec![Purpose::ClientAuth, Purpose::Any],
    ] {
        assert_eq!(with(usages.clone()), Ok(()), "{usages:?}");
    }
    let error = with(vec![Purpose::ClientAuth]).unwrap_err();
    assert!(
        matches!(
            error,
            Error::InvalidCertificate(CertificateError::InvalidPurposeContext { .. })
        ),
        "{error:?}"
    );
}

#[test]
fn a_listed_certificate_is_accepted_with_any_issuer() {
    let listed = own(&server());
    assert_eq!(verify(&listed, &listed), Ok(()));
    let mut is_ca = server();
    is_ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let listed = own(&is_ca);
    assert_eq!(verify(&listed, &listed), Ok(()));
    let (_, leaf) = signed(&ca(), &server());
    assert_eq!(verify(&leaf, &leaf), Ok(()));
}

#[test]
fn a_listed_certificate_is_refused_for_another_name_time_or_usage() {
    let listed = own(&server());
    let error = verify_as(&listed, &listed, "other.example").unwrap_err();
    assert!(
        matches!(
            error,
            Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
        ),
        "{error:?}"
    );

    let mut expired = server();
    expired.not_after = (clock::now() - HOUR / 2).into();
    let mut early = server();
    early.not_before = (clock::now() + HOUR / 2).into();
    let mut for_clients = server();
    for_clients.extended_key_usages = vec![Purpose::ClientAuth];
    let wrong = [expired, early, for_clients].map(|params| {
        let listed = own(&params);
        verify(&listed, &listed).unwrap_err()
    });
    assert!(
        matches!(
            wrong,
            [
                Error::InvalidCertificate(CertificateError::ExpiredContext { .. }),
                Error::InvalidCertificate(CertificateError::NotValidYetContext { .. }),
                Error::InvalidCertificate(CertificateError::InvalidPurpose),
            ]
        ),
        "{wrong:?}"
    );
}

#[test]
fn a_listed_certificate_that_is_not_a_ca_is_not_trusted_as_issuer() {
    let mut without_right = ca();
    without_right.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let mut no_ca = params("kubernetes");
    no_ca.is_ca = IsCa::ExplicitNoCa;
    for listed in [params("kubernetes"), no_ca, without_right] {
        let (listed, leaf) = signed(&listed, &server());

        let error = verify(&listed, &leaf).unwrap_err();
        let expected = CertificateError::UnknownIssuer.into();
        assert_eq!(error, expected);
    }
}

#[test]
fn a_ca_outside_its_validity_is_not_trusted_and_is_reported() {
    let mut expired = ca();
    expired.not_after = (clock::now() - HOUR / 2).into();
    let mut early = ca();
    early.not_before = (clock::now() + HOUR / 2).into();
    let faults = [expired, early].map(|params| {
        let (ca, leaf) = signed(&params, &server());
        ours(verify(&ca, &leaf).unwrap_err())
    });

    assert!(
        matches!(
            faults,
            [
                Some(TlsFault::Authority(CertificateError::ExpiredContext { .. })),
                Some(TlsFault::Authority(
                    CertificateError::NotValidYetContext { .. }
                )),
            ]
        ),
        "{faults:?}"
    );
}

#[test]
fn a_renewed_ca_with_the_same_key_replaces_the_expired_one() {
    let key = KeyPair::generate().unwrap();
    let mut expired = ca();
    expired.not_after = (clock::now() - HOUR / 2).into();
    let listed = [expired, ca()].map(|it| it.self_signed(&key).unwrap().der().clone());
    let issuer = Issuer::new(ca(), key);
    let leaf = server().signed_by(&KeyPair::generate().unwrap(), &issuer);
    let leaf = leaf.unwrap().der().clone();

    let verifier = Verifier::new(&listed, None).unwrap();
    let now = UnixTime::since_unix_epoch(clock::since_epoch(clock::now()));
    let name = ServerName::try_from(HOST).unwrap();
    let result = verifier.verify_server_cert(&leaf, &[], &name, &[], now);
    assert!(result.is_ok(), "{result:?}");
}

#[test]
fn a_certificate_is_valid_from_its_first_second_to_its_last() {
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let check = |seconds| {
        let validity = Validity {
            not_before: at(100),
            not_after: at(200),
        };
        validity.check(at(seconds))
    };

    for seconds in [100, 200] {
        assert_eq!(check(seconds), Ok(()), "{seconds}");
    }
    let early = check(99).unwrap_err();
    let is_early = matches!(early, CertificateError::NotValidYetContext { .. });
    assert!(is_early, "{early:?}");
    let late = check(201).unwrap_err();
    let is_late = matches!(late, CertificateError::ExpiredContext { .. });
    assert!(is_late, "{late:?}");
}
