//! What makers of TPMs certify, as another implementation of X.509 reads it.

use std::sync::{Arc, LazyLock};

use kubelet_authenticator_test_support::ek_ca::{
    AIK_USAGE, AlternativeName, EkCa, EkContents, Intermediates,
};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

static MAKER: LazyLock<Arc<EkCa>> = LazyLock::new(|| Arc::new(EkCa::new("a maker")));

static MACHINE: LazyLock<TpmMachine> =
    LazyLock::new(|| TpmMachine::new(Arc::new(Swtpm::made_by(&MAKER)), EndorsementKey::P256));

fn all(pem: &str) -> Vec<Pem> {
    Pem::iter_from_buffer(pem.as_bytes())
        .map(Result::unwrap)
        .collect()
}

/// A P-256 key's certificate.
fn certified(contents: &EkContents) -> Vec<u8> {
    MAKER.certify(&MACHINE.ek_spki(), contents)
}

fn parsed(der: &[u8]) -> X509Certificate<'_> {
    let (rest, certificate) = X509Certificate::from_der(der).unwrap();
    assert!(rest.is_empty());
    certificate
}

fn usages(certificate: &X509Certificate<'_>) -> Vec<String> {
    let extension = certificate.extended_key_usage().unwrap();
    let usages = extension.map(|extension| extension.value.other.clone());
    let usages = usages.unwrap_or_default();
    usages.iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_certificate_says_what_those_of_swtpm_say() {
    for key in EndorsementKey::ALL {
        let machine = MACHINE.with_endorsement_key(key);
        let der = MAKER.certify(&machine.ek_spki(), &EkContents::good());
        let ours = parsed(&der);

        assert_eq!(ours.public_key().raw, machine.ek_spki());
        assert_eq!(ours.validity().not_after.to_datetime().year(), 9999);
        let issuer = all(MAKER.intermediates_pem());
        let issuer = issuer[0].parse_x509().unwrap();
        ours.verify_signature(Some(issuer.public_key())).unwrap();
        let Some(theirs) = machine.ek_certificate() else {
            continue;
        };
        let theirs = parsed(&theirs);
        assert_eq!(usages(&ours), usages(&theirs));
        assert_eq!(ours.key_usage().unwrap(), theirs.key_usage().unwrap());
        assert_eq!(
            ours.basic_constraints().unwrap(),
            theirs.basic_constraints().unwrap()
        );
        let names = |certificate: &X509Certificate<'_>| {
            let extension = certificate.subject_alternative_name().unwrap().unwrap();
            let [GeneralName::DirectoryName(name)] = &extension.value.general_names[..] else {
                panic!("one directory name");
            };
            (extension.critical, name.to_string())
        };
        assert_eq!(names(&ours), names(&theirs));
    }
}

#[test]
fn a_bad_certificate_is_bad_in_one_thing() {
    let now = ASN1Time::now();
    let good = EkContents::good();

    let expired = certified(&EkContents::expired());
    assert!(parsed(&expired).validity().not_after < now);
    let early = certified(&EkContents::not_yet_valid());
    assert!(parsed(&early).validity().not_before > now);
    let der = certified(&EkContents {
        usages: vec![],
        ..good.clone()
    });
    assert!(usages(&parsed(&der)).is_empty());
    let der = certified(&EkContents {
        usages: vec![AIK_USAGE],
        ..good.clone()
    });
    assert_eq!(usages(&parsed(&der)), ["2.23.133.8.3"]);
    let der = certified(&EkContents {
        alternative_name: AlternativeName::Absent,
        ..good.clone()
    });
    assert!(parsed(&der).subject_alternative_name().unwrap().is_none());
    let der = certified(&EkContents {
        authority: true,
        ..good.clone()
    });
    assert!(parsed(&der).is_ca());
    let der = certified(&EkContents {
        unknown_extension: Some(true),
        common_name: Some("a TPM".to_owned()),
        ..good
    });
    let certificate = parsed(&der);
    let mut extensions = certificate.extensions().iter();
    assert!(extensions.any(|it| it.critical && it.oid.to_id_string() == "2.23.133.99"));
    assert_eq!(certificate.subject().to_string(), "CN=a TPM");
}

#[test]
fn a_certificate_may_say_that_its_key_is_for_oaep_alone() {
    let spki = MACHINE
        .with_endorsement_key(EndorsementKey::Rsa2048)
        .ek_spki();
    let good = EkContents::good();
    let (der, ordinary) = (
        MAKER.certify_oaep(&spki, &good),
        MAKER.certify(&spki, &good),
    );

    let (certificate, ordinary) = (parsed(&der), parsed(&ordinary));

    let issuer = all(MAKER.intermediates_pem());
    let issuer = issuer[0].parse_x509().unwrap();
    certificate
        .verify_signature(Some(issuer.public_key()))
        .unwrap();
    let (key, same) = (certificate.public_key(), ordinary.public_key());
    assert_eq!(
        key.algorithm.algorithm.to_id_string(),
        "1.2.840.113549.1.1.7"
    );
    assert_eq!(key.subject_public_key, same.subject_public_key);
    assert_eq!(certificate.extensions().len(), ordinary.extensions().len());
}

#[test]
fn there_are_as_many_authorities_as_a_test_wants_good_and_bad_ones() {
    for count in [0, 1, 3] {
        let maker = EkCa::with_intermediates("a maker", Intermediates::Good(count));
        let chain = all(&[maker.intermediates_pem(), maker.root_pem()].concat());
        assert_eq!(chain.len(), count + 1);
        let leaf = maker.certify(&MACHINE.ek_spki(), &EkContents::good());
        let mut below = parsed(&leaf);
        for pem in &chain {
            let authority = pem.parse_x509().unwrap();
            below
                .verify_signature(Some(authority.public_key()))
                .unwrap();
            assert_eq!(below.issuer(), authority.subject());
            assert!(authority.is_ca());
            below = authority;
        }
    }
    let expired = EkCa::with_intermediates("a maker", Intermediates::Expired);
    let expired = all(expired.intermediates_pem());
    assert!(!expired[0].parse_x509().unwrap().validity().is_valid());
    let simple = EkCa::with_intermediates("a maker", Intermediates::NotAnAuthority);
    let simple = all(simple.intermediates_pem());
    assert!(!simple[0].parse_x509().unwrap().is_ca());
}

#[test]
fn a_tpm_shows_the_certificate_that_was_stored() {
    let machine = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P256);
    let der = MAKER.certify(&machine.ek_spki(), &EkContents::good());

    let index = EndorsementKey::P256.certificate_index();
    machine.tpm().write_certificate(index, &der);

    assert_eq!(machine.ek_certificate(), Some(der));
}
