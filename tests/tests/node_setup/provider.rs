//! Tests of a kubelet that runs a different provider's plugin.

use std::fs;
use std::path::Path;
use std::process::Command;

use kubelet_authenticator_test_support::api_server::Signer;
use kubelet_authenticator_tests::node::{INSECURE, NULL};
use kubelet_authenticator_tests::page::section;
use kubelet_authenticator_tests::program;

use crate::bed::{Host, issuing};

#[test]
fn a_plugin_for_another_provider_is_refused_until_it_is_replaced() {
    let server = issuing();
    let host = Host::new(NULL, &server);
    server.kubeconfig().write(&host.from());
    host.setup().succeeded();
    let old = host.node.serial();
    let own = program(NULL).display().to_string();
    let conf = host.conf();
    for other in [
        program(INSECURE),
        "/opt/gone/kubelet-authenticator-aws".into(),
    ] {
        let others = conf.replace(&own, &other.display().to_string());
        fs::write(host.kubelet_conf(), &others).unwrap();

        let refused = host.setup().failed(3);

        let words = format!("runs {} instead of this plugin", other.display());
        let refused = refused.saying(&words);
        refused.saying(&format!("run: {own} setup --replace"));
        assert_eq!(host.conf(), others);
        assert!(host.environment().exists());

        let path = host.kubelet_conf();
        let path = path.to_str().unwrap();
        let words = ["doctor", "--kubelet-kubeconfig", path, "-o", "json"];
        let doctor = host.node.command(&words);
        let command = format!("{own} setup --replace");
        let is_named = doctor.stdout.contains(&command);
        assert_eq!(is_named, other.exists(), "{doctor:#?}");

        // Without a certificate from this provider, `setup` does not change any file.
        server.set_signer(Signer::deny("MachineUnknown", "no machine"));
        host.setup_with(&["--replace"])
            .failed(12)
            .saying("MachineUnknown");
        assert_eq!(host.conf(), others);
        assert!(host.environment().exists());

        server.set_signer(Signer::issue());
        host.setup_with(&["--replace"]).succeeded();
        assert_eq!(host.conf(), conf);
        host.is_set_up(NULL);
        assert_ne!(host.node.serial(), old);
    }
    // The kubelet already runs this plugin, so `--replace` has no effect.
    let again = host.setup_with(&["--replace"]).succeeded();
    assert!(
        again.stdout.contains("already runs this plugin"),
        "{again:#?}"
    );
}

#[test]
fn a_wrapper_script_with_the_plugin_name_counts_as_the_plugin() {
    let server = issuing();
    let host = Host::joining(&server);
    host.setup().succeeded();
    let own = program(NULL).display().to_string();
    let script = host.etc.join(format!("{NULL}.sh"));
    fs::write(&script, "").unwrap();
    let conf = host.conf().replace(&own, script.to_str().unwrap());
    fs::write(host.kubelet_conf(), &conf).unwrap();

    host.setup().succeeded();

    assert_eq!(host.conf(), conf);
    assert!(Path::new(&script).exists());
}

#[test]
fn the_documented_commands_replace_the_plugin_and_the_drop_in() {
    let server = issuing();
    let host = Host::new(NULL, &server);
    server.kubeconfig().write(&host.from());
    host.setup().succeeded();
    let own = program(NULL).display().to_string();
    let others = program(INSECURE).display().to_string();
    fs::write(host.kubelet_conf(), host.conf().replace(&own, &others)).unwrap();
    let (drop_in, name) = (
        host.etc.join("drop-in.conf"),
        "20-kubelet-authenticator.conf",
    );
    let path = format!("/etc/systemd/system/kubelet.service.d/{name}");
    let mut restarts = Vec::new();
    for (_, command) in section("node-setup.md", "## Change the provider") {
        let command = command.replace("kubelet-authenticator-tpm", NULL);
        if command.starts_with("systemctl ") {
            restarts.push(command);
        } else if let Some(words) = command.strip_prefix(&format!("{NULL} setup ")) {
            host.setup_with(&[words]).succeeded();
        } else {
            let script = command.replace(&path, drop_in.to_str().unwrap());
            let programs = program(NULL).parent().unwrap().display().to_string();
            let run = Command::new("sh")
                .args(["-euc", &script])
                .env("PATH", format!("{programs}:/usr/bin:/bin"))
                .status();
            assert!(run.unwrap().success(), "{script}");
        }
    }

    assert_eq!(
        restarts,
        ["systemctl daemon-reload", "systemctl restart kubelet"]
    );
    let written = fs::read_to_string(drop_in).unwrap();
    let runs = format!("ExecStartPre=-/usr/bin/{NULL} setup");
    assert!(written.contains(&runs), "{written}");
    assert!(host.conf().contains(&own), "{}", host.conf());
    host.is_set_up(NULL);
}
