//! Tests with CAs between an endorsement key and the required CA: a valid chain with one change.

use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::ek_ca::Flaw;

use super::*;

/// The number of CAs below the root.
const COUNT: usize = 3;

fn maker(count: usize) -> EkCa {
    EkCa::with_intermediates("a maker", Intermediates::Good(count))
}

/// The result for a certificate from `maker` with these intermediates, if the policy requires the root of `maker`.
fn decided(maker: &EkCa, intermediates: &[Vec<u8>]) -> Result<(), TpmDenial> {
    required(maker.root_pem(), maker, intermediates)
}

fn required(pem: &str, maker: &EkCa, intermediates: &[Vec<u8>]) -> Result<(), TpmDenial> {
    let certificate = maker.certify(&spki(Kind::P256), &EkContents::good());
    let authorities = listed(&[pem]).unwrap();
    let key = key(Kind::P256);
    let decided = authorities.decide(Some(&certificate), intermediates, key, later());
    decided.map(|_| ())
}

/// The denial that this manufacturer's authority causes.
fn issuer_unfit(name: &str, detail: &str) -> Result<(), TpmDenial> {
    let detail = format!("\"CN={name}\": {detail}");
    Err(TpmDenial::EndorsementCertificateIssuerUnfit(detail))
}

/// The denial that the CA with this number causes.
fn number_unfit(number: usize, detail: &str) -> Result<(), TpmDenial> {
    issuer_unfit(&format!("a maker intermediate {number}"), detail)
}

const DID_NOT: &str = "the signature (ecdsa-with-SHA256) does not match its key";

/// Returns the index of the CA with this number in the list of intermediates. The root has the number 0.
fn place(number: usize) -> usize {
    COUNT - number
}

#[test]
fn a_chain_in_any_order_is_accepted() {
    for count in 0..=5 {
        let maker = maker(count);
        let mut chain = maker.intermediates().to_vec();
        for _ in 0..count.max(1) {
            assert_eq!(decided(&maker, &chain), Ok(()), "{count}");
            if count > 0 {
                chain.rotate_left(1);
            }
        }
        chain.reverse();
        assert_eq!(decided(&maker, &chain), Ok(()), "{count}");
    }
}

#[test]
fn a_chain_ends_at_the_first_listed_ca() {
    let maker = maker(COUNT);
    let pems: Vec<String> = maker
        .intermediates()
        .iter()
        .map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der.clone())))
        .collect();
    for (needed, pem) in pems.iter().enumerate() {
        let chain = maker.intermediates();
        assert_eq!(required(pem, &maker, &chain[..needed]), Ok(()));
        assert_eq!(required(pem, &maker, chain), Ok(()));
        if needed > 0 {
            let short = &chain[1..needed];
            assert_eq!(reason(required(pem, &maker, short)), untrusted());
        }
    }
}

#[test]
fn a_chain_with_a_missing_certificate_is_denied() {
    let maker = maker(COUNT);
    for missing in 0..COUNT {
        let mut chain = maker.intermediates().to_vec();
        chain.remove(missing);
        assert_eq!(reason(decided(&maker, &chain)), untrusted(), "{missing}");
        // A second copy of another CA does not replace the missing CA.
        chain.push(chain[0].clone());
        assert_eq!(reason(decided(&maker, &chain)), untrusted(), "{missing}");
    }
}

#[test]
fn a_chain_with_the_names_of_another_vendor_is_denied() {
    let (maker, other) = (
        maker(COUNT),
        EkCa::with_intermediates("other", Intermediates::Good(3)),
    );
    assert_eq!(reason(decided(&maker, other.intermediates())), untrusted());
    for number in 1..=COUNT {
        let mut chain = maker.intermediates().to_vec();
        chain[place(number)].clone_from(&other.intermediates()[place(number)]);
        assert_eq!(reason(decided(&maker, &chain)), untrusted(), "{number}");
    }
}

#[test]
fn a_chain_from_a_different_ca_with_the_same_name_is_denied() {
    let (maker, namesake) = (maker(COUNT), maker(COUNT));
    for number in 1..=COUNT {
        let mut chain = maker.intermediates().to_vec();
        chain[place(number)].clone_from(&namesake.intermediates()[place(number)]);
        assert_eq!(
            decided(&maker, &chain),
            number_unfit(number, DID_NOT),
            "{number}"
        );
        // An additional CA next to the correct CA has no effect.
        chain.push(maker.intermediates()[place(number)].clone());
        assert_eq!(decided(&maker, &chain), Ok(()), "{number}");
    }
    assert_eq!(
        decided(&maker, namesake.intermediates()),
        number_unfit(COUNT, DID_NOT)
    );
}

