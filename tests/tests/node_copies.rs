//! Tests of a store that was copied to another machine, completely or in part.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Issuance, Signer};
use kubelet_authenticator_tests::node::{Node, UNDER_TEST};

const UUID: &str = "sys/class/dmi/id/product_uuid";
const MACHINE_ID: &str = "etc/machine-id";
const SERIAL_NUMBER: &str = "sys/firmware/devicetree/base/serial-number";

/// The files of a store.
const FILES: [&str; 4] = [
    "kubelet-client.pem",
    "origin.json",
    "pending.json",
    "failure.json",
];

/// A node on a machine with this identity, during the machine's first boot.
fn node(server: &ApiServer, name: &str, identity: &[(&str, &str)]) -> Node {
    let mut node = Node::new(UNDER_TEST, server);
    let root = node.scratch().join("machine");
    node.set_env("MACHINE_ROOT", &root);
    boot(&node, &format!("boot-of-{name}"));
    for (file, value) in identity {
        write(&root, file, value);
    }
    node
}

fn boot(node: &Node, id: &str) {
    let root = node.scratch().join("machine");
    write(&root, "proc/sys/kernel/random/boot_id", id);
}

fn write(root: &Path, file: &str, value: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{value}\n")).unwrap();
}

/// A node that has a certificate that is due for renewal, and a key for the renewal.
fn renewing(server: &ApiServer) -> (Node, [String; 2]) {
    server.set_signer(Signer::Issue(Issuance {
        lifetime: Some(Duration::from_secs(3600)),
        backdate: Duration::from_secs(3 * 3600),
        ..Issuance::default()
    }));
    let mut source = node(server, "source", &[(UUID, "uuid-1")]);
    let joined = source.run().succeeded().pair().1;
    server.set_signer(Signer::Off);
    source.set("timeLimit", "2");
    source.run().succeeded();
    let renews = source.json("pending.json")["key"].as_str().unwrap().into();
    server.set_signer(Signer::issue());
    (source, [joined, renews])
}

fn copy(file: &str, from: &Node, to: &Node) {
    fs::create_dir_all(to.state()).unwrap();
    fs::set_permissions(to.state(), fs::Permissions::from_mode(0o700)).unwrap();
    if from.file(file).exists() {
        fs::copy(from.file(file), to.file(file)).unwrap();
    }
}

/// A run that was killed might have quarantined any of the files. The remaining files are one of these subsets.
#[test]
fn a_copied_store_does_not_reveal_its_key_to_another_machine() {
    let server = ApiServer::start();
    let (source, keys) = renewing(&server);
    for parts in 1..1 << FILES.len() {
        let clone = node(&server, "clone", &[(UUID, "uuid-2")]);
        let parts = (0..FILES.len()).filter(|part| parts & (1 << part) != 0);
        let parts: Vec<_> = parts.map(|part| FILES[part]).collect();
        for file in &parts {
            copy(file, &source, &clone);
        }

        let key = clone.run().succeeded().pair().1;

        assert!(!keys.contains(&key), "{parts:?}");
    }
}

#[test]
fn a_pending_request_of_another_machine_is_set_aside_with_a_reason() {
    let server = ApiServer::start();
    let (source, _) = renewing(&server);
    let clone = node(&server, "clone", &[(UUID, "uuid-2")]);
    copy("pending.json", &source, &clone);

    clone
        .run()
        .succeeded()
        .saying("set pending.json aside")
        .saying("belongs to a different machine");

    assert!(clone.file("pending.json.set-aside.1").exists());
}

#[test]
fn a_request_with_a_damaged_origin_is_set_aside() {
    let server = ApiServer::start();
    let (source, keys) = renewing(&server);
    fs::write(source.file("origin.json"), "{").unwrap();

    let key = source.run().succeeded().saying("origin.json").pair().1;

    assert!(!keys.contains(&key));
    assert!(source.file("pending.json.set-aside.1").exists());
}

#[test]
fn a_machine_without_firmware_ids_is_identified_by_other_ids() {
    for file in [MACHINE_ID, SERIAL_NUMBER] {
        let server = ApiServer::start();
        server.set_signer(Signer::issue());
        let source = node(&server, "source", &[(file, "one")]);
        let joined = source.run().succeeded();
        let clone = node(&server, "clone", &[(file, "another")]);
        for name in FILES {
            copy(name, &source, &clone);
        }

        let copied = clone
            .run()
            .succeeded()
            .saying("belongs to a different machine");
        boot(&source, "boot-2");
        let rebooted = source.run().succeeded();

        assert_ne!(copied.pair().1, joined.pair().1, "{file}");
        assert_eq!(rebooted.pair(), joined.pair(), "{file}");
        assert_eq!(joined.stderr, "", "{file}");
    }
}

#[test]
fn a_changed_machine_id_is_accepted_if_the_firmware_ids_match() {
    let server = ApiServer::start();
    server.set_signer(Signer::issue());
    let node = node(&server, "n", &[(UUID, "uuid-1"), (MACHINE_ID, "one")]);
    let joined = node.run().succeeded();
    write(&node.scratch().join("machine"), MACHINE_ID, "another");
    boot(&node, "boot-2");

    assert_eq!(node.run().succeeded().pair(), joined.pair());
}

#[test]
fn a_machine_without_unique_ids_causes_one_warning() {
    let server = ApiServer::start();
    server.set_signer(Signer::Off);
    let mut node = node(&server, "n", &[(MACHINE_ID, "uninitialized")]);
    node.set("timeLimit", "5");

    let first = node.run().failed(11);
    server.set_signer(Signer::issue());
    let name = node.json("pending.json")["request"]["name"].clone();
    server.approve_and_issue(name.as_str().unwrap());
    let second = node.run().succeeded();

    let words = "this machine has no identity";
    assert!(first.stderr.contains(words), "{first:#?}");
    assert!(!second.stderr.contains(words), "{second:#?}");
}
