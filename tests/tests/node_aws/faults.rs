//! Tests that every fault in the metadata service has its own exit status, message and duration.

use std::time::Duration;

use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::imds::{Fault, Route, Times};
use kubelet_authenticator_test_support::instance_identity::Document;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::node::PATIENCE;

use crate::bed::{ACCOUNT, Bed, INSTANCE, REGION, ZONE};

/// The time limit of a join for these nodes, in seconds.
const TIMEOUT: &str = "5";

/// The time limit for a run on a node. This limit applies to every run with a credential. It also applies to a run
/// without a credential, because the test sets `timeLimit` to [`TIMEOUT`].
const LIMIT: Duration = Duration::from_secs(5);

/// The number of parallel runs: some of them use their complete time limit, and more runs would slow each other down.
const AT_A_TIME: usize = 6;

/// The time limit for a run that does not wait.
const AT_ONCE: Duration = Duration::from_secs(1);

fn credentials() -> Route {
    Route::identity_credentials()
}

/// The faults that occur in each repetition of a request, each with the node's message about the fault.
fn faults() -> Vec<(Route, Fault, &'static str)> {
    let every = Duration::from_secs(1);
    let to = "http://127.0.0.1:1".to_owned();
    vec![
        (Route::token(), Fault::Hang, "hop limit"),
        (
            Route::token(),
            Fault::Status(403),
            "refuses /latest/api/token (403)",
        ),
        (
            Route::token(),
            Fault::Status(401),
            "(401 for /latest/api/token)",
        ),
        (Route::token(), Fault::Status(404), "(404)"),
        (
            Route::token(),
            Fault::garbage(),
            "did not return a valid IMDSv2 token",
        ),
        (
            Route::token(),
            Fault::Huge(10_000_000),
            "more than 65536 bytes",
        ),
        (Route::token(), Fault::Trickle { every }, "hop limit"),
        (Route::rsa2048(), Fault::Hang, "did not respond"),
        (
            Route::rsa2048(),
            Fault::Cut,
            "did not complete its HTTP response",
        ),
        (
            Route::rsa2048(),
            Fault::Status(401),
            "does not accept its own token",
        ),
        (Route::rsa2048(), Fault::Status(403), "(403)"),
        (Route::rsa2048(), Fault::Status(404), "rsa2048 (404)"),
        (Route::rsa2048(), Fault::Status(500), "status 500"),
        (Route::rsa2048(), Fault::Redirect { to }, "status 302"),
        (
            Route::rsa2048(),
            Fault::Huge(10_000_000),
            "more than 65536 bytes",
        ),
        (
            Route::rsa2048(),
            Fault::Trickle { every },
            "did not respond",
        ),
        (
            credentials(),
            Fault::Status(401),
            "does not accept its own token",
        ),
        (credentials(), Fault::Status(403), "(403)"),
        (credentials(), Fault::Status(404), "ec2-instance (404)"),
        (credentials(), Fault::Hang, "did not respond"),
        (
            credentials(),
            Fault::Huge(10_000_000),
            "more than 65536 bytes",
        ),
        (credentials(), Fault::Trickle { every }, "did not respond"),
    ]
}

#[test]
fn a_metadata_service_without_evidence_exits_with_5_in_time() {
    let beds: Vec<_> = faults()
        .into_iter()
        .map(|(route, fault, words)| {
            let mut bed = Bed::new();
            bed.node.set("timeLimit", TIMEOUT);
            bed.imds.inject(route, Times::always(), fault);
            (bed, words)
        })
        .collect();
    for beds in beds.chunks(AT_A_TIME) {
        let runs = beds.iter().map(|(bed, words)| (bed, words, bed.start()));
        let runs: Vec<_> = runs.collect();
        for (bed, words, run) in runs {
            bed.finish(run).failed(5).saying(words).within(LIMIT);

            assert_eq!(bed.server.connections(), 0, "{words}");
            let status = bed.node.command(&["status"]).succeeded();
            bed.assert_no_secret_in(&status.stdout);
            bed.assert_no_secret_in(&bed.node.json("failure.json").to_string());
        }
    }
    for (bed, words) in &beds {
        bed.imds.clear_faults();
        bed.succeed_in_the_end();
        assert_eq!(bed.server.csrs().len(), 1, "{words}");
    }
}

