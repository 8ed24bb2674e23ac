//! Tests of scenarios that operators try first, and that no other suite covers completely.

use std::process::Command;
use std::sync::{Arc, LazyLock};

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::absence::{Later, assert_unanswered};
use kubelet_authenticator_tests::controller::is_issued;
use kubelet_authenticator_tests::fleet::{Manager, condition_of, management};
use kubelet_authenticator_tests::management::Machine;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::{SWEPT, Scene, Site};
use kubelet_authenticator_tests::scrape::Diagnostics;
use node_attestation_runtime::machine_conditions::NODE_ATTESTED;
use serde_json::{Value, json};

/// The number of pool members that join at the same time.
const MEMBERS: usize = 50;

/// The name of a node whose evidence every verifier rejects.
const DENIED: &str = "denied";

static DIAGNOSTICS: LazyLock<Diagnostics> = LazyLock::new(Diagnostics::default);

static SITE: LazyLock<Arc<Site>> = LazyLock::new(|| {
    let management = management();
    let [metrics, health] = &DIAGNOSTICS.arguments();
    let deny = format!("--deny-for={DENIED}");
    let manager = Manager::null(&management, &[metrics, health, &deny]);
    Arc::new(Site {
        management,
        manager,
    })
});

#[test]
fn a_stolen_token_for_a_control_plane_node_is_denied_with_an_event() {
    let settings = json!({"autoApproveBindings": "Remove"});
    let scene = Scene::start(&SITE, "stolen-token", settings);
    let worker = scene.cluster.machine("worker").create();
    let control_plane = scene.cluster.machine("control-plane").control_plane();
    let control_plane = control_plane.create();
    scene.wait_for_paths("True", "Closed", &[]);
    let stolen = worker.bootstrap_kubeconfig();
    let request = scene.rightful(&control_plane);

    let name = scene.file(&stolen, &request);

    scene.assert_denied(&name, "TokenOfAnotherMachine");
    let fields = format!("regarding.name={name},reason=TokenOfAnotherMachine,type=Warning");
    let events = [
        "events.events.k8s.io",
        "-n",
        "default",
        "--field-selector",
        &fields,
    ];
    let event = scene
        .kubectl()
        .wait_for(&events, "a Warning", SWEPT, |_| true);
    let token = worker.token().id();
    let note = format!("bootstrap token {token} does not belong to machine control-plane");
    assert_eq!(event["note"], note, "{event:#}");
    DIAGNOSTICS.wait_for(&[
        r#"node_attestation_csr_total{outcome="denied",reason="TokenOfAnotherMachine",provider="null"} 1"#,
    ]);

    let mut built_in = request.to_json();
    built_in["metadata"] = json!({"name": "built-in"});
    built_in["spec"]["signerName"] = "kubernetes.io/kube-apiserver-client-kubelet".into();
    let kubectl = scene.cluster.control_plane().kubectl_with(stolen);
    let said = kubectl.try_create(&built_in).unwrap_err();
    assert!(
        said.contains("join through kubelet-authenticator"),
        "{said}"
    );
}

#[test]
fn a_pool_grows_from_0_to_50_nodes_with_the_token_in_its_user_data() {
    let scene = Scene::start(&SITE, "pool-of-fifty", json!({}));
    let pool = scene.cluster.pool("pool-a").create();
    let user_data = pool.bootstrap_kubeconfig();
    let nodes = (0..MEMBERS).map(|number| format!("member-{number}"));
    let nodes: Vec<String> = nodes.collect();
    let id = |node: &String| format!("generic:///pool/{node}");
    let ids: Vec<String> = nodes.iter().map(id).collect();

    pool.set_provider_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>());

    let requests = nodes.iter().zip(&ids);
    let requests = requests.map(|(node, id)| scene.file(&user_data, &scene.stamped(node, id)));
    let requests: Vec<String> = requests.collect();
    for (request, node) in requests.iter().zip(&nodes) {
        let csr = scene.answer(request);
        assert!(is_issued(&csr), "{csr:#}");
        assert_eq!(scene.record(node)["spec"]["providerID"], id(node));
    }
    // A machine that is not a member of the pool cannot join with the same user data.
    let outsider = scene.stamped("member-0", "generic:///pool/outsider");
    let put_off = scene.file(&user_data, &outsider);
    assert_deferred(&scene, &put_off, "MachineNotFound");
}

/// Waits until the controller's log contains the decision on this request. The request must be deferred for this
/// reason. Asserts that the request has no answer. The members have used the limit for the Events on their pool, so an
/// Event about this request would be a minute late.
#[track_caller]
fn assert_deferred(scene: &Scene, request: &str, reason: &str) {
    let log = scene.site.manager.process.log();
    let decision = poll(SWEPT, || {
        let text = log.text();
        let lines = text.lines().filter(|line| line.contains(request));
        let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut fields = lines.map(|mut line| line["fields"].take());
        fields.find(|fields| fields["message"] == "decided" && fields["csr"] == request)
    });
    let decision = decision.unwrap_or_else(|| panic!("no decision on {request}: {log}"));
    assert_eq!(decision["outcome"], "deferred", "{decision:#}");
    assert_eq!(decision["reason"], reason, "{decision:#}");
    assert_unanswered(Later::decision(&decision), || scene.request(request));
}

/// Waits until this condition of the Machine has this status and reason. Returns the condition.
#[track_caller]
fn wait_for_condition(machine: &Machine, status: &str, reason: &str) -> Value {
    let mut last = Value::Null;
    let found = poll(SWEPT, || {
        last = condition_of(&machine.get(), NODE_ATTESTED);
        (last["status"] == status && last["reason"] == reason).then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("{status} {reason}: {last:#}"))
}

#[test]
fn a_machine_condition_shows_whether_its_node_is_attested() {
    let scene = Scene::start(&SITE, "conditions", json!({}));
    let machine = |name| scene.cluster.machine(name).create();
    let [joined, denied, other] = ["joined", DENIED, "other"].map(machine);

    scene.join(&joined);
    let refused = scene.file(&denied.bootstrap_kubeconfig(), &scene.rightful(&denied));

    scene.assert_denied(&refused, "StampWithheld");
    wait_for_condition(&joined, "True", "Attested");
    let told = wait_for_condition(&denied, "False", "StampWithheld");
    let message = told["message"].as_str().unwrap();
    assert!(message.contains(DENIED), "{told:#}");

    // The first request uses the certificate of a different node, and the second request uses a token that is no longer
    // needed.
    let credential = scene.join(&other);
    let claim = scene.file(&credential, &scene.stamped("other", joined.provider_id()));
    let again = scene.file(
        &joined.bootstrap_kubeconfig(),
        &scene.stamped("another-name", joined.provider_id()),
    );
    scene.assert_denied(&claim, "NodeNameMismatch");
    scene.assert_denied(&again, "NodeNameMismatch");
    // The controller writes grants before refusals. After it has written the grant for the second machine, it has
    // written all earlier answers.
    for name in ["later", "last"] {
        let machine = machine(name);
        scene.join(&machine);
        wait_for_condition(&machine, "True", "Attested");
    }
    wait_for_condition(&joined, "True", "Attested");

    let output = Command::new(program("node-attestation-controller"))
        .args(["identities", "revoke", "--yes", "prod-1", "joined"])
        .args(["--namespace", scene.cluster.namespace()])
        .arg("--kubeconfig")
        .arg(SITE.management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    wait_for_condition(&joined, "False", "CertificatesRevoked");
}
