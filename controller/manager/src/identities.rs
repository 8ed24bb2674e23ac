//! `identities`: shows, resets and revokes records.

mod floor;
mod selected;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::NodeIdentity;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::client::CallError;
use node_attestation_runtime::clock::now;
use node_attestation_runtime::identities::{
    Changed, Identities, IdentitiesError, IdentityChange, NamedNodes, Restored,
};
use serde::Serialize;

use selected::names_of;

use crate::error::{BoxError, Hinted};
use crate::query::{Confirmation, Format, QueryOptions, aligned};

#[derive(Debug, Args)]
pub(crate) struct IdentitiesCommand {
    #[command(subcommand)]
    act: Act,
    #[command(flatten)]
    options: QueryOptions,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List node identities
    List {
        /// Only node identities of this Cluster
        #[arg(long, value_name = "NAME")]
        cluster: Option<String>,
    },
    /// Show one node identity
    Show(Whose),
    /// Allow another key or machine to claim a node name: the next valid claim for the name opens a new generation
    Reset(Reset),
    /// Revoke the certificates of a node: the workload cluster refuses the node's writes, and the machine does not get
    /// a certificate until `reset --revoked`
    Revoke(Revoke),
    /// Reset the node identities whose nodes presented certificates of later generations with evidence, and recreate
    /// lost node identities of nodes without evidence. Use this command after you restore a backup of the management
    /// cluster, and repeat it until all nodes have renewed
    Restored {
        /// The Cluster
        cluster: String,
        /// Also reset these nodes, which have no evidence and whose machines you know. The command creates missing node
        /// identities
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
        /// Also reset the nodes without evidence whose Machines have these labels
        #[arg(short = 'l', long, value_name = "LABELS", value_parser = NonEmptyStringValueParser::new())]
        selector: Option<String>,
        /// Print the effect without making a change
        #[arg(long)]
        dry_run: bool,
    },
    /// Refuse all certificates of a Cluster that were issued before a given time. Use this command if the list of
    /// revoked certificates was lost because both clusters were restored from backups. The time can only increase. Nodes
    /// rejoin with a bootstrap token and their evidence
    Floor {
        /// The Cluster
        cluster: String,
        /// The time, in RFC 3339. Default: the time of the change on the API server
        #[arg(long, value_name = "TIME")]
        before: Option<String>,
        #[command(flatten)]
        confirmation: Confirmation,
    },
}

#[derive(Debug, Args)]
struct Reset {
    #[command(flatten)]
    target: Target,
    /// Also reset a node whose certificates are revoked: its machine can join again
    #[arg(long)]
    revoked: bool,
    /// Provider ID of the machine that can join again, if its node identity was deleted
    #[arg(
        long,
        value_name = "ID",
        requires = "revoked",
        conflicts_with = "selector"
    )]
    provider_id: Option<String>,
    #[command(flatten)]
    confirmation: Confirmation,
}

#[derive(Debug, Args)]
struct Revoke {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    confirmation: Confirmation,
}

#[derive(Debug, Args)]
struct Target {
    /// The Cluster
    cluster: String,
    /// The name of the Node
    #[arg(required_unless_present = "selector", conflicts_with = "selector")]
    node: Option<String>,
    /// All nodes whose Machines have these labels, instead of one node
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = NonEmptyStringValueParser::new())]
    selector: Option<String>,
}

#[derive(Debug, Args)]
struct Whose {
    /// The Cluster
    cluster: String,
    /// The name of the Node
    node: String,
}

impl Act {
    /// The labels in a command for several nodes, with the change that the command makes.
    fn selected(&self) -> Option<(&Target, &str, IdentityChange, &Confirmation)> {
        let (target, change, confirmation) = match self {
            Self::Reset(reset) => {
                let revoked = reset.revoked;
                (
                    &reset.target,
                    IdentityChange::Reset { revoked },
                    &reset.confirmation,
                )
            }
            Self::Revoke(revoke) => (&revoke.target, IdentityChange::Revoke, &revoke.confirmation),
            Self::List { .. } | Self::Show(_) | Self::Restored { .. } | Self::Floor { .. } => {
                return None;
            }
        };
        Some((target, target.selector.as_deref()?, change, confirmation))
    }
}

