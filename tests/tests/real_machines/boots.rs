//! Tests of the first minutes of an instance.

use std::process::Output;
use std::time::{Duration, Instant};

use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::assert_first_generation;
use kubelet_authenticator_tests::machines::{Infrastructure, Machines, PATIENCE, Scene};
use kubelet_authenticator_tests::management::Instances;
use serde_json::{Value, json};

use crate::page::doctor_says;

/// The time for which a metadata service is unavailable.
const DOWN: Duration = Duration::from_secs(120);

/// The library that shifts the clock of the C library by the value of `FAKETIME`. The kubelet reads the clock without
/// this library, and passes the variables to the plugin.
const PRELOAD: &str = "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1";

const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/99-clock.conf";

const CURE: &str = "set the clock of this machine with NTP";

const DOCTOR: &str = "kubelet-authenticator-aws doctor";

#[test]
fn an_instance_joins_after_two_minutes_without_metadata_at_boot() {
    let machines = Machines::Ec2WithoutMetadata(Attestor::AWS);
    let scene = Scene::attended("dark", machines);
    let Infrastructure::Ec2(instances) = &scene.infrastructure else {
        panic!("the machine is on EC2");
    };
    let config = scene.config();
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let journal = || instances.each(|_, machine| machine.journal()).concat();
    let asked = poll(PATIENCE, || {
        let said = journal();
        said.contains("cannot read the instance's identity")
            .then(Instant::now)
    });
    let asked = asked.unwrap_or_else(|| panic!("{}", journal()));

    poll(2 * DOWN, || (asked.elapsed() >= DOWN).then_some(()));
    let signer = scene.signer();
    let is_ours = |csr: &Value| csr["spec"]["signerName"] == *signer;
    assert!(!scene.plane().csrs().iter().any(is_ours));
    instances.each(|instance, _| instance.imds.come_up());

    let machine = deployment.wait_until_running(1).remove(0);
    let node = scene.wait_for_node_of(&machine);
    assert_eq!(scene.record(&node)["spec"]["attestor"], "aws");
}

#[test]
fn an_instance_with_a_wrong_clock_reports_it_and_joins_when_corrected() {
    let scene = Scene::attended("clocks", Machines::Ec2(Attestor::AWS));
    let Infrastructure::Ec2(instances) = &scene.infrastructure else {
        panic!("the machine is on EC2");
    };
    let mut config = scene.config();
    config["preKubeadmCommands"] = json!([shifted_by("-10m")]);
    let deployment = scene.cluster.machine_deployment_of("pool-a", 1, config);
    let run = |command: &str| {
        let each = instances.each(|_, machine| machine.run(&["sh", "-euc", command]));
        each.into_iter().next().unwrap()
    };
    // The API server's certificate is a few minutes old.
    let slow = "is not valid before ";
    let fast = "the clock of https://";

    is_named(instances, slow);
    doctor_names("api-server", slow, || run(&shifted_doctor("-10m")));
    run(&shifted_by("+10m"));
    run(RESTART);
    is_named(instances, fast);
    doctor_names("clock", fast, || run(&shifted_doctor("+10m")));
    run(&format!("rm {DROP_IN}"));
    run(RESTART);

    let machine = deployment.wait_until_running(1).remove(0);
    let node = scene.wait_for_node_of(&machine);
    assert_first_generation(&scene.record(&node));
    doctor_says(&scene, &node, DOCTOR, |_, code| code == Some(0));
}

const RESTART: &str = "systemctl daemon-reload && systemctl restart --no-block kubelet";

/// A command that shifts the clock of the programs that the kubelet starts.
fn shifted_by(time: &str) -> String {
    format!(
        "mkdir -p $(dirname {DROP_IN})
        printf '%s\\n' '[Service]' 'Environment={PRELOAD} FAKETIME={time}' > {DROP_IN}"
    )
}

/// Waits until the journal of an instance contains a line with this text, followed by the hint.
#[track_caller]
fn is_named(instances: &Instances, words: &str) {
    let journal = || instances.each(|_, machine| machine.journal()).concat();
    let named = poll(PATIENCE, || {
        let said = journal();
        let lines: Vec<&str> = said.lines().collect();
        // The kubelet can write other lines between these lines.
        let named = |lines: &[&str]| {
            lines[0].contains(words) && lines.iter().any(|line| line.contains(CURE))
        };
        lines.windows(4).any(named).then_some(())
    });
    assert!(named.is_some(), "{words}: {}", journal());
}

fn shifted_doctor(time: &str) -> String {
    format!("env '{PRELOAD}' FAKETIME={time} {DOCTOR} --output json")
}

/// Waits until this is the first failing check of `doctor`, with this text and this hint. On a busy machine, other
/// checks also fail because they exceed their time limit.
#[track_caller]
fn doctor_names(check: &str, words: &str, doctor: impl Fn() -> Output) {
    let mut last = None;
    let found = poll(PATIENCE, || {
        let output = doctor();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let mut checks = report["checks"].as_array().into_iter().flatten();
        let first = checks.find(|check| check["state"] == "fail");
        let is_it = output.status.code() == Some(20)
            && first.is_some_and(|first| {
                let finding = first["finding"].as_str().unwrap_or_default();
                first["name"] == check && finding.contains(words) && first["cure"] == CURE
            });
        last = Some(output);
        is_it.then_some(())
    });
    assert!(found.is_some(), "{check}, {words}: {last:?}");
}
