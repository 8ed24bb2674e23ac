//! Tests, with a real API server, of requests that kube-controller-manager signs: requests for kubelets' serving
//! certificates, and requests to the built-in client signer.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_attestation::csr::{CLIENT_USAGES, SERVING_USAGES};
use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER};
use kubelet_authenticator_test_support::control_plane::{Controllers, KubeadmBinding, User};
use kubelet_authenticator_test_support::pki::{Subject, certificate_request};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::absence::assert_refused;
use kubelet_authenticator_tests::controller::{
    Application, Machine, PATIENCE, RealBed, Setup, conditions, is_issued, reason_of,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

/// Starts a separate cluster for each test, because controllers with different tasks or node identities would answer
/// each other's requests.
fn start() -> RealBed {
    RealBed::start(Controllers::Certificates)
}

/// Writes an inventory with one machine that has these addresses.
fn write_inventory(setup: &Setup, machine: Machine, addresses: &[IpAddr]) {
    let text = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineInventory",
        "machines": [{
            "name": machine.name,
            "providerID": machine.provider_id(),
            "tokenID": machine.token,
            "addresses": addresses,
        }],
    });
    setup.write_inventory(&text.to_string());
}

/// Joins with this request. Returns a kubeconfig with the certificate.
fn join(bed: &RealBed, application: &Application) -> PathBuf {
    let name = bed.file(application);
    let csr = bed.wait_for_answer(&name);
    bed.kubeconfig_of(application, &csr)
}

/// Sends a request for a serving certificate as the user of this kubeconfig. Waits for the decision.
fn ask_to_serve(
    bed: &RealBed,
    kubeconfig: &Path,
    machine: Machine,
    name: &str,
    sans: Vec<SanType>,
) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{}", machine.name));
    params.subject_alt_names = sans;
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = request.replace("\r\n", "\n");
    file(
        bed,
        kubeconfig,
        name,
        BUILT_IN_SERVING_SIGNER,
        &SERVING_USAGES,
        &request,
    );
    wait_until_decided(bed, name)
}

fn file(
    bed: &RealBed,
    kubeconfig: &Path,
    name: &str,
    signer: &str,
    usages: &[&str],
    request: &str,
) {
    bed.cluster.kubectl_with(kubeconfig).create_object(&json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": signer,
            "usages": usages,
            "request": STANDARD.encode(request),
            "expirationSeconds": 3600,
        },
    }));
}

/// Waits until the request is denied, failed, or both approved and issued.
fn wait_until_decided(bed: &RealBed, name: &str) -> Value {
    let what = format!("{name} with an answer");
    bed.cluster.wait_for_csr(&what, |csr| {
        csr["metadata"]["name"] == name
            && (is_issued(csr)
                || ["Denied", "Failed"]
                    .iter()
                    .any(|kind| reason_of(csr, kind).is_some()))
    })
}

#[test]
fn the_api_server_connects_to_a_kubelet_with_a_serving_certificate() {
    const MACHINE: Machine = Machine::new("serves-1", "serve1");
    let bed = start();
    let setup = bed.null(&[MACHINE]);
    let _controller = setup.start();
    let kubeconfig = join(&bed, &bed.stamped(MACHINE));
    let kubelet = bed
        .cluster
        .kubelet(MACHINE.name)
        .kubeconfig(kubeconfig)
        .server_tls_bootstrap()
        .reachable();
    write_inventory(&setup, MACHINE, &[kubelet.ip().into()]);

    let kubelet = kubelet.start();

    let answer = poll(PATIENCE, || {
        let answer = kubelet.healthz_through_the_api_server();
        answer.status.success().then_some(answer.stdout)
    });
    assert_eq!(answer.as_deref(), Some(&b"ok"[..]), "{}", kubelet.log());
    let csr = bed.cluster.wait_for_csr("for serving", |csr| {
        csr["spec"]["username"] == "system:node:serves-1"
            && csr["spec"]["signerName"] == BUILT_IN_SERVING_SIGNER
    });
    assert_eq!(conditions(&csr), ["Approved"]);
    assert_eq!(
        reason_of(&csr, "Approved"),
        Some("ServingNamesCorroborated")
    );
}

#[test]
fn the_api_server_rejects_a_self_signed_kubelet_certificate() {
    let bed = start();
    let node = bed
        .cluster
        .client_certificate("system:node:self-signed", Some("system:nodes"));
    let mut kubelet = bed
        .cluster
        .kubelet("self-signed")
        .kubeconfig(bed.cluster.kubeconfig(User::Certificate(node)))
        .reachable()
        .start();
    kubelet.wait_until_registered();
    kubelet.wait_for_log("Started kubelet");
    kubelet.metrics();

    let refused = kubelet.healthz_through_the_api_server();

    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("failed to verify certificate"), "{stderr}");
}

