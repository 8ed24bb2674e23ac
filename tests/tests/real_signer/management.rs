//! Tests of the signer next to the controller of a management cluster. The Secrets of the Clusters do not contain a CA
//! key.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, Provider};
use kubelet_authenticator_test_support::control_plane::KubeadmBinding;
use kubelet_authenticator_test_support::pki::traditional_key;
use kubelet_authenticator_test_support::process::{Process, Scratch, poll};
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::controller::{
    Application, certificate_of, conditions, is_issued, is_signed_by,
};
use kubelet_authenticator_tests::fleet::{
    Authentication, Manager, allow_short_certificates, authorize, kubelet_of_tpm, management,
};
use kubelet_authenticator_tests::management::{Management, WorkloadCluster};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene, Site};
use kubelet_authenticator_tests::tpm::provider_id;
use serde_json::json;

use super::{Token, verify};

/// A lifetime for which the renewal is after 30 to 42 seconds.
const SECONDS: u32 = 60;

/// A lease duration that makes the kubelet send frequent requests, so that a renewal happens soon after it is due.
const LEASE: u32 = 12;

/// A Cluster whose Secret contains the certificate of its CA, but not the key.
pub fn without_key(management: &Management, namespace: &str) -> WorkloadCluster {
    let cluster = management.cluster("prod-1").namespace(namespace).create();
    cluster.write_ca(cluster.control_plane().ca().certificate_pem(), None);
    cluster
}

/// A token with the key of this Cluster's CA, and a running signer for this CA.
pub fn token_of(cluster: &WorkloadCluster) -> (Token, Process) {
    let plane = cluster.control_plane();
    let token = Token::with_key(&plane.ca_cert_path(), &plane.ca_key_path());
    let signer = serve(&token, cluster);
    (token, signer)
}

fn serve(token: &Token, cluster: &WorkloadCluster) -> Process {
    token.serve_cluster(&format!("{}/{}", cluster.namespace(), cluster.name()))
}

pub fn endpoint(token: &Token) -> String {
    format!("--signer-endpoint=unix://{}", token.socket().display())
}

pub fn scene(
    management: Management,
    manager: Manager,
    cluster: WorkloadCluster,
    authentication: Authentication,
) -> Scene {
    let site = Site {
        management,
        manager,
    };
    Scene {
        site: site.into(),
        cluster,
        authentication,
    }
}

/// Sends the request of a new Machine without evidence. Returns its name.
pub fn asks(scene: &Scene, machine: &str) -> String {
    let machine = scene.cluster.machine(machine).create();
    let (node_name, id) = (machine.node_name(), machine.provider_id());
    let application = Application::claiming(node_name, id, Provider::INSECURE, None);
    scene.file(&machine.bootstrap_kubeconfig(), &application)
}

