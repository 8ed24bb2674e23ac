//! Tests of the controller with a real API server, and with the CA's key in a PKCS #11 token (`SoftHSM`), behind the
//! project's external signer.

mod least_privilege;
mod management;
mod serving;

use std::fs::{self, Permissions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use std::os::unix::fs::PermissionsExt as _;

use kubelet_authenticator_test_support::control_plane::Controllers;
use kubelet_authenticator_test_support::process::{Launch, Process, Scratch, poll};
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::{
    Application, Machine, PATIENCE, RealBed, certificate_of, is_issued,
};
use kubelet_authenticator_tests::page::commands;
use kubelet_authenticator_tests::program;

/// The cluster that all tests share, because every test has its own machines.
static BED: LazyLock<RealBed> = LazyLock::new(|| RealBed::start(Controllers::None));

const PIN: &str = "648219";

/// A token that contains the key `node-ca` of a CA, and the directory of the signer's CAs.
struct Token {
    scratch: Scratch,
    ca: PathBuf,
}

impl Token {
    /// Creates a token with the key of the CA that has this certificate. `key` is a PEM file in PKCS #8.
    fn with_key(ca: &Path, key: &Path) -> Self {
        let token = Self {
            scratch: Scratch::new("token"),
            ca: ca.to_owned(),
        };
        let folder = token.scratch.directory("tokens");
        token.scratch.directory("cas");
        let conf = format!(
            "directories.tokendir = {}\nlog.level = ERROR\n",
            folder.display()
        );
        token.scratch.write("softhsm2.conf", conf);
        token.write_pin(PIN, 0o600);
        let [init, ..] = page();
        let mut init = token.shell(&init);
        run(init.env("PIN", PIN).env("SO_PIN", "20486"));
        token.import(key, "node-ca", "01");
        token
    }

    /// Imports a key with this label and number.
    fn import(&self, key: &Path, label: &str, id: &str) {
        let [_, import, ..] = page();
        let import = import
            .replace("--label node-ca", &format!("--label {label}"))
            .replace("--id 01", &format!("--id {id}"));
        fs::copy(key, self.scratch.join("ca.key")).unwrap();
        run(self.shell(&import).env("PIN", PIN));
        fs::remove_file(self.scratch.join("ca.key")).unwrap();
    }

    /// Writes the file of the CA in `ca` for this Cluster (`NAMESPACE/NAME`, or empty), with the key that has this
    /// label.
    fn assign(&self, file: &str, ca: &Path, label: &str, cluster: &str) {
        let [_, _, assign, _] = page();
        let line = if cluster.is_empty() {
            String::new()
        } else {
            format!("\"cluster: {cluster}\"")
        };
        let assign = assign
            .replace("key-label: node-ca", &format!("key-label: {label}"))
            .replace("\"cluster: tenant-a/prod-1\"", &line)
            .replace("cat ca.crt", &format!("cat {}", ca.display()))
            .replace(
                "/etc/node-attestation-signer/cas/prod-1",
                &format!("cas/{file}"),
            );
        run(&mut self.shell(&assign));
    }

    /// Creates a token with a new CA, whose key openssl creates.
    fn with_new_ca(key: &[&str]) -> Self {
        let scratch = Scratch::new("ca");
        let (key_file, ca) = (scratch.join("ca.key"), scratch.join("ca.crt"));
        let mut generate = vec!["genpkey", "-out", key_file.to_str().unwrap()];
        generate.extend(key);
        openssl(&generate);
        openssl(&[
            "req",
            "-x509",
            "-new",
            "-key",
            key_file.to_str().unwrap(),
            "-days",
            "365",
            "-subj",
            "/CN=kubernetes",
            "-out",
            ca.to_str().unwrap(),
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        ]);
        let mut token = Self::with_key(&ca, &key_file);
        // After this, only the token contains the key, because the directory with the key file is deleted.
        token.ca = token.scratch.write("ca.crt", fs::read(&ca).unwrap());
        token
    }

    fn write_pin(&self, pin: &str, mode: u32) {
        let file = self.scratch.write("pin", pin);
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }

    /// A command that runs a script with this token, in the token's directory.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-euc", script])
            .env("SOFTHSM2_CONF", self.scratch.join("softhsm2.conf"))
            .current_dir(self.scratch.path());
        command
    }

    fn socket(&self) -> PathBuf {
        self.scratch.join("signer.sock")
    }

    /// The command on the page, with this token's files.
    fn launch(&self) -> Launch {
        let [_, _, _, serve] = page();
        let file = |name: &str| self.scratch.join(name).display().to_string();
        let serve = serve
            .replace("\\\n", " ")
            .replace("/run/signer/signer.sock", &file("signer.sock"))
            .replace("/etc/node-attestation-signer/pin", &file("pin"))
            .replace("/etc/node-attestation-signer/cas", &file("cas"));
        let mut words = serve.split_whitespace();
        assert_eq!(words.next(), Some("node-attestation-signer-pkcs11"));
        Launch::new("signer", program("node-attestation-signer-pkcs11"))
            .env("SOFTHSM2_CONF", self.scratch.join("softhsm2.conf"))
            .args(words)
    }

    /// Starts the signer, and waits until it serves.
    fn serve(&self) -> Process {
        self.serve_cluster("")
    }

    /// Starts the signer for the CA of a Cluster (`NAMESPACE/NAME`).
    fn serve_cluster(&self, cluster: &str) -> Process {
        self.assign("first", &self.ca, "node-ca", cluster);
        let mut signer = self.launch().spawn(&self.scratch.join("signer.log"));
        signer.wait_for_log("serving socket", PATIENCE);
        signer
    }
}

