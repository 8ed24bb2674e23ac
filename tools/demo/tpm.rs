//! The demo with machines that prove their identity with their TPMs.

mod attacks;
mod machine;
mod scene;

use std::time::Duration;

use kubelet_attestation::csr::envelope::Envelope;
use kubelet_attestation::evidence::tpm::TpmEvidence;
use kubelet_authenticator_test_support::api_server::{ApiServer, Times, Verb};
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};
use kubelet_authenticator_tests::tpm::Challenger;
use node_attestation_core::crd::{PcrPolicy, TpmSettings};
use serde_json::Value;

use self::attacks::{ATTACKS, Attack};
use self::machine::Machine;
use self::scene::Scene;
use crate::attacker::{self, Attacker, BUILT_IN, Verdict, Wish};
use crate::attacks::{JOINED, LEAKED};
use crate::cluster::{self, Cluster};
use crate::controller::Controller;
use crate::plugin::Plugin;
use crate::story;

/// The deadline for operations that take at most a second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The signer for machines with TPMs.
const TPM: &str = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm";

/// The plugin for machines with TPMs.
const PROGRAM: &str = "kubelet-authenticator-tpm";

/// The machine whose plugin is killed.
const KILLED: &str = "worker-3";

/// The machine that runs a real kubelet.
const KUBELET: &str = "control-plane-1";

/// The cluster, its machines, and the attacker.
struct World {
    cluster: Cluster,
    /// The machines. The API server has a bootstrap token for each machine.
    machines: Vec<Machine>,
    /// The attacker's machine, which is not a machine of the cluster.
    own: Machine,
    /// The controller's files and settings for TPMs. The settings require that all machines have the same boot state.
    challenger: Challenger,
    folder: tempfile::TempDir,
}

/// The names of a machine's requests.
#[derive(Debug, Default)]
struct Requests {
    /// The requests for a challenge.
    enrolments: Vec<String>,
    /// The answers to a challenge.
    responses: Vec<String>,
}

