//! The files that `render` prints.

use kubelet_authenticator::kube::kubeconfig::Kubeconfig;
use kubelet_authenticator_test_support::api_server::{ApiServer, TOKEN};
use kubelet_authenticator_tests::node::{NULL, Node};
use kubelet_authenticator_tests::program;

#[test]
fn a_drop_in_runs_the_plugin_by_its_path_on_the_node() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);
    let of = |path: &str| {
        format!(
            "[Service]\nExecStartPre=-{path} setup\n\
             EnvironmentFile=-/etc/kubernetes/kubelet-authenticator/kubelet.env\n"
        )
    };

    let own = node.command(&["render", "kubelet-drop-in"]).succeeded();
    assert_eq!(own.stdout, of(program(NULL).to_str().unwrap()));

    let path = "/usr/bin/kubelet-authenticator-null";
    let given = node.command(&["render", "--command", path, "kubelet-drop-in"]);
    assert_eq!(given.succeeded().stdout, of(path));

    for path in [
        "plugin",
        "/opt/a plugin",
        "/opt/%n",
        "/opt/$HOME",
        "/opt/\\x20",
    ] {
        let refused = node.command(&["render", "--command", path, "kubelet-drop-in"]);
        refused
            .failed(2)
            .saying("is not an absolute path that systemd takes");
    }
}

#[test]
fn a_rendered_kubeconfig_is_of_the_bootstrap_kubeconfigs_cluster() {
    let server = ApiServer::start();
    let node = Node::new(NULL, &server);

    let run = node.command(&["render", "kubeconfig"]).succeeded();

    let path = node.scratch().write("kubelet.conf", &run.stdout);
    let command = Kubeconfig::read_exec_command(&path).unwrap();
    assert_eq!(command, Some(program(NULL).display().to_string()));
    let endpoint = Kubeconfig::read_endpoint(&path).unwrap();
    assert_eq!(endpoint.server(), server.url());
    assert!(!run.stdout.contains(TOKEN));
}
