//! Tests of the commands for a node that an operator copies from the pages.

use kubelet_authenticator_test_support::machine::Machine;
use kubelet_authenticator_test_support::settings;
use kubelet_authenticator_tests::node::NULL;
use kubelet_authenticator_tests::page::{self, Desk};
use kubelet_authenticator_tests::program;

use crate::{BY_PAGE, BY_README, CLUSTER, Member, Node, SECRET};

/// Sets up a stock machine, which has only the files from the package, with the commands in this section.
#[track_caller]
fn follow(member: Member, page: &str, heading: &str) {
    let plane = &CLUSTER.plane;
    let token = plane.add_bootstrap_token(member.token, SECRET);
    plane.wait_for_discovery(&token);
    let machine = Machine::builder(plane, member.name)
        .program(&format!("/usr/bin/{NULL}"), &program(NULL))
        .file(
            "/etc/kubernetes/kubelet-authenticator/config.yaml",
            0o644,
            settings::file([]),
        )
        .boot();
    let node = Node {
        member,
        machine,
        token,
    };
    let mut joins = 0;
    for (prompt, command) in page::section(page, heading) {
        let command = command.replace("kubelet-authenticator-aws", NULL);
        // The test skips the installation, which `make packages-check` tests, and commands with the address of the
        // cluster, which is not on the page.
        if prompt == '$' || command.starts_with("apt install ./") {
            continue;
        }
        if command.starts_with("kubeadm join ") {
            node.joins();
            joins += 1;
        } else {
            node.machine.ok(&["sh", "-euc", &command]);
        }
    }
    assert_eq!(joins, 1);
    let status = node.machine.ok(&[NULL, "status"]);
    assert!(status.contains(member.name), "{status}");
}

#[test]
fn a_node_gets_a_certificate_with_the_readme_commands() {
    follow(BY_README, "../README.md", "## Install");
}

#[test]
fn a_node_gets_a_certificate_with_the_setup_commands() {
    follow(BY_PAGE, "node-setup.md", "## With kubeadm");
}

#[test]
fn the_documented_query_finds_the_permission_of_a_bootstrap_token() {
    let desk = Desk::new(CLUSTER.plane.admin_kubeconfig());
    let [(_, question)] = page::section("exit-codes.md", "### Code 10")
        .try_into()
        .unwrap();
    for (group, answer) in [
        ("system:bootstrappers:kubeadm:default-node-token", "yes"),
        ("system:bootstrappers:kubeadm:another", "no"),
    ] {
        let known = "system:bootstrappers:kubeadm:default-node-token";
        let question = question.replace(known, group);

        // The command exits with an error if the operator answers "no".
        desk.follow(&format!("{question} > answer.txt || true"));

        let said = std::fs::read_to_string(desk.files().join("answer.txt")).unwrap();
        assert_eq!(said.trim(), answer, "{question}");
    }
}
