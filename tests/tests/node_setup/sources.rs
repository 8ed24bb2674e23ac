//! The places where an administrator can set the node name and the provider ID. `setup` and the plugin of the kubelet
//! use the same value in each case.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::bed::{CONFIGURATION, FLAGS, Host, asked, issuing};

const NAME: &str = "--hostname-override=worker-1";
const ID: &str = "--provider-id=test:///worker-1";

/// Runs systemd on the machine, with a systemctl that prints these properties.
fn systemd(host: &mut Host, script: &str) {
    let run = host.machine_path("/run/systemd/system");
    fs::create_dir_all(run).unwrap();
    let bin = host.node.scratch().directory("bin");
    let systemctl = bin.join("systemctl");
    fs::write(&systemctl, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    host.node.set_env("PATH", path);
}

fn shows(command: &str, more: &str) -> String {
    format!(
        "cat <<'END'\nLoadState=loaded\nExecStart={{ path=/usr/bin/kubelet ; argv[]={command} ; ignore_errors=no ; \
         pid=0 }}\n{more}END"
    )
}

/// Asserts that `setup` and a kubelet with both flags agree on the node and the machine.
#[track_caller]
fn agree(make: impl FnOnce(&mut Host)) {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    host.node.unset("providerID");
    make(&mut host);

    let run = host.setup().succeeded();

    assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    assert_eq!(asked(&server), "worker-1");
    let identity = host.node.command(&["identify"]).succeeded();
    assert!(
        identity.stdout.contains("test:///worker-1"),
        "{identity:#?}"
    );
    host.kubelet("vm", NAME).succeeded().pair();
    assert_eq!(server.creates(), 1);
}

#[test]
fn setup_and_kubelet_agree_on_arguments_in_files_of_kubeadms_unit() {
    for path in [FLAGS, "/etc/default/kubelet", "/etc/sysconfig/kubelet"] {
        let variable = if path == FLAGS {
            "KUBELET_KUBEADM_ARGS"
        } else {
            "KUBELET_EXTRA_ARGS"
        };
        for text in [
            format!("{variable}=\"{NAME} {ID}\"\n"),
            format!("# ours\n{variable}={NAME} \\\n {ID}\n"),
            format!("OTHER=x\n  {variable} = '{NAME} {ID}'\n"),
        ] {
            agree(|host| host.machine_file(path, &text));
        }
    }
}

#[test]
fn the_last_file_of_kubeadms_unit_takes_precedence() {
    agree(|host| {
        host.machine_file(
            FLAGS,
            "KUBELET_KUBEADM_ARGS=\"--hostname-override=other --provider-id=a:///b\"\n",
        );
        let text = format!("KUBELET_EXTRA_ARGS=\"{NAME} {ID}\"\n");
        host.machine_file("/etc/default/kubelet", &text);
    });
}

#[test]
fn setup_and_kubelet_agree_on_arguments_in_the_environment() {
    agree(|host| {
        host.node
            .set_env("KUBELET_EXTRA_ARGS", format!("{NAME} {ID}"))
    });
}

#[test]
fn setup_and_kubelet_agree_on_arguments_in_a_systemd_unit() {
    agree(|host| {
        let command = format!("/usr/bin/kubelet {NAME} $KUBELET_EXTRA_ARGS {ID}");
        systemd(host, &shows(&command, ""));
    });
    agree(|host| {
        let more = format!("Environment=A=b \"KUBELET_ARGS={NAME} {ID}\"\n");
        systemd(host, &shows("/usr/bin/kubelet $KUBELET_ARGS", &more));
    });
    agree(|host| {
        host.machine_file("/etc/ours.env", &format!("ARGS=\"{NAME} {ID}\"\n"));
        let file = |path: &str| format!("EnvironmentFiles={path} (ignore_errors=yes)\n");
        let more = file("/etc/none") + &file("/etc/ours.env");
        systemd(host, &shows("/usr/bin/kubelet $ARGS", &more));
    });
    let other = "ARGS=--hostname-override=other\n";
    agree(|host| {
        host.machine_file("/etc/ours.d/10.env", other);
        host.machine_file("/etc/ours.d/20.env", &format!("ARGS=\"{NAME} {ID}\"\n"));
        let more = "EnvironmentFiles=/etc/ours.d/*.env (ignore_errors=no)\n";
        systemd(host, &shows("/usr/bin/kubelet $ARGS", more));
    });
    // systemd has set the variables of `setup`.
    agree(|host| {
        host.node.set_env("ARGS", format!("{NAME} {ID}"));
        host.node.set_env("INVOCATION_ID", "4f");
        let more = format!("InvocationID=4f\nEnvironment={other}");
        systemd(host, &shows("/usr/bin/kubelet $ARGS", &more));
    });
}

#[test]
fn setup_and_kubelet_agree_on_the_provider_id_from_the_kubelet_config() {
    let file = "kind: KubeletConfiguration\nproviderID: test:///worker-1\n";
    let named = format!("KUBELET_EXTRA_ARGS={NAME}\n");
    agree(|host| {
        host.machine_file(CONFIGURATION, file);
        host.machine_file("/etc/default/kubelet", &named);
    });
    agree(|host| {
        let other = "kind: KubeletConfiguration\nproviderID: test:///other\n";
        host.machine_file("/etc/kubelet.yaml", other);
        host.machine_file("/etc/kubelet.conf.d/10.conf", file);
        let command = format!(
            "/usr/bin/kubelet --config=/etc/kubelet.yaml --config-dir /etc/kubelet.conf.d {NAME}"
        );
        systemd(host, &shows(&command, ""));
    });
}

#[test]
fn the_machine_uses_the_provider_id_of_the_running_kubelet() {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    host.node.unset("providerID");
    host.machine_file("/etc/kubelet.yaml", "providerID: test:///worker-1\n");
    let copy = host.bootstrap();
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    server.kubeconfig().write(&copy);

    host.kubelet("vm", "--config=/etc/kubelet.yaml")
        .succeeded()
        .pair();

    let inspected = host.node.json("origin.json");
    assert_eq!(inspected["nodeName"], "vm");
    assert_eq!(server.creates(), 1);
}

#[test]
fn with_an_unknown_unit_the_kubelet_sends_the_first_request() {
    for (script, why) in [
        ("exit 1", "systemctl failed"),
        (
            &shows("/bin/sh -c kubelet", ""),
            "kubelet.service starts /bin/sh",
        ),
    ] {
        let server = issuing();
        let mut host = Host::named(&server, "vm");
        systemd(&mut host, script);

        let run = host.setup().succeeded();

        run.saying("has no credential yet: cannot determine the kubelet's arguments")
            .saying(why);
        assert_eq!(server.creates(), 0);
        host.kubelet("vm", NAME).succeeded().pair();
        assert_eq!(asked(&server), "worker-1");
        // With a certificate, nothing needs the unit.
        let run = host.setup().succeeded();
        assert_eq!(run.stderr, "", "{run:#?}");
    }
}
