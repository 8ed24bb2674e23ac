//! The command `man`.

use clap::builder::Resettable;
use kubelet_attestation::manual::section;
use kubelet_attestation::page_url;

use super::{Session, answer, arguments, exit_codes};
use crate::exec::EXEC_INFO;
use crate::failure::{Code, Failure};
use crate::settings::{BOOTSTRAP_KUBECONFIG, CONFIG_FILE, STATE_DIRECTORY};
use crate::setup::KUBELET_KUBECONFIG;

/// The files of the plugin.
const FILES: [(&str, &str); 5] = [
    (CONFIG_FILE, "Settings."),
    (
        "/etc/kubernetes/kubelet-authenticator/config.d/*.yaml",
        "Drop-ins, which have precedence over the settings file.",
    ),
    (
        BOOTSTRAP_KUBECONFIG,
        "Kubeconfig with the bootstrap credential.",
    ),
    (
        STATE_DIRECTORY,
        "State directory, which contains the certificate and its key.",
    ),
    (
        KUBELET_KUBECONFIG,
        "Kubeconfig with which the kubelet runs the plugin.",
    ),
];

/// The variables that the plugin reads.
const ENVIRONMENT: [(&str, &str); 3] = [
    (
        EXEC_INFO,
        "Input of client-go. Without a command and without this variable, the plugin exits with 2.",
    ),
    (
        "HTTPS_PROXY, https_proxy",
        "Proxy for the API server, if the kubeconfig does not specify a proxy.",
    ),
    (
        "NO_PROXY, no_proxy",
        "Hosts that the plugin calls without the proxy.",
    ),
];

/// Commands, without the name of the program.
const EXAMPLES: [(&str, &str); 4] = [
    ("doctor", "Find the reason why the node does not join."),
    (
        "status",
        "Show the certificate, its next renewal and the last failure.",
    ),
    (
        "explain-reason NameTaken",
        "Explain a reason that the controller reported, without a network.",
    ),
    (
        "renew",
        "Try again after a failure, without waiting for the back-off.",
    ),
];

impl Session {
    /// Prints the manual page of the program or of one of its commands, in section 8: commands for administrators.
    pub(super) fn manual(&self, command: &[String]) -> Result<(), Failure> {
        let mut page = arguments::command(&self.schema).after_long_help(Resettable::Reset);
        let program = page.get_name().to_owned();
        page.build();
        let mut name = program.clone();
        for word in command {
            let Some(found) = page.find_subcommand(word) else {
                let what = format!("unknown command {word:?}");
                return Err(Failure::new(Code::Usage, what, "see --help"));
            };
            page = found.clone();
            name = format!("{name}-{word}");
        }
        let page = clap_mangen::Man::new(page.name(name))
            .section("8")
            .manual("System Administration");
        let mut text = Vec::new();
        // Writing to memory does not fail.
        drop(page.render(&mut text));
        let status = exit_codes::all().map(|(code, meaning)| (code.to_string(), meaning));
        let examples = EXAMPLES.map(|(words, about)| (format!("{program} {words}"), about));
        let text = [
            String::from_utf8_lossy(&text).into_owned(),
            section("EXIT STATUS", status),
            section("FILES", FILES),
            section("ENVIRONMENT", ENVIRONMENT),
            section("EXAMPLES", examples),
            section(
                "SEE ALSO",
                [(page_url!("plugin-commands.md"), "Documentation.")],
            ),
        ];
        answer::print(&text.concat())
    }
}
