//! What is said of the credentials that EC2 is asked with.

use std::sync::Arc;

use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::control_plane::{
    ControlPlane, Controllers, KubeadmBinding, Kubectl,
};
use kubelet_authenticator_test_support::moto::{Failure, Scope, access_key};
use kubelet_authenticator_test_support::sts::Times;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance};
use kubelet_authenticator_tests::controller::{Application, is_issued};
use kubelet_authenticator_tests::management::{Machine, WorkloadCluster};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::bed::{Authentication, Manager, authorize, condition_of, management};

const OWNED: (&str, &str) = (
    "sigs.k8s.io/cluster-api-provider-aws/cluster/prod-1",
    "owned",
);

const CONDITION: &str = "AWSCredentialsReady";

/// A new instance and its Machine, of this cluster.
fn machine(cloud: &Cloud, cluster: &WorkloadCluster, name: &str) -> (Instance, Machine) {
    let instance = cloud.launch(&[OWNED]);
    let machine = cluster
        .machine(name)
        .provider_id(&instance.provider_id())
        .node_name(instance.node_name())
        .create();
    (instance, machine)
}

/// Files the request of an instance with its Machine's token; gives its name.
fn ask(cloud: &Cloud, plane: &ControlPlane, (instance, machine): &(Instance, Machine)) -> String {
    let ca = CertificateDer::from_pem_slice(plane.ca().certificate_pem().as_bytes()).unwrap();
    let audience = Audience::of_ca(&ca);
    let id = instance.provider_id();
    let parts = instance.parts(&audience, &id, cloud.sts().now());
    let evidence = |spki: &[u8]| Some(cloud.evidence(&parts, spki));
    let application = Application::proving(instance.node_name(), &id, Provider::AWS, evidence);
    let kubectl = plane.kubectl_with(machine.bootstrap_kubeconfig());
    kubectl.apply_object(&application.to_json());
    application.name()
}

fn is_now(
    authentication: &Authentication,
    kubectl: &Kubectl,
    status: &str,
    reason: &str,
    words: &str,
) -> Value {
    let object = authentication.wait_for(kubectl, CONDITION, status, reason);
    let message = condition_of(&object, CONDITION)["message"].clone();
    assert!(message.as_str().unwrap().contains(words), "{message}");
    object
}

#[test]
fn credentials_are_unknown_until_ec2_was_asked_and_ready_or_not_by_what_it_answered_last() {
    let cloud = Cloud::start();
    let management = management();
    let plane = ControlPlane::builder()
        .controllers(Controllers::Default)
        .start();
    plane.install_bindings(&[KubeadmBinding::KubeletBootstrap]);
    let cluster = management
        .cluster("prod-1")
        .workload(Arc::new(plane))
        .create();
    let plane = cluster.control_plane();
    let manager = Manager::aws(&management, &cloud, &[]);
    let authentication = authorize(&management, &cluster, &["aws"], json!({}));
    let kubectl = management.kubectl();
    authentication.wait_until_ready(kubectl);
    is_now(
        &authentication,
        kubectl,
        "Unknown",
        "Pending",
        "no instance has asked yet",
    );

    let mut asked = vec![machine(&cloud, &cluster, "worker-1")];
    let is_answered = |csr: &str| {
        plane.wait_for_csr("issued", |found| {
            found["metadata"]["name"] == *csr && is_issued(found)
        });
        is_now(
            &authentication,
            kubectl,
            "True",
            "CredentialsAccepted",
            "eu-west-1",
        )
    };
    is_answered(&ask(&cloud, plane, &asked[0]));

    let mut told = String::new();
    for (failure, code) in [
        (Failure::unauthorized(), "UnauthorizedOperation"),
        (Failure::bad_credentials(), "AuthFailure"),
    ] {
        cloud.moto().inject(Scope::any(), Times::always(), failure);
        let next = machine(&cloud, &cluster, &format!("with-{}", code.to_lowercase()));
        let csr = ask(&cloud, plane, &next);
        asked.push(next);
        let object = is_now(
            &authentication,
            kubectl,
            "False",
            "CredentialsUnusable",
            code,
        );
        told += &object.to_string();
        // Nothing else stops, and nobody is refused.
        assert_eq!(condition_of(&object, "Ready")["status"], "True");
        assert!(plane.csrs().iter().all(|csr| {
            csr["status"]["conditions"]
                .as_array()
                .is_none_or(|all| all.iter().all(|one| one["type"] == "Approved"))
        }));

        cloud.moto().clear_failures();
        is_answered(&csr);
    }
    told += &manager.process.log().text();
    told += &kubectl
        .json(["get", "kubeletauthentications,nodeidentities", "-A"])
        .to_string();
    for cluster in [kubectl, plane.kubectl()] {
        told += &cluster
            .json(["get", "events.events.k8s.io", "-A"])
            .to_string();
    }
    for csr in plane.csrs() {
        told += &csr["metadata"].to_string();
        told += &csr["status"].to_string();
    }
    assert!(told.contains("CredentialsUnusable"), "{told}");
    let (own, _) = access_key(ACCOUNT);
    let of_instances = asked.iter().flat_map(|(instance, _)| {
        let it = &instance.credentials;
        [&it.access_key_id, &it.secret_access_key, &it.session_token].map(String::clone)
    });
    for secret in of_instances.chain([own]) {
        assert!(!told.contains(&secret), "{secret} is told in {told}");
    }
}