#[test]
fn a_stored_credential_is_printed_in_5_seconds_despite_metadata_faults() {
    let beds: Vec<_> = faults()
        .into_iter()
        .map(|(route, fault, words)| {
            let bed = Bed::new();
            bed.issue_old_certificates();
            let pair = bed.run().succeeded().pair();
            bed.imds.inject(route, Times::always(), fault);
            (bed, pair, words)
        })
        .collect();
    for beds in beds.chunks(AT_A_TIME) {
        let runs = beds.iter();
        let runs = runs.map(|(bed, pair, words)| (bed, pair, words, bed.start()));
        for (bed, pair, words, run) in runs.collect::<Vec<_>>() {
            let run = bed.finish(run).succeeded().saying(words).within(LIMIT);

            assert_eq!(run.pair(), *pair);
            assert!(run.expires_in(now()) <= Duration::from_secs(30), "{words}");
        }
    }
    for (bed, pair, words) in &beds {
        bed.imds.clear_faults();
        let renewed = poll(PATIENCE, || {
            (bed.run().succeeded().pair() != *pair).then_some(())
        });
        assert!(renewed.is_some(), "{words}");
    }
}

#[test]
fn a_redirect_of_the_metadata_service_is_not_followed() {
    let (bed, elsewhere) = (Bed::new(), Bed::new());
    let to = elsewhere.imds.url();
    let fault = Fault::Redirect { to };
    bed.imds.inject(Route::rsa2048(), Times::always(), fault);

    bed.run().failed(5).saying("302");

    assert_eq!(elsewhere.imds.requests(), []);
}

#[test]
fn a_missing_instance_profile_exits_with_5() {
    let mut bed = Bed::new();
    bed.node.set("aws.principal", "instanceProfile");
    bed.imds.update(|instance| instance.profile = None);

    bed.run()
        .failed(5)
        .saying("no instance profile")
        .saying("instanceIdentityRole");
}

#[test]
fn evidence_that_no_verifier_accepts_exits_with_7() {
    let body = |text: &str| Fault::Body(text.as_bytes().to_vec());
    for (route, fault, words) in [
        (Route::rsa2048(), body("<html>"), "is not base64"),
        (Route::rsa2048(), body("PGh0bWw+"), "not a CMS message"),
        (credentials(), body("<html>"), "invalid credentials"),
        (
            credentials(),
            body(
                r#"{"Code":"Success","AccessKeyId":"AKIA0123456789ABCDEF","SecretAccessKey":"s","Token":"t","Expiration":"2999-01-01T00:00:00Z"}"#,
            ),
            "accessKeyId",
        ),
        (
            Route::path("meta-data/services/domain"),
            body("a b"),
            "domain",
        ),
    ] {
        let bed = Bed::calling_its_regions_sts();
        bed.imds.inject(route, Times::always(), fault);

        bed.run().failed(7).saying(words).within(AT_ONCE);

        assert_eq!(bed.server.connections(), 0, "{words}");
        bed.imds.clear_faults();
        bed.succeed_in_the_end();
    }
}

#[test]
fn an_invalid_role_name_exits_with_7() {
    for role in ["../../user-data", "a/b", "a b", &"a".repeat(65)] {
        let mut bed = Bed::new();
        bed.node.set("aws.principal", "instanceProfile");
        bed.imds
            .update(|instance| instance.profile.as_mut().unwrap().role = role.to_owned());

        bed.run().failed(7).saying("invalid role name");

        assert_eq!(bed.reads().len(), 3, "{role}");
    }
}

#[test]
fn an_oversized_document_exits_with_7() {
    let bed = Bed::new();
    bed.set_document(&Document {
        billing_products: vec!["bp-1".repeat(6000)],
        ..Document::new(ACCOUNT, REGION, ZONE, INSTANCE)
    });

    bed.run().failed(7).saying("it is too large");

    assert_eq!(bed.server.connections(), 0);
}

#[test]
fn oversized_evidence_exits_with_7() {
    // The text can be 24 KiB long, and JSON escapes each of its newlines.
    let bed = Bed::new();
    bed.imds.update(|instance| {
        let padding = 24 * 1024 - instance.rsa2048.len();
        instance.rsa2048 += &"\n".repeat(padding);
    });

    bed.run().failed(7).saying("(limit: 32768)");

    assert_eq!(bed.server.connections(), 0);
}