/// The commands on the page: two fill a token, one writes the file of a CA, and the last one starts the signer.
fn page() -> [String; 4] {
    commands("signers.md", '$').try_into().unwrap()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn openssl(arguments: &[&str]) -> String {
    run(Command::new("openssl").args(arguments))
}

/// Verifies a client certificate with openssl.
fn verify(token: &Token, certificate: &str) {
    let file = token.scratch.write("node.crt", certificate);
    openssl(&[
        "verify",
        "-x509_strict",
        "-purpose",
        "sslclient",
        "-CAfile",
        token.ca.to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
}

#[test]
fn a_node_joins_with_a_certificate_signed_in_a_token() {
    const MACHINE: Machine = Machine::new("tokened", "token1");
    let cluster = &BED.cluster;
    let token = Token::with_key(&cluster.ca_cert_path(), &cluster.ca_key_path());
    let mut signer = token.serve();
    let mode = fs::metadata(token.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let _controller = BED
        .signed_by(&token.socket(), &token.ca, &[MACHINE])
        .start();

    let application = Application::insecure(MACHINE);
    let csr = BED.wait_for_answer(&BED.file(&application));

    verify(&token, &certificate_of(&csr).unwrap());
    let user = BED.who_is(&BED.kubeconfig_of(&application, &csr));
    assert_eq!(user["username"], "system:node:tokened");
    let line = signer.wait_for_log("signed", PATIENCE);
    assert!(line.contains("system:node:tokened"), "{line}");
    let log = signer.log().text();
    assert!(!log.contains(PIN), "{log}");
}

#[test]
fn openssl_accepts_chains_for_every_kind_of_token_key() {
    for (key, machine) in [
        (
            &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"][..],
            Machine::new("by-rsa", "tokrsa"),
        ),
        (
            &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            Machine::new("by-p256", "tok256"),
        ),
        (
            &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
            Machine::new("by-p384", "tok384"),
        ),
        (
            &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"],
            Machine::new("by-p521", "tok521"),
        ),
    ] {
        let token = Token::with_new_ca(key);
        let _signer = token.serve();
        let _controller = BED
            .signed_by(&token.socket(), &token.ca, &[machine])
            .start();

        let csr = BED.wait_for_answer(&BED.file(&Application::insecure(machine)));

        assert!(is_issued(&csr), "{csr}");
        verify(&token, &certificate_of(&csr).unwrap());
    }
}

#[test]
fn requests_wait_for_an_unavailable_signer_and_are_then_issued() {
    const FIRST: Machine = Machine::new("before", "tokb01");
    const SECOND: Machine = Machine::new("during", "tokd01");
    let token = Token::with_new_ca(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    let mut signer = token.serve();
    let mut controller = BED
        .signed_by(&token.socket(), &token.ca, &[FIRST, SECOND])
        .start();
    assert!(is_issued(
        &BED.wait_for_answer(&BED.file(&Application::insecure(FIRST)))
    ));

    signer.kill();
    let name = BED.file(&Application::insecure(SECOND));
    let line = controller.wait_for_decision(&name);

    assert_eq!(line["outcome"], "deferred");
    assert_eq!(line["reason"], "SignerUnavailable");
    assert_unanswered(Later::decision(&line), || BED.request(&name));
    let _signer = token.serve();
    let csr = BED.wait_for_answer(&name);
    assert!(is_issued(&csr), "{csr}");
    verify(&token, &certificate_of(&csr).unwrap());
}

#[test]
fn a_signer_refuses_the_ca_of_another_cluster_and_the_request_waits() {
    const MACHINE: Machine = Machine::new("foreign", "tokf01");
    let token = Token::with_new_ca(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    let _signer = token.serve_cluster("tenant-a/prod-1");
    let mut controller = BED
        .signed_by(&token.socket(), &token.ca, &[MACHINE])
        .start();

    let name = BED.file(&Application::insecure(MACHINE));
    let line = controller.wait_for_decision(&name);

    assert_eq!(line["outcome"], "deferred");
    assert_eq!(line["reason"], "SignerRefused");
    let detail = line["detail"].as_str().unwrap();
    let words = "this signer has no key for this CA and this cluster";
    assert!(detail.contains(words), "{detail}");
    assert_unanswered(Later::decision(&line), || BED.request(&name));
}

#[test]
fn a_missing_pin_folder_or_new_option_stops_the_signer_with_an_error() {
    let token = Token::with_new_ca(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    token.assign("first", &token.ca, "node-ca", "");
    let ends_with = |launch: Launch, code: i32, words: &str| {
        let mut signer = launch.spawn(&token.scratch.join("signer.log"));
        assert_eq!(signer.wait(PATIENCE).code(), Some(code));
        let log = signer.log().since(signer.log_start());
        assert!(log.contains(words), "{log}");
    };
    let old = token.launch().args(["--ca", "ca.crt,node-ca"]);
    ends_with(old, 2, "--ca was removed: write one file for each CA");

    token.write_pin("", 0o600);
    ends_with(token.launch(), 1, "its first line is empty");
    token.write_pin(PIN, 0o640);
    ends_with(
        token.launch(),
        1,
        "group or others have access to it (mode 0640)",
    );
    fs::rename(token.scratch.join("cas"), token.scratch.join("moved")).unwrap();
    ends_with(token.launch(), 1, "No such file or directory");
    assert!(poll(PATIENCE, || (!token.socket().exists()).then_some(())).is_some());
}

#[test]
fn an_invalid_file_or_a_missing_key_stops_only_its_own_ca() {
    const FIRST: Machine = Machine::new("near-bad", "tokg01");
    const SECOND: Machine = Machine::new("keyless", "tokg02");
    let token = Token::with_new_ca(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    token.assign("absent", &token.ca, "absent", "tenant-a/other");
    token.scratch.write("cas/bad", "key-label: node-ca\n");
    let mut signer = token.launch().spawn(&token.scratch.join("signer.log"));
    signer.wait_for_log("cannot use the file file=\"bad\"", PATIENCE);
    let line = signer.wait_for_log("cannot sign with the CA", PATIENCE);
    assert!(line.contains("0 private keys have the label"), "{line}");
    signer.wait_for_log("serving socket", PATIENCE);

    // The certificate belongs to the other Cluster until its file is removed.
    token.assign("first", &token.ca, "node-ca", "");
    let refused = signer.wait_for_log("file=\"first\"", PATIENCE);
    let reason = "absent already assigns this CA certificate to Cluster tenant-a/other";
    assert!(refused.contains(reason), "{refused}");
    let mut controller = BED
        .signed_by(&token.socket(), &token.ca, &[FIRST, SECOND])
        .start();
    let name = BED.file(&Application::insecure(FIRST));
    assert_eq!(
        controller.wait_for_decision(&name)["reason"],
        "SignerRefused"
    );
    fs::remove_file(token.scratch.join("cas/absent")).unwrap();
    assert!(is_issued(&BED.wait_for_answer(&name)));

    let mark = signer.log().mark();
    token.assign("first", &token.ca, "absent", "");
    signer.wait_for_log_after(mark, "key_label=\"absent\"", PATIENCE);
    let name = BED.file(&Application::insecure(SECOND));
    let line = controller.wait_for_decision(&name);
    assert_eq!(line["reason"], "SignerUnavailable");
    let detail = line["detail"].as_str().unwrap();
    assert!(detail.contains("0 private keys have the label"), "{detail}");
    token.assign("first", &token.ca, "node-ca", "");
    assert!(is_issued(&BED.wait_for_answer(&name)));
}

#[test]
fn a_signer_with_a_wrong_pin_keeps_running_and_the_request_waits() {
    const MACHINE: Machine = Machine::new("wrong-pin", "tokp01");
    let token = Token::with_new_ca(&["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    token.write_pin("000000", 0o600);
    let signer = token.serve();
    let mut controller = BED
        .signed_by(&token.socket(), &token.ca, &[MACHINE])
        .start();

    let name = BED.file(&Application::insecure(MACHINE));
    let line = controller.wait_for_decision(&name);

    assert_eq!(line["outcome"], "deferred");
    assert_eq!(line["reason"], "SignerUnavailable");
    let detail = line["detail"].as_str().unwrap();
    assert!(detail.contains("the token rejected the PIN"), "{detail}");
    assert_unanswered(Later::decision(&line), || BED.request(&name));
    drop(signer);
    token.write_pin(PIN, 0o600);
    let _signer = token.serve();
    assert!(is_issued(&BED.wait_for_answer(&name)));
}
