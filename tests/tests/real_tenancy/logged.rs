//! Tests of the log, the objects and the Events, while a Secret is rotated and deleted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::moto::access_key;
use kubelet_authenticator_test_support::sts::Principal;
use serde_json::json;

use crate::bed::{SITE, STATIC_IDENTITY, Tenant, apply, identity, secret_of};

#[test]
fn a_rotated_and_deleted_secret_is_not_in_the_log() {
    const THEIRS: &str = "200000000012";
    const NAME: &str = "logged";
    const FIRST: &str = "f1rst-s3cret-acc3ss-key";
    const SECOND: &str = "s3cond-s3cret-acc3ss-key";
    let (id, _) = access_key(THEIRS);
    let rotate = |key| {
        let user = Principal::user(THEIRS, NAME);
        SITE.cloud.sts().learn(user, (&id, key));
        apply(&secret_of("capa-system", NAME, (&id, key)));
    };
    rotate(FIRST);
    let spec = json!({"secretRef": NAME, "allowedNamespaces": {}});
    identity(STATIC_IDENTITY, NAME, &spec);
    let tenant = Tenant::of_provider(NAME, STATIC_IDENTITY, NAME);
    tenant.joins("m1", &tenant.launch(THEIRS));
    rotate(SECOND);
    tenant.joins("m2", &tenant.launch(THEIRS));

    let kubectl = SITE.management.kubectl();
    kubectl.ok(["delete", "secret", NAME, "-n", "capa-system"]);
    let message = tenant.resolved("False", "SecretNotFound");
    let expected = format!(
        "the Secret {NAME:?} of AWSClusterStaticIdentity/{NAME} does not exist in namespace capa-system"
    );
    assert_eq!(message, expected);
    let request = tenant.asks("m3", &tenant.launch(THEIRS));
    tenant.waits(
        &request,
        "the Secret \"logged\" of AWSClusterStaticIdentity/logged does not exist",
    );
    rotate(FIRST);
    tenant.is_approved(&request);

    let log = SITE.manager.process.log().text();
    assert!(log.contains(NAME) && log.contains("DEBUG"), "{log}");
    let objects = kubectl.json(["get", "kubeletauthentications", "-A"]);
    let events = kubectl.json(["get", "events", "-A"]);
    for shown in [log, objects.to_string(), events.to_string()] {
        for part in [FIRST, SECOND] {
            assert!(!shown.contains(part), "{part} is shown");
            let encoded = STANDARD.encode(part);
            assert!(!shown.contains(&encoded), "{encoded} is shown");
        }
    }
}
