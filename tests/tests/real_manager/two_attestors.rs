//! Tests of EC2 instances and hosts with TPMs in one Cluster: each kind has its own evidence, and cannot use the
//! evidence of the other kind.

mod bed;

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kubelet_attestation::csr::SERVING_USAGES;
use kubelet_attestation::names::{BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_test_support::moto::NitroTpm;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::{Fault, Times};
use kubelet_authenticator_tests::controller::{Application, is_issued, reason_of};
use kubelet_authenticator_tests::fleet::{assert_first_generation, condition_of};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::SWEPT;
use kubelet_authenticator_tests::tpm::provider_id;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::{Value, json};

use self::bed::{Bed, Node, Nodes, tpm};

/// The bed that all tests share, because both nodes remain, and every test has its own additional machines.
static BED: LazyLock<Bed> = LazyLock::new(Bed::start);
static NODES: LazyLock<Nodes> = LazyLock::new(|| Nodes::join(&BED));

impl<M> Node<M> {
    fn name(&self) -> &str {
        self.machine.node_name()
    }

    fn user(&self) -> String {
        format!("system:node:{}", self.name())
    }

    /// A kubeconfig that contains the machine's bootstrap token.
    fn token(&self) -> PathBuf {
        self.machine.bootstrap_kubeconfig()
    }
}

/// Waits for a request from this user for this signer that has a certificate.
#[track_caller]
fn wait_for_certificate(user: &str, signer: &str) -> Value {
    let plane = BED.scene.cluster.control_plane();
    let found = poll(SWEPT, || {
        let mut csrs = plane.csrs().into_iter();
        csrs.find(|csr| {
            csr["spec"]["username"] == user && csr["spec"]["signerName"] == signer && is_issued(csr)
        })
    });
    found.unwrap_or_else(|| panic!("{user} {signer}: {:#?}", plane.csrs()))
}

/// The data about a node in a record, without the values that each renewal updates.
fn without_renewals(record: &Value) -> Value {
    let mut spec = record["spec"].clone();
    let fields = spec.as_object_mut().unwrap();
    fields.retain(|name, _| !["renewedUntil", "lastTpmBoot"].contains(&name.as_str()));
    spec
}

#[test]
fn an_instance_and_a_host_with_a_tpm_join_and_renew_in_one_cluster() {
    let (scene, Nodes { instance, host }) = (&BED.scene, &*NODES);
    let joined = [instance.name(), host.name()].map(|node| scene.record(node));
    for (record, attestor, machine) in [
        (&joined[0], "aws", &instance.machine),
        (&joined[1], "tpm", &host.machine),
    ] {
        assert_eq!(record["spec"]["attestor"], attestor, "{record:#}");
        assert_eq!(record["spec"]["providerID"], machine.provider_id());
        scene.wait_for_event(machine.name(), "FirstJoin");
    }

    for (user, provider) in [
        (instance.user(), Provider::AWS),
        (host.user(), Provider::TPM),
    ] {
        wait_for_certificate(&user, &provider.client_signer());
    }

    for (node, joined) in [instance.name(), host.name()].into_iter().zip(joined) {
        // The controller records the renewal in a later round.
        assert_eq!(
            without_renewals(&scene.record(node)),
            without_renewals(&joined),
            "nothing else has changed"
        );
    }
    for kubelet in [&instance.kubelet, &host.kubelet] {
        kubelet.wait_for_lease_renewal();
    }
}

/// A request for a serving certificate that contains only the node's name.
fn serving(name: &str, node_name: &str, signer: &str) -> Value {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{node_name}"));
    params.subject_alt_names = vec![SanType::DnsName(node_name.try_into().unwrap())];
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": signer,
            "usages": SERVING_USAGES,
            "request": BASE64_STANDARD.encode(request.replace("\r\n", "\n")),
            "expirationSeconds": 600,
        },
    })
}

