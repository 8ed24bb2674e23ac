//! Tests of a bootstrap kubeconfig that changes after `setup` has copied it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kubelet_authenticator_test_support::api_server::{ApiServer, Fault, Route, Times, Verb};
use kubelet_authenticator_test_support::pki::{Contents, Subject};
use kubelet_authenticator_tests::node::{BOOTSTRAP_USER, requesters};

use crate::bed::{Host, asked, issuing};

const NEW: &str = "fedcba.fedcba9876543210";

/// A machine whose first token has expired, and a server that accepts a new token.
fn expired() -> (ApiServer, Host) {
    let server = issuing();
    server.add_token("fedcba", "fedcba9876543210");
    server.revoke_token("abcdef");
    let host = Host::named(&server, "worker-1");
    let copy = host.bootstrap();
    let run = host.setup().succeeded().saying("401 Unauthorized");
    run.saying(&format!(
        "write a kubeconfig with a new bootstrap token to {}",
        copy.display()
    ));
    (server, host)
}

fn changed_at(path: &Path) -> (i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ctime(), metadata.ctime_nsec())
}

#[track_caller]
fn joins(server: &ApiServer, host: &mut Host) {
    let run = host.setup().succeeded();

    assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    assert_eq!(asked(server), "worker-1");
    host.kubelet("worker-1", "--v=2").succeeded().pair();
}

#[test]
fn a_new_bootstrap_kubeconfig_is_copied_without_a_certificate() {
    let (server, mut host) = expired();
    server.kubeconfig().token(NEW).write(&host.from());
    // The copy changes later, but keeps its content.
    let (from, copy) = (host.from(), host.bootstrap());
    while changed_at(&copy) <= changed_at(&from) {
        let permissions = fs::metadata(&copy).unwrap().permissions();
        fs::set_permissions(&copy, permissions).unwrap();
    }

    joins(&server, &mut host);
}

#[test]
fn without_kubeadm_flags_a_new_bootstrap_kubeconfig_is_copied() {
    let (server, mut host) = expired();
    fs::remove_file(host.kubeadm_flags()).unwrap();
    server.kubeconfig().token(NEW).write(&host.from());

    host.setup().succeeded();

    host.kubelet("worker-1", "--v=2").succeeded().pair();
    assert_eq!(asked(&server), "worker-1");
}

#[test]
fn a_new_token_in_the_token_file_of_a_bootstrap_kubeconfig_is_used() {
    let server = issuing();
    server.revoke_token("abcdef");
    server.add_token("fedcba", "fedcba9876543210");
    let mut host = Host::named(&server, "worker-1");
    let file = host.etc.join("token");
    fs::write(&file, "abcdef.0123456789abcdef").unwrap();
    let user = serde_json::json!({ "tokenFile": file });
    server.kubeconfig().user(user).write(&host.from());
    host.setup().succeeded().saying("401 Unauthorized");
    fs::write(&file, NEW).unwrap();

    joins(&server, &mut host);
}

#[test]
fn a_new_token_in_the_copied_bootstrap_kubeconfig_is_kept() {
    let (server, mut host) = expired();
    // Follow the hint word for word.
    server.kubeconfig().token(NEW).write(&host.bootstrap());

    joins(&server, &mut host);

    let copy = fs::read_to_string(host.bootstrap()).unwrap();
    assert!(copy.contains(NEW), "{copy}");
}

#[test]
fn a_new_bootstrap_kubeconfig_is_copied_if_the_certificate_expired() {
    let server = issuing();
    let mut host = Host::named(&server, "worker-1");
    host.setup().succeeded();
    let ended = Contents::client(Subject::node("worker-1")).expired();
    let pair = server.authority().issue(&ended);
    fs::write(
        host.node.file("kubelet-client.pem"),
        pair.certificate_pem + &pair.key_pem,
    )
    .unwrap();
    server.revoke_token("abcdef");
    server.add_token("fedcba", "fedcba9876543210");
    server.kubeconfig().token(NEW).write(&host.from());

    joins(&server, &mut host);
}

#[test]
fn a_new_bootstrap_kubeconfig_is_copied_if_the_certificate_is_refused() {
    for (code, status) in [(401, "401 Unauthorized"), (403, "403 Forbidden")] {
        let server = issuing();
        let host = Host::named(&server, "worker-1");
        host.setup().succeeded();
        let old = host.node.serial();
        let lease = Route::new(Verb::Patch, "leases");
        server.inject(lease, Times::always(), Fault::status(code));
        server.inject(Route::create(), Times::once(), Fault::status(code));
        server.revoke_token("abcdef");
        server.add_token("fedcba", "fedcba9876543210");
        server.kubeconfig().token(NEW).write(&host.from());

        host.setup().succeeded().saying(status);

        assert_ne!(host.node.serial(), old, "{status}");
        let copy = fs::read_to_string(host.bootstrap()).unwrap();
        assert!(copy.contains(NEW), "{status}: {copy}");
    }
}

#[test]
fn a_new_bootstrap_kubeconfig_is_not_copied_with_a_valid_certificate() {
    let server = issuing();
    let host = Host::named(&server, "worker-1");
    host.setup().succeeded();
    let copy = fs::read_to_string(host.bootstrap()).unwrap();
    server.kubeconfig().token(NEW).write(&host.from());

    host.setup().succeeded();

    assert_eq!(fs::read_to_string(host.bootstrap()).unwrap(), copy);
    assert_eq!(server.creates(), 1);
}

#[test]
fn a_copy_from_an_earlier_release_is_replaced_by_a_newer_kubeconfig() {
    let (server, mut host) = expired();
    let copy = fs::read_to_string(host.bootstrap()).unwrap();
    fs::write(host.bootstrap(), copy.split_once('\n').unwrap().1).unwrap();
    server.kubeconfig().token(NEW).write(&host.from());
    // The file has an older date, as if it had been prepared earlier. Only the time of its creation here counts.
    let from = fs::File::options().write(true).open(host.from()).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    from.set_modified(long_ago).unwrap();

    joins(&server, &mut host);
}

#[test]
fn a_rebuilt_cluster_at_the_same_address_is_joined_with_its_token() {
    let (first, second) = (issuing(), issuing());
    let mut host = Host::named(&first, "worker-1");
    host.setup().succeeded();
    let old = host.node.serial();
    // The second server has the address that the node knows, and a different CA.
    let conf = host.conf().replace(&first.url(), &second.url());
    fs::write(host.kubelet_conf(), conf).unwrap();
    host.node.change("origin.json", |origin| {
        origin["endpoint"]["server"] = second.url().into();
    });
    second.kubeconfig().write(&host.from());

    let run = host.setup().succeeded();

    assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    assert_ne!(host.node.serial(), old);
    let last = requesters(&second).pop();
    assert_eq!(last.as_deref(), Some(BOOTSTRAP_USER));
    host.node
        .set_env("KUBERNETES_EXEC_INFO", second.exec_info("v1", true));
    host.kubelet("worker-1", "--v=2").succeeded().pair();
}

#[test]
fn a_bootstrap_kubeconfig_with_a_different_ca_joins_that_cluster() {
    let (_first, mut host) = expired();
    let second = issuing();
    second.kubeconfig().write(&host.from());

    let run = host.setup().succeeded();

    assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    assert!(host.conf().contains(&second.url()));
    host.node
        .set_env("KUBERNETES_EXEC_INFO", second.exec_info("v1", true));
    host.kubelet("worker-1", "--v=2").succeeded().pair();
}
