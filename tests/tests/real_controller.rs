//! Tests of the controller with a real API server. The controller has only the required permissions, and runs next to
//! kube-controller-manager with all controllers of kubeadm's clusters.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::LazyLock;

use kubelet_attestation::names::{BUILT_IN_CLIENT_SIGNER, BUILT_IN_SERVING_SIGNER, Provider};
use kubelet_authenticator_test_support::control_plane::Controllers;
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_test_support::settings::option;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_tests::absence::assert_refused;
use kubelet_authenticator_tests::controller::{
    Application, CLUSTER, Controller, Machine, PATIENCE, RealBed, conditions, inventory, is_issued,
    reason_of,
};
use kubelet_authenticator_tests::page::{Desk, repository, steps};
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::tpm::{PLUGIN, provider_id};
use serde_json::{Value, json};

/// The resource of node identities.
const IDENTITIES: &str = "nodeidentities.attestation.cluster.x-k8s.io";

/// The cluster that all tests share, because every test has its own machines.
static BED: LazyLock<RealBed> = LazyLock::new(|| RealBed::start(Controllers::Default));

/// The errors about permissions in the controller's log.
fn complaints(controller: &Controller) -> Vec<String> {
    let lines = controller.lines();
    lines
        .iter()
        .filter_map(|line| line["fields"]["right"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn a_node_authenticates_with_its_certificate_under_minimal_rbac() {
    const MACHINE: Machine = Machine::new("issued", "issue1");
    let mut controller = BED.insecure(&[MACHINE]).start();
    let application = Application::insecure(MACHINE);
    let name = BED.file(&application);

    let csr = BED.wait_for_answer(&name);

    assert_eq!(conditions(&csr), ["Approved"]);
    assert_eq!(reason_of(&csr, "Approved"), Some("NodeNameClaimed"));
    let user = BED.who_is(&BED.kubeconfig_of(&application, &csr));
    assert_eq!(user["username"], "system:node:issued");
    assert_eq!(
        user["groups"],
        json!(["system:nodes", "system:authenticated"])
    );
    let uid = user["uid"].as_str().unwrap();
    assert!(uid.len() == 34 && uid.ends_with(".1"), "{uid}");

    controller.wait_for_line("the API server responds", |_| true);
    assert_eq!(complaints(&controller), Vec::<String>::new());
    let field = format!("involvedObject.name={name},reason=FirstJoin");
    let events = ["events", "--namespace=default", "--field-selector", &field];
    let kubectl = BED.cluster.kubectl();
    let event = kubectl.wait_for(&events, "about the request", PATIENCE, |_| true);
    assert_eq!(event["type"], "Normal");
}

#[test]
fn a_machine_joins_with_the_documented_inventory_and_command() {
    let desk = Desk::new(BED.cluster.admin_kubeconfig());
    let files = desk.files();
    symlink(BED.cluster.admin_kubeconfig(), files.join("admin.conf")).unwrap();
    symlink(BED.cluster.ca_cert_path(), files.join("ca.crt")).unwrap();
    symlink(BED.cluster.ca_key_path(), files.join("ca.key")).unwrap();
    let page = fs::read_to_string(repository().join("docs/standalone.md")).unwrap();
    let (_, inventory) = page.split_once("## Inventory\n\n```yaml\n").unwrap();
    let (inventory, _) = inventory.split_once("```").unwrap();
    files.write("machines.yaml", inventory);
    let heading = "## Start the controller";
    // The commands are changed, because the machine does not have a TPM. `cluster check` is omitted, because this test
    // does not check kubeadm's bindings.
    let commands = steps("standalone.md", heading)
        .into_iter()
        .map(|(_, command)| {
            command
                .replace("--attestor tpm", "--attestor insecure")
                .replace("--tpm-challenge-keys challenge-keys", "--allow-insecure")
        });
    let commands: Vec<_> = commands
        .filter(|it| !it.contains(" cluster check "))
        .collect();
    let is_run = |command: &String| command.contains(" run ");
    let run = commands.iter().position(is_run).unwrap();
    desk.follow(&commands[..run].join("\n"));

    let controller = desk.shell(&commands[run]).spawn(&files.join("run"));

    let application =
        Application::claiming("worker-1", "example:///worker-1", Provider::INSECURE, None);
    let name = BED.file(&application.with_token("abcdef"));
    let csr = BED.wait_for_answer(&name);
    assert_eq!(
        reason_of(&csr, "Approved"),
        Some("NodeNameClaimed"),
        "{}",
        controller.log()
    );
    assert!(is_issued(&csr));
}

#[test]
fn a_request_with_an_unparsable_time_does_not_block_other_joins() {
    const HOSTILE: Machine = Machine::new("timeless", "time01");
    const MACHINE: Machine = Machine::new("timely", "time02");
    const TIME: &str = "9999-12-31T23:59:59Z";
    let hostile = Application::insecure(HOSTILE);
    let mut object = hostile.to_json();
    object["metadata"]["managedFields"] = json!([{
        "manager": "kubelet", "operation": "Update", "apiVersion": "certificates.k8s.io/v1",
        "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:request": {}}},
    }]);
    let token = BED
        .cluster
        .add_bootstrap_token(hostile.token(), "0123456789abcdef");
    let kubeconfig = BED.cluster.bootstrap_kubeconfig(&token);
    let kubectl = BED.cluster.kubectl_with(&kubeconfig);
    let stored = kubectl.create_object(&object);
    assert!(stored["metadata"]["name"] == hostile.name(), "{stored}");
    let kubectl = BED.cluster.kubectl();
    let arguments = ["get", "csr", &hostile.name(), "--show-managed-fields"];
    let stored = kubectl.json(arguments)["metadata"]["managedFields"].to_string();
    assert!(stored.contains(TIME), "{stored}");

    // The controller's first list contains the request.
    let _controller = BED.insecure(&[HOSTILE, MACHINE]).start();
    let name = BED.file(&Application::insecure(MACHINE));

    assert!(is_issued(&BED.wait_for_answer(&name)));
    assert!(is_issued(&BED.wait_for_answer(&hostile.name())));
}

#[test]
fn kube_controller_manager_does_not_answer_a_denied_request() {
    const MINE: Machine = Machine::new("denied", "deny01");
    const OTHER: Machine = Machine::new("denied-other", "deny02");
    let _controller = BED.insecure(&[MINE, OTHER]).start();

    let name = BED.file(&Application::insecure(MINE).with_token_of(OTHER));
    BED.wait_for_answer(&name);
    // When both controllers have answered a later request, they have both received the denial.
    let later = BED.file(&Application::insecure(OTHER));
    assert!(is_issued(&BED.wait_for_answer(&later)));

    let csr = BED.request(&name);
    assert_eq!(conditions(&csr), ["Denied"]);
    assert_refused(&csr, ("Denied", "ProviderIdOfAnotherMachine"));
}

#[test]
fn a_deferred_request_is_not_changed_and_is_issued_later() {
    const MACHINE: Machine = Machine::new("waiting", "wait01");
    let setup = BED.null(&[]);
    let mut controller = setup.start();
    let name = BED.file(&BED.stamped(MACHINE));
    let before = BED.request(&name);

    assert_eq!(controller.wait_for_decision(&name)["outcome"], "deferred");
    assert_eq!(BED.request(&name), before);

    setup.write_inventory(&inventory(&[MACHINE]));
    assert!(is_issued(&BED.wait_for_answer(&name)));
}

#[test]
fn an_invalid_request_approved_by_an_administrator_is_not_signed() {
    const MINE: Machine = Machine::new("approved", "appr01");
    const OTHER: Machine = Machine::new("approved-other", "appr02");
    let name = BED.file(&Application::insecure(MINE).with_token_of(OTHER));
    BED.cluster.kubectl().ok(["certificate", "approve", &name]);

    let _controller = BED.insecure(&[MINE, OTHER]).start();
    let csr = BED.wait_for_answer(&name);

    assert_eq!(conditions(&csr), ["Approved", "Failed"]);
    let reason = reason_of(&csr, "Failed").unwrap();
    assert_refused(&csr, ("Failed", reason));
}

#[test]
fn a_crash_between_approval_and_signing_is_recovered() {
    for (point, machine, approved) in [
        ("claim", Machine::new("crash-claim", "crash1"), false),
        ("approve", Machine::new("crash-approve", "crash2"), true),
        ("publish", Machine::new("crash-publish", "crash3"), true),
    ] {
        let setup = BED.null(&[machine]);
        let application = BED.stamped(machine);
        let name = BED.file(&application);
        setup
            .start_with(&["--crash-after", point])
            .wait_until_it_crashed();
        let between = BED.request(&name);
        assert_eq!(conditions(&between) == ["Approved"], approved, "{point}");
        assert_eq!(is_issued(&between), point == "publish", "{point}");

        let _controller = setup.start();
        let csr = BED.wait_for_answer(&name);

        let user = BED.who_is(&BED.kubeconfig_of(&application, &csr));
        assert_eq!(user["username"], format!("system:node:{}", machine.name));
        assert_eq!(conditions(&csr), ["Approved"], "{point}");
    }
}

#[test]
fn the_controller_reconnects_to_a_restarted_api_server() {
    const MACHINE: Machine = Machine::new("restarted", "rest01");
    let bed = RealBed::start(Controllers::None);
    let mut controller = bed.null(&[MACHINE]).start();
    controller.wait_until_it_watches();

    bed.cluster.restart_apiserver();
    let name = bed.file(&bed.stamped(MACHINE));

    assert!(is_issued(&bed.wait_for_answer(&name)));
}

#[test]
fn requests_are_answered_after_etcd_was_restored_from_a_backup() {
    const BEFORE: Machine = Machine::new("before-backup", "back01");
    const AFTER: Machine = Machine::new("after-restore", "back02");
    let bed = RealBed::start(Controllers::None);
    let setup = bed.null(&[BEFORE, AFTER]);
    // The backup must contain the token for a request after the restore.
    let (before, after) = (bed.stamped(BEFORE), bed.stamped(AFTER));
    let mut controller = setup.start();
    controller.wait_until_it_watches();
    let backup = bed.cluster.backup();
    // The `resourceVersion` of the watch advances far beyond the `resourceVersion` in the backup.
    let objects: Vec<_> = (0..500)
        .map(|number| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("filler-{number}"), "namespace": "default"},
            })
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    bed.cluster.kubectl().apply_object(&list);
    assert!(is_issued(&bed.wait_for_answer(&bed.file(&before))));

    bed.cluster.restore(&backup);
    let name = bed.file(&after);

    assert!(is_issued(&bed.wait_for_answer(&name)));
}

