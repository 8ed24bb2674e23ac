//! Tests of the command `support-bundle`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{Signer, TOKEN};
use kubelet_authenticator_tests::node::Node;
use kubelet_authenticator_tests::page;
use serde_json::Value;

use crate::nodes::{ACCESS_KEY_ID, SESSION_TOKEN, instance, joined};

const OTHER_TOKEN: &str = "fedcba.fedcba9876543210";
const WEB_TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW06bm9kZSJ9.c2lnbmF0dXJlMDEyMw";
const PASSWORD: &str = "pa55w0rd";
const SIGNATURE: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9";

/// Writes a program that prints this text.
fn program(folder: &Path, name: &str, text: &str) {
    let output = folder.join(format!("{name}.txt"));
    fs::write(&output, text).unwrap();
    let program = folder.join(name);
    fs::write(
        &program,
        format!("#!/bin/sh\nexec /bin/cat {}\n", output.display()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The files that an archive contains.
fn files(path: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(File::open(path).unwrap());
    let entries = archive.entries().unwrap().map(Result::unwrap);
    entries
        .map(|mut entry| {
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            (name, text)
        })
        .collect()
}

#[track_caller]
fn bundle(node: &Node, kubelet_kubeconfig: &Path) -> BTreeMap<String, String> {
    let file = node.scratch().join("bundle.tar");
    let start = "kubelet-authenticator-aws support-bundle /tmp/worker-1.tar";
    let command = page::command("plugin-commands.md", start);
    let words = [
        command.split(' ').nth(1).unwrap(),
        file.to_str().unwrap(),
        "--kubelet-kubeconfig",
        kubelet_kubeconfig.to_str().unwrap(),
    ];
    let run = node.command(&words).succeeded();
    let found = files(&file);
    let count = found.len();
    let expected = format!(
        "{} has {count} files; read them before you send it\n",
        file.display()
    );
    assert_eq!(run.stdout, expected);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    found
}

#[test]
fn the_bundle_contains_no_secrets() {
    let (server, mut node, _imds) = instance();
    let bin = node.scratch().directory("bin");
    node.set_env("PATH", &bin);
    node.run().succeeded();
    server.set_signer(Signer::Off);
    // Even on a busy machine, this time is enough for the evidence and the request. The request must remain open.
    node.set("timeLimit", "10");
    node.command(&["renew", "--force"]).failed(11);
    let pem = fs::read_to_string(node.file("kubelet-client.pem")).unwrap();
    let key = pem
        .split_at(pem.find("-----BEGIN PRIVATE").unwrap())
        .1
        .to_owned();
    let pending: Value = node.json("pending.json");
    let pending_key = pending["key"].as_str().unwrap().to_owned();
    let request = pending["request"]["bytes"].as_str().unwrap().to_owned();
    let signature = {
        let request = STANDARD.decode(&request).unwrap();
        let envelope = kubelet_attestation::csr::envelope::Envelope::parse(&request).unwrap();
        let evidence: Value = serde_json::from_slice(&envelope.evidence.unwrap()).unwrap();
        evidence["sts"]["signature"].as_str().unwrap().to_owned()
    };
    let one_line = key.replace('\n', "\\n");
    let journal = format!(
        "k[1]: token {TOKEN}. and {OTHER_TOKEN}, again '{TOKEN}'\n\
         k[1]: Authorization: Bearer {WEB_TOKEN}\n\
         k[1]: Authorization: AWS4-HMAC-SHA256 Credential={ACCESS_KEY_ID}/20260101/eu-west-1/sts/aws4_request, \
         SignedHeaders=accept;host, Signature={SIGNATURE}\n\
         k[1]: x-amz-security-token: {SESSION_TOKEN}\n\
         k[1]: https://sts.test/?X-Amz-Signature={SIGNATURE}&X-Amz-Security-Token={SESSION_TOKEN}\n\
         k[1]: {one_line}\nk[1]: {key}\nk[1]: {pending_key}\n\
         k[1]: proxy http://user:{PASSWORD}@proxy:3128 of {signature}\n\
         k[1]: a line that helps\n"
    );
    program(&bin, "journalctl", &journal);
    let unit = format!(
        "# /etc/systemd/system/kubelet.service\n[Service]\nEnvironment=TOKEN={OTHER_TOKEN}\nExecStart=/usr/bin/kubelet\n"
    );
    program(&bin, "systemctl", &unit);
    program(&bin, "kubelet", "Kubernetes v1.36.0\n");
    let kubelet_kubeconfig = node.scratch().write(
        "kubelet.conf",
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
             clusters:\n- name: k\n  cluster:\n    server: {}\n    certificate-authority-data: {}\n    proxy-url: http://user:{PASSWORD}@proxy:3128\n\
             users:\n- name: u\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n- name: other\n  user:\n    token: {WEB_TOKEN}\n    password: {PASSWORD}\n",
            server.url(),
            STANDARD.encode(server.ca_pem()),
            STANDARD.encode(&pem),
            STANDARD.encode(&key),
        ),
    );

    let found = bundle(&node, &kubelet_kubeconfig);

    let mut secrets = vec![
        TOKEN.to_owned(),
        TOKEN.split_once('.').unwrap().1.to_owned(),
        OTHER_TOKEN.to_owned(),
        WEB_TOKEN.to_owned(),
        PASSWORD.to_owned(),
        SIGNATURE.to_owned(),
        SESSION_TOKEN.to_owned(),
        ACCESS_KEY_ID.to_owned(),
        signature,
        request,
        STANDARD.encode(&key),
        "PRIVATE KEY".to_owned(),
    ];
    for key in [&key, &pending_key] {
        let lines = key.lines().filter(|line| !line.starts_with("-----"));
        secrets.extend(lines.map(str::to_owned));
    }
    for (name, text) in &found {
        for secret in &secrets {
            assert!(
                !text.contains(secret.as_str()),
                "{secret} in {name}:\n{text}"
            );
        }
    }
    assert!(found["kubelet.log"].contains("a line that helps\n"));
    assert!(found["kubelet.service.txt"].contains("ExecStart=/usr/bin/kubelet\n"));
    assert!(found["kubelet.conf"].contains(&server.url()));
    assert_eq!(found["kubelet-version.txt"], "Kubernetes v1.36.0\n");
    let json = |name| -> Value {
        let text = &found[name];
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    };
    let store = json("store.json");
    assert_eq!(
        store["pending"]["request"]["evidence"]["sts"]["region"],
        "eu-west-1"
    );
    for name in ["config.json", "status.json", "doctor.json", "version.json"] {
        assert!(json(name).is_object(), "{name}");
    }
}

#[test]
fn the_manifest_lists_the_contents_and_the_missing_files() {
    let (_server, mut node) = joined();
    node.set_env("PATH", node.scratch().directory("bin"));
    let missing = node.scratch().join("kubelet.conf");

    let found = bundle(&node, &missing);

    let manifest = &found["MANIFEST"];
    let (files, absent) = manifest.split_once("\nMissing:\n").unwrap();
    for name in found.keys().filter(|name| *name != "MANIFEST") {
        assert!(
            files.contains(&format!("\n  {name}: ")),
            "{name}: {manifest}"
        );
    }
    for line in [
        "  kubelet.log (journalctl --unit=kubelet): cannot run journalctl: No such file or directory",
        "  kubelet.service.txt (systemctl cat kubelet.service): cannot run systemctl: ",
    ] {
        assert!(absent.contains(line), "{line}: {manifest}");
    }
    assert!(files.contains("  bootstrap.kubeconfig: "), "{manifest}");
    assert!(!found.contains_key("kubelet.conf"));
}

#[test]
fn a_bundle_does_not_replace_a_file() {
    let (_server, mut node) = joined();
    node.set_env("PATH", node.scratch().directory("bin"));
    let file = node.scratch().write("bundle.tar", "mine");

    node.command(&["support-bundle", file.to_str().unwrap()])
        .failed(4)
        .saying("bundle.tar: File exists")
        .saying("specify a file that does not exist yet");

    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn the_manifest_reports_truncated_and_held_output() {
    let (_server, mut node) = joined();
    let bin = node.scratch().directory("bin");
    node.set_env("PATH", &bin);
    program(&bin, "journalctl", &"a line\n".repeat(700_000));
    let holder = bin.join("kubelet");
    let script = "#!/bin/sh\necho Kubernetes\n/bin/sleep 60 &\n";
    fs::write(&holder, script).unwrap();
    fs::set_permissions(&holder, fs::Permissions::from_mode(0o755)).unwrap();

    let found = bundle(&node, Path::new("/missing"));

    let (files, absent) = found["MANIFEST"].split_once("\nMissing:\n").unwrap();
    let cut =
        "  kubelet.log: journalctl --unit=kubelet; 0 removed; truncated because of its size\n";
    assert!(files.contains(cut), "{files}");
    assert!(found["kubelet.log"].ends_with("a line\n"));
    let held = "  kubelet-version.txt (kubelet --version): \
                kubelet has exited, but another program keeps its output open\n";
    assert!(absent.contains(held), "{absent}");
}

#[test]
fn an_incomplete_bundle_is_removed() {
    let (_server, mut node) = joined();
    node.set_env("PATH", node.scratch().directory("bin"));
    let file = node.scratch().join("bundle.tar");
    let words = ["support-bundle", file.to_str().unwrap()];
    // A file can be at most two blocks of 512 bytes long. A larger write would kill the program with a signal.
    node.wrap(&["/bin/sh", "-c", "ulimit -f 2; exec \"$@\"", "sh"]);

    for _ in 0..2 {
        let run = node.command(&words).failed(4);
        run.saying("bundle.tar: File too large");
        assert!(!file.exists());
    }
}
