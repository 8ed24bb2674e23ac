//! Tests of the limits on signature checks and on listed CAs.

use kubelet_authenticator_test_support::ek_ca::{Flaw, vendors};
use node_attestation_core::testing::pauses;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::turns::{CALCULATIONS, FairTurns};

use super::super::checks::MAX_CHECKS;
use super::*;

/// The maximum number of CA certificates in the evidence.
const LONGEST: usize = 5;

impl Authorities {
    /// The result, and the number of signature checks.
    fn counted(
        &self,
        certificates: (Option<&[u8]>, &[Vec<u8>]),
        key: &EndorsementKey,
        now: SystemTime,
    ) -> (Result<Option<Expiring>, NotAccepted>, usize) {
        let line = FairTurns::new(CALCULATIONS).line(&ObjectKey::new("a", "1"));
        let mut checks = Checks::of(&line);
        let (decided, pauses) = pauses(self.require(certificates, key, now, &mut checks));
        assert_eq!(pauses, checks.count(), "other tasks run before each check");
        (decided, checks.count())
    }

    pub(super) fn decide(
        &self,
        certificate: Option<&[u8]>,
        intermediates: &[Vec<u8>],
        key: &EndorsementKey,
        now: SystemTime,
    ) -> Result<Option<Expiring>, TpmDenial> {
        let (decided, _) = self.counted((certificate, intermediates), key, now);
        decided.map_err(|not_accepted| not_accepted.denial)
    }

    /// The expiry time, if it is the only reason for a denial.
    pub(super) fn expired(
        &self,
        certificate: Option<&[u8]>,
        key: &EndorsementKey,
        now: SystemTime,
    ) -> Option<Expiring> {
        let (decided, _) = self.counted((certificate, &[]), key, now);
        decided.err().and_then(|not_accepted| not_accepted.expired)
    }
}

fn maker(count: usize) -> EkCa {
    EkCa::with_intermediates("a maker", Intermediates::Good(count))
}

/// The result and the number of checks for a certificate from `maker` with this chain.
fn counted(required: &[&str], maker: &EkCa, chain: &[Vec<u8>]) -> (Result<(), NotAccepted>, usize) {
    let certificate = maker.certify(&spki(Kind::P256), &EkContents::good());
    let authorities = listed(required).unwrap();
    let (decided, count) =
        authorities.counted((Some(&certificate), chain), key(Kind::P256), later());
    (decided.map(|_| ()), count)
}

#[track_caller]
fn assert_accepted(required: &[&str], maker: &EkCa, chain: &[Vec<u8>], checks: usize) {
    let (decided, count) = counted(required, maker, chain);
    assert!(decided.is_ok(), "{decided:?}");
    assert_eq!(count, checks);
}

#[test]
fn a_request_causes_at_most_16_signature_checks() {
    // For each certificate in the chain, the list contains four CAs that have the name of its issuer, but a different
    // key.
    let maker = maker(LONGEST);
    let namesakes = [(); 4].map(|()| EkCa::with_intermediates("a maker", Intermediates::Good(5)));
    let all = namesakes.each_ref().map(EkCa::intermediates_pem);

    let (decided, count) = counted(&all, &maker, maker.intermediates());

    assert_eq!(count, MAX_CHECKS);
    assert_eq!(MAX_CHECKS, 16);
    let not_accepted = decided.unwrap_err();
    let too_many = TpmDenial::EndorsementCertificateTooManyChecks(16);
    assert_eq!(not_accepted.denial, too_many);
    assert_eq!(
        not_accepted.denial.to_string(),
        "the endorsement key certificates require more than 16 signature checks"
    );
    assert!(not_accepted.expired.is_none());
    // Without the additional authorities that have the name of one of the authorities, the number of checks is
    // sufficient.
    let (decided, count) = counted(&all[..1], &maker, maker.intermediates());
    assert_eq!(reason(decided.map_err(|why| why.denial)), untrusted());
    assert_eq!(count, 2 * LONGEST);
}