#[test]
fn of_several_stored_cas_with_one_name_the_signing_ca_is_reported() {
    let maker = EkCa::with_flaw("a maker", 1, 1, Flaw::Expired);
    let namesakes = [(); 2].map(|()| EkCa::with_intermediates("a maker", Intermediates::Good(1)));
    let [one, two] = namesakes
        .each_ref()
        .map(|namesake| &namesake.intermediates()[0]);
    let signer = &maker.intermediates()[0];
    for chain in [[signer, one, two], [one, signer, two], [one, two, signer]] {
        let Err(TpmDenial::EndorsementCertificateIssuerUnfit(detail)) =
            decided(&maker, &chain.map(Vec::clone))
        else {
            panic!("it has expired");
        };

        let start = "\"CN=a maker intermediate 1\": its own certificate expired on 20";
        assert!(detail.starts_with(start), "{detail}");
    }
}

#[test]
fn a_stored_ca_that_signed_is_reported_before_a_listed_namesake() {
    let maker = EkCa::with_flaw("a maker", 1, 1, Flaw::Expired);
    let namesake = EkCa::with_intermediates("a maker", Intermediates::Good(1));
    let listed = [namesake.intermediates_pem(), maker.root_pem()].concat();

    let Err(TpmDenial::EndorsementCertificateIssuerUnfit(detail)) =
        required(&listed, &maker, maker.intermediates())
    else {
        panic!("it has expired");
    };

    let start = "\"CN=a maker intermediate 1\": its own certificate expired on 20";
    assert!(detail.starts_with(start), "{detail}");
    // Neither CA has signed the certificate.
    let other = EkCa::with_intermediates("a maker", Intermediates::Good(1));
    assert_eq!(
        reason(required(&listed, &maker, other.intermediates())),
        untrusted()
    );
}

#[test]
fn a_chain_with_a_changed_signature_is_denied() {
    let maker = maker(COUNT);
    for number in 1..=COUNT {
        let mut chain = maker.intermediates().to_vec();
        *chain[place(number)].last_mut().unwrap() ^= 1;
        let decided = decided(&maker, &chain);
        if number == 1 {
            // The required CA is not one of the intermediates.
            assert_eq!(reason(decided), untrusted());
        } else {
            assert_eq!(decided, number_unfit(number - 1, DID_NOT), "{number}");
        }
    }
}

#[test]
fn a_chain_with_an_unsuitable_ca_is_denied() {
    for (flaw, detail) in [
        (Flaw::Expired, "its own certificate expired on "),
        (
            Flaw::NotYetValid,
            "its own certificate is not valid before 2223-07-06",
        ),
        (Flaw::NotAnAuthority, "it is not a CA certificate"),
        (
            Flaw::SignsLists,
            "its key usage does not allow it to sign certificates",
        ),
        (
            Flaw::NoKeyUsage,
            "its key usage does not allow it to sign certificates",
        ),
        (
            Flaw::ForServers,
            "its extended key usage is not allowed for endorsement keys",
        ),
        (
            Flaw::Unknown { critical: true },
            "it has an unknown critical extension (2.23.133.99)",
        ),
    ] {
        for number in 1..=COUNT {
            let maker = EkCa::with_flaw("a maker", COUNT, number, flaw);
            let Err(TpmDenial::EndorsementCertificateIssuerUnfit(said)) =
                decided(&maker, maker.intermediates())
            else {
                panic!("{flaw:?} {number}");
            };
            let start = format!("\"CN=a maker intermediate {number}\": {detail}");
            assert!(said.starts_with(&start), "{flaw:?} {number}: {said}");
        }
    }
}

#[test]
fn a_chain_with_an_unusual_but_valid_ca_is_accepted() {
    for flaw in [Flaw::ForEndorsementKeys, Flaw::Unknown { critical: false }] {
        for number in 0..=COUNT {
            let maker = EkCa::with_flaw("a maker", COUNT, number, flaw);
            assert_eq!(decided(&maker, maker.intermediates()), Ok(()));
        }
    }
}

#[test]
fn a_chain_longer_than_its_path_length_limit_is_denied() {
    for number in 0..=COUNT {
        let below = COUNT - number;
        let most = |most: usize| Flaw::PathLength(u8::try_from(most).unwrap());
        let maker = EkCa::with_flaw("a maker", COUNT, number, most(below));
        assert_eq!(decided(&maker, maker.intermediates()), Ok(()), "{number}");
        let Some(less) = below.checked_sub(1) else {
            continue;
        };
        let maker = EkCa::with_flaw("a maker", COUNT, number, most(less));
        let rule =
            format!("its path length permits {less} CAs below it, but the chain has {below}");
        let decided = decided(&maker, maker.intermediates());
        if number == 0 {
            assert!(decided.unwrap_err().to_string().ends_with(&rule));
        } else {
            assert_eq!(decided, number_unfit(number, &rule), "{number}");
        }
    }
}