impl World {
    fn new(cluster: Cluster) -> Self {
        cluster.add_tokens();
        let names = cluster::MACHINES.map(|(name, _)| name);
        let mut machines = Machine::boot_all(&[&names[..], &["attacker"]].concat());
        let own = machines.pop().expect("the attacker's");
        let settings = TpmSettings {
            pcr_policy: PcrPolicy {
                allowed: machines.iter().take(1).map(Machine::boot_state).collect(),
                ..PcrPolicy::default()
            },
            ..TpmSettings::default()
        };
        Self {
            challenger: Challenger::new(&settings),
            cluster,
            machines,
            own,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn machine(&self, name: &str) -> &Machine {
        let found = self.machines.iter().find(|machine| machine.name == name);
        found.expect("a machine of the demo")
    }

    /// The plugin of a machine that has never joined. The plugin is configured to use this TPM.
    fn plugin_with(&self, name: &str, tcti: String) -> Plugin {
        let machine = self.machine(name);
        let own = machine.plugin_settings(tcti);
        Plugin::new(&self.cluster, self.folder.path(), name, PROGRAM, own)
    }

    fn plugin(&self, name: &str) -> Plugin {
        self.plugin_with(name, self.machine(name).tpm().tcti())
    }

    fn controller(&self) -> Controller {
        let machines = cluster::inventory(|name| self.machine(name).provider_id.clone());
        let spec = self.challenger.spec();
        Controller::start(
            &self.cluster,
            self.folder.path(),
            &machines,
            &spec,
            |launch| launch.args(self.challenger.arguments()),
        )
    }

    fn requests_of(&self, machine: &str) -> Requests {
        let mut requests = Requests::default();
        for csr in self.cluster.requests_of(machine, TPM) {
            let name = csr["metadata"]["name"].as_str().unwrap_or_default();
            match evidence(&csr) {
                Some(TpmEvidence::Enrol(_)) => requests.enrolments.push(name.to_owned()),
                Some(TpmEvidence::Respond(_)) => requests.responses.push(name.to_owned()),
                None => {}
            }
        }
        requests
    }

    fn introduce(&self) {
        println!(
            "  {:<16} provider ID: the SHA-256 of its TPM's endorsement key",
            "machine"
        );
        for machine in &self.machines {
            println!("  {:<16} {:.30}...", machine.name, machine.provider_id);
        }
        let own = &self.own;
        println!(
            "  {:<16} {:.30}... (a TPM of the same vendor)",
            "the attacker's", own.provider_id
        );
        let registers = machine::BOOT.map(|(register, what)| format!("{register} ({what})"));
        println!(
            "  All machines have the same boot state. No other state is accepted. A TPM records it in the"
        );
        println!("  registers {}.", registers.join(", "));
    }
}

/// The evidence in a request.
fn evidence(csr: &Value) -> Option<TpmEvidence> {
    use base64::prelude::*;
    let request = BASE64_STANDARD.decode(csr["spec"]["request"].as_str()?);
    let envelope = Envelope::parse(&request.ok()?).ok()?;
    TpmEvidence::parse(&envelope.evidence?).ok()
}

/// Runs the demo on an API server in this process. Returns `false` if a step has an unexpected result.
pub fn embedded() -> bool {
    println!("An API server in this process, a TPM in software (swtpm) for each machine;");
    println!("the real controller, the real plugin.");
    let world = World::new(Cluster::Embedded(ApiServer::start()));
    world.introduce();
    let controller = world.controller();
    if let Cluster::Embedded(server) = &world.cluster {
        server.wait_for_request(Verb::Watch, 1, PATIENCE);
    }
    let as_told = tell(&world, &controller);
    println!(
        "\nThe column \"stock\" shows how Kubernetes itself responds. To try it:\nmake demo PROVIDER=tpm \
         CONTROL_PLANE=real"
    );
    as_told
}

/// Runs the demo with a real control plane. Returns `false` if a step has an unexpected result.
pub fn real() -> bool {
    println!("Real etcd, kube-apiserver, kube-controller-manager and kubelet; a TPM in software");
    println!("(swtpm) for each machine.");
    let plane = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .start();
    plane.install_kubeadm_bindings();
    let world = World::new(Cluster::Real(Box::new(plane)));
    world.introduce();
    let Cluster::Real(plane) = &world.cluster else {
        return false;
    };
    let stock = stock(&world.cluster);
    let closed = story::closed(&world.cluster, plane);
    let controller = world.controller();
    let told = tell(&world, &controller);
    story::kubelet(plane, KUBELET, &world.plugin(KUBELET));
    stock && closed && told
}

/// Whether Kubernetes' own signer, which does not read evidence, issues the certificates that the attacks request.
fn stock(cluster: &Cluster) -> bool {
    println!("\n== Stock: kubeadm's bindings, Kubernetes' own signer ==");
    println!("  an attacker holds the bootstrap token of {LEAKED}, and requests from {BUILT_IN}:");
    let attacker = Attacker::holding(cluster, LEAKED);
    let mut as_said = true;
    for node in [LEAKED, "control-plane-1"] {
        let verdict = attacker.ask(&Wish::node(node, BUILT_IN));
        println!("  {:<62} {}", format!("the name {node}"), verdict.summary());
        if let Verdict::Issued(certificate) = &verdict {
            println!("      the attacker's now: {}", story::describe(certificate));
        }
        as_said &= verdict.summary() == attacks::STOCK;
    }
    as_said
}

fn tell(world: &World, controller: &Controller) -> bool {
    let first = join(world, controller, JOINED);
    let victim = join(world, controller, LEAKED);
    let resumed = killed_in_the_middle(world);
    let refused = attacks(world, controller);
    first && victim && resumed && refused
}

/// Makes a machine join. Returns whether the machine joined with two requests and one challenge.
fn join(world: &World, controller: &Controller, machine: &str) -> bool {
    println!("\n== {machine} joins: two requests with one key, one challenge ==");
    let plugin = world.plugin(machine);
    println!(
        "  demo        runs {}, as client-go in a kubelet does",
        plugin.name()
    );
    let run = plugin.run();
    let Requests {
        enrolments,
        responses,
    } = world.requests_of(machine);
    let ([enrolment], [response]) = (enrolments.as_slice(), responses.as_slice()) else {
        story::told(&run);
        println!("  plugin      sent {enrolments:?} and {responses:?}");
        return false;
    };
    println!(
        "  plugin      has no credential: creates a key, and a request with the TPM's public keys"
    );
    println!("  API server  has {enrolment}");
    let challenged = decided(controller, enrolment);
    println!(
        "  TPM         opens the challenge, which no other TPM can open, and quotes its registers;"
    );
    println!("              the quote covers the secret from the challenge, and the request");
    println!("  API server  has {response}");
    println!("              with the same key, and the quote");
    let issued = decided(controller, response);
    let joined = story::told_twice(&run, &plugin);
    joined && (challenged.as_str(), issued.as_str()) == ("failed", "issued")
}

/// Prints the decision on a request. Returns the decision's summary.
fn decided(controller: &Controller, name: &str) -> String {
    let decision = controller.decision(|fields| fields["csr"] == name);
    let checks = decision.checks.iter().map(|check| check.name.as_str());
    println!("  controller  {}", checks.collect::<Vec<_>>().join(", "));
    let (outcome, millis) = (decision.outcome, decision.millis);
    println!(
        "  controller  {outcome} after {millis:.1} ms: {}",
        decision.detail
    );
    outcome
}

/// Kills the plugin while the TPM opens the challenge. Returns whether the next run answers the same challenge.
fn killed_in_the_middle(world: &World) -> bool {
    println!("\n== {KILLED} is killed between the challenge and the answer ==");
    let tpm = world.machine(KILLED).tpm();
    let proxy = TpmProxy::before(tpm);
    let activate = Commands::One(command::ACTIVATE_CREDENTIAL);
    proxy.inject(activate, Times::always(), Fault::Hang);
    let plugin = world.plugin_with(KILLED, proxy.tcti());
    let mut run = plugin.start();
    let opening = poll(PATIENCE, || {
        let ended = !run.goes_on();
        let asked = proxy.count(command::ACTIVATE_CREDENTIAL) > 0;
        (asked || ended).then_some(asked)
    });
    if opening != Some(true) {
        return story::told(&run.finish());
    }
    run.kill();
    println!(
        "  plugin      sent {}",
        world.requests_of(KILLED).enrolments.join(", ")
    );
    println!("              and was killed (kill -9) while its TPM opened the challenge");
    proxy.clear_faults();
    // The kernel also flushes the objects when a process that has opened /dev/tpmrm0 ends.
    tpm.flush();
    let run = plugin.run();
    let Requests {
        enrolments,
        responses,
    } = world.requests_of(KILLED);
    let count = enrolments.len() + responses.len();
    println!("  plugin      next run: answers the stored challenge");
    println!(
        "              requests from {KILLED} in total: {count}, with one challenge and one answer"
    );
    story::told(&run) && (enrolments.len(), responses.len()) == (1, 1)
}

/// Runs the attacks. Returns whether the intended check refused each attack.
fn attacks(world: &World, controller: &Controller) -> bool {
    println!("\n== Attacks ==");
    println!(
        "  an attacker holds the bootstrap token of {LEAKED}, reads every request, has a machine"
    );
    println!("  with another genuine TPM, and tries:");
    let scene = Scene::new(world);
    let mut rows = Vec::new();
    let mut as_expected = true;
    for attack in &ATTACKS {
        println!("  {}", attack.what);
        let name = attack.on(&scene);
        let verdict = scene.attacker.await_verdict(&name);
        let logged = |_: &str| controller.decision(|fields| fields["csr"] == name.as_str());
        if verdict.tell((attack.kind, attack.reason), logged) {
            rows.push(attack);
        } else {
            as_expected = false;
        }
    }
    table(&rows);
    attacker::sum_up(rows.len(), ATTACKS.len());
    as_expected
}

fn table(rows: &[&Attack]) {
    println!();
    println!("  {:<62} {:<8} here", "attack", "stock");
    println!("  {:-<62} {:-<8} {:-<38}", "", "", "");
    for Attack {
        what, kind, reason, ..
    } in rows
    {
        println!("  {what:<62} {:<8} {kind}: {reason}", attacks::STOCK);
    }
}
