//! Tests of the sources in which an administrator can set the node name and the provider ID. `setup` and the kubelet's
//! plugin use the same value in each case.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use kubelet_authenticator_test_support::api_server::ApiServer;

use crate::bed::{CONFIGURATION, FLAGS, Host, asked, issuing};

pub const NAME: &str = "--hostname-override=worker-1";
const ID: &str = "--provider-id=test:///worker-1";
const CONFIGURED: &str = "kind: KubeletConfiguration\nproviderID: test:///worker-1\n";
/// The value in a source whose value another source overrides.
const OTHER: &str = "ARGS=--hostname-override=other\n";

/// Sets the node name `worker-1` and its provider ID, on a machine with the host name `vm`.
pub type Place = fn(&mut Host);

/// The sources, except the host name.
pub const PLACES: [(&str, Place); 12] = [
    ("the settings", |host| {
        host.node.set("nodeName", "worker-1");
        host.node.set("providerID", "test:///worker-1");
    }),
    ("kubeadm-flags.env", |host| {
        host.machine_file(FLAGS, &format!("KUBELET_KUBEADM_ARGS=\"{NAME} {ID}\"\n"));
    }),
    ("/etc/default/kubelet", |host| {
        let text = format!("KUBELET_EXTRA_ARGS=\"{NAME} {ID}\"\n");
        host.machine_file("/etc/default/kubelet", &text);
    }),
    ("/etc/sysconfig/kubelet", |host| {
        let text = format!("KUBELET_EXTRA_ARGS=\"{NAME} {ID}\"\n");
        host.machine_file("/etc/sysconfig/kubelet", &text);
    }),
    ("the environment", |host| {
        let arguments = format!("{NAME} {ID}");
        host.node.set_env("KUBELET_EXTRA_ARGS", arguments);
    }),
    ("ExecStart=", |host| {
        let command = format!("/usr/bin/kubelet {NAME} $KUBELET_EXTRA_ARGS {ID}");
        systemd(host, &shows(&command, ""));
    }),
    ("Environment=", |host| {
        let more = format!("Environment=A=b \"KUBELET_ARGS={NAME} {ID}\"\n");
        systemd(host, &shows("/usr/bin/kubelet $KUBELET_ARGS", &more));
    }),
    ("EnvironmentFile=", |host| {
        host.machine_file("/etc/ours.env", &format!("ARGS=\"{NAME} {ID}\"\n"));
        let file = |path: &str| format!("EnvironmentFiles={path} (ignore_errors=yes)\n");
        let more = file("/etc/none") + &file("/etc/ours.env");
        systemd(host, &shows("/usr/bin/kubelet $ARGS", &more));
    }),
    ("EnvironmentFile= with a pattern", |host| {
        host.machine_file("/etc/ours.d/10.env", OTHER);
        host.machine_file("/etc/ours.d/20.env", &format!("ARGS=\"{NAME} {ID}\"\n"));
        let more = "EnvironmentFiles=/etc/ours.d/*.env (ignore_errors=no)\n";
        systemd(host, &shows("/usr/bin/kubelet $ARGS", more));
    }),
    ("the variables that systemd has set", |host| {
        host.node.set_env("ARGS", format!("{NAME} {ID}"));
        host.node.set_env("INVOCATION_ID", "4f");
        let more = format!("InvocationID=4f\nEnvironment={OTHER}");
        systemd(host, &shows("/usr/bin/kubelet $ARGS", &more));
    }),
    ("the kubelet's configuration", |host| {
        host.machine_file(CONFIGURATION, CONFIGURED);
        let named = format!("KUBELET_EXTRA_ARGS={NAME}\n");
        host.machine_file("/etc/default/kubelet", &named);
    }),
    ("--config-dir", |host| {
        let other = "kind: KubeletConfiguration\nproviderID: test:///other\n";
        host.machine_file("/etc/kubelet.yaml", other);
        host.machine_file("/etc/kubelet.conf.d/10.conf", CONFIGURED);
        let command = format!(
            "/usr/bin/kubelet --config=/etc/kubelet.yaml --config-dir /etc/kubelet.conf.d {NAME}"
        );
        systemd(host, &shows(&command, ""));
    }),
];

/// Sets the node name with the host name, as a service does that sets the host name late.
pub const LATE: Place = |host| {
    host.call("worker-1");
    host.machine_file(CONFIGURATION, CONFIGURED);
};

/// Simulates systemd on the machine, using a systemctl that runs this script.
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

/// Asserts that `setup` with these options, the commands, and a kubelet with this host name and argument use the same
/// node and machine, with one request.
#[track_caller]
pub fn agree_after(server: &ApiServer, host: &mut Host, options: &[&str], kubelet: [&str; 2]) {
    let creates = server.creates();

    let run = host.setup_with(options).succeeded();

    assert!(!run.stderr.contains("has no credential"), "{run:#?}");
    assert_eq!(asked(server), "worker-1");
    let identity = host.node.command(&["identify"]).succeeded();
    assert!(
        identity.stdout.contains("test:///worker-1"),
        "{identity:#?}"
    );
    let [host_name, argument] = kubelet;
    host.kubelet(host_name, argument).succeeded().pair();
    assert_eq!(server.creates(), creates + 1);
}

/// Asserts that `setup` and a kubelet with both flags agree on the node and the machine.
#[track_caller]
fn agree(make: impl FnOnce(&mut Host)) {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    host.node.unset("providerID");
    make(&mut host);
    let from = host.from();

    agree_after(
        &server,
        &mut host,
        &["--from", from.to_str().unwrap()],
        ["vm", NAME],
    );
}

#[test]
fn setup_and_kubelet_agree_on_arguments_in_kubeadm_unit_files() {
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
fn the_last_file_of_the_kubeadm_unit_takes_precedence() {
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
fn setup_leaves_the_first_request_to_a_kubelet_with_an_unknown_unit() {
    for (script, why) in [
        ("exit 1", "systemctl failed"),
        (
            &shows("/bin/sh -c kubelet", ""),
            "kubelet.service starts /bin/sh",
        ),
        // For example, two drop-ins add one `ExecStart=` each.
        (
            &shows("/usr/bin/kubelet", "").replace("=loaded", "=bad-setting"),
            "systemd cannot load kubelet.service (bad-setting)",
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
        // If the plugin has a certificate, it does not need the unit.
        let run = host.setup().succeeded();
        assert_eq!(run.stderr, "", "{run:#?}");
    }
}

#[test]
fn settings_with_name_and_provider_id_replace_an_unknown_unit() {
    let server = issuing();
    let mut host = Host::named(&server, "vm");
    host.node.unset("providerID");
    systemd(&mut host, &shows("/bin/sh -c kubelet", ""));
    let hint = "set nodeName and providerID in the settings, or wait for the kubelet";
    host.setup().succeeded().saying(hint);
    assert_eq!(server.creates(), 0);

    // The test follows the first half of the hint.
    host.node.set("nodeName", "worker-1");
    host.node.set("providerID", "test:///worker-1");

    let from = host.from();
    agree_after(
        &server,
        &mut host,
        &["--from", from.to_str().unwrap()],
        ["vm", NAME],
    );
}