/// The output of `cluster check` about this Cluster, without its line breaks.
pub fn checked(scene: &Scene) -> String {
    let Authentication { namespace, name } = &scene.authentication;
    let output = Command::new(program("node-attestation-controller"))
        .args(["cluster", "check", &format!("{namespace}/{name}")])
        .args(["--insecure-allow-loopback", "--kubeconfig"])
        .arg(scene.site.management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_cluster_with_its_ca_key_in_a_token_is_served_and_enforced() {
    let management = management();
    allow_short_certificates(&management);
    let cluster = without_key(&management, "signed");
    let plane = cluster.control_plane().clone();
    plane.install_bindings(&KubeadmBinding::ALL);
    let (token, mut signer) = token_of(&cluster);
    let keys = Scratch::new("challenge-keys");
    keys.write("current", "0f".repeat(32));
    let keys = keys.path().display().to_string();
    let arguments = [&*endpoint(&token), "--tpm-challenge-keys", &keys];
    let manager = Manager::start(&management, "node-attestation-controller", &arguments);
    let settings = json!({
        "certificate": {"expirationSeconds": SECONDS}, "autoApproveBindings": "Remove",
    });
    let authentication = authorize(&management, &cluster, &["tpm"], settings);
    let ready = authentication.wait_until_ready(management.kubectl());
    let scene = scene(management, manager, cluster, authentication);

    let tpm = TpmMachine::new(Swtpm::start().into(), EndorsementKey::P384);
    let machine = scene.cluster.machine("host-1");
    let machine = machine.provider_id(&provider_id(&tpm)).create();
    let kubelet = kubelet_of_tpm(&scene.cluster, &machine, &tpm.tpm().tcti());
    let kubelet = kubelet.lease_duration(LEASE).start();
    kubelet.wait_until_ready();
    let renewed = poll(SWEPT, || {
        let mut csrs = plane.csrs().into_iter();
        csrs.find(|csr| csr["spec"]["username"] == "system:node:host-1" && is_issued(csr))
    });

    let renewed = renewed.unwrap_or_else(|| panic!("{}", kubelet.log()));
    let signer_name = Provider::TPM.client_signer();
    assert_eq!(renewed["spec"]["signerName"], signer_name);
    verify(&token, &certificate_of(&renewed).unwrap());
    let line = signer.wait_for_log("system:node:host-1", SWEPT);
    assert!(line.contains("namespace=\"signed\""), "{line}");
    // Like other Clusters, this Cluster has its own signer name, and attestation is enforced.
    let status = &ready["status"];
    assert_eq!(status["kubeletClientCertificateSigner"], signer_name);
    assert_ne!(signer_name, BUILT_IN_CLIENT_SIGNER);
    scene.wait_for_paths("True", "Closed", &[]);
    let check = checked(&scene);
    assert!(
        check.contains("the controller's external signer signs"),
        "{check}"
    );
    let kubectl = scene.kubectl();
    for binding in [
        KubeadmBinding::NodeAutoapproveBootstrap,
        KubeadmBinding::NodeAutoapproveCertificateRotation,
    ] {
        let left = kubectl.run(["get", "clusterrolebinding", binding.name()]);
        assert!(!left.status.success(), "{left:?}");
    }
    kubelet.wait_for_lease_renewal();
}

#[test]
fn requests_wait_for_a_signer_that_is_unavailable_or_has_no_key() {
    let management = management();
    let [cluster, unknown] = ["kept", "unknown"].map(|name| without_key(&management, name));
    let (token, mut signer) = token_of(&cluster);
    let manager = Manager::insecure(&management, &[&endpoint(&token)]);
    let settings = json!({});
    let [kept, other] = [&cluster, &unknown].map(|cluster| {
        let authentication = authorize(&management, cluster, &["insecure"], settings.clone());
        authentication.wait_until_ready(management.kubectl());
        authentication
    });
    let scene = scene(management, manager, cluster, kept);
    let unknown = Scene {
        site: scene.site.clone(),
        cluster: unknown,
        authentication: other,
    };

    // The CA belongs to a different Cluster. Only requests from this Cluster remain pending.
    let foreign = asks(&unknown, "of-unknown");
    unknown.assert_waits("of-unknown", &foreign, "SignerRefused");
    let first = scene.answer(&asks(&scene, "before"));
    verify(&token, &certificate_of(&first).expect("a certificate"));

    signer.kill();
    let name = asks(&scene, "during");
    scene.assert_waits("during", &name, "SignerUnavailable");
    // During this time, a Cluster whose CA key is available is served.
    let ca = unknown.cluster.control_plane().ca().pair();
    let key = traditional_key(&ca.key_pem);
    unknown.cluster.write_ca(&ca.certificate_pem, Some(&key));
    let csr = unknown.answer(&foreign);
    assert!(is_issued(&csr), "{csr:#}");
    let waiting = scene.request(&name);
    assert_eq!(conditions(&waiting), [] as [&str; 0], "{waiting:#}");

    let _signer = serve(&token, &scene.cluster);
    let csr = scene.answer(&name);
    verify(&token, &certificate_of(&csr).expect("a certificate"));
}

/// The assignment in the signer determines the Cluster of a CA. The age of a Cluster has no effect.
#[test]
fn a_signer_refuses_an_older_cluster_that_shows_the_ca_of_another() {
    let management = management();
    let [thief, owner] = ["thief", "owner"].map(|name| without_key(&management, name));
    let (token, _signer) = token_of(&owner);
    thief.write_ca(owner.control_plane().ca().certificate_pem(), None);
    let manager = Manager::insecure(&management, &[&endpoint(&token)]);
    let site = Arc::new(Site {
        management,
        manager,
    });
    let attend = |cluster| Scene::attend_by(&site, cluster, "insecure", json!({}));
    let [thief, owner] = [thief, owner].map(attend);

    let refused = asks(&thief, "of-thief");
    thief.assert_waits("of-thief", &refused, "SignerRefused");

    assert_signed(&owner, "of-owner");
    let kubectl = site.management.kubectl();
    for scene in [&thief, &owner] {
        scene.authentication.wait_until_ready(kubectl);
    }
}

/// Three Clusters have their CA keys in one token. The signer runs before the last Cluster is created.
#[test]
fn a_cluster_added_while_the_signer_runs_joins_two_others() {
    let management = management();
    let [first, second] = ["first", "second"].map(|name| without_key(&management, name));
    let (token, mut signer) = token_of(&first);
    add(&token, &second, "02");
    let manager = Manager::insecure(&management, &[&endpoint(&token)]);
    let site = Arc::new(Site {
        management,
        manager,
    });
    let attend = |cluster| Scene::attend_by(&site, cluster, "insecure", json!({}));
    let [first, second] = [first, second].map(attend);
    for scene in [&first, &second] {
        assert_signed(scene, "early");
    }

    let late = attend(without_key(&site.management, "late"));
    let waiting = asks(&late, "late");
    late.assert_waits("late", &waiting, "SignerRefused");
    add(&token, &late.cluster, "03");
    let csr = late.answer(&waiting);
    let ca = late.cluster.control_plane().ca().certificate_pem();
    assert!(is_signed_by(&certificate_of(&csr).unwrap(), ca), "{csr:#}");
    for scene in [&first, &second, &late] {
        assert_signed(scene, "later");
    }

    // The CA in a removed file is no longer served, and the other CAs remain.
    let mark = signer.log().mark();
    fs::remove_file(token.scratch.join("cas/second")).unwrap();
    signer.wait_for_log_after(mark, "the file was removed file=\"second\"", SWEPT);
    let name = asks(&second, "after");
    second.assert_waits("after", &name, "SignerRefused");
    assert_signed(&first, "after");
    assert!(signer.is_running());
}

/// Imports the key of this Cluster's CA into the token with this number, and writes the file of the CA.
fn add(token: &Token, cluster: &WorkloadCluster, id: &str) {
    let (plane, namespace) = (cluster.control_plane(), cluster.namespace());
    token.import(&plane.ca_key_path(), namespace, id);
    let cluster = format!("{namespace}/{}", cluster.name());
    token.assign(namespace, &plane.ca_cert_path(), namespace, &cluster);
}

/// Asserts that a new Machine gets a certificate from the CA of this Cluster.
#[track_caller]
fn assert_signed(scene: &Scene, machine: &str) {
    let csr = scene.answer(&asks(scene, machine));
    let certificate = certificate_of(&csr).expect("a certificate");
    let ca = scene.cluster.control_plane().ca().certificate_pem();
    assert!(is_signed_by(&certificate, ca), "{csr:#}");
}
