//! Options of earlier builds: the error for one names its replacement.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// An option that a command no longer has.
#[derive(Debug)]
pub(crate) struct Removed {
    /// The first word of the command.
    pub(crate) command: &'static str,
    pub(crate) option: &'static str,
    /// The next step for an operator who still uses it.
    hint: &'static str,
}

/// All removed options.
pub(crate) const REMOVED: &[Removed] = &[
    run("--ack-carm", ACK_CARM),
    run("--ack-compat", ACK_COMPAT),
    run("--ack-iam-role-selector", ACK_ROLE_SELECTORS),
    run("--ack-service-level-carm", ACK_CARM),
    run("--ack-team-level-carm", ACK_CARM),
    explain(
        "--approve-only",
        "use --ca-cert, or the kubeconfig's CA: the controller signs",
    ),
    explain(
        "--attestor",
        "write in the file of --settings:\nspec:\n  authorizedAttestors: [aws]  # or tpm, or both",
    ),
    explain(
        "--serving-address-range",
        "write in the file of --settings:\nspec:\n  servingAddressRanges: [10.20.0.0/16]",
    ),
    run(
        "--approve-only",
        "use --ca-key, or an external signer with --signer-endpoint: certificates that kube-controller-manager signs cannot be revoked",
    ),
    run(
        "--attestor",
        "write in the file of --settings:\nspec:\n  authorizedAttestors: [aws]  # or tpm, or both",
    ),
    run(
        "--audience",
        "write in the file of --settings:\nspec:\n  audiences: [AUDIENCE]",
    ),
    run(
        "--aws-account",
        "write in the file of --settings:\nspec:\n  aws:\n    accounts: [\"111122223333\"]",
    ),
    run(
        "--aws-any-root-volume",
        "write in the file of --settings:\nspec:\n  aws:\n    rootVolumeCheck: false",
    ),
    run(
        "--aws-cluster-name",
        "write in the file of --settings:\nspec:\n  clusterName: NAME",
    ),
    run(
        "--aws-inventory",
        "write in the file of --inventory:\nawsInstances: true\nThe accounts, regions, requiredTags and nodeName of spec.aws in the file of --settings select the instances",
    ),
    run(
        "--aws-node-name",
        "write in the file of --settings:\nspec:\n  aws:\n    nodeName: InstanceID  # or PrivateDNSName",
    ),
    run(
        "--aws-region",
        "write in the file of --settings:\nspec:\n  aws:\n    regions: [eu-west-1]",
    ),
    run(
        "--aws-required-tag",
        "write in the file of --settings:\nspec:\n  aws:\n    requiredTags: {KEY: VALUE}",
    ),
    run(
        "--certificate-duration",
        "write in the file of --settings:\nspec:\n  certificate:\n    expirationSeconds: 604800",
    ),
    run(
        "--cluster",
        "run the ordinary controller, as docs/break-glass.md describes: run --kubeconfig FILE --namespace NAMESPACE",
    ),
    run(
        "--control-plane-renewal",
        "write in the file of --settings:\nspec:\n  builtInRenewal: ControlPlane",
    ),
    run(
        "--deny-built-in",
        "write in the file of --settings:\nspec:\n  autoApproveBindings: Remove",
    ),
    run(
        "--endpoint-host",
        "write in the file of --inventory:\nendpointHosts: [HOST]",
    ),
    run(
        "--guest-reported-addresses",
        "write in the file of --settings:\nspec:\n  guestReportedAddresses: Allow",
    ),
    run(
        "--insecure-certificate-duration",
        "write in the file of --settings:\nspec:\n  certificate:\n    expirationSeconds: 31536000",
    ),
    run(
        "--management-kubeconfig",
        "run the ordinary controller, as docs/break-glass.md describes: run --kubeconfig FILE --namespace NAMESPACE",
    ),
    run(
        "--service-range",
        "write in the file of --inventory:\nserviceRanges: [10.96.0.0/12]",
    ),
    run(
        "--serving",
        "leave it out: requests for serving certificates are always answered",
    ),
    run(
        "--serving-address-range",
        "write in the file of --settings:\nspec:\n  servingAddressRanges: [10.20.0.0/16]",
    ),
    run(
        "--tpm-settings",
        "write in the file of --settings:\nspec:\n  tpm:  # the fields of the file of --tpm-settings",
    ),
    run(
        "--leader-elect",
        "leave it out: one replica leads, with a Lease, always",
    ),
    run(
        "--shards",
        "run a Deployment for each --namespace or --watch-filter; each has its own Lease",
    ),
    tenancy("--ack-carm", ACK_CARM),
    tenancy("--ack-compat", ACK_COMPAT),
    tenancy("--ack-iam-role-selector", ACK_ROLE_SELECTORS),
    tenancy("--ack-service-level-carm", ACK_CARM),
    tenancy("--ack-team-level-carm", ACK_CARM),
];

const ACK_CARM: &str = "use --ack=carm, which reads the maps of teams and of accounts";

const ACK_COMPAT: &str = "use --ack=carm, and annotate the Namespace with services.k8s.aws/team-id instead of the account";

const ACK_ROLE_SELECTORS: &str = "use --ack=role-selectors";

const fn explain(option: &'static str, hint: &'static str) -> Removed {
    Removed {
        command: "explain",
        option,
        hint,
    }
}

const fn run(option: &'static str, hint: &'static str) -> Removed {
    Removed {
        command: "run",
        option,
        hint,
    }
}

const fn tenancy(option: &'static str, hint: &'static str) -> Removed {
    Removed {
        command: "tenancy",
        option,
        hint,
    }
}

/// The message for a removed option, if the arguments were refused because of one. `command` is the first word of
/// the command.
pub(crate) fn message(command: &str, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let (option, _) = argument.split_once('=').unwrap_or((argument, ""));
    let mut all = REMOVED.iter();
    let row = all.find(|row| row.command == command && row.option == option)?;
    let Removed { option, hint, .. } = row;
    Some(format!("error: {option} was removed\nhint: {hint}\n"))
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
        for row in REMOVED {
            let Removed {
                command,
                option,
                hint,
            } = row;
            let message = Some(format!("error: {option} was removed\nhint: {hint}\n"));
            let with_value = format!("{option}=value");
            for arguments in [&[*option][..], &[*option, "value"], &[&*with_value]] {
                assert_eq!(message_for(command, arguments), message, "{arguments:?}");
            }
        }
    }

    #[test]
    fn an_option_that_was_never_there_has_no_message_of_its_own() {
        assert_eq!(message_for("run", &["--unheard-of"]), None);
        assert_eq!(message_for("run", &["--help"]), None);
        assert_eq!(message_for("crds", &["--shards"]), None);
    }
}