#[test]
fn nodes_of_both_attestors_get_serving_certificates_from_both_signers() {
    let (scene, Nodes { instance, host }) = (&BED.scene, &*NODES);
    for user in [instance.user(), host.user()] {
        let own = wait_for_certificate(&user, BUILT_IN_SERVING_SIGNER);
        let reason = reason_of(&own, "Approved");
        assert_eq!(reason, Some("ServingNamesCorroborated"), "{own:#}");
    }

    let plane = scene.cluster.control_plane();
    for (node, other, kubelet, provider) in [
        (
            instance.name(),
            host.name(),
            &instance.kubelet,
            Provider::AWS,
        ),
        (host.name(), instance.name(), &host.kubelet, Provider::TPM),
    ] {
        let kubectl = plane.kubectl_with(BED.certificate_of(kubelet));
        let [own, others] = ["own", "others"].map(|name| format!("{name}-{provider}"));
        let signer = provider.serving_signer();
        kubectl.create_object(&serving(&own, node, &signer));
        kubectl.create_object(&serving(&others, other, &signer));
        let issued = scene.answer(&own);
        assert!(is_issued(&issued), "{issued:#}");
        scene.assert_denied(&others, "RequesterIsAnotherNode");
    }
}

#[test]
fn a_node_certificate_with_evidence_of_the_other_kind_is_denied() {
    let (scene, Nodes { instance, host }) = (&BED.scene, &*NODES);
    let spare = tpm();
    let records = || [instance.name(), host.name()].map(|node| scene.record(node));
    let before = records();
    let [aws_id, tpm_id] = [instance.machine.provider_id(), host.machine.provider_id()];
    let by_tpm = |node: &str, id: &str| BED.by_tpm(&spare, node, id);
    let by_aws = |node: &str, id: &str| BED.by_aws(&instance.proof, node, id);

    // The request is from root on the instance, with a TPM.
    for (application, reason) in [
        (by_tpm(instance.name(), aws_id), "EndorsementKeyUnknown"),
        (
            by_tpm(instance.name(), tpm_id),
            "EndorsementKeyOfAnotherMachine",
        ),
        (by_tpm(host.name(), tpm_id), "RequesterIsAnotherNode"),
    ] {
        let kubeconfig = BED.certificate_of(&instance.kubelet);
        BED.ask(&kubeconfig, application).is_denied(reason);
    }
    let (kubeconfig, own) = (BED.certificate_of(&instance.kubelet), instance.name());
    let answer = BED.ask_signer_of(&Provider::AWS, &kubeconfig, by_tpm(own, aws_id));
    answer.is_denied("ProviderMismatch");
    // The request is from root on the host, with the credentials of the instance.
    for (application, reason) in [
        (by_aws(host.name(), tpm_id), "AnotherMachine"),
        (by_aws(host.name(), aws_id), "NodeNameMismatch"),
        (by_aws(instance.name(), aws_id), "RequesterIsAnotherNode"),
    ] {
        let kubeconfig = BED.certificate_of(&host.kubelet);
        BED.ask(&kubeconfig, application).is_denied(reason);
    }
    let (kubeconfig, own) = (BED.certificate_of(&host.kubelet), host.name());
    let answer = BED.ask_signer_of(&Provider::TPM, &kubeconfig, by_aws(own, tpm_id));
    answer.is_denied("ProviderMismatch");

    let specs = |records: [Value; 2]| records.map(|mut record| record["spec"].take());
    assert_eq!(specs(records()), specs(before));
}

#[test]
fn a_bootstrap_token_with_evidence_of_the_other_kind_is_denied() {
    let Nodes { instance, host } = &*NODES;
    let (spare, own) = (tpm(), BED.launch());
    let (spare_id, own_id) = (provider_id(&spare), own.provider_id());
    let [aws_id, tpm_id] = [instance.machine.provider_id(), host.machine.provider_id()];
    let by_tpm = |node: &str, id: &str| BED.by_tpm(&spare, node, id);

    for (application, reason) in [
        (by_tpm(instance.name(), aws_id), "EndorsementKeyUnknown"),
        (
            by_tpm(instance.name(), &spare_id),
            "ProviderIdOfAnotherMachine",
        ),
        (by_tpm(host.name(), tpm_id), "TokenOfAnotherMachine"),
    ] {
        BED.ask(&instance.token(), application).is_denied(reason);
    }
    for (application, reason) in [
        (BED.by_aws(&own, host.name(), tpm_id), "AnotherMachine"),
        (
            BED.by_aws(&own, host.name(), &own_id),
            "ProviderIdOfAnotherMachine",
        ),
        (
            BED.by_aws(&instance.proof, instance.name(), aws_id),
            "TokenOfAnotherMachine",
        ),
    ] {
        BED.ask(&host.token(), application).is_denied(reason);
    }
}

