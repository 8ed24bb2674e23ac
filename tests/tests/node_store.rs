//! Tests of the state directory: rejected contents, files that are set aside, and the effect of a full or read-only
//! disk.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{
    ApiServer, Issuance, Route, Signer, Step, exec_info,
};
use kubelet_authenticator_tests::node::{NULL, Node, is_pair};

/// A change to a stored credential.
type Change<'a> = &'a dyn Fn(&str) -> Vec<u8>;

/// A user ID that differs from the ID of the user that runs the test.
const NOBODY: u32 = 65534;

/// A script that mounts `$DIR` in a separate mount namespace, and then executes the plugin.
const READ_ONLY: &str =
    r#"mount --bind "$DIR" "$DIR" && mount -o remount,ro,bind "$DIR" && exec "$@""#;
const FULL: &str = r#"mount -t tmpfs -o size=64k,mode=700 tmpfs "$DIR" &&
    { head -c 1m /dev/zero > "$DIR/filler" || true; } 2>/dev/null && exec "$@""#;
const FULL_WITH_STORE: &str = r#"saved=$(mktemp -d) && cp -a "$DIR"/* "$saved" &&
    mount -t tmpfs -o size=64k,mode=700 tmpfs "$DIR" && cp -a "$saved"/* "$DIR" && rm -r "$saved" &&
    { head -c 1m /dev/zero > "$DIR/filler" || true; } 2>/dev/null && exec "$@""#;

fn node() -> (ApiServer, Node) {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = Node::new(NULL, &server);
    (server, node)
}

fn joined() -> (ApiServer, Node, (String, String)) {
    let (server, node) = node();
    let pair = node.run().succeeded().pair();
    (server, node, pair)
}

/// A node whose credential is due for renewal.
fn due() -> (ApiServer, Node, (String, String)) {
    let (server, node) = node();
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(3 * 3600),
        ..Issuance::default()
    }));
    let pair = node.run().succeeded().pair();
    (server, node, pair)
}

fn within(node: &mut Node, script: &str) {
    fs::create_dir_all(node.state()).unwrap();
    set_mode(&node.state(), 0o700);
    node.set_env("DIR", node.state());
    node.wrap(&["unshare", "--mount", "sh", "-c", script, "sh"]);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_read_only_disk_exits_with_4_before_any_request() {
    let (server, mut node) = node();
    within(&mut node, READ_ONLY);

    node.run().failed(4).saying("state").saying("Read-only");

    assert_eq!(server.connections(), 0);
}

#[test]
fn a_full_disk_exits_with_4_before_any_request() {
    let (server, mut node) = node();
    within(&mut node, FULL);

    node.run().failed(4).saying("state").saying("No space left");

    assert_eq!(server.connections(), 0);
}

#[test]
fn a_file_system_without_locks_exits_with_4_until_the_hint_is_followed() {
    for (error, words) in [
        ("ENOLCK", "No locks available"),
        ("EOPNOTSUPP", "Operation not supported"),
    ] {
        let (server, mut node) = node();
        let lock = node.file("lock");
        let (lock, fault) = (
            lock.to_str().unwrap(),
            format!("inject=flock:error={error}"),
        );
        let quiet = ["strace", "-f", "-qqq", "-o", "/dev/null", "-P", lock];
        node.wrap(&[&quiet[..], &["-e", "trace=flock", "-e", &fault]].concat());

        node.run()
            .failed(4)
            .saying(&format!("cannot lock {lock}: {words}"))
            .saying("set stateDirectory to a directory on a local disk");

        assert_eq!(server.connections(), 0);
        let local = node.scratch().join("local");
        node.set("stateDirectory", local);
        node.run().succeeded().pair();
    }
}

#[test]
fn a_valid_credential_is_printed_from_a_read_only_or_full_disk() {
    for script in [READ_ONLY, FULL_WITH_STORE] {
        let (_server, mut node, pair) = joined();
        within(&mut node, script);

        assert_eq!(node.run().succeeded().pair(), pair);
    }
}

#[test]
fn a_credential_that_is_due_is_printed_from_a_read_only_or_full_disk() {
    for script in [READ_ONLY, FULL_WITH_STORE] {
        let (_server, mut node, pair) = due();
        within(&mut node, script);

        let run = node.run().succeeded().saying("cannot renew the credential");

        assert_eq!(run.pair(), pair);
    }
}

#[test]
fn a_file_size_limit_does_not_affect_a_stored_credential() {
    let limited = r#"ulimit -f 0 && exec "$@""#;
    for (_server, mut node, pair) in [joined(), due()] {
        fs::remove_file(node.file("last-check")).unwrap();
        node.wrap(&["sh", "-c", limited, "sh"]);

        assert_eq!(node.run().succeeded().pair(), pair);
    }
    let (_server, mut node) = node();
    node.wrap(&["sh", "-c", limited, "sh"]);
    node.run().failed(4).saying("LimitFSIZE");
}

#[test]
fn a_directory_owned_by_another_user_exits_with_4() {
    let (_server, node, pair) = joined();
    chown(node.state(), Some(NOBODY), None).unwrap();

    let run = node.run().failed(4).saying("is owned by user 65534");

    run.follow_hint();
    assert_eq!(node.run().succeeded().pair(), pair);
}

#[test]
fn a_file_owned_by_another_user_exits_with_4() {
    for name in ["kubelet-client.pem", "origin.json"] {
        let (_server, node, pair) = joined();
        chown(node.file(name), Some(NOBODY), None).unwrap();

        let run = node.run().failed(4);

        run.saying(&format!("{name} is owned by user 65534"))
            .follow_hint();
        assert_eq!(node.run().succeeded().pair(), pair);
    }
}

#[test]
fn the_mode_of_a_readable_key_is_fixed_with_one_warning() {
    let (_server, node, pair) = joined();
    for mode in [0o644, 0o640, 0o604] {
        set_mode(&node.file("kubelet-client.pem"), mode);

        let run = node.run().succeeded();
        let again = node.run().succeeded();

        let run = run.saying("kubelet-client.pem").saying("renew --force");
        assert_eq!((run.pair(), run.stderr.lines().count()), (pair.clone(), 1));
        assert_eq!(again.stderr, "");
        assert_eq!(
            fs::metadata(node.file("kubelet-client.pem"))
                .unwrap()
                .mode()
                & 0o777,
            0o600
        );
    }
}

#[test]
fn a_world_readable_key_on_a_read_only_disk_is_still_printed() {
    let (_server, mut node, pair) = joined();
    set_mode(&node.file("kubelet-client.pem"), 0o644);
    within(&mut node, READ_ONLY);

    let run = node.run().succeeded().saying("read-only");

    assert_eq!(run.pair(), pair);
}

#[test]
fn the_mode_of_a_readable_pending_key_is_fixed() {
    let (server, mut node) = node();
    server.set_signer(Signer::Off);
    node.set("timeLimit", "5");
    node.run().failed(11);
    set_mode(&node.file("pending.json"), 0o644);

    node.run().failed(11).saying("pending.json").saying("0644");

    let mode = fs::metadata(node.file("pending.json")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn an_invalid_stored_credential_is_set_aside_and_the_node_enrolls_again() {
    let (_other_server, other, _) = joined();
    let foreign_key = fs::read_to_string(other.file("kubelet-client.pem")).unwrap();
    let foreign_key = &foreign_key[foreign_key.find("-----BEGIN PRIVATE").unwrap()..];
    let changes: [(&str, Change<'_>); 5] = [
        ("empty", &|_| Vec::new()),
        ("does not contain a certificate", &|text| {
            text.as_bytes()[..text.len() / 2].to_vec()
        }),
        ("does not match the certificate", &|text| {
            let key = text.find("-----BEGIN PRIVATE").unwrap();
            (text[..key].to_owned() + foreign_key).into_bytes()
        }),
        ("does not contain a certificate", &|_| {
            b"\xff\xfe\x00".to_vec()
        }),
        ("does not contain a certificate", &|_| vec![0; 4096]),
    ];
    for (words, change) in changes {
        let (server, node, pair) = joined();
        let text = fs::read_to_string(node.file("kubelet-client.pem")).unwrap();
        fs::write(node.file("kubelet-client.pem"), change(&text)).unwrap();

        let run = node.run().succeeded().saying(" aside as ").saying(words);

        assert_ne!(run.pair(), pair);
        assert_eq!(server.creates(), 2);
        let kept = fs::read(node.file("kubelet-client.pem.set-aside.1")).unwrap();
        assert_eq!(kept, change(&text));
        assert_eq!(node.run().succeeded().stderr, "");
    }
}

#[test]
fn a_store_left_by_a_full_disk_is_used_once_space_is_available() {
    let (server, mut node) = node();
    within(&mut node, FULL);
    node.run().failed(4);
    node.wrap(&[]);

    node.run().succeeded();

    assert_eq!(server.creates(), 1);
}

#[test]
fn a_join_with_its_certificate_succeeds_without_rewriting_the_origin() {
    let (server, node) = node();
    let gate = server.hold(Route::create(), Step::Received);
    let run = node.start(&[]);
    gate.wait(1, Duration::from_secs(20));
    fs::create_dir(node.file("origin.json.tmp")).unwrap();
    gate.open();

    let run = run.finish().succeeded();

    assert_eq!(run.stderr, "");
    assert_eq!(node.run().succeeded().pair(), run.pair());
}

#[test]
fn a_certificate_is_printed_even_if_its_origin_cannot_be_written() {
    let (server, mut node, old) = joined();
    let mut cluster = server.cluster_info();
    let bundle = server.ca_pem().repeat(2);
    cluster["certificate-authority-data"] = STANDARD.encode(bundle).into();
    node.set_env("KUBERNETES_EXEC_INFO", exec_info("v1", Some(cluster)));
    fs::create_dir(node.file("origin.json.tmp")).unwrap();

    let run = node.run().succeeded().saying("origin.json");
    fs::remove_dir(node.file("origin.json.tmp")).unwrap();
    let next = node.run().succeeded();

    assert_ne!(run.pair(), old);
    assert_eq!((next.pair(), next.stderr.as_str()), (run.pair(), ""));
    assert_eq!(server.creates(), 2);
    assert!(!node.file("pending.json").exists());
}

#[test]
fn a_corrupt_key_is_found_at_the_next_boot_and_replaced() {
    let (server, node, pair) = joined();
    let file = node.file("kubelet-client.pem");
    let text = fs::read_to_string(&file).unwrap();
    let der = STANDARD.decode(
        pair.1
            .lines()
            .filter(|line| !line.starts_with('-'))
            .collect::<String>(),
    );
    let mut der = der.unwrap();
    // The change corrupts the middle of the private half (RFC 5915, in PKCS #8), which consists of the 32 bytes
    // starting at byte 36.
    der[50] ^= 1;
    let rotten = format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        STANDARD.encode(der)
    );
    fs::write(&file, text.replace(&pair.1, &rotten)).unwrap();
    node.change("origin.json", |origin| origin["bootId"] = "before".into());

    let run = node
        .run()
        .succeeded()
        .saying("set kubelet-client.pem aside");

    assert_ne!(run.pair().1, pair.1);
    assert!(is_pair(&file));
    assert_eq!(server.creates(), 2);
}
