//! Tests of the commands in docs/plugin-commands.md.

use std::process::Command;

use kubelet_authenticator_tests::page::commands;

use crate::nodes::{joined, piped};

/// Runs the command with this name on the page, and compares its output with the page.
#[track_caller]
fn assert_shown(name: &str) {
    let mut all = commands("plugin-commands.md", '$').into_iter();
    let text = all.find(|text| text.split(' ').nth(1) == Some(name));
    let text = text.unwrap();
    let (command, shown) = text.split_once('\n').unwrap();
    let mut words = command.split(' ');
    let plugin = words.next().unwrap();

    let printed = piped(plugin, &words.collect::<Vec<_>>(), "");

    assert_eq!(printed.trim_end(), shown.trim_end());
}

#[test]
fn the_page_shows_the_actual_settings_of_a_new_node() {
    assert_shown("config");
}

#[test]
fn the_page_shows_the_explanation_that_the_plugin_prints() {
    assert_shown("explain-reason");
}

#[test]
fn the_documented_command_decodes_the_stored_certificate() {
    let (_server, node) = joined();
    let mut commands = commands("plugin-commands.md", '#').into_iter();
    let command = commands.find(|it| it.starts_with("openssl ")).unwrap();
    let path = "/var/lib/kubelet-authenticator/kubelet-client.pem";
    assert!(command.contains(path), "{command}");
    let stored = node.file("kubelet-client.pem").display().to_string();

    let output = Command::new("sh")
        .args(["-euc", &command.replace(path, &stored)])
        .output()
        .unwrap();

    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("system:node:"), "{text}");
}
