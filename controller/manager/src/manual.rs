//! The command `man`, and the exit codes in `--help`.

use clap::builder::Resettable;
use kubelet_attestation::manual::{exit_codes, section};
use kubelet_attestation::page_url;

use crate::error::BoxError;
use crate::{CHECK_FAILED, CONFIGURATION, NAME, USAGE};

/// Each exit code with its meaning.
const EXIT_CODES: [(u8, &str); 5] = [
    (0, "The command succeeded, or a signal stopped the program."),
    (1, "The program cannot write its output, or cannot start."),
    (
        USAGE,
        "The arguments are invalid, or a command was not confirmed.",
    ),
    (
        CONFIGURATION,
        "The controller cannot use a file, an option or a kubeconfig, or the command failed.",
    ),
    (CHECK_FAILED, "A check of `cluster check` failed."),
];

/// The files that the program reads without an option.
const FILES: [(&str, &str); 2] = [
    (
        "~/.kube/config",
        "Kubeconfig for each command except run, if neither --kubeconfig nor KUBECONFIG is set.",
    ),
    (
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "Pod credential for the cluster in which the controller runs.",
    ),
];

/// The variables that the program reads.
const ENVIRONMENT: [(&str, &str); 5] = [
    (
        "KUBECONFIG",
        "Kubeconfig files for each command except run, as for kubectl. --kubeconfig overrides these files.",
    ),
    (
        "HTTPS_PROXY, https_proxy",
        "Proxy for API servers whose kubeconfig does not specify a proxy. The command run also uses this \
         proxy for STS and EC2.",
    ),
    (
        "NO_PROXY, no_proxy",
        "Hosts that the program calls without the proxy.",
    ),
    (
        "AWS_USE_FIPS_ENDPOINT",
        "If set to true, the controller calls EC2 and AssumeRole at their FIPS endpoints.",
    ),
    (
        "AWS_*",
        "Credentials of the controller, which the AWS SDK reads.",
    ),
];

/// Example commands, without the name of the program.
const EXAMPLES: [(&str, &str); 4] = [
    (
        "clusters --unmanaged",
        "List the Clusters without a KubeletAuthentication.",
    ),
    (
        "cluster check prod-1 -n team-a",
        "Check a Cluster, and list causes and remedies.",
    ),
    (
        "explain NAME --cluster prod-1 -n team-a",
        "Show why a certificate signing request has no certificate.",
    ),
    ("identities list -n team-a", "List the node identities."),
];

/// The exit codes, as they are printed at the end of `--help`.
pub(crate) fn exit_codes_of_help() -> String {
    exit_codes(EXIT_CODES)
}

/// Returns the manual page of the program or of one of its commands. The section is 8, for administration commands.
pub(crate) fn page(program: clap::Command, command: &[String]) -> Result<String, BoxError> {
    let mut page = program.after_long_help(Resettable::Reset);
    page.build();
    let mut name = NAME.to_owned();
    for word in command {
        let found = page.find_subcommand(word);
        let found = found.ok_or_else(|| format!("unknown command {word:?}"))?;
        page = found.clone();
        name = format!("{name}-{word}");
    }
    let page = clap_mangen::Man::new(page.name(name))
        .section("8")
        .manual("System Administration");
    let mut text = Vec::new();
    page.render(&mut text)?;
    let status = EXIT_CODES.map(|(code, meaning)| (code.to_string(), meaning));
    let examples = EXAMPLES.map(|(words, about)| (format!("{NAME} {words}"), about));
    let sections = [
        String::from_utf8(text)?,
        section("EXIT STATUS", status),
        section("FILES", FILES),
        section("ENVIRONMENT", ENVIRONMENT),
        section("EXAMPLES", examples),
        section("SEE ALSO", [(page_url!("controller.md"), "Documentation.")]),
    ];
    Ok(sections.concat())
}
