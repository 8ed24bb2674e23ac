//! Tests of a node's name before and after its first certificate.

use std::fs;

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer};
use kubelet_authenticator_test_support::pki::Subject;
use kubelet_authenticator_tests::node::UNDER_TEST;
use kubelet_authenticator_tests::program;

use crate::bed::{Host, asked, issuing};

/// A change that makes the first run fail.
pub type Fault = fn(&ApiServer, &mut Host);

pub const EXPIRED: Fault = |server, _| server.revoke_token("abcdef");
pub const DENIED: Fault =
    |server, _| server.set_signer(Signer::deny("MachineUnknown", "no machine"));
pub const FAILED: Fault =
    |server, _| server.set_signer(Signer::fail("NodeNameMismatch", "no machine"));
pub const PENDING: Fault = |server, host| {
    server.set_signer(Signer::Off);
    host.node.set("timeLimit", "1");
};

/// Ends the fault.
pub fn mend(server: &ApiServer, host: &mut Host) {
    server.add_token("abcdef", "0123456789abcdef");
    server.set_signer(Signer::issue());
    host.node.unset("timeLimit");
}

#[test]
fn a_late_host_name_overrides_a_name_without_a_certificate() {
    for fault in [EXPIRED, DENIED, FAILED, PENDING] {
        let server = issuing();
        let mut host = Host::named(&server, "localhost");
        fault(&server, &mut host);
        host.setup().succeeded().saying("has no credential yet");
        mend(&server, &mut host);
        host.call("worker-1");

        // `status` also reports this before the next request.
        let status = host.node.status();
        assert_eq!(status["nodeName"], "worker-1");
        if status["pendingRequest"].is_object() {
            assert_eq!(status["pendingRequest"]["nodeName"], "localhost");
        }
        let store = host.node.command(&["doctor", "-o", "json"]).stdout;
        let unnamed = ["belongs to this machine, without a certificate", ": empty"];
        let is_unnamed = unnamed.iter().any(|words| store.contains(words));
        assert!(
            is_unnamed && !store.contains("and node localhost"),
            "{store}"
        );

        let run = host.setup().succeeded();

        assert!(!run.stderr.contains("has no credential"), "{run:#?}");
        assert_eq!(asked(&server), "worker-1");
        assert_eq!(host.node.status()["nodeName"], "worker-1");
        host.kubelet("worker-1", "--v=2").succeeded().pair();
    }
}

#[test]
fn a_late_override_overrides_a_name_without_a_certificate() {
    for fault in [EXPIRED, DENIED, FAILED, PENDING] {
        let server = issuing();
        let mut host = Host::named(&server, "vm");
        fault(&server, &mut host);
        host.setup().succeeded().saying("has no credential yet");
        mend(&server, &mut host);
        let flag = "--hostname-override=worker-1";

        host.kubelet("vm", flag).succeeded().pair();

        assert_eq!(asked(&server), "worker-1");
        host.machine_file(
            "/etc/default/kubelet",
            &format!("KUBELET_EXTRA_ARGS={flag}\n"),
        );
        let run = host.setup().succeeded();
        assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    }
}

#[test]
fn a_pending_request_for_another_name_is_dropped_unless_approved() {
    for is_approved in [false, true] {
        let server = issuing();
        let mut host = Host::named(&server, "first");
        PENDING(&server, &mut host);
        host.setup().succeeded();
        mend(&server, &mut host);
        let name = host.node.json("pending.json")["request"]["name"].clone();
        if is_approved {
            server.approve_and_issue(name.as_str().unwrap());
        }
        host.call("second");

        let run = host.setup().succeeded();

        let (expected, requests) = if is_approved {
            ("first", 1)
        } else {
            ("second", 2)
        };
        assert_eq!(server.creates(), requests);
        assert_eq!(host.node.status()["nodeName"], expected);
        if is_approved {
            let run = run.saying("the request for node first was approved");
            run.saying("the host name is second, but this node was enrolled as first");
            // If the kubelet definitely has a different name, the plugin does not request a certificate for the name in
            // the settings.
            let refused = host
                .kubelet("second", "--hostname-override=second")
                .failed(15);
            refused.saying("--hostname-override is second, but this node was enrolled as first");
        }
        let flag = format!("--hostname-override={expected}");
        host.kubelet("second", &flag).succeeded().pair();
    }
}

