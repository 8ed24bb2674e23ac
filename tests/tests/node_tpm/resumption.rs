//! Tests that a run continues from the end of the previous run, and does not use the TPM more often than necessary.

use std::time::Duration;

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use kubelet_authenticator_tests::node::{Node, PATIENCE};

use crate::bed::Bed;

/// A node whose plugin was killed after the answer to its challenge. Since then, the node's TPM has had this fault.
fn answered(fault: Fault) -> (Bed, TpmProxy) {
    let mut bed = Bed::new();
    let proxy = TpmProxy::before(&bed.tpm);
    bed.node.set("tpm.tcti", proxy.tcti());
    bed.node.set("timeLimit", "10");
    bed.kill_at_the_answer();
    proxy.inject(Commands::All, Times::always(), fault);
    proxy.forget();
    (bed, proxy)
}

#[test]
fn an_issued_certificate_is_fetched_without_the_tpm() {
    let (bed, proxy) = answered(Fault::Hang);

    bed.run().succeeded();

    assert!(proxy.exchanges().is_empty());
    assert_eq!(bed.sent().len(), 2);
}

/// The TPM can complete half of the work within a run, but not all of it.
#[test]
fn a_renewal_with_a_slow_tpm_completes_over_several_runs() {
    let mut bed = Bed::new();
    let proxy = TpmProxy::before(&bed.tpm);
    bed.node.set("tpm.tcti", proxy.tcti());
    bed.old = true;
    let first = bed.run().succeeded();
    bed.old = false;
    bed.node.set("timeLimit", "3");
    // The plugin uses one `CreatePrimary` command to read the keys, and another one to answer the challenge.
    let create = Commands::One(command::CREATE_PRIMARY);
    let slow = Fault::Slow(Duration::from_millis(1500));
    proxy.inject(create, Times::always(), slow);

    let renewed = poll(PATIENCE, || {
        let run = bed.run().succeeded();
        (run.pair() != first.pair()).then_some(())
    });

    assert!(renewed.is_some());
    assert_eq!(bed.sent().len(), 4);
}

#[test]
fn the_tpm_is_read_again_after_a_reboot_or_a_settings_change() {
    let changes: [fn(&mut Node); 2] = [
        |node| {
            node.change("pending.json", |pending| {
                pending["request"]["bootId"] = "4f5f1b4e-0000-4000-8000-000000000000".into();
            });
        },
        |node| node.set("tpm.endorsementKey", "rsa-2048"),
    ];
    for change in changes {
        let (mut bed, proxy) = answered(Fault::Answer(0x101));
        change(&mut bed.node);

        bed.run().failed(6).saying("is in failure mode");

        assert!(!proxy.exchanges().is_empty());
        assert_eq!(bed.sent().len(), 2);
    }
}

#[test]
fn a_stored_provider_id_of_another_tpm_is_not_attested() {
    let (bed, proxy) = answered(Fault::Hang);
    let right = bed.sent()[0].provider_id.clone();
    let other = format!("tpm://{}", "0".repeat(64));
    bed.node.change("pending.json", |pending| {
        // The audience belongs to a different cluster, so a new request is necessary.
        pending["request"]["audience"] = "other".into();
        pending["request"]["providerID"] = other.clone().into();
    });
    proxy.clear_faults();

    bed.run()
        .failed(7)
        .saying(&format!("the TPM does not match provider ID {other}"));
    let renewed = poll(PATIENCE, || (bed.run().code == Some(0)).then_some(()));

    assert!(renewed.is_some());
    assert!(bed.sent().iter().all(|sent| sent.provider_id == right));
}
