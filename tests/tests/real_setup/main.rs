//! Tests of `setup` on machines with systemd, real kubeadm and a real kubelet: the only difference from a stock node is
//! the drop-in that `render` prints.

mod pages;

use std::fmt::Write as _;
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use kubelet_authenticator::testing::Step;
use kubelet_authenticator_test_support::control_plane::{
    BootstrapToken, ControlPlane, Controllers, KubeadmBinding, User,
};
use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::settings;
use kubelet_authenticator_tests::controller::{
    Controller, Machine as Member, Setup, define_identities, inventory,
};
use kubelet_authenticator_tests::machines::CREDENTIAL;
use kubelet_authenticator_tests::node::{NULL, UNDER_TEST};
use kubelet_authenticator_tests::{program, steps};
use serde_json::{Value, json};

/// The path of the plugin on the machines.
const PLUGIN: &str = "/usr/local/bin/kubelet-authenticator-null";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf";

const BOOTSTRAP: &str = "/etc/kubernetes/bootstrap-kubelet.conf";
const KUBELET_CONF: &str = "/etc/kubernetes/kubelet.conf";
const ENVIRONMENT: &str = "/etc/kubernetes/kubelet-authenticator/kubelet.env";
const STORE: &str = "/var/lib/kubelet-authenticator";

/// The secret half of every token.
const SECRET: &str = "0123456789abcdef";

const PATIENCE: Duration = Duration::from_secs(180);

const JOINS: Member = Member::new("joins-1", "joins1");
const REFUSED: Member = Member::new("refused-1", "refus1");
const KILLED: Member = Member::new("killed-1", "killed");
const LATE: Member = Member::new("late-1", "lateon");
const BARE: Member = Member::new("bare-1", "barepl");
const HANGS: Member = Member::new("hangs-1", "hangs1");
const BY_README: Member = Member::new("by-readme", "byread");
const BY_PAGE: Member = Member::new("by-page", "bypage");

/// A kubeadm cluster in which only the project's controller approves requests. The inventory lists the accepted
/// machines.
struct Cluster {
    plane: ControlPlane,
    setup: Setup,
    known: Mutex<Vec<Member>>,
    _controller: Mutex<Controller>,
}

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let plane = ControlPlane::builder()
        .anonymous_auth()
        .controllers(Controllers::Certificates)
        .start();
    plane.prepare_for_joins();
    plane.remove_binding(KubeadmBinding::NodeAutoapproveBootstrap);
    plane.remove_binding(KubeadmBinding::NodeAutoapproveCertificateRotation);
    let ca = (&*plane.ca_cert_path(), &*plane.ca_key_path());
    define_identities(plane.kubectl());
    let controller = program("null-attestation-controller");
    let known = vec![JOINS, KILLED, BARE, HANGS, BY_README, BY_PAGE];
    let setup = Setup::new(&controller, plane.admin_kubeconfig(), ca, &known);
    let mut controller = setup.start();
    controller.wait_until_it_watches();
    Cluster {
        plane,
        setup,
        known: Mutex::new(known),
        _controller: Mutex::new(controller),
    }
});

impl Cluster {
    /// Adds this machine to the inventory.
    fn accept(&self, member: Member) {
        let mut known = self.known.lock().unwrap();
        known.push(member);
        self.setup.write_inventory(&inventory(&known));
    }
}

/// A machine in the cluster whose image contains the plugin and its drop-in.
struct Node {
    member: Member,
    machine: Machine,
    token: BootstrapToken,
}

impl Node {
    fn boot(member: Member) -> Self {
        Self::with(member, NULL, PLUGIN, "")
    }

