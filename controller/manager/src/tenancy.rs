//! `tenancy explain`: shows the AWS identity of a Cluster, step by step.

use clap::{Args, Subcommand};
use kubelet_attestation::errors::error_chain;
use node_attestation_aws::tenancy::read::{self, Explained};
use node_attestation_aws::tenancy::{
    AccountMismatch, DecidedBy, Plan, ResolutionError, Role, Root,
};
use node_attestation_core::crd::conditions::{self, AWS_CREDENTIALS_READY, AWS_IDENTITY_RESOLVED};
use node_attestation_core::crd::{AWS_ACCOUNT_ANNOTATION, KubeletAuthentication};
use node_attestation_runtime::capi::ObjectKey;
use serde_json::{Value, json};

use crate::aws::TenancyArguments;
use crate::error::BoxError;
use crate::query::{QueryOptions, aligned};

#[derive(Debug, Args)]
pub(crate) struct TenancyCommand {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Show the AWS identity with which the controller calls EC2 for a Cluster: the objects that name and permit it, the
    /// roles and the account. The command uses your permissions, and does not call AWS
    Explain(Explain),
}

#[derive(Debug, Args)]
struct Explain {
    /// The Cluster
    cluster: String,
    #[command(flatten)]
    options: QueryOptions,
    /// Use the same options as for `run`: different options give a different result
    #[command(flatten)]
    tenancy: TenancyArguments,
}

/// The result of a resolution, for users.
struct Outcome {
    reason: &'static str,
    message: String,
}

/// Runs the command, and returns its output.
pub(crate) async fn run(command: TenancyCommand) -> Result<String, BoxError> {
    let Act::Explain(Explain {
        cluster,
        options,
        tenancy,
    }) = command.act;
    let access = options.access().await?;
    let namespace = options.namespace_of(&access);
    let cluster = ObjectKey::new(namespace, cluster);
    let (places, settings) = (tenancy.places(None), tenancy.settings());
    let explained = read::explain(access.client(), &places, settings, cluster.clone()).await?;
    let object = object(&cluster, &explained);
    options.output.print(&object, || text(&cluster, &explained))
}

fn text(cluster: &ObjectKey, explained: &Explained) -> String {
    let mut rows: Vec<(&str, String)> = vec![
        ("Cluster", cluster.to_string()),
        ("Decided by", explained.explanation.decided_by.to_string()),
    ];
    for (place, link) in explained.explanation.chain.iter().enumerate() {
        let label = if place == 0 { "Identity" } else { "Source" };
        rows.push((label, format!("{}: {}", link.identity, link.permission)));
    }
    if let Ok(plan) = &explained.explanation.plan {
        rows.push(("Begins with", root(&plan.root)));
        rows.extend(roles(plan).map(|role| ("Role", session(role))));
    }
    if let Some(account) = account(explained) {
        rows.push(("Account", account.to_owned()));
    }
    let Outcome { reason, message } = outcome(explained);
    rows.push(("Result", joined(reason, &message)));
    let plan = explained.explanation.plan.as_ref();
    for warning in plan.iter().flat_map(|plan| &plan.warnings) {
        rows.push(("Warning", warning.to_string()));
    }
    match &explained.authentication {
        None => rows.push((
            "Controller",
            "no KubeletAuthentication: the Cluster is not managed".to_owned(),
        )),
        Some(authentication) => {
            for condition in [AWS_IDENTITY_RESOLVED, AWS_CREDENTIALS_READY] {
                let text = stored_condition(authentication, condition);
                let text = text.map(|(status, reason, message)| {
                    format!("{condition} {status} {}", joined(reason, message))
                });
                let text = text.unwrap_or_else(|| format!("{condition} is not set yet"));
                rows.push(("Controller", text));
            }
        }
    }
    if let Some(note) = difference(explained, reason) {
        rows.push(("Note", note));
    }
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(name, value)| [format!("{name}:"), value])
        .collect();
    aligned(&rows)
}

