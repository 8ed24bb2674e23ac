//! Tests of the kubelet's unit, with a stand-in for systemctl, and of the arguments of a process that stands in for the
//! kubelet.

use std::fs;
use std::process::{Child, Command, Stdio};

use kubelet_authenticator_test_support::api_server::{Fault, Route, Times};
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::node::PATIENCE;

use crate::bed::{Bed, LIMIT, set_mode};
use crate::clouds::tpm_machine;

/// A process with the name and the arguments of a kubelet. The process is killed when this value is dropped.
struct Kubelet(Child);

impl Kubelet {
    fn start(arguments: &str) -> Self {
        // The shell waits for a pipe that has no writer. The shell has the name and the arguments of a kubelet.
        let script = format!("exec -a kubelet bash -c 'read -r' kubelet {arguments}");
        let child = Command::new("bash")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let cmdline = format!("/proc/{}/cmdline", child.id());
        let started = poll(PATIENCE, || {
            fs::read(&cmdline)
                .ok()
                .filter(|text| text.starts_with(b"kubelet\0"))
        });
        started.expect("the process has its name");
        Self(child)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a systemctl that prints these properties.
fn systemctl(bed: &Bed, properties: &str) {
    let bin = bed.node.scratch().join("bin");
    let text = bed.node.scratch().write("properties", properties);
    let program = bin.join("systemctl");
    fs::write(
        &program,
        format!("#!/bin/sh\nexec /bin/cat {}\n", text.display()),
    )
    .unwrap();
    set_mode(&program, 0o755);
}

fn properties(kubelet: &Kubelet, environment: &str) -> String {
    format!(
        "LoadState=loaded\nActiveState=active\nMainPID={}\nNeedDaemonReload=no\n\
         ExecStartPre={{ path=/usr/bin/kubelet-authenticator-aws ; argv[]=/usr/bin/kubelet-authenticator-aws setup ; }}\n\
         EnvironmentFiles={environment} (ignore_errors=yes)\n",
        kubelet.0.id()
    )
}

#[test]
fn a_kubelet_that_bypasses_the_plugin_is_reported() {
    let bed = Bed::joined();
    let environment = bed
        .node
        .scratch()
        .directory("kubelet-authenticator")
        .join("kubelet.env");
    fs::write(&environment, "").unwrap();
    let environment = environment.to_str().unwrap();
    let configuration = bed
        .node
        .scratch()
        .write("kubelet.yaml", "rotateCertificates: true\n");
    let configuration = format!("--config={}", configuration.display());
    for (arguments, finding) in [
        (
            "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
            "the kubelet runs with --bootstrap-kubeconfig",
        ),
        (
            configuration.as_str(),
            "the kubelet runs with rotateCertificates: true",
        ),
    ] {
        let kubelet = Kubelet::start(arguments);
        systemctl(&bed, &properties(&kubelet, environment));

        bed.first_failing("kubelet-unit", finding, " setup, and restart the kubelet");
    }

    let kubelet = Kubelet::start(&format!("{configuration} --rotate-certificates=false"));
    systemctl(&bed, &properties(&kubelet, environment));
    let examined = bed.doctor();
    examined.says("kubelet-unit", "pass", "the drop-in runs `setup`");
    assert_eq!(examined.run.code, Some(0), "{}", examined.run.stdout);

    let pattern = environment.replace("kubelet.env", "*.env");
    systemctl(&bed, &properties(&kubelet, &pattern));
    bed.is_well();
    let unmatched = environment.replace("kubelet.env", "*.conf");
    systemctl(&bed, &properties(&kubelet, &unmatched));
    let finding = format!("{unmatched} does not exist");
    bed.first_failing("kubelet-unit", &finding, " setup, and restart the kubelet");
}

#[test]
fn a_kubelet_name_that_differs_from_the_certificate_is_reported() {
    let mut bed = Bed::joined();
    bed.node.unset("nodeName");
    let kubelet = Kubelet::start("--hostname-override=n2 --rotate-certificates=false");
    systemctl(&bed, &properties(&kubelet, "/dev/null"));

    bed.first_failing(
        "node-name",
        "the kubelet's --hostname-override is n2, but this node was enrolled as n1",
        "start the kubelet with --hostname-override=n1; or, to enroll the node as n2, ",
    );

    let kubelet = Kubelet::start("--hostname-override=n1 --rotate-certificates=false");
    systemctl(&bed, &properties(&kubelet, "/dev/null"));
    bed.is_well();
    let kubelet = Kubelet::start("--rotate-certificates=false");
    systemctl(&bed, &properties(&kubelet, "/dev/null"));
    bed.first_failing(
        "node-name",
        "the host name is ",
        "start the kubelet with --hostname-override=n1; or, to enroll the node as ",
    );
}

#[test]
fn doctor_reports_a_drop_in_without_effect() {
    let bed = Bed::joined();
    let kubelet = Kubelet::start("--rotate-certificates=false");
    let missing = "/nonexistent/kubelet-authenticator/kubelet.env";
    let good = properties(&kubelet, missing);

    systemctl(&bed, &good);
    bed.first_failing(
        "kubelet-unit",
        &format!("{missing} does not exist"),
        " setup, and restart the kubelet",
    );
    systemctl(
        &bed,
        &good.replace("NeedDaemonReload=no", "NeedDaemonReload=yes"),
    );
    bed.first_failing(
        "kubelet-unit",
        "systemd has not reloaded",
        "systemctl daemon-reload",
    );

    for (from, to, state, words) in [
        (
            "ExecStartPre=",
            "ExecStop=",
            "warn",
            "the kubelet's unit has no drop-in that runs `setup`",
        ),
        (
            "LoadState=loaded",
            "LoadState=not-found",
            "skip",
            "the unit kubelet.service does not exist",
        ),
        (
            "LoadState=loaded",
            "LoadState=bad-setting",
            "warn",
            "systemd has not loaded the kubelet's unit (bad-setting)",
        ),
        (
            "LoadState=loaded",
            "LoadState=masked",
            "warn",
            "systemd has not loaded the kubelet's unit (masked)",
        ),
    ] {
        systemctl(&bed, &good.replace(from, to));
        let examined = bed.doctor();
        examined.says("kubelet-unit", state, words);
    }
    let stopped = good
        .replace(&kubelet.0.id().to_string(), "0")
        .replace(missing, "/dev/null");
    systemctl(
        &bed,
        &stopped.replace("ActiveState=active", "ActiveState=failed"),
    );
    let examined = bed.doctor();
    examined.says(
        "kubelet-unit",
        "warn",
        "the kubelet is not running (failed)",
    );
}

#[test]
fn a_drop_in_without_the_boot_phases_is_a_warning_for_a_tpm() {
    let phases = "systemd-pcrosseparator.service systemd-pcrnvdone.service \
                  systemd-pcrphase-sysinit.service systemd-pcrphase.service";
    let kubelet = Kubelet::start("--rotate-certificates=false");
    let properties = properties(&kubelet, "/dev/null");
    let after = |units: &str| format!("{properties}After=network.target {units} system.slice\n");
    let (bed, _machine) = tpm_machine();

    systemctl(&bed, &after(phases));
    let examined = bed.doctor();
    examined.says("kubelet-unit", "pass", "the drop-in runs `setup`");
    let (_, later) = phases.split_once(' ').unwrap();
    for units in ["", "systemd-pcrphase.service", later] {
        systemctl(&bed, &after(units));
        let examined = bed.doctor();
        let words = "the kubelet can start before systemd has extended the PCRs";
        examined.says("kubelet-unit", "warn", words);
        let cure = &examined.check("kubelet-unit").cure;
        assert!(cure.contains(" render "), "{cure}");
    }
    // The evidence of other providers does not depend on PCRs.
    let bed = Bed::joined();
    systemctl(&bed, &after(""));
    let examined = bed.doctor();
    examined.says("kubelet-unit", "pass", "the drop-in runs `setup`");
}

#[test]
fn leftover_settings_of_the_unit_and_kubeconfig_are_reported() {
    let bed = Bed::joined();
    let unit = "LoadState=loaded\nMainPID=0\nEnvironment=KUBELET_AUTHENTICATOR_AUDIENCE=of-unit\n";
    systemctl(&bed, unit);
    let examined = bed.doctor();
    let of_unit = "KUBELET_AUTHENTICATOR_AUDIENCE";
    examined.says("settings", "warn", of_unit);

    let env = "env: [{name: KUBELET_AUTHENTICATOR_NODE_NAME, value: n2}]";
    let exec = "      provideClusterInfo: true\n";
    bed.change_kubelet_kubeconfig(exec, &format!("{exec}      {env}\n"));
    let extension =
        "extensions: [{name: client.authentication.k8s.io/exec, extension: {nodeName: n3}}]";
    let cluster = "    server: ";
    bed.change_kubelet_kubeconfig(cluster, &format!("    {extension}\n{cluster}"));
    let examined = bed.doctor();
    for words in [
        of_unit,
        "KUBELET_AUTHENTICATOR_NODE_NAME",
        "the exec extension in",
    ] {
        examined.says("settings", "warn", words);
    }
    let text = examined.unwrapped();
    assert!(!text.contains("of-unit") && !text.contains("n3"), "{text}");
}

fn hang_systemd(bed: &Bed) {
    let program = bed.node.scratch().join("bin/systemctl");
    fs::write(&program, "#!/bin/sh\nexec /bin/sleep 1000\n").unwrap();
    set_mode(&program, 0o755);
}

#[test]
fn a_hanging_systemd_leaves_time_for_a_hanging_api_server() {
    let bed = Bed::joined();
    hang_systemd(&bed);
    bed.server
        .inject(Route::any(), Times::always(), Fault::Hang);

    let examined = bed.doctor();

    examined.says("kubelet-unit", "skip", "systemctl did not exit in time");
    examined.says("api-server", "fail", "did not respond in time");
    examined.run.within(LIMIT);
}

#[test]
fn a_hanging_systemd_does_not_hide_other_checks() {
    let bed = Bed::joined();
    hang_systemd(&bed);

    let examined = bed.doctor();

    examined.says("kubelet-unit", "skip", "systemctl did not exit in time");
    assert_eq!(examined.names("skip"), ["kubelet-unit"]);
    assert_eq!(examined.run.code, Some(0), "{}", examined.run.stdout);
}