    /// Boots a machine whose drop-in runs `setup` with this option, if the option is not empty.
    fn with(member: Member, plugin: &str, path: &str, option: &str) -> Self {
        let plane = &CLUSTER.plane;
        let token = plane.add_bootstrap_token(member.token, SECRET);
        plane.wait_for_discovery(&token);
        let rendered = Command::new(program(plugin))
            .args(["render", "--command", path, "kubelet-drop-in"])
            .output()
            .unwrap();
        assert!(rendered.status.success(), "{rendered:?}");
        let drop_in = String::from_utf8(rendered.stdout).unwrap();
        let drop_in = drop_in.replacen(" setup", &format!(" {option} setup"), 1);
        let machine = Machine::builder(plane, member.name)
            .program(path, &program(plugin))
            .file(DROP_IN, 0o644, drop_in)
            .file(
                "/etc/kubernetes/kubelet-authenticator/config.yaml",
                0o644,
                settings::file([]),
            )
            .boot();
        Self {
            member,
            machine,
            token,
        }
    }

    fn join(&self) -> Output {
        let provider_id = self.member.provider_id();
        let arguments = [("provider-id", &*provider_id)];
        self.machine.kubeadm_join(&self.token.bearer(), &arguments)
    }

    #[track_caller]
    fn joins(&self) {
        let joined = self.join();
        assert!(joined.status.success(), "{}", self.said(&joined));
        CLUSTER.plane.wait_for_node_ready(self.member.name);
    }

    fn said(&self, output: &Output) -> String {
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        write!(text, "{stderr}\n{}", self.machine.journal()).unwrap();
        text
    }

