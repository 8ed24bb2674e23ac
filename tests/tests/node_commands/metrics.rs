//! Tests of the command `metrics`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixListener;

use kubelet_authenticator_test_support::api_server::Signer;
use kubelet_authenticator_test_support::clock::since_epoch;
use kubelet_authenticator_tests::node::Node;

use crate::nodes::{joined, node};

/// The metrics, as the collector parses them.
#[track_caller]
fn metrics(node: &Node) -> String {
    node.command(&["metrics"]).succeeded().stdout
}

/// The value of a metric without labels.
fn value(text: &str, name: &str) -> Option<u64> {
    let start = format!("kubelet_authenticator_{name} ");
    let mut values = text.lines().filter_map(|line| line.strip_prefix(&start));
    values.next().map(|value| value.parse().unwrap())
}

fn seconds(status: &serde_json::Value) -> Option<u64> {
    let time = humantime::parse_rfc3339(status.as_str()?).unwrap();
    Some(since_epoch(time).as_secs())
}

#[test]
fn a_node_that_has_not_joined_has_no_certificate_or_failure_metric() {
    let (_server, node) = node();

    let text = metrics(&node);

    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "# HELP kubelet_authenticator_build_info The version of the plugin.
# TYPE kubelet_authenticator_build_info gauge
kubelet_authenticator_build_info{{provider=\"null\",version=\"{version}\"}} 1
# HELP kubelet_authenticator_certificate_stored Whether a certificate of this machine is stored.
# TYPE kubelet_authenticator_certificate_stored gauge
kubelet_authenticator_certificate_stored 0
# HELP kubelet_authenticator_consecutive_failures The number of consecutive failures of the same kind.
# TYPE kubelet_authenticator_consecutive_failures gauge
kubelet_authenticator_consecutive_failures 0
# HELP kubelet_authenticator_request_pending Whether a request without a certificate is pending.
# TYPE kubelet_authenticator_request_pending gauge
kubelet_authenticator_request_pending 0
"
    );
    assert_eq!(text, expected);
    assert!(!node.state().exists());
}

#[test]
fn a_node_that_has_joined_has_the_times_of_its_certificate_in_metrics() {
    let (_server, node) = joined();
    let certificate = node.status()["certificate"].clone();
    let stored = fs::metadata(node.file("kubelet-client.pem")).unwrap();

    let text = metrics(&node);

    let of = |name| value(&text, name);
    assert_eq!(
        of("certificate_not_after_timestamp_seconds"),
        seconds(&certificate["notAfter"])
    );
    assert_eq!(
        of("certificate_not_before_timestamp_seconds"),
        seconds(&certificate["notBefore"])
    );
    assert_eq!(
        of("certificate_renewal_timestamp_seconds"),
        seconds(&certificate["renewAt"])
    );
    assert_eq!(
        of("last_success_timestamp_seconds"),
        u64::try_from(stored.mtime()).ok()
    );
    assert_eq!(
        of("last_attempt_timestamp_seconds"),
        of("last_success_timestamp_seconds")
    );
    assert_eq!(of("last_attempt_exit_code"), Some(0));
    assert_eq!(of("certificate_stored"), Some(1));
    assert_eq!(of("request_pending"), Some(0));
    assert_eq!(of("backoff_until_timestamp_seconds"), None);
}

#[test]
fn metrics_show_a_failure_its_backoff_and_a_pending_request() {
    let (server, mut denied) = node();
    server.set_signer(Signer::deny("AnotherMachine", "not you"));
    denied.run().failed(12);
    denied.run().failed(17);
    let text = metrics(&denied);
    let failure = denied.status()["lastFailure"].clone();
    assert_eq!(value(&text, "last_attempt_exit_code"), Some(12));
    assert_eq!(value(&text, "consecutive_failures"), Some(1));
    let until = seconds(&failure["nextAttemptNotBefore"]);
    assert_eq!(value(&text, "backoff_until_timestamp_seconds"), until);
    assert_eq!(
        value(&text, "certificate_not_after_timestamp_seconds"),
        None
    );
    for secret in ["AnotherMachine", "not you", "test:///", "n1"] {
        assert!(!text.contains(secret), "{text}");
    }
    denied.command(&["reset", "--yes"]).succeeded();

    server.set_signer(Signer::Off);
    denied.set("timeLimit", "5");
    denied.run().failed(11);
    let text = metrics(&denied);
    let pending = denied.status()["pendingRequest"].clone();
    assert_eq!(value(&text, "request_pending"), Some(1));
    let since = value(&text, "request_pending_since_timestamp_seconds");
    assert_eq!(since, seconds(&pending["created"]));
    assert_eq!(value(&text, "last_attempt_exit_code"), Some(11));
}

#[test]
fn a_textfile_is_replaced_atomically_and_is_world_readable() {
    let (_server, node) = joined();
    let folder = node.scratch().directory("collector");
    let file = folder.join("kubelet_authenticator.prom");
    fs::write(&file, "old").unwrap();
    let before = fs::metadata(&file).unwrap().ino();
    let argument = file.to_str().unwrap();

    let run = node
        .command(&["metrics", "--textfile", argument])
        .succeeded();

    assert_eq!(run.stdout, "");
    assert_eq!(fs::read_to_string(&file).unwrap(), metrics(&node));
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o644);
    assert_ne!(metadata.ino(), before);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    node.command(&["metrics", "--textfile", "/missing/x.prom"])
        .failed(4)
        .saying("/missing/x.prom");
}

#[test]
fn a_textfile_that_is_not_a_regular_file_is_not_replaced() {
    let (_server, node) = joined();
    let folder = node.scratch().directory("collector");
    let target = folder.join("target");
    fs::write(&target, "mine").unwrap();
    let link = folder.join("link.prom");
    symlink(&target, &link).unwrap();
    let dangling = folder.join("dangling.prom");
    symlink(folder.join("missing"), &dangling).unwrap();
    let socket = folder.join("socket.prom");
    let _listener = UnixListener::bind(&socket).unwrap();
    let directory = folder.join("directory.prom");
    fs::create_dir(&directory).unwrap();

    for file in [link, dangling, socket, directory] {
        let kind = || fs::symlink_metadata(&file).unwrap().file_type();
        let before = kind();
        let argument = file.to_str().unwrap();
        node.command(&["metrics", "--textfile", argument])
            .failed(4)
            .saying(&format!(
                "cannot write {argument}: it is not a regular file"
            ));
        assert_eq!(kind(), before);
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 5);
}