#[test]
fn a_changed_node_name_fails_until_the_hint_is_followed() {
    let flag = |name: &str| format!("--hostname-override={name}");
    let server = issuing();
    let mut host = Host::named(&server, "first");
    host.setup().succeeded();
    let words = "the kubelet's --hostname-override is second, but this node was enrolled as first";
    let file = |name: &str| format!("KUBELET_EXTRA_ARGS={}\n", flag(name));
    host.machine_file("/etc/default/kubelet", &file("second"));

    let run = host.setup().succeeded().saying(words);
    let hint = run.saying(
        "start the kubelet with --hostname-override=first; or, to enroll the node as second, ",
    );
    assert!(
        hint.stderr.contains(host.bootstrap().to_str().unwrap()),
        "{hint:#?}"
    );
    hint.saying(&format!(
        "run: {} reset --yes; ",
        program(UNDER_TEST).display()
    ));
    host.kubelet("first", &flag("second"))
        .failed(15)
        .saying(words);

    // The test follows the first half of the hint.
    host.machine_file("/etc/default/kubelet", &file("first"));
    let run = host.setup().succeeded();
    assert_eq!(run.stderr, "", "{run:#?}");
    host.kubelet("first", &flag("first")).succeeded().pair();

    // The test follows the second half of the hint.
    host.machine_file("/etc/default/kubelet", &file("second"));
    server.revoke_token("abcdef");
    server.add_token("fedcba", "fedcba9876543210");
    let new = server.kubeconfig().token("fedcba.fedcba9876543210");
    new.write(&host.bootstrap());
    host.node.command(&["reset", "--yes"]).succeeded();
    let run = host.setup().succeeded();
    assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    assert_eq!(asked(&server), "second");
    host.kubelet("first", &flag("second")).succeeded().pair();
}

#[test]
fn a_host_name_that_differs_from_the_certificate_is_a_setup_warning() {
    let server = issuing();
    let mut host = Host::named(&server, "first");
    host.setup().succeeded();
    fs::remove_file(host.from()).unwrap();
    host.call("second");

    let run = host.setup().succeeded();

    let run = run.saying("the host name is second, but this node was enrolled as first");
    run.saying("start the kubelet with --hostname-override=first; or, ");
    let file = "KUBELET_EXTRA_ARGS=--hostname-override=first\n";
    host.machine_file("/etc/sysconfig/kubelet", file);
    assert_eq!(host.setup().succeeded().stderr, "");
    assert_eq!(host.node.status()["nodeName"], "first");
}

#[test]
fn the_name_of_an_adopted_certificate_overrides_the_host_name() {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    fs::remove_file(host.from()).unwrap();
    let own = server.client_certificate(Subject::node("worker-1"));
    server
        .kubeconfig()
        .client_certificate(&own)
        .write(&host.kubelet_conf());
    let conf = host.kubelet_conf();
    let adopt = ["--from", conf.to_str().unwrap()];
    let flag = "--hostname-override=worker-2";
    host.machine_file(
        "/etc/default/kubelet",
        &format!("KUBELET_EXTRA_ARGS={flag}\n"),
    );

    let refused = host.setup_with(&adopt).failed(15);
    refused
        .saying("is worker-2, but the certificate in")
        .saying("is for node worker-1");
    assert_eq!(server.creates(), 0);

    fs::remove_file(host.machine_path("/etc/default/kubelet")).unwrap();
    host.setup_with(&adopt).succeeded();
    assert_eq!(asked(&server), "worker-1");
    host.kubelet("vm", "--hostname-override=worker-1")
        .succeeded()
        .pair();
}

#[test]
fn the_hint_for_another_name_of_an_adopted_node_enrolls_it() {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    fs::remove_file(host.from()).unwrap();
    let own = server.client_certificate(Subject::node("worker-1"));
    let own = server.kubeconfig().client_certificate(&own);
    own.write(&host.kubelet_conf());
    let conf = host.kubelet_conf();
    let adopt = ["--from", conf.to_str().unwrap()];
    let flag = "--hostname-override=worker-2";
    let file = format!("KUBELET_EXTRA_ARGS={flag}\n");
    host.machine_file("/etc/default/kubelet", &file);
    let copy = host.bootstrap();
    let token = "to enroll the node as worker-2, write a kubeconfig with a bootstrap token to";
    let renew = format!("and run: {} renew", program(UNDER_TEST).display());
    let hint = format!("{token} {}, {renew}", copy.display());

    host.setup_with(&adopt).failed(15).saying(&hint);
    server.kubeconfig().write(&copy);
    host.node.command(&["renew"]).succeeded();
    let run = host.setup_with(&adopt).succeeded();

    assert!(!run.stderr.contains("emptied"), "{run:#?}");
    assert_eq!(asked(&server), "worker-2");
    assert_eq!(server.creates(), 1);
    host.is_set_up(UNDER_TEST);
    host.kubelet("vm", flag).succeeded().pair();
}

#[test]
fn a_store_for_another_node_is_not_adopted() {
    let server = issuing();
    let host = Host::named(&server, "first");
    host.setup().succeeded();
    let own = server.client_certificate(Subject::node("second"));
    server
        .kubeconfig()
        .client_certificate(&own)
        .write(&host.kubelet_conf());
    let conf = host.kubelet_conf();

    let run = host
        .setup_with(&["--from", conf.to_str().unwrap()])
        .succeeded();

    run.saying("its certificate is for node first, but this machine joins as second");
    assert_eq!(asked(&server), "second");
}