#[test]
fn a_missing_permission_is_named_and_work_continues_once_granted() {
    const MACHINE: Machine = Machine::new("rights", "right1");
    const USER: &str = "controller-without-sign";
    let bed = &*BED;
    bed.grant(USER, &["approve"]);
    let mut controller = bed.null_as(USER, &[MACHINE]).start();
    let signers = [
        Provider::NULL.client_signer(),
        Provider::NULL.serving_signer(),
        BUILT_IN_CLIENT_SIGNER.to_owned(),
        BUILT_IN_SERVING_SIGNER.to_owned(),
    ];
    let sign = signers.map(|signer| format!("sign signers.certificates.k8s.io/{signer}"));
    let missing = "a permission is missing: the controller cannot answer requests";
    controller.wait_for_line(missing, |line| line["right"] == sign[3]);
    assert_eq!(complaints(&controller), sign);
    let name = bed.file(&bed.stamped(MACHINE));
    // The controller also processes the requests from the other tests.
    let line = controller.wait_for_line("the request was not answered", |line| line["csr"] == name);
    assert!(
        line["error"]
            .as_str()
            .unwrap()
            .contains("not permitted to sign"),
        "{line}"
    );
    assert_eq!(conditions(&bed.request(&name)), ["Approved"]);

    bed.grant(USER, &["approve", "sign"]);

    assert!(is_issued(&bed.wait_for_answer(&name)));
}

