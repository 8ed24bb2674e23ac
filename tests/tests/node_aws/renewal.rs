//! Tests that every request contains new evidence.

use kubelet_authenticator_test_support::api_server::Signer;
use kubelet_authenticator_test_support::sts::Principal;

use crate::bed::{ACCOUNT, Bed, INSTANCE, credentials};

#[test]
fn each_renewal_sends_new_evidence() {
    let bed = Bed::new();
    bed.issue_old_certificates();

    bed.run().succeeded();
    let first = bed.sent();
    bed.run().succeeded();
    let second = bed.sent();

    assert_eq!((bed.server.creates(), bed.imds.tokens()), (2, 2));
    assert_ne!(first.spki, second.spki);
    assert_ne!(
        &first.evidence.sts.signature,
        &second.evidence.sts.signature
    );
}

#[test]
fn evidence_is_stored_only_in_the_pending_request() {
    let mut bed = Bed::new();
    bed.server.set_signer(Signer::Off);
    bed.node.set("timeLimit", "5");
    bed.run().failed(11);
    let evidence = bed.node.json("pending.json")["request"]["bytes"].clone();
    let evidence = evidence.as_str().unwrap();
    let held = |bed: &Bed| {
        let files = bed.node.files().into_iter();
        // The time of the last check is a link, and has no content.
        let files = files.filter(|name| name != "last-check");
        let text = |name: &String| std::fs::read_to_string(bed.node.file(name)).unwrap();
        files
            .filter(|name| text(name).contains(evidence))
            .collect::<Vec<_>>()
    };
    assert_eq!(held(&bed), ["pending.json"]);

    // The run waits for the same request, and does not create new evidence.
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
fn a_request_with_expired_evidence_is_recreated_with_its_key() {
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
        &first.evidence.sts.session_token,
        &second.evidence.sts.session_token
    );
}
