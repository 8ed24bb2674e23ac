//! Tests of the sources of a machine's endorsement key.

use std::time::Duration;

use kubelet_attestation::names::NodeName;
use node_attestation_core::crd::{AllowedEndorsementKey, TpmSettings};
use node_attestation_core::verifier::platform::KeyKind;

use super::*;
use crate::invalid_settings::InvalidTpmSettings;

fn of(kind: Kind) -> TpmMachine {
    machine().with_endorsement_key(kind)
}

#[test]
fn a_provider_id_with_the_key_digest_identifies_the_key() {
    let own = format!("tpm://{}", digest(&machine())).leak();
    let other = format!("tpm://{}", digest(&of(Kind::P384))).leak();

    Case::of_nobody().called(own).challenge(&GOOD.enrolment);
    let denied = denied(Case::of_nobody().called(other).enrol(&GOOD.enrolment));

    assert_eq!(
        denied,
        TpmDenial::EndorsementKeyOfAnotherMachine {
            machine: "m1".to_owned(),
            trusted: digest(&of(Kind::P384)),
            presented: digest(&machine()),
        }
    );
}

#[test]
fn a_provider_id_in_another_format_identifies_no_key() {
    let hex = digest(&machine()).to_string();
    for provider_id in [
        format!("tpm://{}", hex.to_uppercase()),
        format!("tpm:///{hex}"),
        format!("tpm://{}", hex.clone().split_off(1)),
        format!("x-tpm://{hex}"),
    ] {
        let case = Case::of_nobody().called(provider_id.leak());

        assert!(
            matches!(
                denied(case.enrol(&GOOD.enrolment)),
                TpmDenial::EndorsementKeyUnknown { .. }
            ),
            "{}",
            case.provider_id
        );
    }
}

#[test]
fn a_key_listed_for_another_machine_is_denied() {
    let mut case = Case::of_nobody();
    case.allow("m1", digest(&of(Kind::P384)));
    case.allow("m2", digest(&machine()));

    for decided in [case.enrol(&GOOD.enrolment), case.respond(&GOOD.response)] {
        assert_eq!(
            denied(decided),
            TpmDenial::EndorsementKeyOfAnotherMachine {
                machine: "m1".to_owned(),
                trusted: digest(&of(Kind::P384)),
                presented: digest(&machine()),
            }
        );
    }
}

#[test]
fn a_genuine_tpm_that_is_not_listed_for_the_machine_is_denied() {
    let mut case = Case::valid();
    // The manufacturer issued the key's certificate when this test run started, which is later than the default time in
    // the test.
    case.now += Duration::from_hours(24 * 365 * 50);
    let endorsement_keys = &mut case.settings.endorsement_keys;
    endorsement_keys.require_ca = vec![ANOTHER.maker().intermediates_pem().to_owned()];
    let another = TpmMachine::new(ANOTHER.clone(), Kind::P384);
    let enrolment = crate::fixture::enrolment(&another);
    assert!(enrolment.certificate.is_some());

    assert_eq!(
        denied(case.enrol(&enrolment)),
        TpmDenial::EndorsementKeyOfAnotherMachine {
            machine: "m1".to_owned(),
            trusted: digest(&machine()),
            presented: digest(&another),
        }
    );
    // A machine whose endorsement key is not registered is denied even with a vendor certificate.
    case.settings.endorsement_keys.allow_list.clear();
    assert_eq!(
        denied(case.enrol(&enrolment)),
        TpmDenial::EndorsementKeyUnknown("m1".to_owned())
    );
}

#[test]
fn a_key_in_the_request_is_not_trusted_by_itself() {
    let case = Case::of_nobody();
    for decided in [case.enrol(&GOOD.enrolment), case.respond(&GOOD.response)] {
        assert_eq!(
            denied(decided),
            TpmDenial::EndorsementKeyUnknown("m1".to_owned())
        );
    }
}

