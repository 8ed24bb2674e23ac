//! Tests with certificates that have vendor-specific properties, and of the details in a denial.

use kubelet_authenticator_test_support::ek_ca::vendors::{
    self, CPS, Issued, USER_NOTICE, Usage, pem,
};

use super::*;

/// The result if the policy requires these authorities, and the TPM stores this chain.
fn decided(
    issued: &Issued,
    required: &[String],
    chain: &[Vec<u8>],
    kind: Kind,
) -> Result<(), TpmDenial> {
    let required: Vec<_> = required.iter().map(String::as_str).collect();
    let authorities = listed(&required).unwrap();
    let decided = authorities.decide(Some(&issued.certificate), chain, key(kind), later());
    decided.map(|_| ())
}

/// The result if the policy requires the signing authority.
pub(super) fn by_issuer(issued: &Issued, kind: Kind) -> Result<(), TpmDenial> {
    decided(issued, &[issued.issuer_pem()], &[], kind)
}

/// The result if the policy requires the root, and the TPM stores the authorities below it.
pub(super) fn by_root(issued: &Issued, kind: Kind) -> Result<(), TpmDenial> {
    decided(issued, &[issued.root_pem()], &issued.chain(), kind)
}

fn untrusted_as(detail: &str) -> Result<(), TpmDenial> {
    Err(TpmDenial::EndorsementCertificateUntrusted(
        detail.to_owned(),
    ))
}

#[test]
fn certificates_in_vendor_formats_are_accepted() {
    type Vendor = fn(&[u8]) -> Issued;
    let vendors: [(Vendor, Kind); 9] = [
        (vendors::infineon_slb_9672, Kind::P256),
        (vendors::infineon_slb_9672, Kind::P384),
        (vendors::infineon_rsa, Kind::Rsa2048),
        (vendors::nuvoton_npct75x, Kind::P384),
        (vendors::amd_ftpm, Kind::P256),
        (vendors::amd_ftpm, Kind::Rsa2048),
        (vendors::amd_pluton, Kind::Rsa2048),
        (vendors::st_with_policies, Kind::P256),
        (vendors::intel_on_die, Kind::P256),
    ];
    for (index, (vendor, kind)) in vendors.into_iter().enumerate() {
        let issued = vendor(&spki(kind));

        assert_eq!(by_issuer(&issued, kind), Ok(()), "{index}");
        assert_eq!(by_root(&issued, kind), Ok(()), "{index}");
    }
}

#[test]
fn a_changed_certificate_from_a_p521_ca_is_denied() {
    let mut issued = vendors::infineon_slb_9672(&spki(Kind::P256));
    let good = issued.certificate.clone();
    *issued.certificate.last_mut().unwrap() ^= 1;
    let does_not_verify = "the issuer is \"CN=OPTIGA TPM 2.0 ECC CA 056\" in requireCA, but the signature \
                           (ecdsa-with-SHA512) does not match its key";
    assert_eq!(
        by_issuer(&issued, Kind::P256),
        untrusted_as(does_not_verify)
    );
    // The certificate belongs to another authority with the same name.
    let namesake = vendors::infineon_slb_9672(&spki(Kind::P256));
    issued.certificate = good;
    assert_eq!(
        decided(&issued, &[namesake.issuer_pem()], &[], Kind::P256),
        untrusted_as(does_not_verify)
    );
}

#[test]
fn a_ca_with_an_unsupported_key_is_refused() {
    let text = vendors::ed25519_authority();
    assert_eq!(
        listed(&[&text]).unwrap_err().to_string(),
        "requireCA[0]: the key of \"CN=an Ed25519 CA\" is ed25519, and cannot verify signatures: RSA with 2048 to 8192 bits, \
         and ECDSA on P-256, P-384 and P-521, are supported"
    );
    // The change sets the curve of the key to secp256k1.
    let of = |from: &[u8], to: &[u8], issued: &Issued| {
        let root = replaced_all(&issued.authorities[0], from, to);
        listed(&[&pem(&root)]).unwrap_err().to_string()
    };
    let p521 = vendors::infineon_slb_9672(&spki(Kind::P256));
    let error = of(
        &[0x2b, 0x81, 0x04, 0x00, 0x23],
        &[0x2b, 0x81, 0x04, 0x00, 0x0a],
        &p521,
    );
    assert!(
        error.contains("is ECDSA on the curve 1.3.132.0.10, and can"),
        "{error}"
    );
    // The point is not on the curve of the key.
    let error = of(
        &[0x2b, 0x81, 0x04, 0x00, 0x23],
        &[0x2b, 0x81, 0x04, 0x00, 0x22],
        &p521,
    );
    assert!(
        error.contains("is P-384, and malformed, and can"),
        "{error}"
    );
}