/// Runs the command, and returns its output and the node identities that it could not change.
pub(crate) async fn run(command: IdentitiesCommand) -> Result<(String, Vec<String>), BoxError> {
    Box::pin(output_of(command)).await.map_err(hinted)
}

/// Adds a hint if an incorrect name caused the error.
fn hinted(error: BoxError) -> BoxError {
    let hint = match error.downcast_ref() {
        Some(IdentitiesError::NotFound { namespace, .. }) => format!(
            "list the node identities: node-attestation-controller identities list -n {namespace}"
        ),
        Some(IdentitiesError::NoAuthentication(_)) => {
            "list the Clusters: node-attestation-controller clusters".to_owned()
        }
        Some(_) | None => return error,
    };
    Hinted::new(error, hint).into()
}

async fn output_of(command: IdentitiesCommand) -> Result<(String, Vec<String>), BoxError> {
    let IdentitiesCommand { act, options } = command;
    match &act {
        Act::Reset(Reset { confirmation, .. })
        | Act::Revoke(Revoke { confirmation, .. })
        | Act::Floor { confirmation, .. } => confirmation.check()?,
        Act::List { .. } | Act::Show(_) | Act::Restored { .. } => {}
    }
    let access = options.access().await?;
    let identities = Identities::new(&access);
    let of = options.namespace_of(&access);
    let QueryOptions {
        namespace, output, ..
    } = options;
    if let Some((target, labels, change, confirmation)) = act.selected() {
        let cluster = ObjectKey::new(of, &target.cluster);
        let (of_cluster, how) = ((&cluster, labels), (confirmation, output));
        return Box::pin(selected::change(&identities, of_cluster, change, how)).await;
    }
    let mut errors = Vec::new();
    let text = match &act {
        Act::List { cluster } => {
            let all = identities
                .list(namespace.as_deref(), cluster.as_deref())
                .await?;
            output.print(&all, || table(&all))
        }
        Act::Show(Whose { cluster, node }) => {
            let found = identities.of_node(&of, cluster, node).await?;
            output.print(&found, || shown(&found))
        }
        Act::Reset(reset) => {
            let changed = match Box::pin(reset_of(&identities, reset, of)).await? {
                Ok(changed) => changed,
                Err(unchanged) => return Ok((unchanged.print(output)?, errors)),
            };
            let identity = &changed.identity;
            output.print(identity, || {
                let text = said_of_reset(identity);
                with_warning(text, changed.event_error.as_ref())
            })
        }
        Act::Revoke(Revoke {
            target: Target { cluster, node, .. },
            confirmation,
        }) => {
            let node = node.as_deref().unwrap_or_default();
            let found = identities.of_node(&of, cluster, node).await?;
            let key = ObjectKey::new(of.as_str(), cluster);
            let is_listed = identities.has_authentication(&key).await;
            if !confirmation.ask(&effect_of_revocation(&found, is_listed))? {
                return Ok((unchanged(output, &found)?, errors));
            }
            let changed =
                Box::pin(identities.change(&found, IdentityChange::Revoke, now())).await?;
            let identity = &changed.identity;
            output.print(identity, || {
                let text = said_of_revocation(identity, &of, is_listed);
                with_warning(text, changed.event_error.as_ref())
            })
        }
        Act::Restored {
            cluster,
            nodes,
            selector,
            dry_run,
        } => {
            let cluster = ObjectKey::new(of, cluster);
            let named = NamedNodes {
                nodes: nodes.iter().cloned().collect(),
                selector: selector.clone(),
            };
            let restored = identities.restored(&cluster, &named, *dry_run, now());
            let restored = Box::pin(restored).await?;
            let failed = restored.failed.iter();
            let failed = failed.map(|(node, error)| format!("node {node}: {}", error_chain(error)));
            errors.extend(failed);
            let changed = [restored.reset.as_slice(), &restored.recreated].concat();
            output.print(&changed, || said_of_restored(&restored, *dry_run))
        }
        Act::Floor {
            cluster,
            before,
            confirmation,
        } => {
            let (cluster, before) = (ObjectKey::new(of, cluster), before.as_deref());
            floor::raise(&identities, &cluster, before, (confirmation, output)).await
        }
    };
    Ok((text?, errors))
}