/// The node identity of the machine's node.
fn identity(machine: Machine) -> Value {
    let name = format!("{CLUSTER}.{}", machine.name);
    let words = ["get", "nodeidentities", "-n", "kube-system", &name];
    BED.cluster.kubectl().json(words)
}

#[test]
fn a_restarted_controller_renews_an_earlier_certificate() {
    const MACHINE: Machine = Machine::new("restarts", "start1");
    // This duration is shorter than the minimum lifetime in a request.
    let setup = BED
        .null(&[MACHINE])
        .args(&["--certificate-duration", "300s"]);
    let controller = setup.start();
    let first = BED.stamped(MACHINE);
    let csr = BED.wait_for_answer(&BED.file(&first));
    let node = BED.kubeconfig_of(&first, &csr);
    let user = BED.who_is(&node);
    let before = identity(MACHINE);
    assert_eq!(before["spec"]["generation"], 1);
    assert_eq!(controller.stop(), Some(0));

    let _controller = setup.start();
    let second = BED.stamped(MACHINE);
    let csr = BED.wait_for_answer(&BED.file_with(&node, &second));

    assert_eq!(
        BED.who_is(&BED.kubeconfig_of(&second, &csr))["uid"],
        user["uid"]
    );
    assert_eq!(csr["spec"]["username"], "system:node:restarts");
    assert_eq!(csr["spec"]["uid"], user["uid"]);
    assert_eq!(
        identity(MACHINE)["metadata"]["uid"],
        before["metadata"]["uid"]
    );
}