#[test]
fn the_longest_chain_with_cross_signed_cas_needs_six_checks() {
    let (maker, other) = (
        maker(LONGEST),
        EkCa::with_intermediates("other", Intermediates::Good(0)),
    );
    let namesakes = [(); 3].map(|()| EkCa::with_intermediates("a maker", Intermediates::Good(0)));
    let cross_signed = maker.root_cross_signed_by(&other);
    let cross_signed = cross_signed.as_str();
    let [one, two, three] = namesakes.each_ref().map(EkCa::root_pem);
    for required in [
        &[maker.root_pem()][..],
        &[cross_signed],
        &[cross_signed, maker.root_pem(), other.root_pem()],
        &[one, two, three, maker.root_pem()],
        &[one, two, three, cross_signed],
        &[one, two, maker.root_pem(), cross_signed],
    ] {
        assert_accepted(required, &maker, maker.intermediates(), 6);
    }
    // The cross-signed certificate is in the TPM.
    let maker = EkCa::with_intermediates("a maker", Intermediates::Good(4));
    let cross_signed = pem::parse(maker.root_cross_signed_by(&other)).unwrap();
    let mut chain = maker.intermediates().to_vec();
    chain.push(cross_signed.contents().to_vec());
    assert_accepted(&[other.root_pem()], &maker, &chain, 6);
}

#[test]
fn the_ca_with_the_authority_key_identifier_is_tried_first() {
    let maker = maker(1);
    let namesakes = [(); 3].map(|()| EkCa::with_intermediates("a maker", Intermediates::Good(1)));
    let [one, two, three] = namesakes.each_ref().map(EkCa::intermediates_pem);
    assert_accepted(
        &[one, two, three, maker.intermediates_pem()],
        &maker,
        &[],
        1,
    );

    let chains = namesakes.iter().map(EkCa::intermediates);
    let chain = chains.chain([maker.intermediates()]).flatten();
    let chain: Vec<_> = chain.cloned().collect();
    assert_accepted(&[maker.root_pem()], &maker, &chain, 2);
}

#[test]
fn an_expired_chain_is_followed_only_once() {
    let maker = EkCa::with_flaw("a maker", LONGEST, 1, Flaw::Expired);

    let (decided, count) = counted(&[maker.root_pem()], &maker, maker.intermediates());

    let not_accepted = decided.unwrap_err();
    assert_eq!(
        not_accepted.denial.reason(),
        "EndorsementCertificateIssuerUnfit"
    );
    let expired = not_accepted.expired.unwrap();
    assert_eq!(expired.subject, "CN=a maker intermediate 1");
    assert_eq!(count, 6);
}

#[test]
fn a_valid_ca_is_preferred_to_an_expired_ca() {
    let day = Duration::from_hours(24);
    let issued = vendors::infineon_expired(&spki(Kind::P256));
    let authorities = listed(&[&issued.issuer_pem(), &issued.root_pem()]).unwrap();
    let certificates = (Some(&issued.certificate[..]), &issued.chain()[..]);
    let (decided, _) = authorities.counted(certificates, key(Kind::P256), later());
    let not_accepted = decided.unwrap_err();
    assert_eq!(
        not_accepted.denial.reason(),
        "EndorsementCertificateUntrusted"
    );
    assert!(
        not_accepted.expired.is_none(),
        "only the listed authority has expired"
    );
    // In the list, the expired root precedes the renewed root, which has the same name.
    let (past, far) = (later() - day, later() + day);
    let good = vendors::ending(&spki(Kind::P256), far, far);
    let expired = vendors::ending(&spki(Kind::P256), far, past);
    let authorities = listed(&[&expired.root_pem(), &good.root_pem()]).unwrap();
    let certificates = (Some(&good.certificate[..]), &[][..]);
    let (decided, _) = authorities.counted(certificates, key(Kind::P256), later());
    assert_eq!(decided.unwrap().unwrap().at, far);
}

#[test]
fn a_list_with_too_many_certificates_is_refused() {
    let one = MAKER.root_pem();
    assert!(listed(&[&one.repeat(MAX_AUTHORITIES)]).is_ok());

    let refused = InvalidTpmSettings::new("requireCA: it has more than 192 certificates");
    assert_eq!(
        listed(&[&one.repeat(MAX_AUTHORITIES), one]),
        Err(refused.clone())
    );
    assert_eq!(listed(&[&one.repeat(MAX_AUTHORITIES + 1)]), Err(refused));
}

#[test]
fn a_list_with_too_many_cas_of_one_name_is_refused() {
    let roots = [(); 5].map(|()| vendors::by_root(&spki(Kind::P256), "a CA").root_pem());
    let roots = roots.each_ref().map(String::as_str);
    let [one, two, three, four, five] = roots;
    assert!(listed(&[one, two, three, four]).is_ok());
    // Each certificate counts only once.
    assert!(listed(&[one, two, three, one, two, three, four, one]).is_ok());

    assert_eq!(
        listed(&[one, two, three, four, five]),
        Err(InvalidTpmSettings::new(
            "requireCA[4]: it has more than 4 different certificates with the subject \"CN=a CA\""
        ))
    );
}