#[test]
fn a_name_held_with_one_attestor_is_denied_to_the_other_attestor() {
    let (scene, Nodes { instance, host }) = (&BED.scene, &*NODES);
    // A host whose Machine has the name of the instance's Node, and an instance whose name belongs to a host.
    let (spare, taken) = (tpm(), BED.launch());
    let spare_id = provider_id(&spare);
    let machine = BED.machine_with("host-2", &spare);
    let names = (instance.name(), &*spare_id);
    let answer = BED.enrol(&machine.bootstrap_kubeconfig(), &spare, names);
    answer.is_denied("NodeNameMismatch");

    let holder = tpm();
    let holder_id = provider_id(&holder);
    let machine = scene.cluster.machine("host-3").provider_id(&holder_id);
    let machine = machine.node_name(taken.node_name()).create();
    let names = (taken.node_name(), &*holder_id);
    BED.enrol(&machine.bootstrap_kubeconfig(), &holder, names)
        .is_issued();
    let machine = BED.machine_of("instance-2", &taken);
    let application = BED.by_aws(&taken, taken.node_name(), &taken.provider_id());
    let answer = BED.ask(&machine.bootstrap_kubeconfig(), application);
    answer.is_denied("NameTaken");

    // An instance does not have evidence for the name of a Node that belongs to a host.
    let application = BED.by_aws(&taken, host.name(), &taken.provider_id());
    let answer = BED.ask(&machine.bootstrap_kubeconfig(), application);
    answer.is_denied("NodeNameMismatch");
    let record = scene.record(taken.node_name());
    assert_eq!(record["spec"]["providerID"], *holder_id, "{record:#}");
    assert_first_generation(&record);
}

#[test]
fn an_instance_that_joined_with_a_nitro_tpm_is_denied_without_it() {
    let scene = &BED.scene;
    let (instance, tpm) = (BED.launch(), tpm());
    let moto = BED.cloud.moto();
    moto.give_tpm(&instance.ec2.id, NitroTpm::of(tpm.tpm()));
    let id = instance.provider_id();
    let machine = BED.machine_of("nitro", &instance);
    let names = (instance.node_name(), &*id);
    let token = machine.bootstrap_kubeconfig();
    let joined = BED.enrol(&token, &tpm, names);
    joined.is_issued();
    assert_eq!(scene.record(names.0)["spec"]["attestor"], "tpm");

    // The attacker has the credentials from the instance's metadata service, but does not have the instance's TPM.
    let certificate = BED.certificate_in(&joined);
    for kubeconfig in [&token, &certificate] {
        let application = BED.by_aws(&instance, names.0, names.1);
        BED.ask(kubeconfig, application)
            .is_denied("AnotherInstance");
    }

    let spare = self::tpm();
    BED.enrol(&token, &spare, names)
        .is_denied("EndorsementKeyOfAnotherMachine");

    BED.enrol(&certificate, &tpm, names).is_issued();
    let record = scene.record(names.0);
    assert_eq!(record["spec"]["attestor"], "tpm", "{record:#}");
    assert_first_generation(&record);
}