/// An RSA public key with this number of bits.
fn rsa_spki(bits: usize) -> Vec<u8> {
    let der = |tag: u8, content: &[u8]| {
        let len = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &len[..], content].concat()
    };
    let mut modulus = vec![0xff; bits.div_ceil(8)];
    modulus[0] >>= (8 - bits % 8) % 8;
    if modulus[0] >= 0x80 {
        modulus.insert(0, 0);
    }
    let exponent = [0x02, 0x03, 0x01, 0x00, 0x01];
    let key = der(0x30, &[der(0x02, &modulus), exponent.to_vec()].concat());
    let algorithm = [
        0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
    ];
    let key = der(0x03, &[&[0], &key[..]].concat());
    der(0x30, &[&algorithm[..], &key].concat())
}

#[test]
fn a_ca_with_an_rsa_key_outside_the_size_limits_is_refused() {
    for (bits, is_accepted) in [
        (1024, false),
        (2047, false),
        (2048, true),
        (4096, true),
        (8192, true),
        (8193, false),
    ] {
        let spki = rsa_spki(bits);
        let (_, spki) = SubjectPublicKeyInfo::from_der(&spki).unwrap();
        let read = AuthorityKey::read(&spki);
        if is_accepted {
            assert!(read.is_ok(), "{bits}: {read:?}");
        } else {
            assert_eq!(read, Err(format!("RSA with {bits} bits")));
        }
    }
}

fn replaced_all(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    for at in 0..bytes.len() - from.len() {
        if changed[at..].starts_with(from) {
            changed[at..at + to.len()].copy_from_slice(to);
        }
    }
    changed
}

#[test]
fn an_endorsement_certificate_with_a_wrong_key_usage_is_denied() {
    use Usage::{Agreement, Certificates, Encipherment, Signature};
    let cases: [(&[Usage], bool); 9] = [
        (&[], true),
        (&[Encipherment], true),
        (&[Agreement], true),
        (&[Encipherment, Agreement], true),
        (&[Encipherment, Signature], true),
        (&[Signature], false),
        (&[Certificates], false),
        (&[Encipherment, Certificates], false),
        (&[Agreement, Certificates], false),
    ];
    for kind in Kind::ALL {
        for (usages, is_accepted) in cases {
            let issued = vendors::with_usages(&spki(kind), usages);
            let expected = if is_accepted {
                Ok(())
            } else {
                unfit("its key usage is not allowed for an endorsement key")
            };
            assert_eq!(by_issuer(&issued, kind), expected, "{kind:?} {usages:?}");
        }
    }
}

#[test]
fn critical_certificate_policies_of_an_intermediate_are_accepted() {
    const ONE: &[u64] = &[1, 2, 3];
    let notice: &[&[u64]] = &[CPS, USER_NOTICE];
    let good = |policies: &[vendors::Policy]| vendors::certificate_policies(policies);
    let issuer = "\"CN=TPM EK Intermediate CA 05\"";
    for (policies, refused) in [
        (good(&[(ONE, &[])]), None),
        (good(&[(&[2, 5, 29, 32, 0], notice)]), None),
        (good(&[(ONE, &[]), (&[1, 2, 4], notice)]), None),
        (
            good(&[(ONE, &[CPS, &[1, 2, 5]])]),
            Some("its critical certificate policies have an unknown qualifier"),
        ),
        (
            good(&[(ONE, &[]), (ONE, &[CPS])]),
            Some("its critical certificate policies have a policy twice"),
        ),
        (
            good(&[]),
            Some("its critical certificate policies are empty"),
        ),
        (
            b"garbage".to_vec(),
            Some("it has a malformed critical extension (2.5.29.32)"),
        ),
    ] {
        let below = vendors::with_policies(&spki(Kind::P256), &policies);
        let expected = refused.map_or(Ok(()), |rule| {
            let detail = format!("{issuer}: {rule}");
            Err(TpmDenial::EndorsementCertificateIssuerUnfit(detail))
        });
        assert_eq!(by_root(&below, Kind::P256), expected, "{refused:?}");
        // The extensions of a listed authority are not checked.
        assert_eq!(by_issuer(&below, Kind::P256), Ok(()));
    }
}