#[test]
fn a_serving_certificate_for_a_foreign_address_is_denied() {
    const MACHINE: Machine = Machine::new("steals-1", "steal1");
    let bed = start();
    let setup = bed.null(&[MACHINE]);
    let _controller = setup.start();
    let own: IpAddr = [203, 0, 113, 1].into();
    write_inventory(&setup, MACHINE, &[own]);
    let kubeconfig = join(&bed, &bed.stamped(MACHINE));

    let stolen = SanType::IpAddress([203, 0, 113, 2].into());
    let sans = vec![SanType::IpAddress(own), stolen];
    let stolen = ask_to_serve(&bed, &kubeconfig, MACHINE, "steals", sans);
    let sans = vec![SanType::IpAddress(own)];
    let own = ask_to_serve(&bed, &kubeconfig, MACHINE, "has-its-own", sans);

    assert_refused(&stolen, ("Denied", "ServingNameNotReported"));
    assert_eq!(conditions(&own), ["Approved"]);
}

#[test]
fn a_serving_certificate_outside_the_configured_ranges_is_denied() {
    const MACHINE: Machine = Machine::new("ranges-1", "range1");
    let bed = start();
    let ranges = ["203.0.113.0/25", "2001:db8::/64"];
    let spec = json!({"servingAddressRanges": ranges});
    let setup = bed.null(&[MACHINE]).spec(&spec);
    let _controller = setup.start();
    let texts = [
        "203.0.113.1",
        "2001:db8::1",
        "203.0.113.129",
        "2001:db8:0:1::1",
    ];
    let addresses = texts.map(|text| text.parse().unwrap());
    write_inventory(&setup, MACHINE, &addresses);
    let kubeconfig = join(&bed, &bed.stamped(MACHINE));
    let ask = |name: &str, asked: &[usize]| {
        let sans = asked.iter().map(|at| SanType::IpAddress(addresses[*at]));
        ask_to_serve(&bed, &kubeconfig, MACHINE, name, sans.collect())
    };

    let inside = ask("inside", &[0, 1]);
    let outside = [ask("outside-4", &[0, 2]), ask("outside-6", &[1, 3])];

    assert_eq!(conditions(&inside), ["Approved"]);
    assert!(is_issued(&inside));
    for csr in outside {
        assert_refused(&csr, ("Denied", "ServingAddressOutOfRange"));
    }
}

#[test]
fn an_insecure_node_gets_no_serving_certificate() {
    const MACHINE: Machine = Machine::new("insecure-1", "insec1");
    let bed = start();
    let setup = bed.insecure(&[MACHINE]);
    let _controller = setup.start();
    let own: IpAddr = [203, 0, 113, 3].into();
    write_inventory(&setup, MACHINE, &[own]);
    let kubeconfig = join(&bed, &Application::insecure(MACHINE));

    let sans = vec![SanType::IpAddress(own)];
    let csr = ask_to_serve(&bed, &kubeconfig, MACHINE, "insecure-serves", sans);

    assert_eq!(reason_of(&csr, "Denied"), Some("UnattestedServing"));
}

#[test]
fn a_denied_built_in_request_stays_denied_when_the_bindings_return() {
    const MACHINE: Machine = Machine::new("unattested-1", "unatt1");
    let bed = start();
    let spec = json!({"autoApproveBindings": "Remove"});
    let setup = bed.null(&[MACHINE]).spec(&spec);
    let _controller = setup.start();
    let token = bed
        .cluster
        .add_bootstrap_token(MACHINE.token, "0123456789abcdef");
    let kubeconfig = bed.cluster.bootstrap_kubeconfig(&token);
    let (request, _) = certificate_request(&Subject::node(MACHINE.name), None);
    let file = |name: &str| {
        bed.cluster.kubectl_with(&kubeconfig).create_object(&json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "signerName": BUILT_IN_CLIENT_SIGNER,
                "usages": CLIENT_USAGES,
                "request": STANDARD.encode(request.replace("\r\n", "\n")),
            },
        }));
    };
    file("before");
    let denied = bed.wait_for_answer("before");
    assert_eq!(
        reason_of(&denied, "Denied"),
        Some("UnattestedBuiltInRequest")
    );

    bed.cluster
        .install_bindings(&[KubeadmBinding::NodeAutoapproveBootstrap]);
    // The faster controller answers a request that is created after the bindings.
    file("after");
    bed.wait_for_answer("after");

    let still = bed.request("before");
    assert_eq!(conditions(&still), ["Denied"]);
    assert_refused(&still, ("Denied", "UnattestedBuiltInRequest"));
}
