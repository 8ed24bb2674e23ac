//! Options in earlier builds. If an operator uses one of these options, the error contains its replacement.

use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use kubelet_attestation::page_url;

use self::Instead::{Hint, Inventory, Settings};

/// The replacement for an option.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Instead {
    /// A field below `spec` in the `--settings` file, with an example of its value.
    Settings(&'static str),
    /// A line in the `--inventory` file.
    Inventory(&'static str),
    /// A different next step.
    Hint(&'static str),
}

/// The removed options, each with the first words of its command and its replacement.
#[rustfmt::skip]
pub(crate) const REMOVED: &[(&[&str], &str, Instead)] = &[
    (&["run", "tenancy"], "--ack-carm", ACK_CARM),
    (&["run", "tenancy"], "--ack-compat", Hint("use --ack=carm, and annotate the Namespace with services.k8s.aws/team-id instead of the account")),
    (&["run", "tenancy"], "--ack-iam-role-selector", Hint("use --ack=role-selectors")),
    (&["run", "tenancy"], "--ack-service-level-carm", ACK_CARM),
    (&["run", "tenancy"], "--ack-team-level-carm", ACK_CARM),
    (&["explain"], "--approve-only", Hint("use --ca-cert, or the kubeconfig's CA: the controller signs")),
    (&["run"], "--approve-only", Hint("use --ca-key, or an external signer with --signer-endpoint: certificates that kube-controller-manager signs cannot be revoked")),
    (&["run", "explain"], "--attestor", Settings("authorizedAttestors: [aws]  # or tpm, or both")),
    (&["run"], "--audience", Settings("audiences: [AUDIENCE]")),
    (&["run"], "--aws-account", Settings("aws.accounts: [\"111122223333\"]")),
    (&["run"], "--aws-any-root-volume", Settings("aws.rootVolumeCheck: false")),
    (&["run"], "--aws-cluster-name", Settings("clusterName: NAME")),
    (&["run"], "--aws-inventory", Inventory("awsInstances: true\nThe accounts, regions, requiredTags and nodeName of \
        spec.aws in the --settings file select the instances")),
    (&["run"], "--aws-node-name", Settings("aws.nodeName: InstanceID  # or PrivateDNSName")),
    (&["run"], "--aws-region", Settings("aws.regions: [eu-west-1]")),
    (&["run"], "--aws-required-tag", Settings("aws.requiredTags: {KEY: VALUE}")),
    (&["run"], "--certificate-duration", Settings("certificate.expirationSeconds: 604800")),
    (&["run"], "--cluster", BREAK_GLASS),
    (&["run"], "--control-plane-renewal", Settings("exemptNodes: [ControlPlane]")),
    (&["run"], "--deny-built-in", Settings("autoApproveBindings: Remove")),
    (&["run"], "--endpoint-host", Inventory("endpointHosts: [HOST]")),
    (&["run"], "--guest-reported-addresses", Settings("guestReportedAddresses: Allow")),
    (&["run"], "--insecure-certificate-duration", Settings("certificate.expirationSeconds: 31536000")),
    (&["run"], "--leader-elect", Hint("remove the option: leader election is always enabled")),
    (&["run"], "--management-kubeconfig", BREAK_GLASS),
    (&["run"], "--service-range", Inventory("serviceRanges: [10.96.0.0/12]")),
    (&["run"], "--serving", Hint("remove the option: requests for serving certificates are always answered")),
    (&["run", "explain"], "--serving-address-range", Settings("servingAddressRanges: [10.20.0.0/16]")),
    (&["run"], "--shards", Hint("run a Deployment for each --namespace or --watch-filter; each Deployment has its own \
        Lease")),
    (&["run"], "--tpm-settings", Settings("tpm:  # the fields from the --tpm-settings file")),
    (&["clusters"], "--without", Hint("use --unmanaged")),
];

const ACK_CARM: Instead = Hint("use --ack=carm, which reads the team map and the account map");

const BREAK_GLASS: Instead = Hint(concat!(
    "run the regular controller: run --kubeconfig FILE --namespace NAMESPACE; see ",
    page_url!("break-glass.md#what-to-do")
));

/// The message for a removed option, if the option made the arguments invalid. `command` is the first word of the
/// command.
pub(crate) fn message(command: &str, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (option, _) = argument.split_once('=').unwrap_or((argument, ""));
    let mut rows = REMOVED.iter();
    let row = rows.find(|(commands, name, _)| commands.contains(&command) && *name == option)?;
    let hint = row.2.text();
    Some(format!("error: {option} was removed\nhint: {hint}\n"))
}

impl Instead {
    fn text(self) -> String {
        match self {
            Hint(hint) => hint.to_owned(),
            Inventory(line) => format!("add this line to the --inventory file:\n{line}"),
            Settings(field) => {
                let (path, value) = field.split_once(':').unwrap_or((field, ""));
                let mut text = "add these lines to the --settings file:\nspec:".to_owned();
                for (depth, name) in path.split('.').enumerate() {
                    let _infallible = write!(text, "\n{}{name}:", "  ".repeat(depth + 1));
                }
                text + value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn message_for(command: &'static str, arguments: &[&str]) -> Option<String> {
        let program = Command::new("program").subcommand(Command::new(command));
        let arguments = ["program", command]
            .into_iter()
            .chain(arguments.iter().copied());
        message(
            command,
            &program.try_get_matches_from(arguments).unwrap_err(),
        )
    }

    #[test]
    fn each_removed_option_is_an_error_that_names_its_replacement() {
        for (commands, option, instead) in REMOVED {
            let message = Some(format!(
                "error: {option} was removed\nhint: {}\n",
                instead.text()
            ));
            let with_value = format!("{option}=value");
            for command in *commands {
                for arguments in [&[*option][..], &[*option, "value"], &[&*with_value]] {
                    assert_eq!(message_for(command, arguments), message, "{arguments:?}");
                }
            }
        }
    }

    #[test]
    fn the_replacement_of_a_removed_option_is_valid_yaml() {
        let message = message_for("run", &["--aws-account=1"]).unwrap();

        assert_eq!(
            message,
            "error: --aws-account was removed\n\
             hint: add these lines to the --settings file:\n\
             spec:\n  aws:\n    accounts: [\"111122223333\"]\n"
        );
    }

    #[test]
    fn an_unknown_option_has_no_removal_message() {
        assert_eq!(message_for("run", &["--unheard-of"]), None);
        assert_eq!(message_for("run", &["--help"]), None);
        assert_eq!(message_for("crds", &["--shards"]), None);
    }
}