#[test]
fn unsupported_critical_policy_extensions_are_refused() {
    // The extensions are policyMappings, policyConstraints (which requires an explicit policy from here on),
    // inhibitAnyPolicy and nameConstraints.
    for (last, value) in [
        (
            33,
            &[
                0x30, 0x0a, 0x30, 0x08, 0x06, 0x02, 0x2a, 0x03, 0x06, 0x02, 0x2a, 0x04,
            ][..],
        ),
        (36, &[0x30, 0x03, 0x80, 0x01, 0x00]),
        (54, &[0x02, 0x01, 0x00]),
        (30, &[0x30, 0x00]),
    ] {
        let issued = vendors::with_critical(&spki(Kind::P256), &[2, 5, 29, last], value);

        let Err(TpmDenial::EndorsementCertificateIssuerUnfit(detail)) =
            by_root(&issued, Kind::P256)
        else {
            panic!("{last}");
        };
        assert!(
            detail.ends_with(&format!("critical extension (2.5.29.{last})")),
            "{detail}"
        );
    }
}

#[test]
fn a_denial_contains_the_rejected_ca_and_the_reason() {
    let p256 = spki(Kind::P256);
    let named = |name: &str| format!("the issuer is \"CN={name}\" in requireCA, but ");

    let sha1 = vendors::st_of_2014(&p256);
    assert_eq!(
        by_issuer(&sha1, Kind::P256),
        untrusted_as(&format!(
            "{}the signature algorithm sha1WithRSAEncryption is not accepted; RSA PKCS #1 and ECDSA with SHA-256, \
             SHA-384 or SHA-512 are accepted",
            named("TPM EK Intermediate CA 02")
        ))
    );

    let expired = vendors::infineon_expired(&p256);
    let Err(TpmDenial::EndorsementCertificateUntrusted(detail)) = by_issuer(&expired, Kind::P256)
    else {
        panic!("it has expired");
    };
    let start = format!(
        "{}its own certificate expired on 20",
        named("IFX TPM EK Intermediate CA 01")
    );
    assert!(detail.starts_with(&start), "{detail}");

    let short = vendors::with_path_length_0(&p256);
    assert_eq!(
        by_root(&short, Kind::P256),
        untrusted_as(&format!(
            "its chain ends with \"CN=an intermediate\"; {}its path length permits 0 CAs below it, but the chain has 1",
            named("a short root")
        ))
    );
}

#[test]
fn a_denial_contains_the_unlisted_issuer_and_the_listed_ones() {
    let p256 = spki(Kind::P256);
    let issued = vendors::amd_ftpm(&p256);
    let others: Vec<_> = (1..=6).map(|number| format!("CA {number}")).collect();
    let others = others
        .iter()
        .map(|name| vendors::by_root(&p256, name).root_pem());
    let others: Vec<_> = others.collect();
    for (required, chain, expected) in [
        (
            &[issued.root_pem()][..],
            &[][..],
            "the issuer is \"CN=PRG-RN\", but requireCA contains \"CN=AMDTPM\"",
        ),
        (
            &others,
            &[],
            "the issuer is \"CN=PRG-RN\", but requireCA contains \"CN=CA 1\", \"CN=CA 2\", \"CN=CA 3\", \"CN=CA 4\", 2 more",
        ),
        (
            &others[..1],
            &issued.chain(),
            "its chain ends with \"CN=PRG-RN\"; the issuer is \"CN=AMDTPM\", but requireCA contains \"CN=CA 1\"",
        ),
    ] {
        assert_eq!(
            decided(&issued, required, chain, Kind::P256),
            untrusted_as(expected)
        );
    }
}

#[test]
fn of_several_cas_with_one_name_the_signing_ca_is_reported() {
    // AMD uses the same name for an RSA key and for an ECC key. If the certificate does not contain the identifier of
    // the issuer's key, the verifier tries the authorities in the order of the list.
    let p256 = spki(Kind::P256);
    let issued = vendors::infineon_expired_without_key_id(&p256);
    let (_, parsed) = X509Certificate::from_der(&issued.certificate).unwrap();
    assert_eq!(Link::of(&parsed).issuer_key_id, None);
    let name = "IFX TPM EK Intermediate CA 01";
    let [one, two] = [(); 2].map(|()| vendors::by_root(&p256, name).root_pem());
    for required in [
        [issued.issuer_pem(), one.clone(), two.clone()],
        [one.clone(), issued.issuer_pem(), two.clone()],
        [one, two, issued.issuer_pem()],
    ] {
        let Err(TpmDenial::EndorsementCertificateUntrusted(detail)) =
            decided(&issued, &required, &[], Kind::P256)
        else {
            panic!("it has expired");
        };

        let start = format!(
            "the issuer is \"CN={name}\" in requireCA, but its own certificate expired on 20"
        );
        assert!(detail.starts_with(&start), "{detail}");
    }
}