const RELEASED: &str =
    "The machine can claim node names again. It has no node identity to reset.\n";

const UNCHANGED: &str = "Nothing was changed.\n";

/// Returns the output of a command that did not change any record. The output contains the unchanged records, in the
/// same format as for changed records, or a message.
fn unchanged(output: Format, found: &impl Serialize) -> Result<String, BoxError> {
    output.print(found, || UNCHANGED.to_owned())
}

/// The result of a reset that did not change any record.
struct Unchanged {
    /// The record. `None` if the record does not exist.
    identity: Option<Box<NodeIdentity>>,
    text: &'static str,
}

impl Unchanged {
    fn print(&self, output: Format) -> Result<String, BoxError> {
        output.print(&self.identity, || self.text.to_owned())
    }
}

/// Only the machine was released.
const ONLY_RELEASED: Unchanged = Unchanged {
    identity: None,
    text: RELEASED,
};

/// Resets the record. Returns [`Unchanged`] if the record does not exist, so only its machine was released, or if there
/// was nothing to change.
async fn reset_of(
    identities: &Identities,
    reset: &Reset,
    namespace: String,
) -> Result<Result<Changed, Unchanged>, BoxError> {
    let Reset {
        target: Target { cluster, node, .. },
        revoked,
        provider_id,
        confirmation,
    } = reset;
    let node = node.as_deref().unwrap_or_default();
    let found = identities.of_node(&namespace, cluster, node).await;
    let found = match (found, provider_id) {
        (Err(IdentitiesError::NotFound { .. }), Some(_)) => None,
        (found, _) => Some(found?),
    };
    if !confirmation.ask(&effect_of_reset(node, *revoked))? {
        return Ok(Err(Unchanged {
            identity: found.map(Box::new),
            text: UNCHANGED,
        }));
    }
    if let (Some(found), None) = (&found, provider_id) {
        let reset = IdentityChange::Reset { revoked: *revoked };
        let changed = Box::pin(identities.change(found, reset, now())).await?;
        return Ok(Ok(changed));
    }
    let machine = ProviderId::parse(provider_id.as_deref().unwrap_or_default())?;
    let key = ObjectKey::new(namespace, cluster);
    let released = identities.release(&key, machine, found.as_ref(), now());
    released.await?;
    match found {
        Some(found) => Ok(Ok(identities.reset_revoked(&found, now()).await?)),
        None => Ok(Err(ONLY_RELEASED)),
    }
}

fn effect_of_reset(node: &str, is_revoked: bool) -> String {
    let revoked = if is_revoked {
        " After the reset, the revoked machine can join again."
    } else {
        ""
    };
    format!(
        "Resets node {node}: the next valid claim for this name opens a new generation, even with another key or from \
         another machine.{revoked}"
    )
}

fn said_of_reset(identity: &NodeIdentity) -> String {
    let (generation, node) = (identity.spec.generation, &identity.spec.node_name);
    format!(
        "The next valid claim for node {node} opens a new generation. The certificates of generation {generation} \
         remain valid until then, unless they are revoked."
    )
}

/// The effect of a revocation. Without a revocation list, the workload cluster accepts the current certificate.
fn effect_of_revocation(identity: &NodeIdentity, is_listed: bool) -> String {
    let spec = &identity.spec;
    let (generation, node, machine) = (spec.generation, &spec.node_name, &spec.provider_id);
    let effect = if is_listed {
        "the workload cluster refuses every write with the revoked certificates, the Node becomes NotReady, and the \
         machine does not get a certificate."
    } else {
        "the machine does not get another certificate. The workload cluster accepts the current certificate until it \
         expires, because no KubeletAuthentication exists."
    };
    format!("Revokes generation {generation} of node {node} on machine {machine}: {effect}")
}