#[test]
fn a_chain_with_a_duplicate_extension_is_denied() {
    // The change turns the extension for basic constraints into a second key usage.
    let maker = maker(COUNT);
    let mut chain = maker.intermediates().to_vec();
    let constraints = [0x06, 0x03, 0x55, 0x1d, 0x13];
    let usage = [0x06, 0x03, 0x55, 0x1d, 0x0f];
    chain[0] = replaced(&chain[0], &constraints, &usage);

    assert_eq!(
        decided(&maker, &chain),
        number_unfit(COUNT, "it has a duplicate extension")
    );
}

#[test]
fn an_intermediate_with_trailing_bytes_is_denied() {
    let maker = maker(COUNT);
    let malformed = Err(TpmDenial::EndorsementCertificateMalformed(
        "an intermediate is not exactly one DER certificate",
    ));
    for place in 0..COUNT {
        let good = &maker.intermediates()[place];
        for bad in [
            [&good[..], &[0]].concat(),
            good[..good.len() - 1].to_vec(),
            b"garbage".to_vec(),
        ] {
            let mut chain = maker.intermediates().to_vec();
            chain[place] = bad;
            assert_eq!(decided(&maker, &chain), malformed, "{place}");
        }
    }
}

#[test]
fn an_endorsement_certificate_is_not_accepted_as_a_ca() {
    // The certificate has the name of the CA, but its key is an endorsement key.
    let maker = maker(1);
    let name = Some("a maker intermediate 1".to_owned());
    let contents = EkContents {
        common_name: name,
        ..EkContents::good()
    };
    let leaf = maker.certify(&spki(Kind::P256), &contents);

    // The holder of this certificate is not allowed to issue certificates, regardless of the certificate's other
    // properties.
    assert_eq!(
        decided(&maker, &[leaf]),
        number_unfit(1, "it has an unknown critical extension (2.5.29.17)")
    );
}

#[test]
fn the_enrollment_chain_is_checked_if_a_ca_is_required() {
    let maker = maker(COUNT);
    let machine = machine(Kind::P256);
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&machine));
    case.now = later();
    case.settings.endorsement_keys.require_ca = vec![maker.root_pem().to_owned()];
    let mut enrolment = enrolment(&machine);
    enrolment.certificate = Some(maker.certify(&spki(Kind::P256), &EkContents::good()));
    let denial = denied(case.enrol(&enrolment));
    assert_eq!(denial.reason(), "EndorsementCertificateUntrusted");

    enrolment.header.version = EvidenceVersion::V2;
    enrolment.intermediates = maker.intermediates().to_vec();

    case.challenge(&enrolment);
    // If the policy does not require a certificate, the verifier ignores certificates.
    case.settings.endorsement_keys.require_ca.clear();
    enrolment.intermediates = vec![b"garbage".to_vec()];
    case.challenge(&enrolment);
}

#[test]
fn a_tpm_ca_is_valid_from_its_first_to_its_last_second() {
    let second = Duration::from_secs(1);
    let maker = maker(1);
    let contents = EkContents {
        not_before: SystemTime::UNIX_EPOCH,
        ..EkContents::good()
    };
    let certificate = maker.certify(&spki(Kind::P256), &contents);
    let [intermediate] = maker.intermediates() else {
        panic!("there is one");
    };
    let (_, parsed) = X509Certificate::from_der(intermediate).unwrap();
    let begin = system_time(parsed.validity().not_before);
    let end = system_time(parsed.validity().not_after);
    let listed_one = listed(&[maker.intermediates_pem()]).unwrap();
    let in_chain = listed(&[maker.root_pem()]).unwrap();
    // The endorsement certificate becomes valid earlier than the authority, and does not expire.
    let at = |authorities: &Authorities, chain: &[Vec<u8>], now| {
        reason(authorities.decide(Some(&certificate), chain, key(Kind::P256), now))
    };
    for (now, is_valid) in [
        (begin - second, false),
        (begin, true),
        (end, true),
        (end + second, false),
    ] {
        let listed_one = at(&listed_one, &[], now);
        let in_chain = at(&in_chain, maker.intermediates(), now);
        if is_valid {
            assert_eq!((listed_one, in_chain), (Ok(()), Ok(())));
        } else {
            assert_eq!(listed_one, untrusted());
            assert_eq!(in_chain, Err("EndorsementCertificateIssuerUnfit"));
        }
    }
}