#[test]
fn an_unknown_attestor_does_not_affect_the_others() {
    let bed = Bed::authorizing(&["contoso-cloud", "aws", "tpm"]);
    let (scene, kubectl) = (&bed.scene, bed.scene.site.management.kubectl());
    let object =
        scene
            .authentication
            .wait_for(kubectl, "AttestorsAvailable", "False", "AttestorUnknown");
    let message = condition_of(&object, "AttestorsAvailable")["message"].clone();
    assert!(
        message.as_str().unwrap().contains("contoso-cloud"),
        "{message}"
    );
    let (instance, tpm) = (bed.launch(), tpm());
    let machines = [
        bed.machine_of("instance-1", &instance),
        bed.machine_with("host-1", &tpm),
    ];

    let contoso = Provider::parse("contoso-cloud").unwrap();
    let of = |machine: &Machine| {
        let evidence = |_: &[u8]| Some(b"{}".to_vec());
        let (name, id) = (machine.node_name(), machine.provider_id());
        Application::proving(name, id, contoso.clone(), evidence)
    };
    let waiting = scene.file(&machines[0].bootstrap_kubeconfig(), &of(&machines[0]));
    let names = (machines[1].node_name(), machines[1].provider_id());
    bed.enrol(&machines[1].bootstrap_kubeconfig(), &tpm, names)
        .is_issued();
    let names = (machines[0].node_name(), machines[0].provider_id());
    let application = bed.by_aws(&instance, names.0, names.1);
    bed.ask(&machines[0].bootstrap_kubeconfig(), application)
        .is_issued();
    scene.assert_waits("instance-1", &waiting, "VerifierUnavailable");
}

#[test]
fn an_sts_outage_delays_instances_but_not_hosts_with_tpms() {
    let bed = Bed::start();
    let (instance, tpm) = (bed.launch(), tpm());
    let waiting = bed.machine_of("instance-1", &instance);
    let joining = bed.machine_with("host-1", &tpm);
    let sts = bed.cloud.sts();
    sts.inject(Times::always(), Fault::service_unavailable());

    let application = bed.by_aws(&instance, waiting.node_name(), waiting.provider_id());
    let request = bed
        .scene
        .file(&waiting.bootstrap_kubeconfig(), &application);
    let names = (joining.node_name(), joining.provider_id());
    bed.enrol(&joining.bootstrap_kubeconfig(), &tpm, names)
        .is_issued();

    let scene = &bed.scene;
    scene.assert_waits("instance-1", &request, "VerifierUnavailable");
    sts.clear_faults();
    let csr = scene.answer(&request);
    assert!(is_issued(&csr), "{csr:#}");
}

/// The JSON output of an operator's command in the management cluster.
fn told(arguments: &[&str]) -> Value {
    let management = BED.scene.site.management.control_plane();
    let output = Command::new(program("node-attestation-controller"))
        .args(arguments)
        .args(["-o", "json", "--insecure-allow-loopback", "--kubeconfig"])
        .arg(management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The explanation of a request, for an operator who has the certificate of the cloud's document signer.
fn explained(request: &str) -> Value {
    let options = BED.cloud.arguments_without_fallback();
    let [option, file] = [&options[0], &options[1]].map(|word| word.to_str().unwrap());
    assert_eq!(option, "--aws-extra-signers");
    let cluster = "both/prod-1";
    told(&["explain", request, "--cluster", cluster, option, file])
}

#[test]
fn requests_of_two_attestors_are_explained_in_a_healthy_cluster() {
    let Nodes { instance, host } = &*NODES;
    let spare = tpm();
    let application = BED.by_tpm(&spare, host.name(), host.machine.provider_id());
    let by_tpm = BED.ask(&host.token(), application);
    let application = BED.by_aws(&instance.proof, host.name(), host.machine.provider_id());
    let by_aws = BED.ask(&host.token(), application);

    for (answer, provider, reason) in [
        (&by_tpm, Provider::TPM, "EndorsementKeyOfAnotherMachine"),
        (&by_aws, Provider::AWS, "AnotherMachine"),
    ] {
        answer.is_denied(reason);
        let told = explained(&answer.application.name());
        assert_eq!(told["signerName"], provider.client_signer(), "{told:#}");
        let last = told["checks"].as_array().unwrap().last().unwrap();
        assert_eq!(last["name"], "evidence", "{told:#}");
        for found in [&told["reason"], &told["conditions"][0]["reason"]] {
            assert_eq!(found, reason, "{told:#}");
        }
    }

    let checks = told(&["cluster", "check", "both/prod-1"]);
    for name in [
        "authentication",
        "ca",
        "identities",
        "workload-rights",
        "nodes",
    ] {
        let mut all = checks["checks"].as_array().unwrap().iter();
        let check = all.find(|check| check["name"] == name).unwrap();
        assert_eq!(check["state"], "pass", "{checks:#}");
    }
}