fn said_of_revocation(identity: &NodeIdentity, namespace: &str, is_listed: bool) -> String {
    let spec = &identity.spec;
    let (generation, node, cluster) = (spec.generation, &spec.node_name, &spec.cluster_name);
    if !is_listed {
        return format!(
            "Revoked generation {generation} of node {node}. The node cannot renew its certificate or get a serving \
             certificate. The workload cluster accepts the current certificate until it expires, because no \
             KubeletAuthentication exists."
        );
    }
    format!(
        "Revoked generation {generation} of node {node}. Within seconds, the workload cluster refuses every write with \
         the revoked certificates, and the Node becomes NotReady. The node cannot renew its certificate or get a \
         serving certificate. The node keeps its read access until its certificate expires. To allow the machine to \
         join again: node-attestation-controller identities reset --revoked --yes {cluster} {node} -n {namespace}"
    )
}

fn said_of_restored(restored: &Restored, is_rehearsal: bool) -> String {
    let text = format!(
        "{} {} node identities: {}. {} {} lost node identities: {}. {} live node identities are unchanged: their \
         nodes can renew, or have not presented a certificate of a later generation yet. A node presents such a \
         certificate at its next renewal.",
        if is_rehearsal { "Would reset" } else { "Reset" },
        restored.reset.len(),
        names_of(&restored.reset),
        if is_rehearsal {
            "Would recreate"
        } else {
            "Recreated"
        },
        restored.recreated.len(),
        names_of(&restored.recreated),
        restored.unchanged,
    );
    with_warning(text, restored.event_error.as_ref())
}

fn with_warning(mut text: String, event_error: Option<&CallError>) -> String {
    if let Some(error) = event_error {
        text += "\nwarning: cannot write the Event with your user name: ";
        text += &error_chain(error);
        text.push('.');
    }
    text + "\n"
}

/// The state of a record, in one word.
fn state(identity: &NodeIdentity) -> &'static str {
    let spec = &identity.spec;
    let revoked = spec.revoked.as_ref();
    if spec.tombstone.is_some() {
        "Retired"
    } else if revoked.is_some_and(|revoked| revoked.generation >= spec.generation) {
        "Revoked"
    } else {
        "Live"
    }
}

fn expires(identity: &NodeIdentity) -> String {
    let status = identity.status.as_ref();
    let last = status.and_then(|status| status.not_after.as_ref());
    last.unwrap_or(&identity.spec.not_after).0.to_string()
}

fn table(identities: &[NodeIdentity]) -> String {
    let mut rows = vec![
        [
            "NAMESPACE",
            "CLUSTER",
            "NODE",
            "STATE",
            "GENERATION",
            "ATTESTOR",
            "PROVIDER ID",
            "EXPIRES",
        ]
        .map(str::to_owned),
    ];
    rows.extend(identities.iter().map(|identity| {
        let spec = &identity.spec;
        [
            identity.metadata.namespace.clone().unwrap_or_default(),
            spec.cluster_name.clone(),
            spec.node_name.clone(),
            state(identity).to_owned(),
            spec.generation.to_string(),
            spec.attestor.clone(),
            spec.provider_id.clone(),
            expires(identity),
        ]
    }));
    aligned(&rows)
}

fn shown(identity: &NodeIdentity) -> String {
    let spec = &identity.spec;
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let status = identity.status.as_ref();
    let last_renewal = status.and_then(|status| status.last_renewal.as_ref());
    let rows = [
        ("Node", spec.node_name.clone()),
        ("Cluster", spec.cluster_name.clone()),
        ("State", state(identity).to_owned()),
        ("Provider ID", spec.provider_id.clone()),
        ("Attestor", spec.attestor.clone()),
        ("Machine", text(spec.machine_name.clone())),
        ("Instance", text(spec.instance.clone())),
        (
            "Certificate UID",
            format!("{}.{}", spec.uid, spec.generation),
        ),
        ("Opened", spec.opened.time.0.to_string()),
        ("By request", spec.opened.request_name.clone()),
        (
            "Last renewal",
            text(last_renewal.map(|time| time.0.to_string())),
        ),
        ("Expires", expires(identity)),
    ]
    .map(|(name, value)| [format!("{name}:"), value]);
    aligned(&rows)
}

#[cfg(test)]
mod tests;
