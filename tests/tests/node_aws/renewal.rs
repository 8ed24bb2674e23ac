//! Every request proves anew.

use std::time::Duration;

use kubelet_authenticator_test_support::api_server::Signer;
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::instance_identity::Document;
use kubelet_authenticator_test_support::sts::Principal;

use crate::bed::{ACCOUNT, Bed, INSTANCE, REGION, ZONE, credentials};

#[test]
fn each_renewal_brings_evidence_of_its_own() {
    let bed = Bed::new();
    bed.issue_old_certificates();

    bed.run().succeeded();
    let first = bed.sent();
    bed.run().succeeded();
    let second = bed.sent();

    assert_eq!((bed.server.creates(), bed.imds.tokens()), (2, 2));
    assert_ne!(first.spki, second.spki);
    assert_ne!(
        first.evidence.sts.signature(),
        second.evidence.sts.signature()
    );
}

#[test]
fn evidence_rests_in_the_pending_request_and_is_gone_with_it() {
    let mut bed = Bed::new();
    bed.server.set_signer(Signer::Off);
    bed.node.set("TIMEOUT_SECONDS", "3");
    bed.run().failed(11);
    let evidence = bed.node.json("pending.json")["request"]["bytes"].clone();
    let evidence = evidence.as_str().unwrap();
    let held = |bed: &Bed| {
        let files = bed.node.files().into_iter();
        let text = |name: &String| std::fs::read_to_string(bed.node.file(name)).unwrap();
        files
            .filter(|name| text(name).contains(evidence))
            .collect::<Vec<_>>()
    };
    assert_eq!(held(&bed), ["pending.json"]);

    // The same request is waited for: no evidence was made.
    bed.run().failed(11);
    assert_eq!(bed.server.creates(), 1);
    let credentials = |path: &&String| path.contains("security-credentials");
    assert_eq!(bed.reads().iter().filter(credentials).count(), 1);

    let name = bed.server.csrs()[0]["metadata"]["name"].clone();
    bed.server.approve_and_issue(name.as_str().unwrap());
    bed.run().succeeded();
    assert_eq!(held(&bed), [""; 0]);
}

#[test]
fn a_request_whose_evidence_has_expired_is_made_again_with_the_same_key() {
    let bed = Bed::new();
    bed.server.set_signer(Signer::fail(
        "EvidenceExpired",
        "the credentials have expired",
    ));
    bed.run().failed(13).saying("EvidenceExpired");
    let first = bed.sent();
    let rotated = credentials(&bed.sts, Principal::instance(ACCOUNT, INSTANCE));
    bed.imds
        .update(|instance| instance.identity_credentials = Some(rotated));
    bed.server.set_signer(Signer::issue());

    bed.succeed_in_the_end();

    let second = bed.sent();
    assert_eq!(first.spki, second.spki);
    assert_ne!(
        first.evidence.sts.session_token(),
        second.evidence.sts.session_token()
    );
}

#[test]
fn credentials_that_are_about_to_end_are_5_until_there_are_others() {
    let bed = Bed::new();
    let end = now() + Duration::from_secs(60);
    bed.imds.update(|instance| {
        instance.identity_credentials.as_mut().unwrap().expiration = end;
    });
    let end = humantime::format_rfc3339_seconds(end).to_string();

    bed.run()
        .failed(5)
        .saying(&format!("credentials end at {end}"))
        .saying("clock");
    assert_eq!(bed.server.connections(), 0);
    let rotated = credentials(&bed.sts, Principal::instance(ACCOUNT, INSTANCE));
    bed.imds
        .update(|instance| instance.identity_credentials = Some(rotated));

    bed.succeed_in_the_end();
}

#[test]
fn an_instance_that_was_stopped_and_started_sends_its_new_document() {
    let bed = Bed::new();
    bed.issue_old_certificates();
    bed.run().succeeded();
    let first = bed.sent();
    bed.set_document(&Document {
        pending_time: "2026-02-01T00:00:00Z".to_owned(),
        private_ip: Some("10.0.0.7".to_owned()),
        ..Document::new(ACCOUNT, REGION, ZONE, INSTANCE)
    });

    bed.run().succeeded();

    let second = bed.sent();
    assert_eq!(first.provider_id, second.provider_id);
    assert_ne!(first.evidence.rsa2048, second.evidence.rsa2048);
    bed.imds
        .update(|instance| assert_eq!(second.evidence.rsa2048, instance.rsa2048));
}