#[test]
fn a_provider_id_that_contradicts_the_allow_list_is_denied() {
    let own = format!("tpm://{}", digest(&machine())).leak();
    let mut agreeing = Case::valid().called(own);
    agreeing.challenge(&GOOD.enrolment);
    agreeing.settings.endorsement_keys.allow_list.clear();
    agreeing.allow("m1", digest(&of(Kind::P384)));

    for enrolment in [
        GOOD.enrolment.clone(),
        crate::fixture::enrolment(&of(Kind::P384)),
    ] {
        assert!(matches!(
            denied(agreeing.enrol(&enrolment)),
            TpmDenial::EndorsementKeyOfAnotherMachine { .. }
        ));
    }
}

#[test]
fn the_platform_decides_about_an_unlisted_machine() {
    let mut case = Case::of_nobody();
    case.platform = Arc::new(FakePlatform::Knows(digest(&machine())));
    let good = Good::of(&machine(), &case);
    case.proves(&good.response);

    case.platform = Arc::new(FakePlatform::Knows(digest(&of(Kind::P384))));
    for decided in [case.enrol(&good.enrolment), case.respond(&good.response)] {
        assert!(matches!(
            denied(decided),
            TpmDenial::EndorsementKeyOfAnotherMachine { .. }
        ));
    }
}

#[test]
fn the_platform_is_not_queried_for_a_listed_key_or_a_bad_quote() {
    let mut case = Case::valid();
    case.platform = Arc::new(FakePlatform::OutOfOrder);
    case.challenge(&GOOD.enrolment);

    case.settings.endorsement_keys.allow_list.clear();
    let mut bad = GOOD.response.clone();
    bad.quote.attest.pop();
    assert_eq!(denied(case.respond(&bad)), TpmDenial::QuoteSignatureInvalid);
}

#[test]
fn a_platform_outage_defers_requests_without_denial() {
    let mut case = Case::of_nobody();
    case.platform = Arc::new(FakePlatform::OutOfOrder);
    for decided in [case.enrol(&GOOD.enrolment), case.respond(&GOOD.response)] {
        assert!(
            matches!(
                decided,
                Err(Refusal::Retry(Deferral::VerifierUnavailable { .. }))
            ),
            "{decided:?}"
        );
    }
}

#[test]
fn the_identity_contains_the_node_name_from_the_platform() {
    let key = digest(&machine());
    let named = FakePlatform::Names(key, "ip-10-0-0-1.eu-west-1.compute.internal");
    for (platform, expected) in [
        (named, Some("ip-10-0-0-1.eu-west-1.compute.internal")),
        // The platform does not report a name, so the verifier uses the name in the inventory.
        (FakePlatform::Knows(key), None),
    ] {
        for listed in [false, true] {
            let mut case = Case::of_nobody();
            if listed {
                case.allow("m1", key);
            }
            case.platform = Arc::new(platform.clone());
            let identity = case.proves(&Good::of(&machine(), &case).response);

            let name = identity.identity().node_name.as_ref().map(NodeName::as_str);
            assert_eq!(name, expected, "listed: {listed}");
        }
    }
}

#[test]
fn a_platform_without_node_name_defers_requests_without_denial() {
    let mut case = Case::of_nobody();
    case.platform = Arc::new(FakePlatform::ForgotTheName(digest(&machine())));
    let good = Good::of(&machine(), &case);

    let decided = case.respond(&good.response);

    let Err(Refusal::Retry(Deferral::VerifierUnavailable(source))) = decided else {
        panic!("{decided:?}")
    };
    assert_eq!(source.to_string(), "out of order");
}

#[test]
fn serving_names_come_from_the_platform() {
    let key = digest(&machine());
    let provider_id = ProviderId::parse(Case::of_nobody().provider_id).unwrap();
    let asked = |platform: FakePlatform| {
        let mut case = Case::of_nobody();
        case.platform = Arc::new(platform);
        futures::executor::block_on(case.verifier().serving_names(&provider_id))
    };

    let names = asked(FakePlatform::Names(key, "ip-10-0-0-1")).unwrap();

    assert_eq!(
        names,
        Some(vec![ServingName::Dns("ip-10-0-0-1".to_owned())])
    );
    assert_eq!(asked(FakePlatform::Knows(key)).unwrap(), None);
    let error = asked(FakePlatform::OutOfOrder).unwrap_err();
    assert_eq!(error.to_string(), "out of order");
}