fn object(cluster: &ObjectKey, explained: &Explained) -> Value {
    let explanation = &explained.explanation;
    let Outcome { reason, message } = outcome(explained);
    let plan = explanation.plan.as_ref().ok();
    let chain = explanation.chain.iter().map(|link| {
        json!({
            "kind": link.identity.kind.to_string(),
            "name": link.identity.name,
            "permission": link.permission.to_string(),
        })
    });
    let roles = plan.into_iter().flat_map(roles).map(|role| {
        json!({
            "roleARN": role.arn.to_string(),
            "sessionName": role.session_name,
            "durationSeconds": role.duration.as_secs(),
            "hasExternalID": role.external_id.is_some(),
            "hasInlinePolicy": role.inline_policy.is_some(),
            "policyARNs": role.policy_arns,
        })
    });
    let warnings = plan.into_iter().flat_map(|plan| &plan.warnings);
    let conditions = explained.authentication.iter().flat_map(|authentication| {
        [AWS_IDENTITY_RESOLVED, AWS_CREDENTIALS_READY].map(|condition| {
            let (status, reason, message) = stored_condition(authentication, condition)?;
            Some(json!({"type": condition, "status": status, "reason": reason, "message": message}))
        })
    });
    json!({
        "namespace": cluster.namespace,
        "cluster": cluster.name,
        "decidedBy": explanation.decided_by.to_string(),
        "chain": chain.collect::<Vec<_>>(),
        "root": plan.map(|plan| root(&plan.root)),
        "roles": roles.collect::<Vec<_>>(),
        "account": account(explained),
        "reason": reason,
        "message": message,
        "warnings": warnings.map(ToString::to_string).collect::<Vec<_>>(),
        "conditions": conditions.flatten().collect::<Vec<_>>(),
        "note": difference(explained, reason),
    })
}

fn root(root: &Root) -> String {
    match root {
        Root::Controller => "the controller's own credentials".to_owned(),
        Root::Static(key) => format!("access key {}", key.id),
        Root::ServiceAccount(account) => {
            let (namespace, name) = (&account.namespace, &account.name);
            let audiences = account.audiences.join(", ");
            format!("a token of service account {namespace}/{name} for {audiences}")
        }
    }
}

/// All roles in a plan, in the order in which they are assumed.
fn roles(plan: &Plan) -> impl Iterator<Item = &Role> {
    let first = match &plan.root {
        Root::ServiceAccount(account) => Some(&account.role),
        Root::Controller | Root::Static(_) => None,
    };
    first.into_iter().chain(&plan.roles)
}

fn session(role: &Role) -> String {
    let duration = humantime::format_duration(role.duration);
    let mut text = format!("{}, session {}, {duration}", role.arn, role.session_name);
    if role.external_id.is_some() {
        text.push_str(", with an external ID");
    }
    if role.inline_policy.is_some() || !role.policy_arns.is_empty() {
        text.push_str(", with session policies");
    }
    text
}

/// The account that the controller first recorded for the Cluster.
fn first_account(explained: &Explained) -> Option<&str> {
    let authentication = explained.authentication.as_ref()?;
    let annotations = authentication.metadata.annotations.as_ref()?;
    annotations.get(AWS_ACCOUNT_ANNOTATION).map(String::as_str)
}

/// The account in the plan. If the plan has no account, the account that AWS reported to the controller.
fn account(explained: &Explained) -> Option<&str> {
    let plan = explained.explanation.plan.as_ref().ok()?;
    plan.account().or_else(|| first_account(explained))
}

fn outcome(explained: &Explained) -> Outcome {
    if let Some(error) = &explained.unread {
        return Outcome {
            reason: "Unknown",
            message: error_chain(error),
        };
    }
    let plan = explained.explanation.plan.clone();
    let checked = plan.and_then(|plan| {
        let (first, now) = (first_account(explained), plan.account());
        match first.zip(now).filter(|(first, now)| first != now) {
            None => Ok(plan),
            Some((first, now)) => Err(ResolutionError::AccountMismatch(
                AccountMismatch::OfCluster {
                    pinned: first.to_owned(),
                    resolved: now.to_owned(),
                },
            )),
        }
    });
    match checked {
        Ok(_) if explained.explanation.decided_by == DecidedBy::Fallback => Outcome {
            reason: conditions::reason::CONTROLLER_IDENTITY,
            message: "no object specifies an AWS identity".to_owned(),
        },
        Ok(_) => Outcome {
            reason: conditions::reason::RESOLVED,
            message: String::new(),
        },
        Err(error) => Outcome {
            reason: error.reason(),
            message: error.to_string(),
        },
    }
}

/// The status, reason and message of a condition.
fn stored_condition<'a>(
    authentication: &'a KubeletAuthentication,
    condition: &str,
) -> Option<(&'a str, &'a str, &'a str)> {
    let status = authentication.status.as_ref()?;
    let found = conditions::find(&status.conditions, condition)?;
    Some((&found.status, &found.reason, &found.message))
}

/// The message that the result differs from the controller's condition, with the possible causes. `None` if they do not
/// differ.
fn difference(explained: &Explained, reason: &str) -> Option<String> {
    let authentication = explained.authentication.as_ref()?;
    let (status, theirs, _) = stored_condition(authentication, AWS_IDENTITY_RESOLVED)?;
    let is_other = status != "Unknown" && theirs != reason && explained.unread.is_none();
    is_other.then(|| {
        "the controller's condition differs from this result: the controller runs with different options, or has not \
         read the last change yet"
            .to_owned()
    })
}

fn joined(reason: &str, message: &str) -> String {
    if message.is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}: {message}")
    }
}
