//! Tests of the fields of the object other than the request.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestStatus,
};
use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use crate::decide::Decision;
use crate::identifiers::TokenId;
use crate::refusal::{Denial, Ignored};
use crate::testing::{
    UID, block, cluster, condition, decided, denied, insecure, now, renewal, texts, valid,
};
use crate::testing::{envelope, for_machine, object};
use crate::time::until;

#[track_caller]
fn ignored(request: &CertificateSigningRequest) -> Ignored {
    let decision = decided(request, &cluster());
    let Decision::Ignore(ignored) = decision else {
        panic!("not ignored: {decision:?}")
    };
    ignored
}

#[test]
fn unexpected_usages_are_denied() {
    for usages in [
        &[][..],
        &["digital signature"],
        &["client auth"],
        &["digital signature", "server auth"],
        &["digital signature", "client auth", "server auth"],
        &["digital signature", "client auth", "key encipherment"],
        &["digital signature", "client auth", "client auth"],
        &["client auth", "client auth"],
        &["digital signature", "any"],
        &["Digital Signature", "client auth"],
    ] {
        let mut request = valid();
        request.spec.usages = Some(texts(usages));

        assert_eq!(denied(&request), Denial::UsagesNotExact, "{usages:?}");
    }
}

#[test]
fn missing_usages_are_denied() {
    let mut request = valid();
    request.spec.usages = None;

    assert_eq!(denied(&request), Denial::UsagesNotExact);
}

#[test]
fn the_order_of_usages_is_ignored() {
    let mut request = valid();
    request.spec.usages = Some(texts(&["client auth", "digital signature"]));

    assert!(matches!(decided(&request, &cluster()), Decision::Issue(_)));
}

fn lifetime_of(seconds: Option<i32>, longest: Duration) -> Duration {
    let mut cluster = cluster();
    cluster.longest_lifetime = longest;
    let mut request = valid();
    request.spec.expiration_seconds = seconds;

    let decision = decided(&request, &cluster);
    let Decision::Issue(certificate) = decision else {
        panic!("not issued: {decision:?}")
    };
    until(certificate.not_after, now())
}

#[test]
fn a_lifetime_beyond_the_policy_is_shortened() {
    let week = Duration::from_hours(7 * 24);

    for (asked, granted) in [
        (None, 604_800),
        (Some(604_800), 604_800),
        (Some(604_801), 604_800),
        (Some(i32::MAX), 604_800),
        (Some(3600), 3600),
        (Some(600), 600),
        (Some(599), 600),
        (Some(0), 600),
        (Some(-1), 600),
        (Some(i32::MIN), 600),
    ] {
        assert_eq!(lifetime_of(asked, week).as_secs(), granted, "{asked:?}");
    }
}

#[test]
fn a_policy_lifetime_below_the_requestable_minimum_applies() {
    let minute = Duration::from_mins(1);

    assert_eq!(lifetime_of(None, minute).as_secs(), 60);
    assert_eq!(lifetime_of(Some(600), minute).as_secs(), 60);
}

#[test]
fn a_request_to_another_signer_is_ignored() {
    for signer in [
        "",
        "kubernetes.io/kube-apiserver-client",
        "cluster.x-k8s.io/kubelet-serving-insecure",
        "cluster.x-k8s.io/kube-apiserver-client-kubelet-null ",
        "CLUSTER.x-k8s.io/kube-apiserver-client-kubelet-null",
        "example.com/cluster.x-k8s.io/kube-apiserver-client-kubelet-null",
    ] {
        let mut request = valid();
        signer.clone_into(&mut request.spec.signer_name);

        let expected = Ignored::AnotherSigner(signer.to_owned());
        assert_eq!(ignored(&request), expected);
    }
}

#[test]
fn a_request_for_an_unauthorized_provider_is_ignored() {
    for signer in [
        Provider::AWS.client_signer(),
        Provider::AWS.serving_signer(),
    ] {
        let mut request = valid();
        signer.clone_into(&mut request.spec.signer_name);

        assert_eq!(ignored(&request), Ignored::AnotherSigner(signer));
    }
}

fn with_status(conditions: &[&str], certificate: Option<&str>) -> CertificateSigningRequest {
    let mut request = valid();
    request.status = Some(CertificateSigningRequestStatus {
        certificate: certificate.map(|text| ByteString(text.into())),
        conditions: Some(conditions.iter().map(|kind| condition(kind)).collect()),
    });
    request
}

#[test]
fn an_answered_request_is_ignored() {
    assert_eq!(
        ignored(&with_status(&["Denied"], None)),
        Ignored::AlreadyDenied
    );
    assert_eq!(
        ignored(&with_status(&["Failed"], None)),
        Ignored::AlreadyFailed
    );
    assert_eq!(
        ignored(&with_status(&["Approved", "Failed"], None)),
        Ignored::AlreadyFailed
    );
    assert_eq!(
        ignored(&with_status(&["Approved"], Some("pem"))),
        Ignored::AlreadyIssued
    );
}

#[test]
fn an_existing_approval_does_not_skip_any_check() {
    let mut request = with_status(&["Approved"], None);
    assert!(matches!(decided(&request, &cluster()), Decision::Issue(_)));

    request.spec.usages = Some(texts(&["server auth"]));
    assert_eq!(denied(&request), Denial::UsagesNotExact);
}

#[test]
fn a_copied_request_with_another_machines_token_is_denied() {
    let mut request = valid();
    request.spec.username = Some("system:bootstrap:ghijkl".to_owned());

    assert_eq!(
        denied(&request),
        Denial::TokenOfAnotherMachine(TokenId::parse("ghijkl").unwrap(), "m1".to_owned())
    );
}

#[test]
fn a_token_of_a_different_machine_is_denied() {
    let mut request = valid();
    request.spec.username = Some("system:bootstrap:zzzzzz".to_owned());

    assert_eq!(
        denied(&request),
        Denial::TokenOfAnotherMachine(TokenId::parse("zzzzzz").unwrap(), "m1".to_owned())
    );
}

#[test]
fn a_machine_without_a_token_joins_with_a_shared_token() {
    let mut request = object(envelope(&for_machine("metal:///rack/m3", "n3")));
    request.spec.username = Some("system:bootstrap:shared".to_owned());

    assert!(matches!(decided(&request, &cluster()), Decision::Issue(_)));
}

#[test]
fn the_name_of_another_node_is_denied() {
    let expected = Denial::NodeNameMismatch(
        NodeName::parse("n2").unwrap(),
        NodeName::parse("n1").unwrap().into(),
    );
    let csr = for_machine("metal:///rack/m1", "n2");
    let mut insecure = insecure();
    insecure.spec.request.0 = block("CERTIFICATE REQUEST", &csr).into_bytes();

    assert_eq!(denied(&object(envelope(&csr))), expected);
    assert_eq!(denied(&insecure), expected);
}

#[test]
fn a_provider_id_of_another_machine_is_denied_with_a_valid_token() {
    let mut request = insecure();
    let csr = for_machine("metal:///rack/m2", "n2");
    request.spec.request.0 = block("CERTIFICATE REQUEST", &csr).into_bytes();

    assert_eq!(
        denied(&request),
        Denial::ProviderIdOfAnotherMachine(
            ProviderId::parse("metal:///rack/m2").unwrap(),
            "m1".to_owned()
        )
    );
}

#[test]
fn an_unattested_certificate_cannot_be_renewed() {
    let mut request = renewal(UID);
    request.spec.signer_name = Provider::INSECURE.client_signer();
    request.spec.request = insecure().spec.request;

    assert_eq!(denied(&request), Denial::UnattestedRenewal);
}