#[test]
fn the_platform_query_contains_the_provider_id_and_the_key_kind() {
    #[derive(Debug)]
    struct Expects(KeyKind, KeyDigest);
    #[async_trait::async_trait]
    impl Platform for Expects {
        async fn endorsement_key(
            &self,
            provider_id: &ProviderId,
            kind: KeyKind,
        ) -> Result<Option<KeyDigest>, Unavailable> {
            assert_eq!(kind, self.0);
            assert_eq!(provider_id.as_str(), Case::of_nobody().provider_id);
            Ok(Some(self.1))
        }

        async fn node_name(
            &self,
            _provider_id: &ProviderId,
        ) -> Result<Option<NodeName>, Unavailable> {
            unreachable!("it is a first request")
        }

        async fn serving_names(
            &self,
            _provider_id: &ProviderId,
        ) -> Result<Option<Vec<ServingName>>, Unavailable> {
            unreachable!("it is a client's")
        }
    }

    for (key, kind) in [
        (Kind::Rsa2048, KeyKind::Rsa2048),
        (Kind::P256, KeyKind::P256),
        (Kind::P384, KeyKind::P384),
    ] {
        let machine = of(key);
        let mut case = Case::of_nobody();
        case.platform = Arc::new(Expects(kind, digest(&machine)));

        case.challenge(&crate::fixture::enrolment(&machine));
    }
}

#[test]
fn a_platform_denial_applies_even_with_a_listed_key() {
    let key = digest(&machine());
    for listed in [false, true] {
        let mut case = Case::of_nobody();
        if listed {
            case.allow("m1", key);
        }
        case.platform = Arc::new(FakePlatform::Knows(key));
        case.respond(&GOOD.response).unwrap();

        case.platform = Arc::new(FakePlatform::Denies(key));

        let refusal = case.respond(&GOOD.response).unwrap_err();
        assert!(
            matches!(refusal, Refusal::Deny(Denial::EvidenceMissing)),
            "{refusal:?}"
        );
    }
}

#[test]
fn tpm_settings_without_effect_are_refused() {
    let key = "0f".repeat(32);
    let allowed = |machine: Option<&str>, host: Option<&str>, key: &str| AllowedEndorsementKey {
        machine: machine.map(str::to_owned),
        provider_id: host.map(str::to_owned),
        ek_sha256: key.to_owned(),
    };
    let valid = allowed(Some("m1"), None, &"0e".repeat(32));
    let one = "it must contain either machine or providerID";
    let host = "providerID is neither a provider ID nor a provider ID prefix";
    let digest = "ekSha256 is not 64 lower-case hexadecimal digits";
    for (entry, detail) in [
        (allowed(Some("m2"), None, "0F"), digest),
        (allowed(Some("m2"), None, &key.to_uppercase()), digest),
        (allowed(None, None, &key), one),
        (
            allowed(Some("m2"), Some("metal3://metal/host-7/"), &key),
            one,
        ),
        (allowed(None, Some("metal3://"), &key), host),
        (allowed(None, Some("metal3:///"), &key), host),
        (allowed(None, Some("metal/host-7/"), &key), host),
        (allowed(None, Some("metal3://metal/host 7/"), &key), host),
        (allowed(None, Some(""), &key), host),
        (
            allowed(None, Some("metal3://metal/host-7/"), &valid.ek_sha256),
            "another entry has the same ekSha256",
        ),
    ] {
        let mut settings = TpmSettings::default();
        settings.endorsement_keys.allow_list = vec![valid.clone(), entry];

        assert_eq!(
            TpmPolicy::new(&settings).unwrap_err(),
            InvalidTpmSettings::new(format!("allowList[1]: {detail}"))
        );
    }
}
