//! Tests of instances with the real plugin: their joins, and their messages.

use kubelet_authenticator_test_support::sts::{Fault, Times};
use kubelet_authenticator_tests::controller::reason_of;

use crate::world::World;

#[test]
fn credentials_expired_before_sts_exit_with_13_and_fresh_ones_join() {
    let world = World::start();
    world.expire_credentials();

    let failed = world.run().failed(13).saying("EvidenceExpired");

    assert_eq!(world.cloud.sts().calls()[0].outcome, "ExpiredToken");
    let csr = &world.bed.server.csrs()[0];
    assert_eq!(reason_of(csr, "Failed"), Some("EvidenceExpired"));
    assert_eq!(reason_of(csr, "Denied"), None);
    world.tells_no_secret(&[failed]);
    // The metadata service provides new credentials, as AWS does a few minutes before the old credentials expire.
    world.rotate_credentials();
    world.joins_in_the_end();
}

#[test]
fn a_document_of_another_version_is_accepted_only_with_the_option() {
    const VERSION: &str = "2031-01-01";
    let option = format!("--aws-extra-document-version={VERSION}");
    for options in [vec![], vec![option]] {
        let mut world = World::with(|_, _, setup| setup.args(&options));
        let cloud = &world.cloud;
        cloud.set_document_version(&mut world.instance, VERSION);

        if options.is_empty() {
            world.run().failed(12).saying("DocumentMalformed");
        } else {
            world.joins_in_the_end();
        }
    }
}

#[test]
fn failures_do_not_show_credentials_on_nodes_or_the_controller() {
    // The controller denies the request.
    let mut world = World::start();
    world.node.set("aws.nodeName", "instanceID");
    world.node.set("nodeName", &world.instance.ec2.id);
    let denied = world.run().failed(12).saying("NodeNameMismatch");
    world.tells_no_secret(&[denied]);

    // STS rejects the call with a message that repeats the credentials.
    let world = World::start();
    let mut words = String::new();
    world.instance.imds.update(|metadata| {
        let credentials = metadata.identity_credentials.as_ref().unwrap();
        words = format!(
            "{} {}",
            credentials.access_key_id, credentials.session_token
        );
    });
    let fault = Fault::error(403, "InvalidClientTokenId", &words);
    world.cloud.sts().inject(Times::always(), fault);
    let refused = world.run().failed(12).saying("CallerRefused");
    world.tells_no_secret(&[refused]);

    // The controller does not decide within the time limit.
    let mut world = World::start();
    world.node.set("timeLimit", "5");
    let fault = Fault::error(500, "InternalFailure", &words);
    world.cloud.sts().inject(Times::always(), fault);
    let pending = world.run().failed(11);
    let status = world.node.command(&["status"]).succeeded();
    for secret in world.secrets() {
        for told in [
            &pending.stderr,
            &status.stdout,
            &world.controller.process.log().text(),
        ] {
            assert!(!told.contains(&secret), "{told}");
        }
    }
}