#[test]
fn the_name_of_a_node_without_evidence_waits_after_a_restart() {
    const MACHINE: Machine = Machine::new("name-waits", "waits1");
    let setup = BED.insecure(&[MACHINE]);
    let controller = setup.start();
    let name = BED.file(&Application::insecure(MACHINE));
    assert!(is_issued(&BED.wait_for_answer(&name)));
    assert_eq!(controller.stop(), Some(0));

    let mut controller = setup.start();
    // Either the machine has lost its key, or another machine uses the same token.
    let name = BED.file(&Application::insecure(MACHINE));

    let decision = controller.wait_for_decision(&name);
    assert_eq!(decision["outcome"], "deferred");
    assert_eq!(decision["reason"], "IdentityLive");
    assert_eq!(identity(MACHINE)["spec"]["generation"], 1);

    let reset = ["identities", "reset", "--yes", CLUSTER, MACHINE.name];
    let reset = Command::new(program("node-attestation-controller"))
        .args(reset)
        .args(["-n", "kube-system", "--kubeconfig"])
        .arg(BED.cluster.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(reset.status.success(), "{reset:?}");
    assert!(is_issued(&BED.wait_for_answer(&name)));
    assert_ne!(identity(MACHINE)["spec"]["generation"], 1);
}

#[test]
fn a_revoked_node_does_not_renew_after_a_restart() {
    const MACHINE: Machine = Machine::new("ends", "ends01");
    let setup = BED.null(&[MACHINE]);
    let controller = setup.start();
    let first = BED.stamped(MACHINE);
    let csr = BED.wait_for_answer(&BED.file(&first));
    let node = BED.kubeconfig_of(&first, &csr);
    assert_eq!(controller.stop(), Some(0));

    let revoke = ["identities", "revoke", "--yes", CLUSTER, MACHINE.name];
    let revoke = Command::new(program("node-attestation-controller"))
        .args(revoke)
        .args(["-n", "kube-system", "--kubeconfig"])
        .arg(BED.cluster.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(revoke.status.success(), "{revoke:?}");
    let text = String::from_utf8(revoke.stdout).unwrap();
    let accepts = "keeps its read access until its certificate expires";
    assert!(text.contains(accepts), "{text}");

    let _controller = setup.start();
    let csr = BED.wait_for_answer(&BED.file_with(&node, &BED.stamped(MACHINE)));
    assert_eq!(reason_of(&csr, "Denied"), Some("IdentityRevoked"));
}

#[test]
fn an_adopted_node_keeps_its_identity_after_a_restart() {
    const MACHINE: Machine = Machine::new("adopted", "");
    const NODE: &str = "system:node:adopted";
    let setup = BED.null(&[MACHINE]).spec(&json!({"adoption": "Allow"}));
    let controller = setup.start();
    let existing = BED
        .cluster
        .client_cert_kubeconfig(NODE, Some("system:nodes"));
    let first = BED.stamped(MACHINE);
    let csr = BED.wait_for_answer(&BED.file_with(&existing, &first));
    let node = BED.kubeconfig_of(&first, &csr);
    let user = BED.who_is(&node);
    assert_eq!(user["username"], NODE);
    assert_eq!(controller.stop(), Some(0));

    let _controller = setup.start();
    let second = BED.stamped(MACHINE);
    let csr = BED.wait_for_answer(&BED.file_with(&node, &second));

    let renewed = BED.who_is(&BED.kubeconfig_of(&second, &csr));
    assert_eq!(renewed["uid"], user["uid"]);
}

#[test]
fn an_existing_node_is_adopted_only_by_option_and_with_its_tpm() {
    const MACHINE: Machine = Machine::new("tpm-adopted", "");
    let tpm = || TpmMachine::new(Swtpm::start().into(), EndorsementKey::P384);
    let (own, other, files) = (tpm(), tpm(), Scratch::new("adopted"));
    let keys = files.directory("keys");
    fs::write(keys.join("current"), "0f".repeat(32)).unwrap();
    let digest = provider_id(&own).replace("tpm://", "");
    let list = json!([{"machine": MACHINE.name, "ekSha256": digest}]);
    let setup = BED.tpm(&[MACHINE], &keys);
    let setup = setup.spec(&json!({"tpm": {"endorsementKeys": {"allowList": list}}}));
    let (user, group) = ("system:node:tpm-adopted", Some("system:nodes"));
    let certificate = BED.cluster.client_cert_kubeconfig(user, group);
    let renew = |state: &str, tpm: &TpmMachine, code: i32| {
        let settings = [
            ("bootstrapKubeconfig", certificate.display().to_string()),
            ("stateDirectory", files.join(state).display().to_string()),
            ("nodeName", MACHINE.name.to_owned()),
            ("providerID", MACHINE.provider_id()),
            ("tpm.tcti", tpm.tpm().tcti()),
        ];
        let mut plugin = Command::new(program(PLUGIN));
        plugin.args(settings.map(|(key, value)| option(key, value)));
        let output = plugin.args(["renew", "--force"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{error}");
        error
    };

    let controller = setup.start();
    let error = renew("refused", &own, 12);
    assert!(error.contains("RequesterUidMissing"), "{error}");
    assert_eq!(controller.stop(), Some(0));

    let setup = setup.spec(&json!({"adoption": "Allow"}));
    let controller = setup.start();
    let error = renew("other", &other, 12);
    assert!(error.contains("EndorsementKeyOfAnotherMachine"), "{error}");
    renew("adopted", &own, 0);
    let spec = identity(MACHINE)["spec"].take();
    assert_eq!(spec["endorsementKeySHA256"], digest, "{spec:#}");
    assert_eq!(spec["generation"], 1, "{spec:#}");
    assert_eq!(controller.stop(), Some(0));

    let _controller = setup.start();
    renew("adopted", &own, 0);
    assert_eq!(identity(MACHINE)["spec"]["uid"], spec["uid"]);
}

#[test]
fn without_its_permissions_the_controller_prints_a_command_and_ends() {
    const MACHINE: Machine = Machine::new("granted", "grant1");
    const USER: &str = "controller-without-identities";
    let bed = &*BED;
    bed.grant(USER, &["approve", "sign"]);
    let kubectl = bed.cluster.kubectl();
    kubectl.ok(["delete", "rolebinding", USER, "-n", "kube-system"]);
    let own = bed.cluster.client_cert_kubeconfig(USER, None);
    let own = bed.cluster.kubectl_with(&own);
    let can = |expected: bool| {
        let words = ["auth", "can-i", "create", IDENTITIES, "-n", "kube-system"];
        let can = || own.run(words).status.success() == expected;
        poll(PATIENCE, || can().then_some(())).unwrap();
    };
    can(false);
    let setup = bed.insecure_as(USER, &[MACHINE]);

    let mut controller = setup.start();

    assert_eq!(controller.process.wait(PATIENCE).code(), Some(3));
    let lines = controller.lines();
    let mut fields = lines.iter().map(|line| &line["fields"]);
    let ended = fields.find(|fields| fields["message"] == "the controller cannot run");
    let ended = ended.unwrap();
    let error = ended["error"].as_str().unwrap();
    let missing = format!("permissions are missing: get {IDENTITIES} in namespace kube-system, ");
    assert!(error.contains(&missing), "{error}");
    let hint = ended["hint"].as_str().unwrap();
    let (_, command) = hint.split_once("run: ").unwrap();
    assert!(command.contains(USER), "{command}");

    Desk::new(bed.cluster.admin_kubeconfig()).follow(command);
    can(true);
    let _controller = setup.start();
    let name = bed.file(&Application::insecure(MACHINE));
    assert!(is_issued(&bed.wait_for_answer(&name)));
}