    /// The requests with the machine's token and certificate, except requests whose names look like a stock kubelet's.
    fn requests(&self) -> Vec<String> {
        let users = [
            format!("system:bootstrap:{}", self.member.token),
            format!("system:node:{}", self.member.name),
        ];
        let csrs = CLUSTER.plane.csrs().into_iter();
        csrs.filter(|csr| users.iter().any(|user| csr["spec"]["username"] == **user))
            .map(|csr| csr["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The arguments of the running kubelet.
    fn kubelet_arguments(&self) -> Vec<String> {
        let running = poll(PATIENCE, || {
            let words = [
                "systemctl",
                "show",
                "--property=MainPID",
                "--value",
                "kubelet",
            ];
            let pid = self.machine.ok(&words);
            let path = format!("/proc/{}/cmdline", pid.trim());
            let line = self.machine.read(&path).filter(|line| !line.is_empty())?;
            let words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            let words: Vec<_> = words.map(|word| word.into_owned()).collect();
            words.first()?.ends_with("kubelet").then_some(words)
        });
        running.unwrap_or_else(|| panic!("no kubelet: {}", self.machine.journal()))
    }

    #[track_caller]
    fn runs_by_the_plugin(&self) {
        let arguments = self.kubelet_arguments();
        let has = |argument: &str| arguments.iter().any(|one| one == argument);
        assert!(has("--rotate-certificates=false"), "{arguments:?}");
        let kubeconfig = format!("--kubeconfig={KUBELET_CONF}");
        assert!(has(&kubeconfig), "{arguments:?}");
        let bootstraps = |one: &String| one.contains("bootstrap-kubeconfig");
        assert!(!arguments.iter().any(bootstraps), "{arguments:?}");
    }

    /// Restarts the kubelet, and waits until it has renewed its Lease.
    #[track_caller]
    fn restart(&self) {
        let name = self.member.name;
        let lease = ["leases", "-n", "kube-node-lease", "--field-selector"];
        let selector = format!("metadata.name={name}");
        let lease = [&lease[..], &[&*selector]].concat();
        let kubectl = CLUSTER.plane.kubectl();
        let renewed = |lease: &Value| lease["spec"]["renewTime"].as_str().map(str::to_owned);
        self.machine.ok(&["systemctl", "restart", "kubelet"]);
        let mut first = None;
        kubectl.wait_for(&lease, "renewed by the new kubelet", PATIENCE, |lease| {
            let time = renewed(lease);
            *first.get_or_insert_with(|| time.clone()) != time
        });
    }
}

#[test]
fn kubeadm_join_uses_the_plugin_until_setup_is_undone() {
    let node = Node::boot(JOINS);
    let machine = &node.machine;
    let verified = machine.run(&["systemd-analyze", "verify", "kubelet.service"]);
    let complaints = String::from_utf8_lossy(&verified.stderr);
    assert!(
        !complaints.contains("kubelet-authenticator"),
        "{complaints}"
    );

    node.joins();

    node.runs_by_the_plugin();
    assert!(!machine.exists(BOOTSTRAP));
    let requests = node.requests();
    let [request] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert!(request.starts_with("kubelet-authenticator-"), "{request}");
    assert!(machine.journal().contains("kubelet set up: "));

    node.restart();
    node.runs_by_the_plugin();

    // kubeadm itself uses the plugin to connect, and rewrites the kubelet's configuration.
    machine.kubeadm_upgrade(&["node"]);
    let configuration = machine.read("/var/lib/kubelet/config.yaml").unwrap();
    let configuration = String::from_utf8(configuration).unwrap();
    assert!(
        configuration.contains("rotateCertificates: true"),
        "{configuration}"
    );
    node.restart();
    node.runs_by_the_plugin();
    assert_eq!(node.requests(), requests);

    let undone = machine.ok(&[PLUGIN, "setup", "--undo"]);
    assert!(undone.contains("remove the drop-in"), "{undone}");
    machine.remove(DROP_IN);
    machine.remove("/var/lib/kubelet-authenticator");
    machine.remove("/etc/kubernetes/kubelet-authenticator");
    machine.ok(&["systemctl", "daemon-reload"]);
    node.restart();
    let arguments = node.kubelet_arguments();
    let flag = format!("--bootstrap-kubeconfig={BOOTSTRAP}");
    assert!(arguments.contains(&flag), "{arguments:?}");
    machine.ok(&[
        "test",
        "-L",
        "/var/lib/kubelet/pki/kubelet-client-current.pem",
    ]);
    let conf = String::from_utf8(machine.read(KUBELET_CONF).unwrap()).unwrap();
    assert!(conf.contains("kubelet-client-current.pem"), "{conf}");
    assert!(!conf.contains("exec"), "{conf}");
}

#[test]
fn a_refused_machine_shows_the_reason_and_joins_once_accepted() {
    let plane = &CLUSTER.plane;
    let kubectl = plane.kubectl();
    let node = Node::with(REFUSED, NULL, PLUGIN, "");
    let machine = &node.machine;
    let user = format!("system:bootstrap:{}", REFUSED.token);
    let joined = std::thread::scope(|scope| {
        let joining = scope.spawn(|| node.join());
        let csr = plane.wait_for_csr("of the machine", |csr| csr["spec"]["username"] == *user);
        let name = csr["metadata"]["name"].as_str().unwrap();
        kubectl.ok(["certificate", "deny", name]);
        joining.join().unwrap()
    });

    // kubeadm succeeds as soon as the kubelet runs, as with a plugin that does not respond. In the oldest supported
    // Kubernetes version, kubeadm waits for the Node and fails.
    let waits_for_node = kubectl.ok(["version"]).contains("Server Version: v1.33.");
    assert_eq!(
        joined.status.success(),
        !waits_for_node,
        "{}",
        node.said(&joined)
    );
    let journal = machine.journal();
    assert!(
        journal.contains("the kubelet is set up, but has no credential yet: ")
            && journal.contains("was denied"),
        "{journal}"
    );
    node.runs_by_the_plugin();
    assert_eq!(node.requests().len(), 1);

    CLUSTER.accept(REFUSED);
    machine.ok(&[PLUGIN, "renew"]);
    plane.wait_for_node_ready(REFUSED.name);
    assert_eq!(node.requests().len(), 2);

    machine.ok(&["kubeadm", "reset", "--force"]);
    assert!(!machine.exists(KUBELET_CONF));
    kubectl.ok(["delete", "node", REFUSED.name]);
    node.joins();
    node.runs_by_the_plugin();
    // The stored credential is valid in this cluster.
    assert_eq!(node.requests().len(), 2);
}

#[test]
fn an_unknown_machine_joins_with_a_discovery_file_once_known() {
    let plane = &CLUSTER.plane;
    let node = Node::with(LATE, NULL, PLUGIN, "--time-limit=10");
    let mut discovery: Value = {
        let kubeconfig = plane.kubeconfig(User::Token(node.token.bearer()));
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    };
    discovery["users"][0]["user"] = json!({});

    let provider_id = LATE.provider_id();
    let joined = node.machine.kubeadm_join_by_file(
        &discovery.to_string(),
        &node.token.bearer(),
        &[("provider-id", &provider_id)],
    );

    let said = || node.said(&joined);
    let journal = node.machine.journal();
    let waits = "the kubelet is set up, but has no credential yet: ";
    assert!(journal.contains(waits), "{}", said());
    CLUSTER.accept(LATE);
    plane.wait_for_node_ready(LATE.name);
    node.runs_by_the_plugin();
}

/// Waits until the kubelet's journal contains this text.
#[track_caller]
fn kubelet_says(machine: &Machine, text: &str) {
    let said = poll(PATIENCE, || {
        let journal = machine.journal();
        let mut lines = journal.lines().filter(|line| line.contains("kubelet["));
        lines.any(|line| line.contains(text)).then_some(())
    });
    assert!(said.is_some(), "{text}: {}", machine.journal());
}

/// The first failing check in the output of this program's command `doctor`. `None` if no check fails.
#[track_caller]
fn first_failing(machine: &Machine, program: &str) -> Option<String> {
    let output = machine.run(&[program, "doctor", "--output", "json"]);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = report["checks"].as_array().unwrap();
    let failing = checks.iter().find(|check| check["state"] == "fail");
    let code = if failing.is_some() { 20 } else { 0 };
    assert_eq!(output.status.code(), Some(code), "{report:#}");
    failing.map(|check| format!("{}: {}", check["name"], check["finding"]).replace('"', ""))
}

#[test]
fn a_missing_or_unusable_plugin_is_reported_by_kubelet_and_doctor() {
    let node = Node::boot(BARE);
    let machine = &node.machine;
    node.joins();
    let kept = "/root/kubelet-authenticator-null";
    assert_eq!(first_failing(machine, PLUGIN), None);
    // The program is a separate mount point.
    let remove = format!("cp {PLUGIN} {kept} && umount {PLUGIN} && rm {PLUGIN}");
    machine.ok(&["sh", "-euc", &remove]);

    machine.ok(&["systemctl", "restart", "kubelet"]);

    kubelet_says(machine, &format!("{PLUGIN}: no such file or directory"));
    let found = first_failing(machine, kept).unwrap();
    let gone = format!("kubelet-kubeconfig: cannot run the plugin: {PLUGIN}: No such file");
    assert!(found.starts_with(&gone), "{found}");

    // The e_machine field of the ELF header is set to AArch64. The kubelet can run the file at this path at any time.
    let other = format!(
        "cp {kept} {PLUGIN}.new
        printf '\\267' | dd of={PLUGIN}.new bs=1 seek=18 conv=notrunc status=none
        mv {PLUGIN}.new {PLUGIN}"
    );
    machine.ok(&["sh", "-euc", &other]);
    kubelet_says(machine, &format!("{PLUGIN}: exec format error"));
    let found = first_failing(machine, kept).unwrap();
    let other = format!(
        "kubelet-kubeconfig: cannot run the plugin: {PLUGIN} is a program for arm64, but this machine is amd64"
    );
    assert_eq!(found, other);

    let no_program = format!("install -m 0644 {kept} {PLUGIN}.new && mv {PLUGIN}.new {PLUGIN}");
    machine.ok(&["sh", "-euc", &no_program]);
    kubelet_says(machine, &format!("{PLUGIN}: permission denied"));
    let found = first_failing(machine, kept).unwrap();
    let no_program =
        format!("kubelet-kubeconfig: cannot run the plugin: {PLUGIN} is not executable");
    assert_eq!(found, no_program);

    machine.ok(&["mv", kept, PLUGIN]);
    node.restart();
    node.runs_by_the_plugin();
    assert_eq!(node.requests().len(), 1);
    assert_eq!(first_failing(machine, PLUGIN), None);
}

#[test]
fn doctor_reports_a_hanging_plugin_and_certified_nodes_keep_running() {
    let node = Node::with(HANGS, NULL, PLUGIN, "");
    let machine = &node.machine;
    node.joins();
    // The plugin waits for the API server, which this machine temporarily cannot reach, and is stopped during the wait.
    let proxies = |signal: &str| machine.ok(&["pkill", signal, "-f", "systemd-socket-proxyd"]);
    proxies("-STOP");
    let start = format!("setsid {PLUGIN} renew --force >/dev/null 2>&1 & echo $!");
    let pid = machine.ok(&["sh", "-euc", &start]);
    let lock = format!("{STORE}/lock");
    let is_held = [
        "flock",
        "--nonblock",
        "--conflict-exit-code=9",
        &lock,
        "true",
    ];
    let held = poll(PATIENCE, || {
        (machine.run(&is_held).status.code() == Some(9)).then_some(())
    });
    assert!(held.is_some());
    machine.ok(&["kill", "-STOP", pid.trim()]);
    proxies("-CONT");

    node.restart();

    let held = poll(PATIENCE, || first_failing(machine, PLUGIN)).expect("a failing check");
    let by = format!(
        "{STORE}/lock is held by process {} (kubelet-authe",
        pid.trim()
    );
    assert!(held.starts_with(&format!("lock: {by}")), "{held}");
    machine.ok(&["mv", CREDENTIAL, "/root/kept.pem"]);
    machine.ok(&["systemctl", "restart", "kubelet"]);
    // The kubelet's requests time out before a run ends, so the journal contains the plugin's message.
    kubelet_says(machine, &format!("{STORE}/lock was held for more than"));
    kubelet_says(machine, "hint: wait for that process, or stop it");

    machine.ok(&["mv", "/root/kept.pem", CREDENTIAL]);
    machine.ok(&["kill", "-KILL", pid.trim()]);
    node.restart();
    node.runs_by_the_plugin();
    assert_eq!(first_failing(machine, PLUGIN), None);
}

#[test]
fn a_setup_killed_at_any_write_does_not_stop_kubeadm_join() {
    let path = "/usr/local/bin/plugin_under_test";
    let node = Node::with(KILLED, UNDER_TEST, path, "");
    let machine = &node.machine;
    let bootstrap = CLUSTER.plane.kubeconfig(User::Token(node.token.bearer()));
    let bootstrap = std::fs::read(bootstrap).unwrap();
    machine.ok(&["systemctl", "stop", "kubelet"]);
    for step in steps::SETUP {
        let kill_at = format!("KILL_AT={step:?}");
        machine.ok(&["systemctl", "set-environment", &kill_at]);
        // kubeadm writes this file before it restarts a kubelet that keeps failing.
        machine.write(BOOTSTRAP, 0o600, &bootstrap);

        machine.ok(&["systemctl", "restart", "kubelet"]);

        let result = "--property=ExecStartPre";
        let started = machine.ok(&["systemctl", "show", result, "kubelet"]);
        assert!(started.contains("status=9/KILL"), "{step:?}: {started}");
        // Otherwise, systemd would start the kubelet again 10 seconds after the kubelet ends.
        machine.ok(&["systemctl", "stop", "kubelet"]);
        assert!(!machine.exists(CREDENTIAL), "{step:?}");
        let written = [KUBELET_CONF, ENVIRONMENT].map(|path| machine.exists(path));
        let expected = match step {
            Step::BootstrapKubeconfigWritten => [false, false],
            Step::KubeletKubeconfigWritten => [true, false],
            _ => [true, true],
        };
        assert_eq!(written, expected, "{step:?}");
        // `kubeadm reset` removes these files, which must not exist when kubeadm joins.
        machine.remove(KUBELET_CONF);
        machine.remove(BOOTSTRAP);
    }
    machine.ok(&["systemctl", "unset-environment", "KILL_AT"]);

    node.joins();

    node.runs_by_the_plugin();
    assert!(machine.exists(CREDENTIAL));
    assert_eq!(node.requests().len(), 1);
}