#[test]
fn a_name_in_a_denial_is_truncated_to_one_line() {
    let name = format!("a\nb\"{}", "é".repeat(300));
    let issued = vendors::by_root(&spki(Kind::P256), &name);
    let other = vendors::by_root(&spki(Kind::P256), "other");

    let Err(TpmDenial::EndorsementCertificateUntrusted(detail)) =
        decided(&issued, &[other.root_pem()], &[], Kind::P256)
    else {
        panic!("it is of another authority");
    };

    let expected = format!(
        "the issuer is \"CN=a\\nb\\\"{}…\", but requireCA contains \"CN=other\"",
        "é".repeat(153)
    );
    assert_eq!(detail, expected);
}

#[test]
fn listed_cas_complete_an_incomplete_chain() {
    let issued = vendors::intel_on_die(&spki(Kind::P256));
    // The TPM stores the certificates of its processor's authorities. The vendor publishes the next authority.
    let [root, intermediate, issuing] = [0, 1, 2].map(|index| pem(&issued.authorities[index]));
    let stored: Vec<_> = issued.chain().into_iter().take(3).collect();

    assert_eq!(
        decided(&issued, std::slice::from_ref(&root), &stored, Kind::P256),
        untrusted_as(
            "its chain ends with \"CN=CSME ADL ROM CA\"; the issuer is \"CN=ODCA 2 CSME P_ADL 00002820 Issuing CA\", but \
             requireCA contains \"CN=OnDie CA RootCA Certificate Signing\""
        )
    );
    for required in [
        &[issuing.clone()][..],
        &[root.clone(), intermediate.clone(), issuing.clone()],
        &[issuing.clone(), root.clone()],
        &[[issuing, intermediate, root].concat()],
    ] {
        assert_eq!(decided(&issued, required, &stored, Kind::P256), Ok(()));
    }
    // A listed authority fills a gap in the middle of the stored chain.
    let mut with_a_hole = issued.chain();
    let missing = pem(&with_a_hole.remove(1));
    let required = [issued.root_pem(), missing];
    assert_eq!(
        decided(&issued, &required, &with_a_hole, Kind::P256),
        Ok(())
    );
    let denied = decided(&issued, &required[..1], &with_a_hole, Kind::P256);
    let expected = matches!(denied, Err(TpmDenial::EndorsementCertificateUntrusted(_)));
    assert!(expected, "{denied:?}");
}

#[test]
fn the_error_reports_bytes_after_a_listed_certificate() {
    let issued = vendors::amd_ftpm(&spki(Kind::P256));
    let longer = [&issued.authorities[0][..], &[0xff; 4]].concat();

    assert_eq!(
        listed(&[&pem(&longer)]).unwrap_err().to_string(),
        "requireCA[0]: it has bytes after its certificate (`openssl x509` removes them)"
    );
}

#[test]
fn the_earliest_expiry_in_the_chain_is_returned() {
    let day = Duration::from_hours(24);
    let (sooner, later_on) = (later() + day, later() + 9 * day);
    let p256 = spki(Kind::P256);
    for (certificate, authority, of_key) in
        [(sooner, later_on, sooner), (later_on, sooner, later_on)]
    {
        let issued = vendors::ending(&p256, certificate, authority);
        let authorities = listed(&[&issued.root_pem()]).unwrap();

        let end = authorities.decide(Some(&issued.certificate), &[], key(Kind::P256), later());

        let end = end.unwrap().unwrap();
        assert_eq!(end.at, of_key);
        assert!(end.subject.starts_with("serial "), "{}", end.subject);
        assert!(
            end.subject.ends_with(" of CN=an ending root"),
            "{}",
            end.subject
        );
        let ends: Vec<_> = authorities.ends().collect();
        assert_eq!(ends.len(), 1);
        assert_eq!(
            (ends[0].at, &*ends[0].subject),
            (authority, "CN=an ending root")
        );
    }
}

#[test]
fn only_an_expired_certificate_of_the_machine_is_reported_as_the_reason() {
    let day = Duration::from_hours(24);
    let (past, far) = (later() - day, later() + 400 * day);
    let p256 = spki(Kind::P256);
    for (certificate, authority, expected) in [
        (past, far, Some(past)),
        (past, past - day, Some(past)),
        // The certificate is valid in its last second.
        (later(), far, None),
        (later(), past, None),
        // The policy itself contains the expiry times of its authorities.
        (far, past, None),
        (far, far, None),
    ] {
        let issued = vendors::ending(&p256, certificate, authority);
        let authorities = listed(&[&issued.root_pem()]).unwrap();
        let expired = |certificate: Option<&[u8]>, kind| {
            let found = authorities.expired(certificate, key(kind), later());
            found.map(|end| end.at)
        };

        assert_eq!(expired(Some(&issued.certificate), Kind::P256), expected);
        assert_eq!(expired(Some(&issued.certificate), Kind::P384), None);
        assert_eq!(expired(None, Kind::P256), None);
    }
}
